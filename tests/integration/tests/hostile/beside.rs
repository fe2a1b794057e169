//! One misbehaving plugin beside a good one, and what must hold whatever it does.
//!
//! Holds: the one scenario. Never knows: which program it is about.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walgate_harness::{Walgate, wait_until};

use crate::scene::{SOON, Scene, shop_manifest};

/// In every row; must show nowhere.
pub(super) const CANARY: &str = "secret-canary";

/// A misbehaving plugin and what it is granted.
pub(super) struct Hostile {
    program: &'static str,
    capabilities: &'static str,
    has_output: bool,
    settings: String,
    limits: String,
}

/// How it has to end.
pub(super) enum End<'a> {
    /// It is not loaded; the cause has these words.
    Rejected(&'a str),
    /// It is parked; the cause has these words.
    Parked(&'a str),
    /// It goes on and takes the rows.
    Runs,
    /// It goes on and takes nothing: all of it is in the dead letters.
    SetsAside,
}

/// What was seen.
pub(super) struct Seen {
    pub(super) scene: Scene,
    /// The page of the misbehaving plugin in the status.
    pub(super) plugin: Value,
    pub(super) metrics: String,
    /// Everything walgate said, to its end.
    pub(super) said: String,
}

impl Hostile {
    pub(super) fn new(program: &'static str) -> Self {
        let (settings, limits) = (String::new(), String::new());
        Self { program, capabilities: "", has_output: false, settings, limits }
    }

    /// A setting of the program.
    pub(super) fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings += &format!("{name} = \"{value}\"\n");
        self
    }

    /// The same for the setting that most of them have.
    pub(super) fn at(self, place: &str) -> Self {
        self.setting("where", place)
    }

    /// Words of the list in plugin.toml.
    pub(super) fn granted(mut self, capabilities: &'static str) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The output `lines`, into the file `bad.txt`.
    pub(super) fn with_output(mut self) -> Self {
        self.has_output = true;
        self
    }

    /// A key of `[limits]`.
    pub(super) fn limit(mut self, key: &str, value: u64) -> Self {
        self.limits += &format!("{key} = {value}\n");
        self
    }

    /// Calls end after a second.
    pub(super) fn impatient(self) -> Self {
        self.limit("call_deadline_ms", 1_000)
    }

    /// Its plugin.toml. It holds nothing back, so that the acknowledgement tells of the others.
    pub(super) fn manifest(&self, scene: &Scene) -> String {
        let optional = shop_manifest("park", 2).replace("required = true", "required = false\nbackoff_ms = 10");
        let output = match self.has_output {
            true => format!("[grant.output.lines]\nkind = \"file\"\npath = \"{}\"\n", scene.path("bad.txt").display()),
            false => String::new(),
        };
        let Self { capabilities, settings, limits, .. } = self;
        let memory = if limits.contains("memory_mib") { "" } else { "memory_mib = 64\n" };
        format!(
            "{optional}[grant]\ncapabilities = [{capabilities}]\n{output}[settings]\n{settings}[limits]\n{memory}{limits}"
        )
    }

    /// Runs it beside a good plugin: rows come, it does what it does, more rows come, and the good plugin has them all, the
    /// slot is confirmed beyond them, a stop is clean, and no value was shown.
    pub(super) async fn ends(self, major: u32, end: End<'_>) -> Result<Seen> {
        let scene = Scene::new(major).await?;
        scene.lines_plugin("good")?;
        scene.plugin("bad", self.program, &self.manifest(&scene))?;
        scene.create_slot()?;
        let mut walgate = scene.start()?;
        walgate.wait_line("streaming", SOON).await?;
        scene
            .execute(&format!("INSERT INTO orders SELECT g, g, '{CANARY}-' || g FROM generate_series(1, 100) g"))
            .await?;
        scene.wait_lines("good.txt", 100).await?;
        let page = settled(&scene, &walgate, &end).await?;
        ensure!(page["plugins"]["good"]["state"] == "running", "{page}");
        scene.execute(&format!("INSERT INTO orders VALUES (0, 0, '{CANARY}-after')")).await?;
        scene.wait_lines("good.txt", 101).await?;
        scene.wait_confirmed().await?;
        ensure!(walgate.get("/healthz").await?.status == 200, "the process is not healthy");
        let metrics = walgate.get("/metrics").await?.body;
        let page = settled(&scene, &walgate, &end).await?;
        let plugin = page["plugins"]["bad"].clone();
        walgate.sigterm()?;
        let code = walgate.wait_exit(SOON).await?.code();
        let said = walgate.stdout() + &walgate.stderr();
        ensure!(code == Some(0), "exit {code:?}: {said}");
        ensure!(!(page.to_string() + &metrics + &said).contains(CANARY), "a value of a row was shown");
        Ok(Seen { scene, plugin, metrics, said })
    }
}

/// Waits until the plugin has come to its end, and answers the status.
async fn settled(scene: &Scene, walgate: &Walgate, end: &End<'_>) -> Result<Value> {
    let mut page = Value::Null;
    let has_come = async || {
        page = scene.status(walgate).await?;
        let plugin = &page["plugins"]["bad"];
        let says = |state: &str, words: &str| {
            plugin["state"] == state && plugin["cause"].as_str().is_some_and(|cause| cause.contains(words))
        };
        Ok(match end {
            End::Rejected(words) => says("rejected", words),
            End::Parked(words) => says("parked", words),
            End::Runs => plugin["state"] == "running" && plugin["rows"].as_u64() >= Some(100),
            End::SetsAside => plugin["state"] == "running" && plugin["dead_letters"].as_u64() > Some(0),
        })
    };
    let outcome = wait_until(SOON, "the misbehaving plugin to come to its end", has_come).await;
    outcome.with_context(|| page.to_string())?;
    Ok(page)
}

impl Seen {
    /// The value of a series of the misbehaving plugin; 0 when there is none.
    pub(super) fn metric(&self, name: &str) -> u64 {
        let starts = format!("{name}{{");
        let of_it = |line: &&str| line.starts_with(&starts) && line.contains("plugin=\"bad\"");
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
        self.metrics.lines().filter(of_it).filter_map(value).sum()
    }

    /// Fails unless walgate said it.
    pub(super) fn says(&self, words: &str) -> Result<()> {
        ensure!(self.said.contains(words), "no {words:?} in: {}", self.said);
        Ok(())
    }
}
