//! What processes use: CPU in nanoseconds where the kernel counts it, and the peak of resident memory. Linux only.
//!
//! Holds: readings from `/proc`, and a watch that remembers the last one of a process that may end at any time.
//! Never knows: whose process it is.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

/// Between two readings of a watched process: what it uses after the last one before its end is lost.
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// CPU time of all present threads of a process, user and system.
///
/// Fails when the process is gone.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    match scheduled(pid) {
        Some(time) => Ok(time),
        None => walgate_harness::cpu_time(pid),
    }
}

/// CPU time of this process so far.
pub(crate) fn own_cpu() -> Result<Duration> {
    cpu(std::process::id())
}

/// The most memory a process had resident so far, in bytes.
///
/// Fails when the process is gone.
pub(crate) fn peak_resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    high_water_kib(&status).map(|kib| kib << 10).with_context(|| format!("/proc/{pid}/status has an unknown form"))
}

/// The scheduler's own count, in nanoseconds; `None` where the kernel has none.
fn scheduled(pid: u32) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // A thread that ends between the two steps has no count any more.
    let counts = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    let nanos: u64 = counts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum();
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

fn high_water_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Watches the CPU time of a process until it ends or nobody asks any more.
#[derive(Debug)]
pub(crate) struct CpuWatch {
    pid: u32,
    nanos: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CpuWatch {
    /// Starts to watch.
    pub(crate) fn start(pid: u32) -> Self {
        let (nanos, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (last, stopped) = (Arc::clone(&nanos), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let Ok(time) = cpu(pid) else { return };
                last.fetch_max(to_nanos(time), Relaxed);
                thread::sleep(WATCH_EVERY); // tidy: sleep ok, a process is sampled until it ends
            }
        });
        Self { pid, nanos, stop, thread: Some(thread) }
    }

    /// What the process has used, or had used when it was last seen.
    pub(crate) fn read(&self) -> Duration {
        if let Ok(time) = cpu(self.pid) {
            self.nanos.fetch_max(to_nanos(time), Relaxed);
        }
        Duration::from_nanos(self.nanos.load(Relaxed))
    }
}

impl Drop for CpuWatch {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only reads and sleeps: there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}

fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_found() {
        assert_eq!(high_water_kib("Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t 1 kB\n"), Some(1234));
        assert_eq!(high_water_kib("Name:\tx\n"), None);
        assert!(peak_resident(std::process::id()).unwrap() > 100_000);
    }

    #[test]
    fn work_shows_in_the_cpu_time() {
        let before = own_cpu().unwrap();
        while own_cpu().unwrap() == before {
            std::hint::black_box((0..10_000).sum::<u64>());
        }
    }

    #[test]
    fn a_watch_remembers_a_process_that_has_ended() {
        let mut child = std::process::Command::new("sh").arg("-c").arg("while :; do :; done").spawn().unwrap();
        let watch = CpuWatch::start(child.id());
        while watch.read().is_zero() {
            thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!watch.read().is_zero());
    }
}
