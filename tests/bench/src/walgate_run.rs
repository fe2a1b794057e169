//! walgate itself, the real binary with the counting plugin, reading one stretch.
//!
//! Holds: its folders and configuration, and when it has come to the end: the end of the stretch is acknowledged, so the
//! last batch is durable in plugin and checkpoint. Never knows: how it does that.
//! Read next: `pass.rs`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use walgate_core::Lsn;
use walgate_harness::{Walgate, free_port, guest};

use crate::pass::Pass;
use crate::process::{CpuWatch, cpu, peak_resident};
use crate::profile::Profile;
use crate::source::{DEADLINE, Source, Stretch, Transport};

/// The name of the plugin's folder.
const PLUGIN: &str = "counter";
/// Between two looks at the status while much is left: each costs walgate a little.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks when the end is near: the time of the end is known this well.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(2);

/// What all runs share: the cache of compiled plugins, so that a run loads and does not compile.
#[derive(Debug)]
pub(crate) struct Runner {
    folder: TempDir,
    warm: bool,
}

/// A configuration on disk, gone when dropped.
#[derive(Debug)]
pub(crate) struct Site {
    folder: TempDir,
    /// Where its API will listen.
    pub(crate) api: SocketAddr,
}

impl Site {
    /// The configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("walgate.toml")
    }
}

impl Runner {
    /// Makes the shared folder.
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("wg-bench-").tempdir().context("cannot make a folder")?;
        let cache = folder.path().join("cache");
        fs::create_dir(&cache).context("cannot make the plugin cache")?;
        // walgate runs what it finds there, so it insists that nobody else can write to it.
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).context("cannot close the plugin cache")?;
        Ok(Self { folder, warm: false })
    }

    /// Reads a stretch with the daemon; with a profiler attached when one is given.
    pub(crate) async fn run(
        &mut self,
        source: &Source,
        stretch: &Stretch,
        transport: Transport,
        profile: Option<&Profile>,
    ) -> Result<Pass> {
        if !self.warm {
            // Compiles the plugin into the cache and makes the tables of the state database.
            self.pass(source, stretch, transport, None).await.context("in the warm-up")?;
            self.warm = true;
        }
        self.pass(source, stretch, transport, profile).await
    }

    async fn pass(
        &self,
        source: &Source,
        stretch: &Stretch,
        transport: Transport,
        profile: Option<&Profile>,
    ) -> Result<Pass> {
        let slot = source.copy_slot(&stretch.slot).await?;
        let site = self.site(source, transport, &slot, &stretch.publication, &stretch.tables, "warn")?;
        let began = Instant::now();
        let mut walgate = Walgate::run(&site.config(), site.api)?;
        let pass = follow(source, stretch, &slot, &mut walgate, began, profile).await;
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
        slot: &str,
        publication: &str,
        tables: &[String],
        level: &str,
    ) -> Result<Site> {
        let folder = tempfile::Builder::new().prefix("wg-bench-").tempdir().context("cannot make a folder")?;
        let api = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let plugin = folder.path().join("plugins").join(PLUGIN);
        fs::create_dir_all(&plugin).context("cannot make the plugin folder")?;
        fs::copy(guest("counter-rust")?, plugin.join("plugin.wasm")).context("cannot copy the plugin")?;
        let cache = self.folder.path().join("cache");
        let (url, state) = (source.url(transport), source.state_url(transport));
        write(&plugin.join("plugin.toml"), &grants(tables))?;
        write(
            &folder.path().join("walgate.toml"),
            &format!(
                "[source]\nurl = \"{url}\"\nslot = \"{slot}\"\npublications = [\"{publication}\"]\n\
             [state]\nurl = \"{state}\"\n\
             [plugins]\ndir = \"plugins\"\ncache_dir = \"{}\"\n\
             [api]\nlisten = \"{api}\"\n[log]\nlevel = \"{level}\"\n",
                cache.display()
            ),
        )?;
        Ok(Site { folder, api })
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Every column of every table.
fn grants(tables: &[String]) -> String {
    let table = |name: &String| format!("[[grant.table]]\nschema = \"public\"\nname = \"{name}\"\ncolumns = \"*\"\n");
    format!("[grant]\ncapabilities = [\"metrics\", \"state\"]\n{}", tables.iter().map(table).collect::<String>())
}

/// Measures from the start of the process to the acknowledged end of the stretch.
async fn follow(
    source: &Source,
    stretch: &Stretch,
    slot: &str,
    walgate: &mut Walgate,
    began: Instant,
    profile: Option<&Profile>,
) -> Result<Pass> {
    let walsender = source.walsender(slot, || still_runs(walgate)).await?;
    let cpu_before = cpu(walgate.pid())?;
    let watch = CpuWatch::start(walsender.pid);
    let profiler = profile.map(|profile| profile.attach(&[walgate.pid(), walsender.pid])).transpose()?;
    let end = until_acknowledged(stretch, walgate).await?;
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

async fn until_acknowledged(stretch: &Stretch, walgate: &mut Walgate) -> Result<Instant> {
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

fn still_runs(walgate: &mut Walgate) -> Result<()> {
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
        let body = r#"{"positions":{"acknowledged":"0/20"},"plugins":{"counter":{"rows":7}}}"#;
        assert_eq!(Seen::read(body).unwrap(), Seen { acknowledged: Lsn::new(0x20), rows: 7 });
        let starting = r#"{"positions":{"acknowledged":""},"plugins":{}}"#;
        assert_eq!(Seen::read(starting).unwrap(), Seen { acknowledged: Lsn::ZERO, rows: 0 });
        assert!(Seen::read("not yet").is_err());
    }

    #[test]
    fn every_table_is_granted_whole() {
        let text = grants(&["a".to_owned(), "marker".to_owned()]);
        let manifest = walgate_plugin::Manifest::parse(Path::new("plugin.toml"), &text).unwrap();
        assert_eq!(manifest.allowed.tables.len(), 2);
        assert!(manifest.capabilities.state && manifest.capabilities.metrics);
    }
}
