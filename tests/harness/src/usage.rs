//! What a process has used so far: CPU time and resident memory, from `/proc`.
//!
//! Holds: two readings by process id (a walsender's id comes from `pg_stat_replication`).
//! Never knows: whose process it is. Linux only.
//! Read next: nothing, this is a leaf.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// CPU time, user and system, of one process and not of its children; 10 ms steps.
///
/// Fails when the process is gone.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("/proc/{pid}/stat has an unknown form"))?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / per_second.max(1)))
}

/// Resident memory of one process, in bytes.
///
/// Fails when the process is gone.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).with_context(|| format!("process {pid} is gone"))?;
    let pages: Option<u64> = statm.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    let page = u64::try_from(rustix::param::page_size()).context("the page size is out of range")?;
    Ok(pages.with_context(|| format!("/proc/{pid}/statm has an unknown form"))? * page)
}

/// Fields 14 and 15 of a stat line; counted from the last parenthesis, because a name may hold spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_a_name_with_spaces() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 1 2 3 4 70 30 0 0 20 0 1 0 5 6 7";
        assert_eq!(cpu_ticks(stat), Some(100));
        assert_eq!(cpu_ticks("42 (short) S 1"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        let pid = std::process::id();
        assert!(resident_bytes(pid).unwrap() > 100_000);
        cpu_time(pid).unwrap();
    }
}
