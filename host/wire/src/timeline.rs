//! How the timeline of a server came about: which timelines it descends from, and where it left each.
//!
//! Holds: the command, and the reading of a history file, which is taken for hostile. Refuses to decide whether a
//! position may be carried over to another timeline; the daemon does.

use walgate_core::Lsn;

use crate::connection::Connection;
use crate::error::WireError;
use crate::verdict::Phase;

/// Bytes of a history file. A line takes about sixty, so this is more promotions than any cluster lives through.
const MAX_HISTORY_BYTES: usize = 1 << 20;

/// The ancestry of one timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineHistory {
    timeline: u32,
    /// Ancestors, oldest first, each with the first position that it does not share with its successor.
    ancestors: Vec<(u32, Lsn)>,
}

/// Why a history file cannot be read. Holds no byte of it: the reason in a line is free text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Longer than any real one.
    #[error("it is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A line without a timeline and a position.
    #[error("line {line} does not begin with a timeline and a position")]
    Unreadable {
        /// Counted from 1.
        line: usize,
    },
    /// Timelines and the positions where they end rise, and end before the timeline that was asked about.
    #[error("line {line} is out of order")]
    Disordered {
        /// Counted from 1.
        line: usize,
    },
}

impl TimelineHistory {
    /// Reads the history file of `timeline`. Blank lines and comments are passed over, as the server itself does.
    ///
    /// # Errors
    /// When it is too long, unreadable or contradicts itself: then nothing may be concluded from it.
    pub fn parse(timeline: u32, text: &str) -> Result<Self, HistoryError> {
        if text.len() > MAX_HISTORY_BYTES {
            return Err(HistoryError::TooLong { limit: MAX_HISTORY_BYTES });
        }
        let mut ancestors: Vec<(u32, Lsn)> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim_start();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let mut words = content.split_ascii_whitespace();
            let ancestor = words.next().and_then(|word| word.parse().ok());
            let end = words.next().and_then(|word| word.parse().ok());
            let (Some(ancestor), Some(end)) = (ancestor, end) else {
                return Err(HistoryError::Unreadable { line });
            };
            let rises = ancestors.last().is_none_or(|(last, last_end)| *last < ancestor && *last_end <= end);
            if !rises || ancestor == 0 || ancestor >= timeline {
                return Err(HistoryError::Disordered { line });
            }
            ancestors.push((ancestor, end));
        }
        Ok(Self { timeline, ancestors })
    }

    /// The timeline whose ancestry this is.
    pub fn timeline(&self) -> u32 {
        self.timeline
    }

    /// Where the history left that timeline: every record that begins before this position is part of both. `None` when
    /// the timeline is not among the ancestors.
    pub fn switch_point(&self, ancestor: u32) -> Option<Lsn> {
        self.ancestors.iter().find(|(timeline, _)| *timeline == ancestor).map(|(_, end)| *end)
    }
}

impl Connection {
    /// The ancestry of a timeline, from the server's own history file. The first timeline has none, and no file.
    ///
    /// # Errors
    /// Operator when the server has lost the file, Bug when it holds something else than a history.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<TimelineHistory, WireError> {
        if timeline <= 1 {
            return Ok(TimelineHistory { timeline, ancestors: Vec::new() });
        }
        let rows = self.command(&format!("TIMELINE_HISTORY {timeline}"), Phase::History).await?;
        let text = rows.first().and_then(|row| row.get(1));
        let text = text.ok_or_else(|| WireError::protocol("a timeline without a history"))?;
        Ok(TimelineHistory::parse(timeline, text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REAL: &str = "1\t0/3000148\tno recovery target specified\n\n2\t0/50001A0\tbefore 2026-01-01 00:00:00+00\n";

    #[test]
    fn reads_what_servers_write() {
        let history = TimelineHistory::parse(3, REAL).unwrap();
        assert_eq!(history.timeline(), 3);
        assert_eq!(history.switch_point(1), Some(Lsn::new(0x300_0148)));
        assert_eq!(history.switch_point(2), Some(Lsn::new(0x500_01A0)));
        assert_eq!((history.switch_point(3), history.switch_point(7)), (None, None));
        let commented = TimelineHistory::parse(2, "# by hand\n  1 0/10\n").unwrap();
        assert_eq!(commented.switch_point(1), Some(Lsn::new(0x10)));
        assert_eq!(TimelineHistory::parse(1, "").unwrap().switch_point(1), None);
    }

    #[test]
    fn refuses_what_contradicts_itself() {
        use HistoryError::{Disordered, TooLong, Unreadable};
        for (text, expect) in [
            ("1\t0/30\tx\n1\t0/40\tx", Disordered { line: 2 }),
            ("2\t0/30\tx\n1\t0/40\tx", Disordered { line: 2 }),
            ("1\t0/30\tx\n2\t0/20\tx", Disordered { line: 2 }),
            ("3\t0/30\tx", Disordered { line: 1 }),
            ("0\t0/30\tx", Disordered { line: 1 }),
            ("\n1", Unreadable { line: 2 }),
            ("one\t0/30", Unreadable { line: 1 }),
            ("1\tsecret", Unreadable { line: 1 }),
            ("99999999999\t0/30", Unreadable { line: 1 }),
        ] {
            let error = TimelineHistory::parse(3, text).unwrap_err();
            assert_eq!(error, expect, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
        let long = "#".repeat(MAX_HISTORY_BYTES + 1);
        assert_eq!(TimelineHistory::parse(3, &long), Err(TooLong { limit: MAX_HISTORY_BYTES }));
    }

    proptest! {
        /// Whatever a peer sends: no panic, and what is accepted rises.
        #[test]
        fn hostile_text_is_read_or_refused(
            timeline in any::<u32>(),
            text in prop_oneof![
                any::<String>(),
                "([0-9]{0,11}[\t ]{0,2}[0-9A-F]{0,9}/?[0-9A-F]{0,9}[\t ]?[a-z#]{0,5}\n){0,8}",
                "([1-9]\t0/[1-9]0\tx\n){0,4}",
            ],
        ) {
            if let Ok(history) = TimelineHistory::parse(timeline, &text) {
                prop_assert!(history.ancestors.iter().all(|(ancestor, _)| *ancestor < timeline));
                prop_assert!(history.ancestors.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
            }
        }

        /// Whatever is written the way servers write it is read back.
        #[test]
        fn histories_survive_the_way(steps in prop::collection::btree_map(1_u32..1000, any::<u64>(), 0..20)) {
            let mut ends: Vec<u64> = steps.values().copied().collect();
            ends.sort_unstable();
            let steps: Vec<(u32, Lsn)> = steps.into_keys().zip(ends.into_iter().map(Lsn::new)).collect();
            let text: String = steps.iter().map(|(timeline, end)| format!("{timeline}\t{end}\twhy not\n\n")).collect();
            let history = TimelineHistory::parse(1000, &text).unwrap();
            for (timeline, end) in steps {
                prop_assert_eq!(history.switch_point(timeline), Some(end));
            }
        }
    }
}
