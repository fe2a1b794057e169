//! walgate as an operator has it: a folder with configuration and plugins, commands, a running process, its answers.
//!
//! Holds: the files below one folder, and everything walgate printed or answered, saved beside them. Refuses to know the
//! shop beyond its grants.
//! Read next: `run.rs`.
//!
//! ```text
//! walgate.toml   plugins/NAME/{plugin.wasm,plugin.toml}   cache/   output/changes.ndjson   logs/   answers/   state/
//! ```

use std::fs::{self, DirBuilder};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use walgate_core::Lsn;
use walgate_harness::{Walgate, free_port, guest, wait_for};

use crate::report::Swap;
use crate::shop::{SLOT, TABLES};

/// A command that only asks; two plugins are compiled by the first of them.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// Loading plugins, connecting, and after a crash waiting until the server has noticed that the old process is gone.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// The drain time of the configuration is 30 s; the rest is for a busy machine.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Lines of a log that an error shows.
const TAIL_LINES: usize = 20;

/// The plugins, and what plugin.toml says of each beside its tables.
const PLUGINS: [(&str, &str); 2] = [
    ("counter-rust", "[grant]\ncapabilities = [\"metrics\", \"state\"]\n"),
    ("ndjson-rust", "[grant.output.changes]\nkind = \"file\"\npath = \"../../output/changes.ndjson\"\n"),
];

/// The folder and what runs in it.
pub(crate) struct Gate {
    folder: PathBuf,
    api: SocketAddr,
    process: Option<Walgate>,
    /// Numbers what is saved, so that nothing is overwritten.
    saved: u32,
}

impl Gate {
    /// Writes configuration and plugins.
    ///
    /// Fails when the guests are not built, with the command that builds them.
    pub(crate) fn lay_out(folder: &Path, source_url: &str) -> Result<Self> {
        // walgate loads code from its cache, so it insists that nobody else can write there; nobody else need read the rest.
        for name in ["cache", "output", "logs", "answers", "state"] {
            let made = DirBuilder::new().mode(0o700).create(folder.join(name));
            made.with_context(|| format!("cannot make the folder {name}"))?;
        }
        let api = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        write(&folder.join("walgate.toml"), &configuration(source_url, api))?;
        for (name, more) in PLUGINS {
            let home = folder.join("plugins").join(name);
            fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
            fs::copy(guest(name)?, home.join("plugin.wasm")).with_context(|| format!("cannot copy plugin {name}"))?;
            write(&home.join("plugin.toml"), &manifest(more))?;
        }
        Ok(Self { folder: folder.to_owned(), api, process: None, saved: 0 })
    }

    /// Runs a command that ends by itself and must succeed; saves and returns what it printed.
    pub(crate) async fn ask(&mut self, args: &[&str]) -> Result<String> {
        let name = args.join("-").replace("--", "");
        let line = args.join(" ");
        let command = Walgate::command().args(args).arg("--config").arg(self.configuration());
        let mut command = command.spawn()?;
        let status = command.wait_exit(COMMAND_DEADLINE).await.with_context(|| format!("walgate {line}"))?;
        let printed = command.stdout();
        self.save("answers", &format!("{name}.out"), &printed)?;
        self.save("answers", &format!("{name}.err"), &command.stderr())?;
        if !status.success() {
            bail!("walgate {line} ended with {status}\n{}", tail(&format!("{printed}{}", command.stderr())));
        }
        Ok(printed)
    }

