//! Counters of the pump, for a metrics page.
//!
//! Holds: atomics that outlive a connection. Refuses to know names of metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Counts of everything the pumps of one pipeline did; they go on across reconnects.
#[derive(Debug)]
pub struct PumpStats {
    pub(crate) bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) pauses: AtomicU64,
    pub(crate) keepalives_answered: AtomicU64,
    pub(crate) statuses_sent: AtomicU64,
    origin: Instant,
    /// Milliseconds from `origin` to the last message, plus one; 0 before the first.
    last_message: AtomicU64,
}

/// The counts at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PumpCounts {
    /// Bytes read from the stream, framing included.
    pub bytes: u64,
    /// Reads that returned something.
    pub reads: u64,
    /// Pauses of the lazy reader: high while it is behind, constant when it has caught up.
    pub pauses: u64,
    /// Keepalives that asked for an answer and got one.
    pub keepalives_answered: u64,
    /// Status messages sent, answers included.
    pub statuses_sent: u64,
    /// Time since the last message of any kind; `None` before the first.
    pub last_message_age: Option<Duration>,
}

impl Default for PumpStats {
    fn default() -> Self {
        Self::new()
    }
}

impl PumpStats {
    /// All zero.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            bytes: zero(),
            reads: zero(),
            pauses: zero(),
            keepalives_answered: zero(),
            statuses_sent: zero(),
            origin: Instant::now(),
            last_message: zero(),
        }
    }

    /// The counts now. They are read one after the other, so they may be a moment apart.
    pub fn counts(&self) -> PumpCounts {
        let since_origin = self.origin.elapsed();
        let last = self.last_message.load(Relaxed).checked_sub(1).map(Duration::from_millis);
        PumpCounts {
            bytes: self.bytes.load(Relaxed),
            reads: self.reads.load(Relaxed),
            pauses: self.pauses.load(Relaxed),
            keepalives_answered: self.keepalives_answered.load(Relaxed),
            statuses_sent: self.statuses_sent.load(Relaxed),
            last_message_age: last.map(|at| since_origin.saturating_sub(at)),
        }
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        let at = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.last_message.store(at + 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_reads_and_remembers_the_last_message() {
        let stats = PumpStats::new();
        assert_eq!(stats.counts().last_message_age, None);
        stats.read(10);
        stats.read(5);
        let counts = stats.counts();
        assert_eq!((counts.bytes, counts.reads), (15, 2));
        assert!(counts.last_message_age.unwrap() < Duration::from_secs(60));
    }
}
