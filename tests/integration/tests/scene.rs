//! A cluster with a small shop, a plugin directory and a configuration: the start of every test.
//!
//! Holds: what a test sets up and asks. Never knows: what is being tested.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use walgate_harness::{Cluster, Walgate, free_port, guest, wait_until, walgate_bin};

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const SOON: Duration = Duration::from_secs(60);

const SHOP: &str = "
    CREATE TABLE customers (id int PRIMARY KEY, name text, email text, phone text);
    CREATE TABLE orders (id bigint PRIMARY KEY, customer int, note text);
    CREATE PUBLICATION shop FOR TABLE customers, orders;";

/// One scene. Dropping it removes everything.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) dir: TempDir,
    pub(crate) api: SocketAddr,
    source: String,
    plugins: String,
    extra: String,
}

impl Scene {
    /// A cluster of that major with the shop in it, and no plugin yet.
    pub(crate) async fn new(major: u32) -> Result<Self> {
        Self::with(Cluster::start(major)?).await
    }

    /// The same on a cluster of the test's own making.
    pub(crate) async fn with(cluster: Cluster) -> Result<Self> {
        cluster.execute("postgres", SHOP).await?;
        Self::bare(cluster)
    }

    /// Without the shop.
    pub(crate) fn bare(cluster: Cluster) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("wg-scene-").tempdir()?;
        std::fs::create_dir(dir.path().join("plugins"))?;
        let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let source =
            format!("[source]\nurl = \"{}\"\nslot = \"walgate\"\npublications = [\"shop\"]\n", cluster.url("postgres"));
        let scene = Self { cluster, dir, api, source, plugins: String::new(), extra: String::new() };
        scene.write_config()?;
        Ok(scene)
    }

    /// Replaces the source section.
    pub(crate) fn source(&mut self, section: &str) -> Result<()> {
        section.clone_into(&mut self.source);
        self.write_config()
    }

    /// Adds sections to the configuration.
    pub(crate) fn configure(&mut self, sections: &str) -> Result<()> {
        self.extra = format!("{sections}\n");
        self.write_config()
    }

    /// Adds keys to the section of plugins.
    pub(crate) fn plugins(&mut self, keys: &str) -> Result<()> {
        keys.clone_into(&mut self.plugins);
        self.write_config()
    }

    fn write_config(&self) -> Result<()> {
        let text = format!(
            "{}\n[plugins]\ndir = \"plugins\"\ncache_dir = \"cache\"\n{}\n[api]\nlisten = \"{}\"\n{}",
            self.source, self.plugins, self.api, self.extra
        );
        Ok(std::fs::write(self.config(), text)?)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("walgate.toml")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a built guest into the plugin directory with that plugin.toml.
    pub(crate) fn plugin(&self, name: &str, guest_name: &str, manifest: &str) -> Result<()> {
        self.plugin_bytes(name, &std::fs::read(guest(guest_name)?)?, manifest)
    }

    /// The same with any bytes. Each file is renamed into place, as operators should.
    pub(crate) fn plugin_bytes(&self, name: &str, component: &[u8], manifest: &str) -> Result<()> {
        let folder = self.path("plugins").join(name);
        std::fs::create_dir_all(&folder)?;
        for (file, bytes) in [("plugin.wasm", component), ("plugin.toml", manifest.as_bytes())] {
            let half = folder.join(format!("{file}.tmp"));
            std::fs::write(&half, bytes)?;
            std::fs::rename(half, folder.join(file))?;
        }
        Ok(())
    }

    /// `output-lines` under a name, with everything granted but what customers want kept private.
    pub(crate) fn lines_plugin(&self, name: &str) -> Result<()> {
        self.plugin(name, "output-lines", &lines_manifest(&self.path(&format!("{name}.txt"))))
    }

    /// Runs a command of the binary to its end.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Result<Answer> {
        let output =
            std::process::Command::new(walgate_bin()?).arg("--config").arg(self.config()).args(arguments).output()?;
        Ok(Answer(output))
    }

    /// Starts `walgate run` and waits until it is ready.
    pub(crate) async fn run(&self) -> Result<Walgate> {
        let mut walgate = self.start()?;
        walgate.wait_ready(SOON).await?;
        Ok(walgate)
    }

    /// Starts `walgate run`.
    pub(crate) fn start(&self) -> Result<Walgate> {
        Walgate::run(&self.config(), self.api)
    }

    /// Creates the slot, as an operator does.
    pub(crate) fn create_slot(&self) -> Result<()> {
        self.cli(&["slot", "create"])?.expect(0, "created")
    }

    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        self.cluster.execute("postgres", sql).await
    }

    /// One text the server answers.
    pub(crate) async fn ask(&self, sql: &str) -> Result<String> {
        let client = self.cluster.client("postgres").await?;
        let rows = client.simple_query(sql).await?;
        let row = rows.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("").to_owned()),
            _ => None,
        });
        row.context("the server answered no row")
    }

    /// The lines of a file of the scene; none when there is no file yet.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        std::fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until a file of the scene has that many lines, and no more a moment later is the test's own affair.
    pub(crate) async fn wait_lines(&self, name: &str, count: usize) -> Result<Vec<String>> {
        wait_until(SOON, &format!("{count} lines in {name}"), async || Ok(self.lines(name).len() >= count)).await?;
        let lines = self.lines(name);
        ensure!(lines.len() == count, "{name} has {} lines instead of {count}", lines.len());
        Ok(lines)
    }

    /// `/status` as JSON.
    pub(crate) async fn status(&self, walgate: &Walgate) -> Result<Value> {
        Ok(serde_json::from_str(&walgate.get("/status").await?.body)?)
    }

    /// Waits until the plugin is in that state.
    pub(crate) async fn wait_plugin(&self, walgate: &Walgate, name: &str, state: &str) -> Result<()> {
        let pointer = format!("/plugins/{name}/state");
        wait_until(SOON, &format!("plugin {name} {state}"), async || {
            Ok(self.status(walgate).await?.pointer(&pointer).and_then(Value::as_str) == Some(state))
        })
        .await
    }

    /// Takes the folder of a plugin away while another one goes on, and puts it back: the plugin halts with its gap, after it
    /// was said in time that nothing is kept for it.
    pub(crate) async fn miss_a_while(&self, plugin: &str) -> Result<()> {
        // A quiet end leaves a position of its own behind the acknowledged one, which is no gap.
        for _ in 0..2 {
            let mut walgate = self.run().await?;
            self.ask("SELECT pg_logical_emit_message(true, 'nobody', 'x')::text").await?;
            self.wait_confirmed().await?;
            self.stop(&mut walgate).await?;
        }
        let (folder, away) = (self.path("plugins").join(plugin), self.path("away"));
        std::fs::rename(&folder, &away)?;
        self.lines_plugin("goes-on")?;
        let mut walgate = self.run().await?;
        self.wait_confirmed().await?;
        self.stop(&mut walgate).await?;
        let said = walgate.stderr();
        ensure!(said.contains("its folder is gone") && said.contains(plugin), "{said}");
        std::fs::rename(&away, &folder)?;
        // What keeps its own position may have everything, which only opening it tells.
        self.cli(&["check"])?.expect(3, "it was away while others went on")?;
        expect_end(&mut self.start()?, 3, &["data_gap(plugin_behind)", plugin]).await
    }

    async fn stop(&self, walgate: &mut Walgate) -> Result<()> {
        walgate.sigterm()?;
        walgate.wait_exit(SOON).await.map(drop)
    }

    /// Waits until the slot is confirmed beyond everything written so far.
    pub(crate) async fn wait_confirmed(&self) -> Result<()> {
        // One MiB of log is when a quiet stream is followed; a committed change is followed at once.
        let end = self.ask("SELECT pg_current_wal_lsn()").await?;
        self.execute("INSERT INTO orders VALUES (-1, 0, 'sentinel'); DELETE FROM orders WHERE id = -1").await?;
        let sql =
            format!("SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'walgate'");
        wait_until(SOON, "the slot to be confirmed", async || Ok(self.ask(&sql).await? == "t")).await
    }
}

