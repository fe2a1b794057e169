//! What a cluster is made of before there is data in it: a folder, a port, an account, a guard.
//!
//! Holds: their making. Never knows: initdb, processes.
//! Read next: [`crate::Cluster`], and `standby.rs`, which puts a copy into the folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::account::Account;
use crate::guard::Guard;
use crate::places::{free_port, postgres_bin};

/// The parts of one cluster.
pub(crate) struct Parts {
    pub(crate) major: u32,
    pub(crate) bin: PathBuf,
    pub(crate) account: Account,
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
    pub(crate) guard: Guard,
}

impl Parts {
    /// A folder that belongs to the server's account, watched over, and a free port.
    pub(crate) fn new(major: u32) -> Result<Self> {
        let bin = postgres_bin(major)?;
        let account = Account::choose();
        // /tmp and not TMPDIR: a unix socket's path has at most 107 bytes, and the server's account must reach it.
        let folder =
            tempfile::Builder::new().prefix("wg-").tempdir_in("/tmp").context("cannot make a folder in /tmp")?;
        account.own(folder.path())?;
        let guard = Guard::watch(folder.path())?;
        Ok(Self { major, bin, account, port: free_port()?, folder, guard })
    }

    /// Gives the data, which was put there by the test's account, to that of the server.
    pub(crate) fn own_data(&self) -> Result<()> {
        own_tree(self.account, &self.folder.path().join("data"))
    }
}

fn own_tree(account: Account, path: &Path) -> Result<()> {
    account.own(path)?;
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
            own_tree(account, &entry.with_context(|| format!("cannot read {}", path.display()))?.path())?;
        }
    }
    Ok(())
}
