//! A transaction that was delivered, by which the source is known again.
//!
//! Holds: its encoding as state of a shadow that no plugin can be, and the watch for it. Positions alone do not tell two
//! histories apart once a source that was restored to an earlier state has written as much as it had lost. But its slot is
//! back there with it, so it sends again what came then: where the transaction should be there is another, or none. A slot
//! that was told to move beyond it is proof enough. Never a value.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use walgate_core::Lsn;
use walgate_core::batch::Batch;
use walgate_core::pgoutput::Begin;
use walgate_store::StateWrite;

use crate::halt::{Halt, HaltClass};

const KEY: &str = "last";
/// A plugin's own name has no slash.
pub(super) const SHADOW: &str = "/witness";

/// A transaction of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Witness {
    /// Start of its commit record.
    pub(crate) commit: Lsn,
    /// First byte after it.
    pub(crate) end: Lsn,
    pub(crate) xid: u32,
    pub(crate) commit_time_us: i64,
}

impl Witness {
    /// The last transaction that ended in some batches.
    pub(crate) fn of(batches: &[Batch]) -> Option<Self> {
        let last = batches.iter().rev().flat_map(|batch| batch.transactions.iter().rev()).find(|one| one.last_part)?;
        let (commit, end, xid, commit_time_us) = (last.commit, last.end, last.xid, last.commit_time_us);
        Some(Self { commit, end, xid, commit_time_us })
    }

    /// What is stored.
    pub(crate) fn write(&self) -> StateWrite {
        let Self { commit, end, xid, commit_time_us } = self;
        let value = format!("{commit} {end} {xid} {commit_time_us}").into_bytes();
        StateWrite { plugin: SHADOW.to_owned(), key: KEY.to_owned(), value: Some(value) }
    }

    /// What was stored, if anything was.
    pub(crate) fn read(stored: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        let text = std::str::from_utf8(stored.get(KEY)?).ok()?;
        let mut parts = text.split(' ');
        let witness = Self {
            commit: parts.next()?.parse().ok()?,
            end: parts.next()?.parse().ok()?,
            xid: parts.next()?.parse().ok()?,
            commit_time_us: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(witness)
    }
}

/// Waits for the witness in one stream.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    awaited: Option<Witness>,
    /// Told once it has come.
    known: Option<oneshot::Sender<()>>,
}

impl Watch {
    /// Waits for it where the slot stands before it.
    pub(crate) fn new(witness: Option<Witness>, confirmed: Lsn, known: oneshot::Sender<()>) -> Self {
        let mut watch = Self { awaited: witness.filter(|witness| confirmed < witness.end), known: Some(known) };
        if watch.awaited.is_none() {
            watch.is_known();
        }
        watch
    }

    fn is_known(&mut self) {
        self.awaited = None;
        if let Some(known) = self.known.take() {
            // A stream that has ended has nobody to tell.
            let _ = known.send(());
        }
    }

    /// A transaction begins.
    pub(crate) fn begins(&mut self, begin: &Begin) -> Result<(), Halt> {
        let Some(witness) = self.awaited else { return Ok(()) };
        if begin.commit < witness.commit {
            return Ok(());
        }
        let Witness { commit, xid, commit_time_us, .. } = witness;
        if *begin != (Begin { commit, xid, commit_time_us }) {
            return Err(another_history(&witness));
        }
        self.is_known();
        Ok(())
    }

    /// Nothing more comes before this position.
    pub(crate) fn reaches(&self, idle_at: Lsn) -> Result<(), Halt> {
        match self.awaited {
            Some(witness) if idle_at >= witness.end => Err(another_history(&witness)),
            _ => Ok(()),
        }
    }
}

fn another_history(witness: &Witness) -> Halt {
    Halt::new(
        HaltClass::LineageChanged,
        format!(
            "transaction {} was delivered, which committed at {}, and the source does not have it: it was restored to an \
             earlier state and has gone on since. Positions of one history mean nothing in another. Point source.url at the \
             server that has it, or compare the targets, copy the tables again and start anew with: walgate slot drop --forget",
            witness.xid, witness.commit
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(commit: u64, xid: u32) -> Witness {
        Witness { commit: Lsn::new(commit), end: Lsn::new(commit + 8), xid, commit_time_us: -5 }
    }

    fn begin(commit: u64, xid: u32) -> Begin {
        Begin { commit: Lsn::new(commit), commit_time_us: -5, xid }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let written = at(0x16_0000_0100, 7).write();
        let stored = BTreeMap::from([(written.key, written.value.unwrap_or_default())]);
        assert_eq!(Witness::read(&stored), Some(at(0x16_0000_0100, 7)));
        assert_eq!(Witness::read(&BTreeMap::new()), None);
        assert_eq!(Witness::read(&BTreeMap::from([(KEY.to_owned(), b"0/1 x".to_vec())])), None);
    }

    #[test]
    fn only_the_same_transaction_is_the_same_history() {
        let watch = || Watch::new(Some(at(100, 7)), Lsn::new(50), oneshot::channel().0);
        let (known, mut is_known) = oneshot::channel();
        let mut good = Watch::new(Some(at(100, 7)), Lsn::new(50), known);
        assert!(good.begins(&begin(60, 3)).is_ok() && good.reaches(Lsn::new(107)).is_ok());
        assert!(is_known.try_recv().is_err());
        assert!(good.begins(&begin(100, 7)).is_ok() && is_known.try_recv().is_ok());
        assert!(good.reaches(Lsn::new(200)).is_ok() && good.begins(&begin(300, 9)).is_ok());
        for other in [begin(100, 8), Begin { commit_time_us: 0, ..begin(100, 7) }, begin(101, 7), begin(400, 9)] {
            let halt = watch().begins(&other).unwrap_err();
            assert_eq!(halt.class, HaltClass::LineageChanged);
        }
        assert!(watch().reaches(Lsn::new(108)).is_err(), "it should have come before that");
        // A slot that has moved beyond it was told to.
        let (known, mut is_known) = oneshot::channel();
        let mut beyond = Watch::new(Some(at(100, 7)), Lsn::new(108), known);
        assert!(is_known.try_recv().is_ok());
        assert!(beyond.begins(&begin(400, 9)).is_ok() && beyond.reaches(Lsn::new(500)).is_ok());
    }
}