    /// Starts `walgate run` and waits until it is ready.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let process = self.process.insert(Walgate::run(&self.folder.join("walgate.toml"), self.api)?);
        process.wait_ready(START_DEADLINE).await
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.running()?.sigkill()?;
        self.save_log()
    }

    /// Drops another build of `ndjson-rust` into the plugin directory, and waits until it has taken over.
    pub(crate) async fn swap(&mut self) -> Result<Swap> {
        const PLUGIN: &str = "ndjson-rust";
        let before = self.plugin(PLUGIN).await?;
        let home = self.folder.join("plugins").join(PLUGIN);
        let mut component = fs::read(guest(PLUGIN)?).context("cannot read the plugin")?;
        // A custom section more: the same code under another digest.
        component.extend(b"\x00\x07\x06second");
        let half = home.join("plugin.wasm.tmp");
        fs::write(&half, component)
            .and_then(|()| fs::rename(&half, home.join("plugin.wasm")))
            .context("cannot swap")?;
        let number = |plugin: &serde_json::Value, field: &str| plugin.get(field).and_then(serde_json::Value::as_u64);
        let generation = |plugin: &serde_json::Value| number(plugin, "generation").unwrap_or_default();
        wait_for(START_DEADLINE, "the new version takes over", async || {
            let now = self.plugin(PLUGIN).await?;
            if let Some(candidate) =
                now.get("candidate").and_then(|said| said.as_str()).filter(|candidate| candidate.contains(':'))
            {
                bail!("the new version does not run: {candidate}");
            }
            let pause = number(&now, "last_swap_pause_us").filter(|_| generation(&now) != generation(&before));
            Ok(pause.map(|pause| Swap {
                pause_ms: pause as f64 / 1000.0,
                from: generation(&before),
                to: generation(&now),
            }))
        })
        .await
    }

    /// What the running process says of a plugin.
    async fn plugin(&mut self, name: &str) -> Result<serde_json::Value> {
        let answer = self.running()?.get("/plugins").await?;
        let plugins: serde_json::Value = serde_json::from_str(&answer.body).context("GET /plugins answered no JSON")?;
        plugins.get(name).cloned().with_context(|| format!("GET /plugins does not name {name}"))
    }

    /// SIGTERM; the exit code must be 0.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let process = self.running()?;
        process.sigterm()?;
        let status = process.wait_exit(STOP_DEADLINE).await.context("walgate was asked to stop")?;
        if !status.success() {
            bail!("walgate was asked to stop and ended with {status}, not with 0");
        }
        self.save_log()
    }

    /// How the process ended, if it did; nothing runs any more then.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let ended = process.ended()?;
        if ended.is_some() {
            self.save_log()?;
        }
        Ok(ended)
    }

    /// Asks everything a running process answers, over HTTP and on the command line, and saves the answers.
    pub(crate) async fn interview(&mut self) -> Result<()> {
        for path in ["status", "plugins", "healthz", "readyz", "metrics"] {
            let answer = self.running()?.get(&format!("/{path}")).await?;
            if answer.status != 200 {
                bail!("GET /{path} answered {}", answer.status);
            }
            self.save("answers", path, &answer.body)?;
        }
        for args in [["status", "--json"].as_slice(), &["status"], &["plugin", "list"], &["slot", "list", "--json"]] {
            self.ask(args).await?;
        }
        Ok(())
    }

    /// What the running process says it has acknowledged.
    pub(crate) async fn acknowledged(&mut self) -> Result<Lsn> {
        let answer = self.running()?.get("/status").await?;
        let status: serde_json::Value = serde_json::from_str(&answer.body).context("GET /status answered no JSON")?;
        if let Some(halt) = status.pointer("/halt/name").and_then(serde_json::Value::as_str) {
            bail!("walgate has halted: {halt}");
        }
        let text = status.pointer("/positions/acknowledged").and_then(serde_json::Value::as_str);
        text.context("GET /status has no /positions/acknowledged")?.parse().context("/positions/acknowledged")
    }

    /// The error with the end of walgate's log, unless it shows that already.
    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let log = self.process.as_ref().map_or_else(|| self.last_log(), Walgate::stderr);
        if log.is_empty() || format!("{error:#}").contains("end of stderr") {
            return error;
        }
        anyhow!("{error:#}\nthe end of walgate's log:\n{}", tail(&log))
    }

    /// The lines of a log that matter most.
    pub(crate) fn last_words(&self) -> String {
        tail(&self.last_log())
    }

    /// The configuration file.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.folder.join("walgate.toml")
    }

    /// The file that `ndjson-rust` fills.
    pub(crate) fn output(&self) -> PathBuf {
        self.folder.join("output").join("changes.ndjson")
    }

    /// The plugin.toml of `ndjson-rust`.
    pub(crate) fn grants(&self) -> PathBuf {
        self.folder.join("plugins").join("ndjson-rust").join("plugin.toml")
    }

    /// Where the dump of the state goes.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// All of it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the API listens.
    pub(crate) fn api(&self) -> SocketAddr {
        self.api
    }

    /// The process id of `walgate run`.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Walgate::pid)
    }

    fn running(&mut self) -> Result<&mut Walgate> {
        self.process.as_mut().context("walgate does not run")
    }

    /// Keeps what an ended process printed; its own copy goes with it.
    fn save_log(&mut self) -> Result<()> {
        let Some(process) = self.process.take() else { return Ok(()) };
        self.save("logs", "run.out", &process.stdout())?;
        self.save("logs", "run.err", &process.stderr())
    }

    fn save(&mut self, folder: &str, name: &str, text: &str) -> Result<()> {
        self.saved += 1;
        write(&self.folder.join(folder).join(format!("{:03}-{name}", self.saved)), text)
    }

    /// The log of the process that ended last.
    fn last_log(&self) -> String {
        let names = fs::read_dir(self.folder.join("logs")).into_iter().flatten().flatten();
        let last =
            names.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "err")).max();
        last.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn configuration(source_url: &str, api: SocketAddr) -> String {
    // Small batches, so that the large transaction is delivered in a hundred parts and the crash comes between two; the
    // most talkative log, so that the search for leaks sees all that can be logged.
    format!(
        "[source]\nurl = \"{source_url}\"\nslot = \"{SLOT}\"\npublications = [\"{SLOT}\"]\n\n\
         [delivery]\nmax_batch_rows = 1000\n\n\
         [plugins]\ndir = \"plugins\"\ncache_dir = \"cache\"\n\n\
         [api]\nlisten = \"{api}\"\n\n\
         [log]\nlevel = \"debug\"\n"
    )
}

/// A plugin.toml that grants every column but the withheld ones.
fn manifest(more: &str) -> String {
    let mut text = format!("[plugin]\nrequired = true\non_failure = \"halt\"\n\n{more}");
    for table in &TABLES {
        text += &format!("\n[[grant.table]]\nschema = \"public\"\nname = \"{}\"\ncolumns = \"*\"\n", table.name);
        if !table.withheld.is_empty() {
            // Every change is counted at both ends, those of withheld columns alone among them.
            text += &format!("except = {:?}\ndeliver_empty = true\n", table.withheld);
        }
    }
    text
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default();
    last.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn email_and_phone_are_in_no_grant() {
        for (_, more) in PLUGINS {
            let text = manifest(more);
            assert!(
                text.contains("name = \"customers\"\ncolumns = \"*\"\nexcept = [\"email\", \"phone\"]\n"),
                "{text}"
            );
            assert_eq!(text.matches("[[grant.table]]").count(), TABLES.len());
        }
    }

    #[test]
    fn the_tail_is_the_end() {
        let log: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let tail = tail(&log);
        assert!(tail.starts_with("  line 80\n") && tail.ends_with("  line 99\n"), "{tail}");
    }
}
