//! From events of the stream to batches of one plugin: granted columns only, each row walked once.
//!
//! Holds: one plugin's projection of every relation, the batch under construction, its bounds, and the plugin's place
//! in the stream. Bytes of columns that are not granted are stepped over by their length and copied nowhere.
//! Never knows: wasmtime, sockets, other plugins.
//! Invariant: what was taken into a batch once is never taken again, however often the stream repeats it; a batch
//! holds whole transactions, or a numbered part of exactly one.
//! Read next: [`crate::batch`].

mod error;
mod group;
mod project;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::assemble::{Event, Head, Relation};
use crate::batch::{Batch, LogicalMessage, Operation, Transaction};
use crate::grant::Grant;
use crate::pgoutput::{Commit, MessageBody, RowBody, RowKind};
use crate::relation::ProjectedRelation;
use crate::{Cursor, Lsn};

pub use error::{MinimizeError, MinimizeErrorKind};
use group::GroupBuilder;
use project::Projection;

/// Where a batch ends. Both bounds always apply; one row may overshoot the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Rows in a batch.
    pub max_rows: usize,
    /// Bytes of values in a batch, as Postgres printed them.
    pub max_bytes: usize,
}

/// What is handed to the plugin next, in this order.
#[derive(Debug)]
pub enum Item {
    /// A relation in a shape the plugin has not seen.
    Relation {
        /// The new shape.
        current: ProjectedRelation,
        /// The one before, if any.
        previous: Option<ProjectedRelation>,
    },
    /// Changes.
    Batch(Batch),
}

struct Open {
    head: Head,
    /// In the batch under construction.
    first_ordinal: u32,
    /// In the source transaction, of the change that would stand at `first_ordinal`.
    source_ordinal: u32,
    part: u32,
    rows: usize,
    bytes: usize,
}

/// Builds the batches of one plugin.
pub struct Minimizer {
    grant: Grant,
    id_prefix: String,
    bounds: Bounds,
    projections: Vec<Projection>,
    by_relation: HashMap<u32, usize>,
    /// The relation of the last row: rows of one table come in runs.
    last: (u32, usize),
    groups: Vec<GroupBuilder>,
    transactions: Vec<Transaction>,
    messages: Vec<LogicalMessage>,
    rows: usize,
    bytes: usize,
    next_ordinal: u32,
    open: Option<Open>,
    taken: Cursor,
    /// The number of the part that comes next of the transaction `taken` covers in part.
    resume_part: u32,
    ready: VecDeque<Item>,
}

impl Minimizer {
    /// For one plugin whose effective grant and durable cursor are given. `id_prefix` (at most 8 letters or digits)
    /// tells batches of different lineages apart.
    pub fn new(grant: Grant, id_prefix: &str, bounds: Bounds, from: Cursor) -> Self {
        Self {
            grant,
            id_prefix: id_prefix.chars().filter(char::is_ascii_alphanumeric).take(8).collect(),
            bounds: Bounds { max_rows: bounds.max_rows.max(1), max_bytes: bounds.max_bytes.max(1) },
            projections: Vec::new(),
            by_relation: HashMap::new(),
            last: (0, usize::MAX),
            groups: Vec::new(),
            transactions: Vec::new(),
            messages: Vec::new(),
            rows: 0,
            bytes: 0,
            next_ordinal: 0,
            open: None,
            taken: from,
            resume_part: 1,
            ready: VecDeque::new(),
        }
    }

    /// How far the stream has been taken into batches, delivered or not.
    pub fn taken(&self) -> Cursor {
        self.taken
    }

