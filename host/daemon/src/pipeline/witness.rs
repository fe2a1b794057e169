//! A transaction that was delivered, by which the source is known again.
//!
//! Holds: its encoding as state of a shadow that no plugin can be, and the watch for it. Positions alone do not tell two
//! histories apart once a source that was restored to an earlier state has written as much as it had lost. But its slot is
//! back there with it, so it sends again what came then: where the transaction should be there is another, or none; and where
//! a quiet source had nothing after it, there is something. A slot that was told to move beyond both is proof enough. Never a
//! value.

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
    /// Between it and here the source had no other transaction to send. Its own end where nothing more is known.
    pub(crate) covered: Lsn,
}

impl Witness {
    /// As far as it was acknowledged: what came after that, another server that takes over may not have.
    pub(crate) fn until(self, acked: Lsn) -> Option<Self> {
        (self.end <= acked).then_some(Self { covered: self.covered.min(acked), ..self })
    }

    /// Knows more than the other one.
    pub(crate) fn is_newer(&self, than: &Self) -> bool {
        (self.commit, self.covered) > (than.commit, than.covered)
    }

    /// The last transaction that ended in some batches.
    pub(crate) fn of(batches: &[Batch]) -> Option<Self> {
        let last = batches.iter().rev().flat_map(|batch| batch.transactions.iter().rev()).find(|one| one.last_part)?;
        let (commit, end, xid, commit_time_us) = (last.commit, last.end, last.xid, last.commit_time_us);
        Some(Self { commit, end, xid, commit_time_us, covered: end })
    }

    /// What is stored.
    pub(crate) fn write(&self) -> StateWrite {
        let Self { commit, end, xid, commit_time_us, covered } = self;
        let value = format!("{commit} {end} {xid} {commit_time_us} {covered}").into_bytes();
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
            covered: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(witness)
    }
}

/// Waits for the witness in one stream.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    awaited: Option<Witness>,
    /// After the first and before the second position there is no transaction.
    quiet: Option<(Lsn, Lsn)>,
    /// Told once all of it was passed.
    known: Option<oneshot::Sender<()>>,
}

impl Watch {
    /// Waits for it where the slot stands before it, and for the end of the quiet that followed it.
    pub(crate) fn new(witness: Option<Witness>, confirmed: Lsn, acked: Lsn, known: oneshot::Sender<()>) -> Self {
        let awaited = witness.filter(|witness| confirmed < witness.end);
        let quiet = witness.map(|witness| (witness.commit, witness.covered.min(acked)));
        let quiet = quiet.filter(|(_, until)| confirmed < *until);
        let mut watch = Self { awaited, quiet, known: Some(known) };
        watch.tell();
        watch
    }

    fn tell(&mut self) {
        if self.awaited.is_some() || self.quiet.is_some() {
            return;
        }
        if let Some(known) = self.known.take() {
            // A stream that has ended has nobody to tell.
            let _ = known.send(());
        }
    }

    /// A transaction begins.
    pub(crate) fn begins(&mut self, begin: &Begin) -> Result<(), Halt> {
        if let Some(witness) = self.awaited.filter(|witness| begin.commit >= witness.commit) {
            let Witness { commit, xid, commit_time_us, .. } = witness;
            if *begin != (Begin { commit, xid, commit_time_us }) {
                return Err(another_history(&witness));
            }
            self.awaited = None;
        }
        if let Some((_, until)) = self.quiet.filter(|(after, _)| begin.commit > *after) {
            if begin.commit < until {
                return Err(not_quiet(begin, until));
            }
            self.quiet = None;
        }
        self.tell();
        Ok(())
    }

