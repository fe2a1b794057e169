//! A physical standby of a throwaway cluster, and its promotion.
//!
//! Holds: the base backup, taken by the server's own functions and a plain copy, because not every build of a server
//! brings `pg_basebackup`. Never knows: walgate.
//! Read next: [`crate::Cluster`].

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::parts::Parts;

/// What a base backup leaves out: what is the primary's own, and slots, which a standby never inherits by copy.
const NOT_COPIED: &[&str] = &["postmaster.pid", "postmaster.opts", "pg_replslot", "pg_logical", "standby.signal"];

impl Cluster {
    /// Makes a hot standby that streams from this cluster through a physical slot of its own, and waits until it accepts
    /// connections. `settings` come on top of those of this cluster.
    ///
    /// The slot is named `standby_PORT` after the standby's port; see [`Cluster::slot_of`].
    pub async fn standby(&self, settings: &[(&str, &str)]) -> Result<Self> {
        let parts = Parts::new(self.major())?;
        let slot = Self::slot_of(parts.port);
        let client = self.client("postgres").await?;
        client.execute("SELECT pg_create_physical_replication_slot($1, true)", &[&slot]).await?;
        client.execute("SELECT pg_backup_start('standby', true)", &[]).await?;
        let data = parts.folder.path().join("data");
        copy(&self.data_dir(), &data)?;
        let label: String = client.query_one("SELECT labelfile FROM pg_backup_stop(false)", &[]).await?.get(0);
        let primary = format!(
            "host={} port={} user=postgres dbname=postgres application_name={slot}",
            self.socket_dir().display(),
            self.port()
        );
        let own = [("primary_conninfo", primary.as_str()), ("primary_slot_name", slot.as_str())];
        let mut text =
            fs::read_to_string(data.join("postgresql.conf")).context("cannot read the primary's settings")?;
        for (name, value) in own.iter().chain(settings) {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        for (name, content) in [("backup_label", label.as_str()), ("standby.signal", ""), ("postgresql.conf", &text)] {
            fs::write(data.join(name), content).with_context(|| format!("cannot write {name}"))?;
        }
        for name in ["pg_replslot", "pg_logical/snapshots", "pg_logical/mappings"] {
            fs::create_dir_all(data.join(name)).with_context(|| format!("cannot make {name}"))?;
        }
        parts.own_data()?;
        let mut standby = Self::of(parts);
        standby.launch()?;
        Ok(standby)
    }

    /// The name of the physical slot that the standby on that port holds on its primary.
    pub fn slot_of(port: u16) -> String {
        format!("standby_{port}")
    }

    /// Makes a standby a primary of its own, on a new timeline, and waits until it is one.
    pub async fn promote(&self) -> Result<()> {
        let client = self.client("postgres").await?;
        let promoted: bool = client.query_one("SELECT pg_promote(true, 60)", &[]).await?.get(0);
        if promoted { Ok(()) } else { bail!("the standby on port {} was not promoted within a minute", self.port()) }
    }

    /// Keeps a copy of the data of a stopped cluster, as a cold backup does; [`Cluster::restore_data`] puts it back.
    pub fn copy_data(&self, to: &Path) -> Result<()> {
        if self.pid().is_some() {
            bail!("the cluster on port {} must be stopped before its files are copied", self.port());
        }
        run(Command::new("cp").arg("-a").arg(self.data_dir()).arg(to))
    }

    /// Replaces the data of a stopped cluster by a copy that [`Cluster::copy_data`] made.
    pub fn restore_data(&self, from: &Path) -> Result<()> {
        if self.pid().is_some() {
            bail!("the cluster on port {} must be stopped before its files are replaced", self.port());
        }
        fs::remove_dir_all(self.data_dir()).context("cannot remove the data")?;
        run(Command::new("cp").arg("-a").arg(from).arg(self.data_dir()))
    }
}

/// Copies the files of a running server between the start and the end of a backup. Some vanish meanwhile.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).context("cannot read the data of the primary")? {
        let entry = entry.context("cannot read the data of the primary")?;
        if NOT_COPIED.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let status = Command::new("cp").arg("-a").arg(entry.path()).arg(to).output().context("cannot run cp")?;
        let said = String::from_utf8_lossy(&status.stderr);
        if !status.status.success() && said.lines().any(|line| !line.contains("No such file")) {
            bail!("cannot copy the data of the primary: {}", said.trim());
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().context("cannot run cp")?;
    if output.status.success() {
        Ok(())
    } else {
        bail!("cp failed: {}", String::from_utf8_lossy(&output.stderr).trim())
    }
}
