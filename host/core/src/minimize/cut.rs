//! Where batches end: room, parts of large transactions, and what moves on into the next batch.
//!
//! Holds: the open transaction, the two ways to cut, and the places a batch is named by. Refuses to know rows and relations.
//! Invariant: a cut moves `taken` exactly over what the batch holds.

use crate::assemble::Head;
use crate::batch::name::{Place, name};
use crate::batch::{Batch, LogicalMessage, Transaction};
use crate::{Cursor, Lsn};

use super::error::MinimizeError;
use super::group::GroupBuilder;
use super::{Item, Minimizer};

/// The transaction whose changes are being taken.
pub(super) struct Open {
    pub(super) head: Head,
    /// In the batch under construction.
    pub(super) first_ordinal: u32,
    /// In the source transaction, of the change that would stand at `first_ordinal`.
    pub(super) source_ordinal: u32,
    pub(super) part: u32,
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

/// A message that belongs to no transaction.
#[derive(Clone, Copy)]
pub(super) struct Loose {
    pub(super) ordinal: u32,
    pub(super) lsn: Lsn,
}

impl Minimizer {
    /// Cuts before the change at `ordinal` when the batch is full: at the last commit, so that only a transaction too
    /// large for a batch of its own comes in parts.
    #[inline]
    pub(super) fn make_room(&mut self, ordinal: u32) -> Result<(), MinimizeError> {
        let far = self.open.as_ref().is_some_and(|open| open.is_far(ordinal));
        if self.is_full() || far { self.cut_before(ordinal) } else { Ok(()) }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.rows >= self.bounds.max_rows || self.bytes >= self.bounds.max_bytes
    }

    #[cold]
    fn cut_before(&mut self, ordinal: u32) -> Result<(), MinimizeError> {
        self.cut()?;
        if self.is_full() { self.cut_part(ordinal) } else { Ok(()) }
    }

    /// Makes a part of the open transaction: its changes before the source ordinal `until`.
    pub(super) fn cut_part(&mut self, until: u32) -> Result<(), MinimizeError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.transactions.push(open.transaction(until.saturating_sub(open.source_ordinal), Lsn::ZERO, false));
        let reaches = Cursor { end: self.taken.end, commit: open.head.begin.commit, ordinal: until };
        let batch = self.finish(reaches)?;
        self.ready.push_back(Item::Batch(batch));
        self.taken = reaches;
        self.open = Some(Open::new(open.head, 0, until, open.part.saturating_add(1)));
        Ok(())
    }

    /// Takes the changes of the open transaction out of the batch under construction.
    pub(super) fn split_open(&mut self) -> (Vec<GroupBuilder>, Vec<LogicalMessage>) {
        let Some(first) = self.open.as_ref().filter(|open| open.rows > 0).map(|open| open.first_ordinal) else {
            return (Vec::new(), Vec::new());
        };
        let (projections, spares) = (&self.projections, &mut self.spares);
        let mut empty = |at: usize, operation| match projections.get(at) {
            Some(projection) => projection.spare_or_new(at, operation, spares),
            None => GroupBuilder::new(at, operation, &[]),
        };
        let tail = self.groups.iter_mut().filter_map(|group| group.split_from(first, &mut empty)).collect();
        let at = self.messages.partition_point(|message| message.ordinal < first);
        (tail, self.messages.split_off(at))
    }

    /// Starts the next batch with the changes of the open transaction.
    pub(super) fn restore_open(&mut self, tail: Vec<GroupBuilder>, messages: Vec<LogicalMessage>) {
        let Some(open) = &mut self.open else { return };
        let shift = std::mem::take(&mut open.first_ordinal);
        (self.rows, self.bytes) = (open.rows, open.bytes);
        self.messages = messages;
        self.messages.iter_mut().for_each(|message| message.ordinal -= shift);
        for mut group in tail {
            group.shift(shift);
            if let Some(projection) = self.projections.get_mut(group.projection()) {
                projection.place(group, &mut self.groups);
            }
        }
    }

    /// Everything under construction as one batch; starts a new one.
    pub(super) fn finish(&mut self, reaches: Cursor) -> Result<Batch, MinimizeError> {
        let id = self.batch_id();
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in self.groups.drain(..) {
            let Some(projection) = self.projections.get_mut(group.projection()) else { continue };
            projection.released();
            let Some(shape) = projection.shape() else { continue };
            groups.extend(group.finish(shape)?);
        }
        let transactions = std::mem::replace(&mut self.transactions, self.spare_lists.pop().unwrap_or_default());
        let messages = std::mem::take(&mut self.messages);
        let batch = Batch {
            id,
            attempt: 1,
            rows: groups.iter().map(|group| group.ordinals.len()).sum::<usize>() + messages.len(),
            bytes: self.bytes.saturating_sub(self.open.as_ref().map_or(0, |open| open.bytes)),
            transactions,
            groups,
            messages,
            reaches,
        };
        (self.rows, self.bytes, self.next_ordinal, self.loose) = (0, 0, 0, None);
        Ok(batch)
    }

    /// Equal for equal content: named by the first and the last thing in the batch.
    fn batch_id(&self) -> String {
        let first = self.transactions.first().map(|first| (first.first_ordinal, first.first_place()));
        let last = self.transactions.last().map(|last| (last.first_ordinal, last.last_place()));
        let starts = match (self.loose, first) {
            (Some((loose, _)), Some((ordinal, place))) if ordinal <= loose.ordinal => place,
            (Some((loose, _)), _) => Place::Message(loose.lsn),
            (None, Some((_, place))) => place,
            (None, None) => Place::Nowhere,
        };
        let ends = match (self.loose, last) {
            (Some((_, loose)), Some((ordinal, place))) if ordinal > loose.ordinal => place,
            (Some((_, loose)), _) => Place::Message(loose.lsn),
            (None, Some((_, place))) => place,
            (None, None) => Place::Nowhere,
        };
        name(&self.id_prefix, starts, ends)
    }
}

impl Open {
    pub(super) fn new(head: Head, first_ordinal: u32, source_ordinal: u32, part: u32) -> Self {
        Self { head, first_ordinal, source_ordinal, part, rows: 0, bytes: 0 }
    }

    /// The ordinal in the batch of a change that was not taken before.
    #[inline]
    pub(super) fn batch_ordinal(&self, source: u32) -> Result<u32, MinimizeError> {
        source
            .checked_sub(self.source_ordinal)
            .and_then(|changes| changes.checked_add(self.first_ordinal))
            .ok_or_else(|| MinimizeError::too_many_changes(self.head.begin.commit))
    }

    /// Whether a change is so far from the first that its ordinal may not fit behind other transactions. A batch that
    /// begins with this transaction has room for all of it.
    #[inline]
    pub(super) fn is_far(&self, source: u32) -> bool {
        self.first_ordinal > 0 && source.saturating_sub(self.source_ordinal) > u32::MAX / 2
    }

    pub(super) fn transaction(&self, change_count: u32, end: Lsn, last_part: bool) -> Transaction {
        Transaction {
            xid: self.head.begin.xid,
            commit: self.head.begin.commit,
            end,
            commit_time_us: self.head.begin.commit_time_us,
            origin: self.head.origin.clone(),
            first_ordinal: self.first_ordinal,
            change_count,
            source_ordinal: self.source_ordinal,
            part: self.part,
            last_part,
        }
    }
}