/// A plugin.toml for `output-lines`.
pub(crate) fn lines_manifest(file: &Path) -> String {
    format!("{}\n[grant.output.lines]\nkind = \"file\"\npath = \"{}\"\n", shop_manifest("halt", 5), file.display())
}

/// A plugin.toml that grants the shop without private columns.
pub(crate) fn shop_manifest(on_failure: &str, max_attempts: u32) -> String {
    format!(
        "[plugin]\nrequired = true\non_failure = \"{on_failure}\"\nmax_attempts = {max_attempts}\n\
         [[grant.table]]\nschema = \"public\"\nname = \"customers\"\ncolumns = [\"id\", \"name\"]\n\
         [[grant.table]]\nschema = \"public\"\nname = \"orders\"\ncolumns = \"*\"\n"
    )
}

/// What a finished command said.
pub(crate) struct Answer(Output);

impl Answer {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn all(&self) -> String {
        self.stdout() + &String::from_utf8_lossy(&self.0.stderr)
    }

    /// Fails unless it ended with that code and said those words.
    pub(crate) fn expect(&self, code: i32, words: &str) -> Result<()> {
        let all = self.all();
        ensure!(self.0.status.code() == Some(code), "exit {:?} instead of {code}: {all}", self.0.status.code());
        ensure!(all.contains(words), "no {words:?} in: {all}");
        Ok(())
    }
}

/// Waits for the end of a process that halts, and checks code and words.
pub(crate) async fn expect_end(walgate: &mut Walgate, code: i32, words: &[&str]) -> Result<()> {
    let status = walgate.wait_exit(SOON).await?;
    let said = walgate.stderr();
    ensure!(status.code() == Some(code), "exit {:?} instead of {code}: {said}", status.code());
    for word in words {
        ensure!(said.contains(word), "no {word:?} in: {said}");
    }
    Ok(())
}