    /// Nothing more comes before this position.
    pub(crate) fn reaches(&mut self, idle_at: Lsn) -> Result<(), Halt> {
        if let Some(witness) = self.awaited.filter(|witness| idle_at >= witness.end) {
            return Err(another_history(&witness));
        }
        self.quiet = self.quiet.filter(|(_, until)| idle_at < *until);
        self.tell();
        Ok(())
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

fn not_quiet(begin: &Begin, until: Lsn) -> Halt {
    Halt::new(
        HaltClass::LineageChanged,
        format!(
            "transaction {} commits at {}, where the source had none when it was read up to {until}: it was restored to an earlier \
             state and has gone on since. Positions of one history mean nothing in another. Point source.url at the server that \
             was read, or compare the targets, copy the tables again and start anew with: walgate slot drop --forget",
            begin.xid, begin.commit
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(commit: u64, xid: u32) -> Witness {
        let end = Lsn::new(commit + 8);
        Witness { commit: Lsn::new(commit), end, xid, commit_time_us: -5, covered: end }
    }

    fn watch_from(witness: Witness, confirmed: u64) -> Watch {
        Watch::new(Some(witness), Lsn::new(confirmed), Lsn::new(1_000), oneshot::channel().0)
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
        let watch = || watch_from(at(100, 7), 50);
        let (known, mut is_known) = oneshot::channel();
        let mut good = Watch::new(Some(at(100, 7)), Lsn::new(50), Lsn::new(1_000), known);
        assert!(good.begins(&begin(60, 3)).is_ok() && good.reaches(Lsn::new(107)).is_ok());
        assert!(is_known.try_recv().is_err());
        assert!(good.begins(&begin(100, 7)).is_ok() && good.reaches(Lsn::new(200)).is_ok());
        assert!(is_known.try_recv().is_ok() && good.begins(&begin(300, 9)).is_ok());
        for other in [begin(100, 8), Begin { commit_time_us: 0, ..begin(100, 7) }, begin(101, 7), begin(400, 9)] {
            let halt = watch().begins(&other).unwrap_err();
            assert_eq!(halt.class, HaltClass::LineageChanged);
        }
        assert!(watch().reaches(Lsn::new(108)).is_err(), "it should have come before that");
        // A slot that has moved beyond it was told to.
        let (known, mut is_known) = oneshot::channel();
        let mut beyond = Watch::new(Some(at(100, 7)), Lsn::new(108), Lsn::new(1_000), known);
        assert!(is_known.try_recv().is_ok());
        assert!(beyond.begins(&begin(400, 9)).is_ok() && beyond.reaches(Lsn::new(500)).is_ok());
    }
    /// A slot that was restored stands after the last transaction, in the quiet that followed it.
    #[test]
    fn where_nothing_was_there_must_be_nothing() {
        let quiet = Witness { covered: Lsn::new(500), ..at(100, 7) };
        for (confirmed, other) in [(50, 101), (50, 499), (108, 200), (300, 400)] {
            let mut watch = watch_from(quiet, confirmed);
            if confirmed < 100 {
                watch.begins(&begin(100, 7)).unwrap();
            }
            let halt = watch.begins(&begin(other, 9)).unwrap_err();
            assert_eq!(halt.class, HaltClass::LineageChanged, "{other} from {confirmed}");
        }
        let (known, mut is_known) = oneshot::channel();
        let mut same = Watch::new(Some(quiet), Lsn::new(108), Lsn::new(1_000), known);
        assert!(same.reaches(Lsn::new(499)).is_ok() && is_known.try_recv().is_err());
        assert!(same.begins(&begin(500, 9)).is_ok() && is_known.try_recv().is_ok());
        let mut same = watch_from(quiet, 108);
        assert!(same.reaches(Lsn::new(500)).is_ok() && same.begins(&begin(499, 9)).is_ok());
        // Only what was acknowledged binds another server, and a slot beyond it was told to move.
        let unacknowledged = Watch::new(Some(quiet), Lsn::new(108), Lsn::new(300), oneshot::channel().0);
        for mut free in [unacknowledged, watch_from(quiet, 500)] {
            assert!(free.begins(&begin(300, 9)).is_ok());
        }
    }

    #[test]
    fn a_witness_is_kept_as_far_as_it_was_acknowledged() {
        let quiet = Witness { covered: Lsn::new(500), ..at(100, 7) };
        assert_eq!(quiet.until(Lsn::new(107)), None);
        assert_eq!(quiet.until(Lsn::new(108)), Some(at(100, 7)));
        assert_eq!(quiet.until(Lsn::new(900)), Some(quiet));
        assert!(quiet.is_newer(&at(100, 7)) && at(101, 8).is_newer(&quiet) && !quiet.is_newer(&quiet));
    }
}
