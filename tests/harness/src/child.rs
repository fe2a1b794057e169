//! Waiting for a child process and ending it, always with a deadline.
//!
//! Holds: signals by process id and the one blocking poll of the crate.
//! Never knows: which program the child is.
//! Read next: `cluster.rs` and `walgate.rs`, its two users.

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};

/// How long a blocking poll rests: short against a server start (about 100 ms), long enough to cost nothing.
const POLL: Duration = Duration::from_millis(10);

/// Sends a signal to a child that has not been waited for.
///
/// The id cannot belong to a stranger: it stays taken until the child is reaped.
pub(crate) fn signal(child: &Child, signal: Signal) -> Result<()> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process id is out of range")?;
    kill_process(id, signal).with_context(|| format!("cannot signal process {}", child.id()))
}

/// Waits until the child has exited; says which child and for how long when it does not.
pub(crate) fn wait_exit(child: &mut Child, deadline: Duration, what: &str) -> Result<ExitStatus> {
    poll_blocking(deadline, || child.try_wait().with_context(|| format!("cannot wait for {what}")))?
        .ok_or_else(|| anyhow!("{what} (process {}) still runs after {deadline:?}", child.id()))
}

/// Ends a child for certain: one signal, then SIGKILL when it outlives the deadline.
pub(crate) fn end(child: &mut Child, first: Signal, deadline: Duration, what: &str) -> Result<()> {
    if child.try_wait().with_context(|| format!("cannot wait for {what}"))?.is_some() {
        return Ok(());
    }
    signal(child, first)?;
    if wait_exit(child, deadline, what).is_err() {
        signal(child, Signal::KILL)?;
        wait_exit(child, deadline, what)?;
    }
    Ok(())
}

/// Asks until there is an answer or the deadline passes (`None`).
pub(crate) fn poll_blocking<T>(deadline: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(answer) = ask()? {
            return Ok(Some(answer));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        thread::sleep(POLL); // tidy: sleep ok, this is the poll that everything else waits with
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_that_ignores_the_first_signal_is_killed() {
        let script = "trap '' QUIT; echo ready; while :; do read _ || exec tail -f /dev/null; done";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        end(&mut child, Signal::QUIT, Duration::from_millis(200), "a stubborn child").unwrap();
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_wait_that_runs_out_names_the_child() {
        let mut child = Command::new("tail").args(["-f", "/dev/null"]).spawn().unwrap();
        let error = wait_exit(&mut child, Duration::from_millis(20), "tail").unwrap_err().to_string();
        end(&mut child, Signal::TERM, Duration::from_secs(10), "tail").unwrap();
        assert!(error.contains("tail (process"), "{error}");
    }
}
