//! When a status goes to the server, and what it says.
//!
//! Holds: the flush position as it was last told, and three clocks: the interval, the throttle, the silence of the
//! peer. Refuses to know sockets and reads no clock itself: every moment is passed in. Read next: [`crate::pump`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, BytesMut};
use tokio::time::Instant;
use walgate_core::Lsn;

/// The longest time between two statuses, also where the server waits for ever.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// The least time between a status and the next one that only tells a newer flush position.
///
/// Ten statuses a second let the server free log soon enough, and cost it nothing beside the stream.
const THROTTLE: Duration = Duration::from_millis(100);

/// Seconds from the Unix epoch to that of Postgres, 2000-01-01.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// A status that has to go out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    /// Told as written, flushed and applied: one durable position is all we know.
    pub(crate) flush: Lsn,
    /// Ask the server for a sign of life.
    pub(crate) ask: bool,
}

impl Status {
    /// Appends it as a CopyData message.
    pub(crate) fn write(self, out: &mut BytesMut) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH + POSTGRES_EPOCH).unwrap_or_default();
        out.put_u8(b'd');
        out.put_u32(4 + 34);
        out.put_u8(b'r');
        for _ in 0..3 {
            out.put_u64(self.flush.get());
        }
        out.put_u64(since_epoch.as_micros() as u64);
        out.put_u8(self.ask.into());
    }
}

/// The clocks of one stream. Invariant: `told <= flush`, and neither ever falls.
#[derive(Debug)]
pub(crate) struct Feedback {
    interval: Duration,
    dead_peer_after: Duration,
    /// Positions below are told as "nothing yet", so that a slot which was confirmed further cannot move back.
    floor: Lsn,
    flush: Lsn,
    told: Lsn,
    sent_at: Instant,
    heard_at: Instant,
    asked_at: Instant,
    /// The server asked for an answer.
    owed: bool,
}

impl Feedback {
    /// Clocks that start now. A `wal_sender_timeout` of zero means that the server waits for ever.
    pub(crate) fn new(wal_sender_timeout: Duration, dead_peer_after: Duration, floor: Lsn) -> Self {
        let third = wal_sender_timeout / 3;
        let interval = if third.is_zero() { LONGEST_INTERVAL } else { LONGEST_INTERVAL.min(third) };
        let now = Instant::now();
        Self {
            interval,
            dead_peer_after,
            floor,
            flush: Lsn::ZERO,
            told: Lsn::ZERO,
            sent_at: now,
            heard_at: now,
            asked_at: now,
            owed: false,
        }
    }

    /// Takes a flush position over if it is further than the last.
    pub(crate) fn flushed(&mut self, to: Lsn) {
        if to >= self.floor {
            self.flush.advance(to);
        }
    }

    /// The server asked for an answer.
    pub(crate) fn owe(&mut self) {
        self.owed = true;
    }

    /// Something came from the peer, or could not have: while the flow is blocked nobody listens, so silence proves
    /// nothing.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// How long the peer has been silent, when that is too long.
    pub(crate) fn dead(&self, now: Instant) -> Option<Duration> {
        let silence = now.saturating_duration_since(self.heard_at);
        (silence >= self.dead_peer_after).then_some(silence)
    }

    /// The status to send now, if one is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Status> {
        (self.owed || now >= self.next()).then(|| self.status(now))
    }

    /// A status whatever the clocks say.
    pub(crate) fn status(&mut self, now: Instant) -> Status {
        let ask = now >= self.next_question();
        if ask {
            self.asked_at = now;
        }
        self.owed = false;
        self.sent_at = now;
        self.told = self.flush;
        Status { flush: self.flush, ask }
    }

    /// When to look again, if nothing happens before.
    pub(crate) fn next(&self) -> Instant {
        let pace = if self.flush > self.told { THROTTLE.min(self.interval) } else { self.interval };
        (self.sent_at + pace).min(self.next_question())
    }

    /// When to look whether the peer is dead.
    pub(crate) fn dead_at(&self) -> Instant {
        self.heard_at + self.dead_peer_after
    }

    fn next_question(&self) -> Instant {
        self.heard_at.max(self.asked_at) + self.dead_peer_after / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MINUTE: Duration = Duration::from_secs(60);

    fn feedback(timeout: Duration) -> (Feedback, Instant) {
        let feedback = Feedback::new(timeout, MINUTE, Lsn::new(100));
        let start = feedback.sent_at;
        (feedback, start)
    }

    #[track_caller]
    fn check_interval(timeout: Duration, expect: Duration) {
        let (mut feedback, start) = feedback(timeout);
        assert_eq!(feedback.due(start + expect - MS), None);
        assert_eq!(feedback.due(start + expect), Some(Status { flush: Lsn::ZERO, ask: false }));
        assert_eq!(feedback.due(start + expect), None, "once");
    }

    #[test]
    fn keeps_the_interval_also_where_the_server_waits_for_ever() {
        check_interval(MINUTE, 10_000 * MS);
        check_interval(3000 * MS, 1000 * MS);
        check_interval(Duration::ZERO, 10_000 * MS);
    }

    #[test]
    fn answers_at_once_and_tells_a_newer_position_after_the_throttle() {
        let (mut feedback, start) = feedback(MINUTE);
        feedback.owe();
        assert!(feedback.due(start).is_some());
        feedback.flushed(Lsn::new(200));
        assert_eq!(feedback.due(start + 99 * MS), None);
        assert_eq!(feedback.due(start + 100 * MS), Some(Status { flush: Lsn::new(200), ask: false }));
        assert_eq!(feedback.next(), start + 10_100 * MS, "no timer is busy when nothing is new");
    }

    #[test]
    fn a_position_never_falls_and_never_starts_below_the_floor() {
        let (mut feedback, start) = feedback(MINUTE);
        feedback.flushed(Lsn::new(99));
        assert_eq!(feedback.status(start).flush, Lsn::ZERO);
        feedback.flushed(Lsn::new(300));
        feedback.flushed(Lsn::new(200));
        assert_eq!(feedback.status(start).flush, Lsn::new(300));
    }

    #[test]
    fn a_silent_peer_is_asked_and_then_given_up() {
        let (mut feedback, start) = feedback(MINUTE);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(feedback.due(at(19)).map(|s| s.ask), Some(false));
        assert_eq!(feedback.due(at(20)).map(|s| s.ask), Some(true));
        assert_eq!(feedback.due(at(21)), None, "asked once a third");
        assert_eq!(feedback.dead(at(59)), None);
        assert_eq!(feedback.dead(at(60)), Some(MINUTE));
        feedback.heard(at(50));
        assert_eq!(feedback.dead(at(60)), None);
    }

    #[test]
    fn a_status_has_the_shape_the_server_reads() {
        let mut out = BytesMut::new();
        Status { flush: Lsn::new(0x0102), ask: true }.write(&mut out);
        assert_eq!(out.len(), 39);
        assert_eq!(&out[..14], b"d\0\0\0\x26r\0\0\0\0\0\0\x01\x02");
        assert_eq!(out[38], 1);
        let micros = u64::from_be_bytes(out[30..38].try_into().unwrap());
        assert!(micros > 25 * 365 * 86_400 * 1_000_000, "counted from the year 2000");
    }
}