    /// True when nothing waits here: no item, no row, no open transaction with something in it.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.transactions.is_empty() && self.messages.is_empty() && self.rows == 0
    }

    /// Whether a whole transaction or a message waits to be cut off into a batch.
    pub fn has_complete(&self) -> bool {
        !self.transactions.is_empty() || (self.open.is_none() && !self.messages.is_empty())
    }

    /// Bytes of values in the batch under construction.
    pub fn building_bytes(&self) -> usize {
        self.bytes
    }

    /// The next item for the plugin.
    pub fn next_item(&mut self) -> Option<Item> {
        self.ready.pop_front()
    }

    /// Takes one event.
    #[inline]
    pub fn apply(&mut self, event: &Event<'_>) -> Result<(), MinimizeError> {
        match event {
            Event::Row(_, relation, body, ordinal) => self.row(relation, *body, *ordinal),
            Event::Begin(head) => self.begin(head),
            Event::Commit(_, commit, ordinals) => self.commit(*commit, *ordinals),
            Event::Relation(relation) => self.relation(relation),
            Event::Truncate(_, relations, first) => self.truncate(relations, *first),
            Event::Message(message, ordinal) => self.message(message, *ordinal),
            Event::Nothing => Ok(()),
        }
    }

    /// Makes a batch of the whole transactions that wait; rows of the open transaction stay.
    pub fn cut(&mut self) -> Result<(), MinimizeError> {
        if !self.has_complete() {
            return Ok(());
        }
        let (tail, messages) = self.split_open();
        let batch = self.finish(self.taken)?;
        self.ready.push_back(Item::Batch(batch));
        self.restore_open(tail, messages);
        Ok(())
    }

    /// The connection was lost: forgets what the stream will send again.
    pub fn rewind(&mut self) {
        let _ = self.split_open();
        if let Some(open) = self.open.take() {
            self.resume_part = open.part.max(1);
            self.rows = self.rows.saturating_sub(open.rows);
            self.bytes = self.bytes.saturating_sub(open.bytes);
        }
    }

    /// Takes the buffers of a delivered batch back.
    pub fn recycle(&mut self, batch: Batch) {
        for group in batch.groups {
            let Some(at) = self.by_relation.get(&group.relation).copied() else { continue };
            if let Some(projection) = self.projections.get_mut(at) {
                projection.recycle(at, group);
            }
        }
    }

    fn begin(&mut self, head: &Head) -> Result<(), MinimizeError> {
        let commit = head.begin.commit;
        if self.taken.covers(commit) {
            return Ok(());
        }
        if self.taken.ordinal > 0 && self.taken.commit != commit {
            return Err(MinimizeError::cursor(self.taken.commit, commit));
        }
        let source_ordinal = self.taken.covered_changes(commit);
        self.open = Some(Open {
            head: head.clone(),
            first_ordinal: self.next_ordinal,
            source_ordinal,
            part: if source_ordinal > 0 { self.resume_part } else { 0 },
            rows: 0,
            bytes: 0,
        });
        Ok(())
    }

    fn commit(&mut self, commit: Commit, ordinals: u32) -> Result<(), MinimizeError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.rows > 0 || open.part > 0 {
            let change_count = ordinals.saturating_sub(open.source_ordinal);
            let transaction = open.transaction(change_count, commit.end, true);
            self.next_ordinal = open.first_ordinal.saturating_add(change_count);
            self.transactions.push(transaction);
        }
        self.taken = Cursor::at(commit.end);
        // Ordinals of a batch are 32 bits wide: far fewer than that a batch, so that the next transaction has room.
        if self.next_ordinal > u32::MAX / 4 { self.cut() } else { Ok(()) }
    }

    #[inline]
    fn row(&mut self, relation: &Arc<Relation>, body: RowBody<'_>, ordinal: u32) -> Result<(), MinimizeError> {
        match &self.open {
            Some(open) if ordinal >= open.source_ordinal => {}
            _ => return Ok(()),
        }
        let Some(at) = self.projection_of(relation.id) else { return Ok(()) };
        let operation = match body.kind() {
            RowKind::Insert => Operation::Insert,
            RowKind::Update => Operation::Update,
            RowKind::Delete => Operation::Delete,
        };
        if !self.projections.get(at).is_some_and(|projection| projection.takes(operation)) {
            return Ok(());
        }
        self.make_room(ordinal)?;
        let (Some(open), Some(projection)) = (&mut self.open, self.projections.get_mut(at)) else { return Ok(()) };
        let batch_ordinal = open.batch_ordinal(ordinal)?;
        let slot = projection.group(at, operation, &mut self.groups);
        let Some(group) = self.groups.get_mut(slot) else { return Ok(()) };
        let bytes = group.push_row(projection.shape(), body, batch_ordinal)?;
        open.rows += 1;
        open.bytes += bytes;
        self.rows += 1;
        self.bytes += bytes;
        Ok(())
    }

    fn truncate(&mut self, relations: &[Arc<Relation>], first: u32) -> Result<(), MinimizeError> {
        for (ordinal, relation) in (first..).zip(relations) {
            let wanted = self.open.as_ref().is_some_and(|open| ordinal >= open.source_ordinal);
            let Some(at) = self.projection_of(relation.id).filter(|_| wanted) else { continue };
            if !self.projections.get(at).is_some_and(|projection| projection.takes(Operation::Truncate)) {
                continue;
            }
            self.make_room(ordinal)?;
            let (Some(open), Some(projection)) = (&mut self.open, self.projections.get_mut(at)) else { continue };
            let batch_ordinal = open.batch_ordinal(ordinal)?;
            let slot = projection.group(at, Operation::Truncate, &mut self.groups);
            let Some(group) = self.groups.get_mut(slot) else { continue };
            group.push_truncate(batch_ordinal);
            open.rows += 1;
            self.rows += 1;
        }
        Ok(())
    }

    fn message(&mut self, message: &MessageBody<'_>, ordinal: u32) -> Result<(), MinimizeError> {
        if !self.grant.message_prefixes.iter().any(|prefix| prefix == message.prefix) {
            return Ok(());
        }
        let batch_ordinal = if message.transactional {
            if !self.open.as_ref().is_some_and(|open| ordinal >= open.source_ordinal) {
                return Ok(());
            }
            self.make_room(ordinal)?;
            let Some(open) = &mut self.open else { return Ok(()) };
            open.rows += 1;
            open.bytes += message.content.len();
            open.batch_ordinal(ordinal)?
        } else {
            self.next_ordinal = self.next_ordinal.saturating_add(1);
            self.next_ordinal - 1
        };
        self.rows += 1;
        self.bytes += message.content.len();
        self.messages.push(LogicalMessage {
            ordinal: batch_ordinal,
            transactional: message.transactional,
            prefix: message.prefix.to_owned(),
            content: message.content.to_vec(),
        });
        Ok(())
    }

    fn relation(&mut self, relation: &Arc<Relation>) -> Result<(), MinimizeError> {
        let Some(grant) = self.grant.table(&relation.namespace, &relation.name) else {
            // A table renamed away from its grant is no longer granted; its rows so far keep their place.
            if let Some(at) = self.by_relation.get(&relation.id).copied() {
                self.close_shape(at)?;
                self.by_relation.remove(&relation.id);
                self.last = (0, usize::MAX);
            }
            return Ok(());
        };
        let known = self.by_relation.get(&relation.id).copied();
        let previous = known.and_then(|at| self.projections.get(at));
        let projection = Projection::new(grant, relation, previous)?;
        match known {
            Some(at) if previous.is_some_and(|previous| previous.same_for_plugin(&projection)) => {
                // Only hidden columns moved: the plugin keeps its version, the walk follows the new shape.
                if let Some(slot) = self.projections.get_mut(at) {
                    slot.follow(projection);
                }
            }
            Some(at) => {
                self.close_shape(at)?;
                if let Some(slot) = self.projections.get_mut(at) {
                    let current = projection.relation().clone();
                    let previous = std::mem::replace(slot, projection);
                    self.ready.push_back(Item::Relation { current, previous: Some(previous.relation().clone()) });
                }
            }
            None => {
                self.ready.push_back(Item::Relation { current: projection.relation().clone(), previous: None });
                self.by_relation.insert(relation.id, self.projections.len());
                self.projections.push(projection);
            }
        }
        Ok(())
    }

    /// Before the shape of a relation changes, everything written under the old one leaves.
    fn close_shape(&mut self, at: usize) -> Result<(), MinimizeError> {
        if !self.projections.get(at).is_some_and(Projection::in_use) {
            return Ok(());
        }
        self.cut()?;
        match self.open.as_ref().filter(|open| open.rows > 0) {
            Some(open) => self.cut_part(open.after_last(&self.groups, &self.messages)),
            None => Ok(()),
        }
    }

    #[inline]
    fn projection_of(&mut self, relation: u32) -> Option<usize> {
        if self.last.0 == relation && self.last.1 != usize::MAX {
            return Some(self.last.1);
        }
        let at = self.by_relation.get(&relation).copied()?;
        self.last = (relation, at);
        Some(at)
    }

    /// Cuts before the change at `ordinal` when the batch is full: at the last commit, so that only a transaction too
    /// large for a batch of its own comes in parts.
    #[inline]
    fn make_room(&mut self, ordinal: u32) -> Result<(), MinimizeError> {
        if self.rows < self.bounds.max_rows && self.bytes < self.bounds.max_bytes {
            return Ok(());
        }
        self.cut()?;
        if self.rows >= self.bounds.max_rows || self.bytes >= self.bounds.max_bytes {
            self.cut_part(ordinal)?;
        }
        Ok(())
    }

    /// Makes a part of the open transaction: its changes before the source ordinal `until`.
    fn cut_part(&mut self, until: u32) -> Result<(), MinimizeError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        self.transactions.push(open.transaction(until - open.source_ordinal, Lsn::ZERO, false));
        let reaches = Cursor { end: self.taken.end, commit: open.head.begin.commit, ordinal: until };
        let batch = self.finish(reaches)?;
        self.ready.push_back(Item::Batch(batch));
        self.taken = reaches;
        open.part += 1;
        (open.first_ordinal, open.source_ordinal, open.rows, open.bytes) = (0, until, 0, 0);
        self.open = Some(open);
        Ok(())
    }

    /// Takes the rows of the open transaction out of the batch under construction.
    fn split_open(&mut self) -> (Vec<GroupBuilder>, Vec<LogicalMessage>) {
        let Some(first) = self.open.as_ref().filter(|open| open.rows > 0).map(|open| open.first_ordinal) else {
            return (Vec::new(), Vec::new());
        };
        let projections = &mut self.projections;
        let mut empty = |at: usize, operation| match projections.get_mut(at) {
            Some(projection) => projection.spare_or_new(at, operation),
            None => GroupBuilder::new(at, operation, &[]),
        };
        let tail = self.groups.iter_mut().filter_map(|group| group.split_from(first, &mut empty)).collect();
        let at = self.messages.partition_point(|message| message.ordinal < first);
        (tail, self.messages.split_off(at))
    }

    /// Starts the next batch with the rows of the open transaction.
    fn restore_open(&mut self, tail: Vec<GroupBuilder>, messages: Vec<LogicalMessage>) {
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
    fn finish(&mut self, reaches: Cursor) -> Result<Batch, MinimizeError> {
        let transactions = std::mem::take(&mut self.transactions);
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in self.groups.drain(..) {
            let Some(projection) = self.projections.get_mut(group.projection()) else { continue };
            projection.released();
            if let Some(group) = group.finish(projection)? {
                groups.push(group);
            }
        }
        let messages = std::mem::take(&mut self.messages);
        let batch = Batch {
            id: batch_id(&self.id_prefix, &transactions, reaches, messages.len()),
            attempt: 1,
            rows: groups.iter().map(|group| group.ordinals.len()).sum::<usize>() + messages.len(),
            bytes: self.bytes - self.open.as_ref().map_or(0, |open| open.bytes),
            transactions,
            groups,
            messages,
            reaches,
        };
        (self.rows, self.bytes, self.next_ordinal) = (0, 0, 0);
        Ok(batch)
    }
}

