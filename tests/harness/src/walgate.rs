//! The real `walgate` binary as a child process: its output in files, its end by signal, its health over HTTP.
//!
//! Holds: how to start it, wait for it and end it. Never knows: its configuration format.
//! Read next: `http.rs`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::child;
use crate::http::{self, Response};
use crate::places::walgate_bin;
use crate::wait::wait_for;

/// How to start a process; see [`Walgate::command`].
#[derive(Clone, Debug, Default)]
pub struct WalgateCommand {
    program: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    api: Option<SocketAddr>,
    token: Option<String>,
    stdout: Option<PathBuf>,
}

impl WalgateCommand {
    /// Starts this program instead of the built binary, such as another version of it.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets one environment variable of the child.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Says where the child's admin API will listen; needed by [`Walgate::wait_ready`] and [`Walgate::get`].
    pub fn api(mut self, address: SocketAddr) -> Self {
        self.api = Some(address);
        self
    }

    /// The bearer token sent to the admin API.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Appends its standard output to this file, which outlives the process; [`Walgate::stdout`] is empty then.
    pub fn stdout_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.stdout = Some(path.into());
        self
    }

    /// Starts the process.
    ///
    /// Fails when the binary is not built.
    pub fn spawn(self) -> Result<Walgate> {
        let logs = tempfile::Builder::new().prefix("wg-log-").tempdir().context("cannot make a folder for logs")?;
        let open = |name: &str| File::create(logs.path().join(name)).context("cannot make a log");
        let stdout = match &self.stdout {
            Some(path) => OpenOptions::new().create(true).append(true).open(path).context("cannot open its stdout")?,
            None => open("stdout")?,
        };
        let process = Command::new(self.program.map_or_else(walgate_bin, Ok)?)
            .args(&self.args)
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(open("stderr")?)
            .spawn()
            .context("cannot start walgate")?;
        Ok(Walgate { process, logs, api: self.api, token: self.token })
    }
}

/// A running (or ended) walgate; dropping it kills it, and prints the end of its output when the test has failed.
#[derive(Debug)]
pub struct Walgate {
    process: Child,
    logs: TempDir,
    api: Option<SocketAddr>,
    token: Option<String>,
}

impl Walgate {
    /// Begins a command line with no arguments.
    pub fn command() -> WalgateCommand {
        WalgateCommand::default()
    }

    /// Starts `walgate run --config CONFIG` with the admin API expected at `api`.
    pub fn run(config: &Path, api: SocketAddr) -> Result<Self> {
        Self::command().args(["run", "--config"]).arg(config).api(api).spawn()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it has printed to stdout so far.
    pub fn stdout(&self) -> String {
        self.printed("stdout")
    }

    /// What it has printed to stderr so far.
    pub fn stderr(&self) -> String {
        self.printed("stderr")
    }

    /// Waits until a line of stdout or stderr contains `needle`, and returns that line.
    ///
    /// Fails at once when the process has ended without printing it.
    pub async fn wait_line(&mut self, needle: &str, deadline: Duration) -> Result<String> {
        let what = format!("walgate prints {needle:?}");
        wait_for(deadline, &what, async || {
            // Asked before reading: what an ended process printed is complete by then.
            let ended = self.ended()?;
            let found =
                self.stdout().lines().chain(self.stderr().lines()).find(|l| l.contains(needle)).map(str::to_owned);
            match (found, ended) {
                (Some(line), _) => Ok(Some(line)),
                (None, Some(status)) => bail!("walgate ended with {status}\n{}", self.last_words()),
                (None, None) => Ok(None),
            }
        })
        .await
    }

    /// Waits until `/readyz` answers 200; fails at once when the process has ended.
    pub async fn wait_ready(&mut self, deadline: Duration) -> Result<()> {
        wait_for(deadline, "walgate is ready", async || {
            if let Some(status) = self.ended()? {
                bail!("walgate ended with {status}\n{}", self.last_words());
            }
            // Nobody listening yet is the ordinary case here, not a failure.
            let ready = self.get("/readyz").await.is_ok_and(|response| response.status == 200);
            Ok(ready.then_some(()))
        })
        .await
        .with_context(|| self.last_words())
    }

    /// GET of a path of the admin API.
    pub async fn get(&self, path: &str) -> Result<Response> {
        http::request(self.address()?, "GET", path, self.token.as_deref(), "").await
    }

    /// POST of a JSON text to a path of the admin API.
    pub async fn post(&self, path: &str, body: &str) -> Result<Response> {
        http::request(self.address()?, "POST", path, self.token.as_deref(), body).await
    }

    /// Kills it as a crash would, and waits for its end.
    pub fn sigkill(&mut self) -> Result<()> {
        child::end(&mut self.process, Signal::KILL, Duration::from_secs(10), "walgate")
    }

    /// Asks it to stop; [`Walgate::wait_exit`] waits for that.
    pub fn sigterm(&self) -> Result<()> {
        child::signal(&self.process, Signal::TERM)
    }

    /// The exit status, when it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.process.try_wait().context("cannot wait for walgate")
    }

    /// Waits for its end; fails with the end of its output when the deadline passes.
    pub async fn wait_exit(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let exit = wait_for(deadline, "walgate ends", async || self.ended()).await;
        exit.with_context(|| self.last_words())
    }

    fn address(&self) -> Result<SocketAddr> {
        self.api.ok_or_else(|| anyhow!("this walgate was started without WalgateCommand::api"))
    }

    fn printed(&self, name: &str) -> String {
        let bytes = fs::read(self.logs.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn last_words(&self) -> String {
        let tail = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines.get(lines.len().saturating_sub(40)..).unwrap_or_default().join("\n  ")
        };
        format!("end of stdout:\n  {}\nend of stderr:\n  {}", tail(self.stdout()), tail(self.stderr()))
    }
}

impl Drop for Walgate {
    fn drop(&mut self) {
        if let Err(error) = self.sigkill() {
            eprintln!("a walgate process could not be ended: {error:#}");
        }
        if thread::panicking() {
            eprintln!("{}", self.last_words());
        }
    }
}
