//! How many changes of each kind: made at the source, or arrived at a sink.
//!
//! Holds: four counts and their comparison. Refuses to know where they come from.
//! Read next: `workload.rs`, which counts what is made; `ledger.rs`, which counts what arrived.

use serde::Serialize;

/// A kind of change. A truncate counts once for each table it names, as it does in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Insert,
    Update,
    Delete,
    Truncate,
}

impl Operation {
    /// The kind of that name, as the plugins spell it.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "insert" => Some(Self::Insert),
            "update" => Some(Self::Update),
            "delete" => Some(Self::Delete),
            "truncate" => Some(Self::Truncate),
            _ => None,
        }
    }
}

/// Changes by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    insert: u64,
    update: u64,
    delete: u64,
    truncate: u64,
}

impl Tally {
    /// Counts changes of one kind.
    pub(crate) fn add(&mut self, operation: Operation, changes: u64) {
        match operation {
            Operation::Insert => self.insert += changes,
            Operation::Update => self.update += changes,
            Operation::Delete => self.delete += changes,
            Operation::Truncate => self.truncate += changes,
        }
    }

    /// Both together.
    #[must_use]
    pub(crate) fn plus(self, other: Tally) -> Tally {
        Tally {
            insert: self.insert + other.insert,
            update: self.update + other.update,
            delete: self.delete + other.delete,
            truncate: self.truncate + other.truncate,
        }
    }

    /// Changes of all kinds.
    pub(crate) fn total(self) -> u64 {
        self.insert + self.update + self.delete + self.truncate
    }

    /// Changes, kind by kind, that this tally has and the other has not.
    pub(crate) fn beyond(self, other: Tally) -> u64 {
        self.insert.saturating_sub(other.insert)
            + self.update.saturating_sub(other.update)
            + self.delete.saturating_sub(other.delete)
            + self.truncate.saturating_sub(other.truncate)
    }

    /// Reads the totals that `counter-rust` keeps in its state: `read=0 insert=2 … values=14 …`.
    pub(crate) fn of_counter(totals: &str) -> Option<Tally> {
        let mut tally = Tally::default();
        let mut kinds = 0;
        for field in totals.split(' ') {
            let (name, number) = field.split_once('=')?;
            if let Some(operation) = Operation::parse(name) {
                tally.add(operation, number.parse().ok()?);
                kinds += 1;
            }
        }
        (kinds == 4).then_some(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_of_the_counter_are_read() {
        let tally = Tally::of_counter("read=0 insert=2 update=3 delete=4 truncate=5 values=9 absent=1 fingerprint=7");
        assert_eq!(tally, Some(Tally { insert: 2, update: 3, delete: 4, truncate: 5 }));
        assert_eq!(Tally::of_counter("insert=2 update=3"), None);
        assert_eq!(Tally::of_counter("insert=x update=3 delete=4 truncate=5"), None);
    }

    #[test]
    fn kinds_do_not_make_up_for_each_other() {
        let made = Tally { insert: 5, update: 5, ..Tally::default() };
        let arrived = Tally { insert: 4, update: 6, ..Tally::default() };
        assert_eq!((made.beyond(arrived), arrived.beyond(made)), (1, 1));
        assert_eq!(made.plus(arrived).total(), 20);
    }
}
