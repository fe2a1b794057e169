//! Where the time goes: perf on a running walgate and its walsender.
//!
//! Holds: how perf is called, and the report it leaves. Never knows: what is found.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Samples a second and CPU. The clock is used and not a hardware counter: virtual machines have none.
const SAMPLING: [&str; 4] = ["--event", "cpu-clock", "--freq", "997"];

/// A folder for the profiles of one workload.
#[derive(Debug)]
pub(crate) struct Profile {
    folder: PathBuf,
    name: String,
}

/// A perf that samples.
#[derive(Debug)]
pub(crate) struct Profiler {
    perf: Child,
    data: PathBuf,
    report: PathBuf,
}

impl Profile {
    /// Profiles that are called after `name`, in a folder that is made if it is missing.
    pub(crate) fn new(folder: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder: folder.to_owned(), name: name.to_owned() })
    }

    /// Starts to sample these processes.
    pub(crate) fn attach(&self, pids: &[u32]) -> Result<Profiler> {
        let data = self.folder.join(format!("{}.perf", self.name));
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let perf = Command::new("perf")
            .arg("record")
            .args(SAMPLING)
            .args(["--call-graph", "fp", "--pid", &pids.join(","), "--output"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("perf cannot be started; on Debian: apt-get install linux-perf")?;
        Ok(Profiler { perf, data, report: self.folder.join(format!("{}.txt", self.name)) })
    }
}

impl Profiler {
    /// Ends the sampling and writes the report.
    pub(crate) fn finish(mut self) -> Result<()> {
        // perf writes its file on SIGINT; std can send no other signal than the one that kills.
        let asked = Command::new("kill").arg("-INT").arg(self.perf.id().to_string()).status();
        ensure!(asked.is_ok_and(|status| status.success()), "perf cannot be asked to end");
        self.perf.wait().context("perf did not end")?;
        let report = File::create(&self.report).with_context(|| format!("cannot write {}", self.report.display()))?;
        let status = Command::new("perf")
            .args(["report", "--stdio", "--no-children", "--call-graph", "none", "--percent-limit", "0.4"])
            .args(["--sort", "comm,dso,symbol", "--input"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .stdout(report)
            .stderr(Stdio::null())
            .status()
            .context("perf report cannot be started")?;
        ensure!(status.success(), "perf report ended with {status}");
        Ok(())
    }
}
