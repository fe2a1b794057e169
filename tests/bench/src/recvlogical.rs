//! `pg_recvlogical`: the reader everything is compared with.
//!
//! Holds: where the program lies and how it is called. Never knows: what it prints.
//! Read next: `pass.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use walgate_core::Lsn;
use walgate_harness::postgres_bin;

use crate::pass::{self, Pass};
use crate::source::{Source, Stretch, Transport};

/// Reads a stretch into `/dev/null`.
pub(crate) async fn run(source: &Source, stretch: &Stretch, transport: Transport) -> Result<Pass> {
    let slot = source.copy_slot(&stretch.slot).await?;
    let mut command = command(source, transport, &slot, &stretch.publication)?;
    command.args(["-f", "/dev/null"]).arg("--endpos").arg(stretch.end.to_string());
    let pass = pass::of_process(source, &slot, command).await?;
    source.drop_slot(&slot).await?;
    Ok(pass)
}

/// A call that streams from a slot; where to is for the caller to add.
pub(crate) fn command(source: &Source, transport: Transport, slot: &str, publication: &str) -> Result<Command> {
    let mut command = Command::new(program(source.major())?);
    command.arg("--dbname").arg(source.url(transport)).arg("--slot").arg(slot);
    command.args(["--start", "--no-loop", "--startpos"]).arg(Lsn::ZERO.to_string());
    command.args(["--option", "proto_version=1"]).arg("--option").arg(format!("publication_names={publication}"));
    Ok(command)
}

/// The server's own, else the newest that Debian installed; a client of any version speaks to a server of any other.
fn program(major: u32) -> Result<PathBuf> {
    let own = postgres_bin(major).map(|bin| bin.join("pg_recvlogical"));
    let installed =
        (15..=30).rev().map(|major| Path::new("/usr/lib/postgresql").join(format!("{major}/bin/pg_recvlogical")));
    match own.into_iter().chain(installed).find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => bail!("pg_recvlogical is not here; on Debian: apt-get install postgresql-client-15"),
    }
}
