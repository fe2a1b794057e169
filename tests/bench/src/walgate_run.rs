//! walgate itself, the real binary, reading one stretch.
//!
//! Holds: starting, following and ending it, and when it has come to the end: unless the caller knows better, when the
//! end of the stretch is acknowledged, so the last batch is durable in plugin and checkpoint. Never knows: how it does
//! that. Read next: `site.rs`, `pass.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use walgate_core::Lsn;
use walgate_harness::{Walgate, guest};
use walgate_plugin::{Component, Engine};

use crate::pass::Pass;
use crate::process::{CpuWatch, cpu, peak_resident};
use crate::profile::Profile;
use crate::site::{PLUGIN, Reads, Setup, Site};
use crate::source::{DEADLINE, Source, Stretch, Transport};

/// Between two looks at the status while much is left: each costs walgate a little.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks when the end is near: the time of the end is known this well.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(2);

/// What all runs share: the cache of compiled plugins, so that a run loads and does not compile.
#[derive(Debug)]
pub(crate) struct Runner {
    folder: TempDir,
}

impl Runner {
    /// Makes the shared folder.
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("wg-bench-").tempdir().context("cannot make a folder")?;
        let cache = folder.path().join("cache");
        fs::create_dir(&cache).context("cannot make the plugin cache")?;
        // walgate runs what it finds there, so it insists that nobody else can write to it.
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).context("cannot close the plugin cache")?;
        Ok(Self { folder })
    }

    /// Compiles a guest into the cache, so that no run does.
    pub(crate) fn compile(&self, name: &str) -> Result<()> {
        let engine = Engine::new(Some(&self.cache())).context("the plugin engine cannot be started")?;
        Component::load(&engine, &guest(name)?).with_context(|| format!("guest {name} cannot be loaded"))?;
        Ok(())
    }

    /// Reads a stretch with the counting plugin and the state beside the source; with a profiler attached when one is
    /// given.
    pub(crate) async fn run(
        &self,
        source: &Source,
        stretch: &Stretch,
        transport: Transport,
        profile: Option<&Profile>,
    ) -> Result<Pass> {
        let setup = Setup::counter(&stretch.tables, source.state_url(transport));
        let end = async |walgate: &mut Walgate| until_acknowledged(stretch, walgate).await;
        self.pass(source, stretch, transport, &setup, profile, end).await
    }

    /// Reads a stretch until `end`, which looks at the running walgate and gives the moment.
    pub(crate) async fn pass(
        &self,
        source: &Source,
        stretch: &Stretch,
        transport: Transport,
        setup: &Setup,
        profile: Option<&Profile>,
        end: impl AsyncFnOnce(&mut Walgate) -> Result<Instant>,
    ) -> Result<Pass> {
        let slot = source.copy_slot(&stretch.slot).await?;
        let site = self.site(source, transport, setup, &slot, &stretch.publication, "warn")?;
        let mut command = Walgate::command().args(["run", "--config"]).arg(site.config()).api(site.api);
        if let Some(file) = &setup.stdout {
            command = command.stdout_to(file);
        }
        let began = Instant::now();
        let mut walgate = command.spawn()?;
        let pass = follow(source, &slot, &mut walgate, began, profile, end).await;
        let pass = pass.with_context(|| format!("walgate printed:\n{}{}", walgate.stdout(), walgate.stderr()))?;
        walgate.sigterm()?;
        let status = walgate.wait_exit(DEADLINE).await?;
        ensure!(status.success(), "walgate ended with {status}:\n{}", walgate.stderr());
        source.drop_slot(&slot).await?;
        Ok(pass)
    }

    /// Writes a configuration and the plugin's folder for one run.
    pub(crate) fn site(
        &self,
        source: &Source,
        transport: Transport,
        setup: &Setup,
        slot: &str,
        publication: &str,
        level: &str,
    ) -> Result<Site> {
        let url = source.url(transport);
        Site::write(setup, Reads { url: &url, slot, publication, level }, &self.cache())
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }
}

/// Measures from the start of the process to its end of the stretch.
async fn follow(
    source: &Source,
    slot: &str,
    walgate: &mut Walgate,
    began: Instant,
    profile: Option<&Profile>,
    end: impl AsyncFnOnce(&mut Walgate) -> Result<Instant>,
) -> Result<Pass> {
    let walsender = source.walsender(slot, || still_runs(walgate)).await?;
    let cpu_before = cpu(walgate.pid())?;
    let watch = CpuWatch::start(walsender.pid);
    let profiler = profile.map(|profile| profile.attach(&[walgate.pid(), walsender.pid])).transpose()?;
    let end = end(walgate).await?;
    let pass = Pass {
        from_spawn: end.duration_since(began),
        streaming: end.duration_since(walsender.seen),
        walsender_cpu: watch.read(),
        reader_cpu: Some(cpu(walgate.pid())?.saturating_sub(cpu_before)),
        peak_bytes: Some(peak_resident(walgate.pid())?),
    };
    profiler.map_or(Ok(()), |profiler| profiler.finish())?;
    Ok(pass)
}

/// Waits until the end of the stretch is acknowledged; the moment at which that was seen.
pub(crate) async fn until_acknowledged(stretch: &Stretch, walgate: &mut Walgate) -> Result<Instant> {
    let began = Instant::now();
    loop {
        still_runs(walgate)?;
        let seen = Seen::read(&walgate.get("/status").await?.body)?;
        let now = Instant::now();
        if seen.acknowledged > stretch.before_last {
            ensure!(
                seen.rows == stretch.rows,
                "walgate acknowledged the end with {} rows delivered, and there are {}",
                seen.rows,
                stretch.rows
            );
            return Ok(now);
        }
        if began.elapsed() > DEADLINE {
            bail!("walgate did not come to the end of its stretch within {DEADLINE:?}");
        }
        let near = seen.rows * 20 > stretch.rows * 19;
        // tidy: sleep ok, the time of the end is measured: a look costs walgate CPU, a rare one blurs the time
        tokio::time::sleep(if near { LOOK_CLOSELY_EVERY } else { LOOK_EVERY }).await;
    }
}

/// Fails when walgate has ended.
pub(crate) fn still_runs(walgate: &mut Walgate) -> Result<()> {
    match walgate.ended()? {
        None => Ok(()),
        Some(status) => bail!("walgate ended with {status}"),
    }
}

/// What the status page says about progress.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    acknowledged: Lsn,
    rows: u64,
}

impl Seen {
    fn read(body: &str) -> Result<Self> {
        let status: Value = serde_json::from_str(body).context("the status of walgate is not JSON")?;
        let acknowledged = status.pointer("/positions/acknowledged").and_then(Value::as_str);
        let rows = status.pointer(&format!("/plugins/{PLUGIN}/rows")).and_then(Value::as_u64);
        Ok(Self {
            acknowledged: acknowledged.and_then(|text| text.parse().ok()).unwrap_or_default(),
            rows: rows.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_the_status_page() {
        let body = r#"{"positions":{"acknowledged":"0/20"},"plugins":{"bench":{"rows":7}}}"#;
        assert_eq!(Seen::read(body).unwrap(), Seen { acknowledged: Lsn::new(0x20), rows: 7 });
        let starting = r#"{"positions":{"acknowledged":""},"plugins":{}}"#;
        assert_eq!(Seen::read(starting).unwrap(), Seen { acknowledged: Lsn::ZERO, rows: 0 });
        assert!(Seen::read("not yet").is_err());
    }
}
