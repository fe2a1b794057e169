//! The account that servers run under, because Postgres refuses to run as root.
//!
//! Holds: the choice (`postgres`, else `nobody`, for root; else whoever runs the tests).
//! Never knows: Postgres settings, processes.
//! Read next: [`crate::Cluster`].

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Who a server runs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// User and group to switch to; `None` keeps the present ones.
    switch: Option<(u32, u32)>,
}

impl Account {
    /// The account for this machine.
    pub(crate) fn choose() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self { switch: None };
        }
        let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
        // 65534 is the overflow uid of the kernel: it owns nothing, and needs no entry in the file to be switched to.
        let ids = find(&accounts, "postgres").or_else(|| find(&accounts, "nobody")).unwrap_or((65534, 65534));
        Self { switch: Some(ids) }
    }

    /// Gives one file or folder to the account, and nobody else.
    pub(crate) fn own(self, path: &Path) -> Result<()> {
        if let Some((user, group)) = self.switch {
            chown(path, Some(user), Some(group)).with_context(|| format!("cannot give away {}", path.display()))?;
        }
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot set permissions of {}", path.display()))
    }

    /// Makes a command run as the account.
    pub(crate) fn switch(self, command: &mut Command) {
        if let Some((user, group)) = self.switch {
            command.uid(user).gid(group);
        }
    }
}

/// User and group id of a name in the text of a passwd file.
fn find(accounts: &str, name: &str) -> Option<(u32, u32)> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn ids_are_read_from_a_passwd_file() {
        let text = "root:x:0:0::/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(find(text, "postgres"), Some((101, 104)));
        assert_eq!(find(text, "nobody"), None);
        assert_eq!(find("postgres:x:many", "postgres"), None);
    }
}
