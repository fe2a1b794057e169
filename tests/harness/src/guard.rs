//! Ends a server and removes its folder when the test process dies without saying goodbye.
//!
//! Holds: one `sh` per cluster that reads a pipe only this process holds: the pipe closes however the process ends,
//! SIGKILL included.
//! Never knows: settings, ports, clients. An orderly drop leaves it nothing to do.
//! Read next: [`crate::Cluster`].

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Runs after the pipe has closed: ends the server named in postmaster.pid if there is one, then removes the folder.
const SCRIPT: &str = r#"cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] && sleep 0.5; done
[ -n "$1" ] && rm -rf -- "$1""#;

/// The watcher of one cluster folder.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts watching over `folder`, whose server keeps its data in `folder/data`.
    pub(crate) fn watch(folder: &Path) -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "walgate-guard"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: ctrl-C at the terminal must not end the one who cleans up after ctrl-C.
            .process_group(0)
            .spawn()
            .context("cannot start sh to watch over a cluster")?;
        Ok(Self { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Reaps the shell; it ends by itself once the pipe is closed.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::Guard;

    #[test]
    fn the_folder_is_gone_after_the_pipe_closes() {
        let folder = tempfile::Builder::new().prefix("wg-guard-").tempdir().unwrap().keep();
        drop(Guard::watch(&folder).unwrap());
        assert!(!folder.exists());
    }
}
