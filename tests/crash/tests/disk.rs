//! A disk that can be filled in no time.
//!
//! Holds: mounting, filling and emptying a small file system. Never knows: what is written to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// Room for the ledger of one scene.
const DISK: &str = "size=48m";

/// A small file system under the output. Unmounted when dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// None where this is not allowed.
    pub(crate) fn mount(at: &Path) -> Result<Option<Self>> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(at).status();
        let disk = mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()));
        if disk.is_none() {
            crate::progress::say("no full disk is tried: a small file system can only be mounted by root");
        }
        Ok(disk)
    }

    pub(crate) fn fill(&self) -> Result<()> {
        let mut file = File::create(self.0.join("in-the-way"))?;
        match std::io::copy(&mut std::io::repeat(0), &mut file) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(()),
            outcome => bail!("the disk could not be filled: {outcome:?}"),
        }
    }

    pub(crate) fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.join("in-the-way"))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
