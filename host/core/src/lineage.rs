//! Which history positions belong to, and how far one plugin has come in it.
//!
//! Holds: the identity of a source and slot, and a cursor. Refuses to know where either is stored.

use crate::Lsn;

/// The history that positions belong to. A position of one lineage means nothing in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// The system identifier of the cluster, as `IDENTIFY_SYSTEM` prints it.
    pub system_id: String,
    /// The timeline the stream was read from.
    pub timeline: u32,
    /// The database the slot belongs to.
    pub database: String,
    /// The name of the slot.
    pub slot: String,
    /// The consistent point of the slot when it was created, or where walgate first adopted it.
    pub slot_created_at: Lsn,
}

impl Lineage {
    /// One text that is equal exactly for equal lineages: what plugins are told.
    pub fn token(&self) -> String {
        format!(
            "{}/{}/{}/{}/{}",
            self.system_id,
            self.timeline,
            self.slot_created_at.to_string().replace('/', "-"),
            self.slot,
            self.database
        )
    }
}

/// How far a plugin has come: all transactions that end at or before `end`, and of the transaction that follows, the
/// first `ordinal` changes.
///
/// Invariant: `commit` is zero exactly when `ordinal` is zero, and else lies at or after `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor {
    /// Every transaction whose end position is at or before this is covered.
    pub end: Lsn,
    /// The commit position of the transaction covered in part, else zero.
    pub commit: Lsn,
    /// How many changes of it are covered, counted from its first.
    pub ordinal: u32,
}

impl Cursor {
    /// A cursor between two transactions.
    #[inline]
    pub const fn at(end: Lsn) -> Self {
        Self { end, commit: Lsn::ZERO, ordinal: 0 }
    }

    /// True when the transaction that commits at `commit` is covered as a whole.
    ///
    /// The commit record of a transaction lies before its own end and at or after the end of every earlier
    /// transaction, so the comparison needs only what the begin message tells.
    #[inline]
    pub fn covers(&self, commit: Lsn) -> bool {
        commit < self.end
    }

    /// How many leading changes of the transaction that commits at `commit` are covered, when it is not covered whole.
    #[inline]
    pub fn covered_changes(&self, commit: Lsn) -> u32 {
        if self.ordinal > 0 && self.commit == commit { self.ordinal } else { 0 }
    }

    /// True when everything that it does not cover is still kept by a source that has freed its log up to `acked`: a
    /// transaction in which it stands comes again whole.
    #[inline]
    pub fn reaches(&self, acked: Lsn) -> bool {
        self.end >= acked || self.ordinal > 0 && self.commit >= acked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reaches_what_the_source_still_keeps() {
        let within = Cursor { end: Lsn::new(100), commit: Lsn::new(150), ordinal: 3 };
        for (cursor, acked, reaches) in [
            (Cursor::at(Lsn::new(100)), 100, true),
            (Cursor::at(Lsn::new(100)), 101, false),
            // The transaction in which it stands is still sent, from its first change on.
            (within, 150, true),
            (within, 151, false),
        ] {
            assert_eq!(cursor.reaches(Lsn::new(acked)), reaches, "{cursor:?} from {acked}");
        }
    }
}
