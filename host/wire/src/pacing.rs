//! When to let data pile up before the next read.
//!
//! Holds: the rule that tells "behind" from "caught up" by the traffic alone. A logical stream does not say how far
//! ahead the server is. Refuses to know sockets and reads no clock itself. Read next: [`crate::pump`].
//!
//! Why pause at all: the server sends every message by itself. A reader that wakes for each leaves the window open, so
//! each travels alone and the *server* pays for it. A reader that pauses about a millisecond keeps the sender limited by
//! the window; messages then coalesce in its buffer, and the same server process needs less than half the CPU.

use std::time::Duration;

use tokio::time::Instant;

/// Traffic is judged over this time.
const WINDOW: Duration = Duration::from_millis(2);

/// Bytes within a window that mean "behind": 8 MB/s, which no stream of a thousand small transactions a second reaches.
const BEHIND_BYTES: usize = 16 << 10;

/// Reads within a window that mean "behind": each message still comes alone, at 16,000 messages a second.
const BEHIND_READS: u32 = 32;

/// A paused read that brings less than this hints at "caught up": 4 MB/s.
const STAY_BYTES: usize = 4 << 10;

/// Small paused reads in a row that mean "caught up".
///
/// One alone may only mean that the server had no CPU for that millisecond. Taken at its word, a busy machine falls back
/// to a read for each message again and again. The price is up to three milliseconds, once, at the end of a backlog.
const LEAVE_AFTER: u32 = 3;

/// The state of the rule.
#[derive(Debug)]
pub(crate) struct Pacing {
    enabled: bool,
    behind: bool,
    /// Bytes since the last pause while behind, else bytes in the window.
    bytes: usize,
    /// Small paused reads in a row while behind, else reads in the window.
    reads: u32,
    window_start: Option<Instant>,
}

impl Pacing {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, behind: false, bytes: 0, reads: 0, window_start: None }
    }

    /// Whether to pause after a read of that many bytes, which left the socket drained or not.
    pub(crate) fn pause_after(&mut self, bytes: usize, drained: bool, now: Instant) -> bool {
        if !self.enabled {
            return false;
        }
        if self.behind {
            self.bytes = self.bytes.saturating_add(bytes);
        } else {
            self.count(bytes, now);
            self.behind = self.bytes >= BEHIND_BYTES || self.reads >= BEHIND_READS;
            if !self.behind {
                return false;
            }
            self.reads = 0;
            self.bytes = self.bytes.max(STAY_BYTES);
        }
        drained && self.stays_behind()
    }

    /// Judges what came since the last pause. Called when the socket is drained.
    fn stays_behind(&mut self) -> bool {
        self.reads = if self.bytes < STAY_BYTES { self.reads + 1 } else { 0 };
        self.behind = self.reads < LEAVE_AFTER;
        self.bytes = 0;
        self.window_start = None;
        self.behind
    }

    fn count(&mut self, bytes: usize, now: Instant) {
        let fresh = self.window_start.is_none_or(|start| now.saturating_duration_since(start) > WINDOW);
        if fresh {
            (self.window_start, self.bytes, self.reads) = (Some(now), 0, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.reads += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_thousand_one_row_transactions_a_second_are_never_paused() {
        let (mut pacing, start) = (Pacing::new(true), Instant::now());
        for transaction in 0..5000 {
            for message in 0..3 {
                let now = start + 1000 * US * transaction + 20 * US * message;
                assert!(!pacing.pause_after(120, true, now), "transaction {transaction}");
            }
        }
    }

    #[test]
    fn a_backlog_of_single_messages_is_noticed_within_the_window() {
        let (mut pacing, start) = (Pacing::new(true), Instant::now());
        let first = (0..200).find(|n| pacing.pause_after(120, true, start + 10 * US * *n));
        assert_eq!(first, Some(BEHIND_READS - 1));
    }

    #[test]
    fn a_large_read_pauses_once_it_is_drained_and_small_ones_end_it() {
        let (mut pacing, now) = (Pacing::new(true), Instant::now());
        assert!(!pacing.pause_after(256 << 10, false, now), "there is more to read");
        assert!(pacing.pause_after(100, true, now));
        for _ in 1..LEAVE_AFTER {
            assert!(pacing.pause_after(STAY_BYTES - 1, true, now), "the server may only have been busy");
        }
        assert!(pacing.pause_after(STAY_BYTES, true, now), "it was");
        for _ in 1..LEAVE_AFTER {
            assert!(pacing.pause_after(STAY_BYTES - 1, true, now));
        }
        assert!(!pacing.pause_after(STAY_BYTES - 1, true, now), "caught up");
        assert!(!pacing.pause_after(120, true, now));
    }

    #[test]
    fn parts_of_one_turn_count_together() {
        let (mut pacing, now) = (Pacing::new(true), Instant::now());
        assert!(pacing.pause_after(BEHIND_BYTES, true, now));
        assert!(!pacing.pause_after(256 << 10, false, now));
        assert!(pacing.pause_after(10, true, now));
        assert_eq!(pacing.reads, 0, "the small rest of a large turn is no hint");
    }

    #[test]
    fn eager_never_pauses() {
        assert!(!Pacing::new(false).pause_after(1 << 20, true, Instant::now()));
    }
}
