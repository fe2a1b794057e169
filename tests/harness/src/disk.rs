//! A disk that can be filled in no time.
//!
//! Holds: mounting, filling and emptying a small file system. Never knows: what is written to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// A small file system. Unmounted when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// One of that size, such as `48m`, in a folder that is made where it is missing. None where this is not allowed, which
    /// is said.
    pub fn mount(at: &Path, size: &str) -> Result<Option<Self>> {
        fs::create_dir_all(at)?;
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).status();
        let disk = mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()));
        if disk.is_none() {
            eprintln!("no full disk is tried: a small file system can only be mounted by root");
        }
        Ok(disk)
    }

    /// Takes what room is left.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.0.join("in-the-way"))?;
        match std::io::copy(&mut std::io::repeat(0), &mut file) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(()),
            outcome => bail!("the disk could not be filled: {outcome:?}"),
        }
    }

    /// Takes all but so many bytes.
    pub fn leave(&self, bytes: u64) -> Result<()> {
        self.fill()?;
        let file = File::options().write(true).open(self.0.join("in-the-way"))?;
        Ok(file.set_len(file.metadata()?.len().saturating_sub(bytes))?)
    }

    /// Gives it back.
    pub fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.join("in-the-way"))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
