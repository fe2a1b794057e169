//! Is the session that holds the slot only what is left of an ended process of ours?
//!
//! Holds: how long a session must be silent, and its end. A connection that was cut without a goodbye keeps its server
//! process, and with it the slot, until `wal_sender_timeout` passes; where that is off, for ever. A living walgate speaks at
//! least every ten seconds. Refuses to touch a session of another name or role (see [`Connection::terminate`]).

use std::time::{Duration, Instant};

use walgate_wire::{Connection, WireError};

use super::decide::Reader;

/// A session that says nothing for this long is dead: a living one speaks three times as often.
const SILENCE: Duration = Duration::from_secs(30);

/// What was seen of the session that holds the slot, over the attempts of one start.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    seen: Option<(i32, Option<String>, Instant)>,
}

impl Leftover {
    /// Looks at a session of ours once more, and ends it when it has been silent for too long.
    pub(super) async fn look(&mut self, connection: &mut Connection, reader: &Reader) -> Result<(), WireError> {
        let reply = connection.last_reply(reader.pid).await?;
        if !self.silent(reader.pid, reply, Instant::now()) {
            return Ok(());
        }
        self.seen = None;
        if connection.terminate(reader.pid).await? {
            tracing::warn!(
                process = reader.pid,
                "a session of ours held the slot and said nothing for {} s; it was ended",
                SILENCE.as_secs()
            );
        }
        Ok(())
    }

    /// Whether the same session has given the same last sign of life for long enough. A session whose signs cannot be seen
    /// is never called silent.
    fn silent(&mut self, pid: i32, reply: Option<String>, now: Instant) -> bool {
        match &self.seen {
            Some((seen, last, since)) if *seen == pid && *last == reply && reply.is_some() => {
                now.saturating_duration_since(*since) >= SILENCE
            }
            _ => {
                self.seen = Some((pid, reply, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_silence_of_one_session_counts() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let said = |text: &str| Some(text.to_owned());
        let mut leftover = Leftover::default();
        assert!(!leftover.silent(7, said("a"), at(0)));
        assert!(!leftover.silent(7, said("a"), at(29)));
        assert!(leftover.silent(7, said("a"), at(30)));
        // A word of it, or another session, begins anew.
        assert!(!leftover.silent(7, said("b"), at(31)));
        assert!(!leftover.silent(8, said("b"), at(61)));
        assert!(!leftover.silent(8, said("b"), at(90)));
        assert!(leftover.silent(8, said("b"), at(91)));
        // What cannot be seen is not silence.
        assert!(!leftover.silent(9, None, at(100)));
        assert!(!leftover.silent(9, None, at(1000)));
    }
}
