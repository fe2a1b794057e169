//! Everything walgate says, and the search through it.
//!
//! Holds: the commands, the pages of the API, the logs, the tables of the state database, the files and their names. What
//! may hold rows by design is left out here and nowhere else: the image of a dead letter, the state of a plugin, and the
//! files that a test names. Never knows: what was done to walgate.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use walgate_harness::{Needles, Walgate};

use crate::scene::{SOON, Scene};

/// Settings and passwords are in these; everyone else's content is looked at.
const WRITTEN_BY_THE_TEST: [&str; 4] = ["plugin.toml", "walgate.toml", "password", "plugin.wasm"];

/// A scene under watch.
pub(super) struct Watched {
    pub(super) scene: Scene,
    needles: Needles,
    /// Files that hold rows because they were granted as outputs.
    outputs: Vec<String>,
    starts: u32,
    sections: String,
}

impl Watched {
    pub(super) fn new(scene: Scene) -> Result<Self> {
        Ok(Self::looking_for(super::hostile::needles()?, scene))
    }

    /// The same with values of the test's own.
    pub(super) fn looking_for(needles: Needles, scene: Scene) -> Self {
        Self { scene, needles, outputs: Vec::new(), starts: 0, sections: String::new() }
    }

    /// Says that this file of the scene may hold rows.
    pub(super) fn output(mut self, name: &str) -> Self {
        self.outputs.push(name.to_owned());
        self
    }

    /// Adds sections to the configuration, from the next start on.
    pub(super) fn configure(&mut self, sections: &str) {
        sections.clone_into(&mut self.sections);
    }

    /// Starts `walgate run` with everything logged: as JSON and as text in turn.
    pub(super) fn start(&mut self) -> Result<Walgate> {
        let format = if self.starts.is_multiple_of(2) { "json" } else { "text" };
        self.starts += 1;
        let log = format!("[log]\nlevel = \"debug\"\nformat = \"{format}\"\n{}", self.sections);
        self.scene.configure(&log)?;
        self.scene.start()
    }

    /// How often it was started.
    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    /// Fails when a needle is in the bytes.
    pub(super) fn clean(&self, place: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        match self.needles.find(bytes.as_ref()) {
            Some(found) => anyhow::bail!("a value in {place}: {found}"),
            None => Ok(()),
        }
    }

    /// What a running process answers, and what the commands say beside it.
    pub(super) async fn running(&self, walgate: &Walgate) -> Result<()> {
        for path in ["/status", "/metrics", "/healthz", "/readyz", "/"] {
            self.clean(path, walgate.get(path).await?.body)?;
        }
        self.clean("standard error", walgate.stderr())?;
        self.commands()
    }

    /// Waits for the end of a process that halts, and looks at what it leaves.
    pub(super) async fn halted(&self, walgate: &mut Walgate, words: &str) -> Result<()> {
        let code = walgate.wait_exit(SOON).await?.code();
        let said = walgate.stderr();
        ensure!(code == Some(3) && said.contains(words), "exit {code:?} and no {words:?} in: {said}");
        self.left(walgate).await
    }

    /// Ends a process as an operator does, and looks at what it leaves.
    pub(super) async fn stopped(&self, walgate: &mut Walgate) -> Result<()> {
        walgate.sigterm()?;
        walgate.wait_exit(SOON).await?;
        self.left(walgate).await
    }

    /// What an ended process said and left behind, the short way: see [`Watched::everything`].
    pub(super) async fn left(&self, walgate: &Walgate) -> Result<()> {
        ensure!(walgate.stderr().lines().count() > 3, "a log that says nothing proves nothing: {}", walgate.stderr());
        self.clean("standard error", walgate.stderr())?;
        self.clean("standard output", walgate.stdout())?;
        for arguments in [&["status"][..], &["--json", "status"]] {
            self.clean("status", self.scene.cli(arguments)?.all())?;
        }
        self.tables().await
    }

    /// All commands, all tables, all files.
    pub(super) async fn everything(&self) -> Result<()> {
        self.commands()?;
        self.tables().await?;
        self.files(self.scene.dir.path())
    }

    /// Every command that changes nothing, for people and as JSON.
    fn commands(&self) -> Result<()> {
        let component = walgate_harness::guest("leak-everything")?;
        let component = component.to_str().context("a path that is no text")?;
        for command in [
            &["status"][..],
            &["check"],
            &["plugin", "list"],
            &["plugin", "inspect", component],
            &["slot", "list"],
            &["slot", "create"],
            &["explain"],
            &["explain", "rows_refused"],
            &["dead-letter", "list"],
        ] {
            self.both(command)?;
        }
        for id in self.letters()? {
            self.both(&["dead-letter", "show", &id.to_string()])?;
        }
        Ok(())
    }

    fn both(&self, command: &[&str]) -> Result<()> {
        let what = command.join(" ");
        let text = self.scene.cli(command)?.all();
        let json = self.scene.cli(&[&["--json"], command].concat())?.all();
        ensure!(!text.is_empty() && !json.is_empty(), "{what} says nothing");
        self.clean(&what, text)?;
        self.clean(&format!("--json {what}"), json)
    }

    /// The numbers of the letters that wait.
    pub(super) fn letters(&self) -> Result<Vec<i64>> {
        let answer = self.scene.cli(&["--json", "dead-letter", "list"])?;
        let list: serde_json::Value = serde_json::from_str(&answer.stdout()).with_context(|| answer.all())?;
        Ok(list["letters"].as_array().into_iter().flatten().filter_map(|letter| letter["id"].as_i64()).collect())
    }

    /// Every table of ours, as the server prints its rows.
    async fn tables(&self) -> Result<()> {
        let client = self.scene.cluster.client("postgres").await?;
        let names = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables
                     WHERE schemaname IN ('walgate', 'walgate_target') AND tablename <> 'plugin_state' ORDER BY 1";
        let tables = client.query(names, &[]).await?;
        ensure!(tables.len() > 5, "too few tables: {}", tables.len());
        for table in tables {
            let table: String = table.get(0);
            let content =
                format!("SELECT coalesce(string_agg((to_jsonb(t) - 'image')::text, E'\\n'), '') FROM {table} t");
            self.clean(&table, client.query_one(&content, &[]).await?.get::<_, String>(0))?;
        }
        Ok(())
    }

    /// Every file below a folder: its name, and its content unless the test wrote it or granted it.
    fn files(&self, folder: &Path) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            self.clean("the name of a file", name.as_bytes())?;
            let rows_may_be_here = WRITTEN_BY_THE_TEST.iter().any(|one| OsStr::new(one) == name)
                || self.outputs.iter().any(|one| OsStr::new(one) == name);
            if path.is_dir() {
                self.files(&path)?;
            } else if !rows_may_be_here {
                self.clean(&path.display().to_string(), std::fs::read(&path)?)?;
            }
        }
        Ok(())
    }
}