impl Open {
    fn batch_ordinal(&self, source: u32) -> Result<u32, MinimizeError> {
        self.first_ordinal
            .checked_add(source - self.source_ordinal)
            .ok_or_else(|| MinimizeError::too_many_changes(self.head.begin.commit))
    }

    /// The source ordinal after the last change of this transaction in the batch.
    fn after_last(&self, groups: &[GroupBuilder], messages: &[LogicalMessage]) -> u32 {
        let rows = groups.iter().filter_map(GroupBuilder::last_ordinal);
        let last = rows.chain(messages.last().map(|message| message.ordinal)).max();
        last.map_or(self.source_ordinal, |last| last - self.first_ordinal + self.source_ordinal + 1)
    }

    fn transaction(&self, change_count: u32, end: Lsn, last_part: bool) -> Transaction {
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

/// Equal for equal content: named by the first and the last change.
fn batch_id(prefix: &str, transactions: &[Transaction], reaches: Cursor, messages: usize) -> String {
    match (transactions.first(), transactions.last()) {
        (Some(first), Some(last)) => format!(
            "{prefix}{:x}-{:x}-{:x}-{:x}",
            first.commit.get(),
            first.source_ordinal,
            last.commit.get(),
            last.source_ordinal.saturating_add(last.change_count)
        ),
        _ => format!("{prefix}{:x}-m{messages:x}", reaches.end.get()),
    }
}

#[cfg(test)]
mod tests;
