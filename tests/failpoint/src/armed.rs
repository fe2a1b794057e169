//! What the points do in the binary of the crash suite.
//!
//! Holds: the passes so far, the record of a point that was reached, and the end of the process.
//! Never knows: why. The environment is read once: `WALGATE_FAILPOINTS` is the order (see `orders.rs`), and
//! `WALGATE_FAILPOINT_LOG` names a file to which the name of the point is appended before the process ends.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

use crate::orders::{Order, parse};

static ARMED: LazyLock<Vec<(Order, AtomicU64)>> = LazyLock::new(|| {
    let text = std::env::var("WALGATE_FAILPOINTS").unwrap_or_default();
    match parse(&text) {
        Ok(orders) => orders.into_iter().map(|order| (order, AtomicU64::new(0))).collect(),
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "WALGATE_FAILPOINTS: {problem}");
            std::process::exit(2)
        }
    }
});

/// The process passes the point of that name, and ends there when this is the armed pass.
pub fn hit(name: &str) {
    for (order, passes) in ARMED.iter().filter(|(order, _)| order.name == name) {
        if passes.fetch_add(1, Ordering::Relaxed) + 1 == order.pass {
            end(order.name);
        }
    }
}

/// Where a write of these bytes is interrupted by the point of that name: in the middle when it is armed.
pub fn halves<'a>(name: &str, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    let armed = ARMED.iter().any(|(order, _)| order.name == name);
    bytes.split_at_checked(bytes.len() / 2).filter(|_| armed).unwrap_or((bytes, &[]))
}

fn end(name: &str) {
    if let Some(path) = std::env::var_os("WALGATE_FAILPOINT_LOG") {
        let log = OpenOptions::new().create(true).append(true).open(path);
        let _ = log.and_then(|mut log| writeln!(log, "{name}"));
    }
    // Nothing of this process runs on: no destructor, no flush, no goodbye to a server.
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}
