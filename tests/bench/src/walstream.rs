//! The crate pg_walstream as a further reference: it decodes every event and has no sink.
//!
//! Holds: building and calling the small program in `tests/bench/walstream`. It is a package apart because its TLS library
//! would otherwise be switched on in every build of this workspace. Never knows: its interface.
//! Read next: `tests/bench/walstream/src/main.rs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use walgate_harness::cache_root;

use crate::note;
use crate::options::Options;
use crate::pass::{self, Pass};
use crate::source::{Source, Stretch, Transport};

/// Builds the program if it is wanted; `None` when it is not.
///
/// Fails when it cannot be built here.
pub(crate) fn find(options: &Options) -> Result<Option<PathBuf>> {
    if options.quick && !options.walstream {
        return Ok(None);
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("walstream/Cargo.toml");
    let target = cache_root().join("walstream-target");
    note("building the reference pg_walstream; minutes the first time, a second after that");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release", "--locked", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target)
        .stdin(Stdio::null())
        .status()
        .context("cargo cannot be started")?;
    ensure!(status.success(), "it cannot be built here ({})", manifest.display());
    Ok(Some(target.join("release/walgate-bench-walstream")))
}

/// Decodes a stretch.
pub(crate) async fn run(program: &Path, source: &Source, stretch: &Stretch, transport: Transport) -> Result<Pass> {
    let slot = source.copy_slot(&stretch.slot).await?;
    let mut command = Command::new(program);
    command.arg(source.url(transport)).arg(&slot).arg(&stretch.publication).arg(stretch.before_last.get().to_string());
    let pass = pass::of_process(source, &slot, command).await?;
    source.drop_slot(&slot).await?;
    Ok(pass)
}
