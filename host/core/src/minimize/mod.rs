//! From events of the stream to batches of one plugin: granted columns only, each row walked once.
//!
//! Holds: one plugin's projection of every relation, the batch under construction, its bounds, and the plugin's place
//! in the stream. Bytes of columns that are not granted are stepped over by their length and copied nowhere.
//! Never knows: wasmtime, sockets, other plugins.
//! Invariants: what was taken into a batch once is never taken again, however often the stream repeats it; a batch
//! holds whole transactions, or a numbered part of one. A shape is told when the first row that needs it is taken, so
//! replayed announcements tell nothing and the versions a plugin sees only rise.
//! Read next: [`cut`](self) for where batches end, then [`crate::batch`].

mod cut;
mod error;
mod filter;
mod group;
mod judge;
mod known;
mod operand;
mod project;
mod spare;
mod treat;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::assemble::{Event, Head, Relation};
use crate::batch::{Batch, LogicalMessage, Operation, Transaction};
use crate::grant::{Grant, TableGrant};
use crate::pgoutput::{Commit, MessageBody, RowBody, RowKind};
use crate::relation::ProjectedRelation;
use crate::{Cursor, Lsn};

use cut::{Loose, Open};
pub use error::{FilterError, MinimizeError, MinimizeErrorKind, TreatmentError};
use group::GroupBuilder;
use judge::judge;
use known::Known;
pub use known::KnownTable;
use project::{Projection, Shape};
use spare::Spares;
pub use treat::{HashKey, ShortHashKey};

/// Where a batch ends. Both bounds always apply; one row may overshoot the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Rows in a batch.
    pub max_rows: usize,
    /// Bytes of values in a batch, as Postgres printed them; a slot without a value counts 8.
    pub max_bytes: usize,
}

/// Emptied buffers are kept up to this many times the byte bound of a batch: one batch is built while two are on their
/// way, and a buffer that grew by doubling is up to twice as large as what it held.
const SPARE_BATCHES: usize = 4;

/// Emptied lists of transactions kept, for the same batches.
const SPARE_LISTS: usize = 4;

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

/// Whether a grant fits a relation: what would stop its plugin at the first row of it.
///
/// # Errors
/// What does not fit, as [`Minimizer::apply`] would say it.
pub fn fits(grant: &TableGrant, relation: &Relation, hash_key: Option<HashKey>) -> Result<(), MinimizeError> {
    Known::default().withheld(grant, relation)?;
    Shape::new(grant, relation, &[], hash_key.map(Arc::new).as_ref()).map(drop)
}

/// Builds the batches of one plugin.
///
/// Feed it the events of one connection after the other, each from its own [`crate::assemble::Assembler`], with
/// [`Minimizer::rewind`] in between. Finished items wait without a bound: stop feeding while there are any.
pub struct Minimizer {
    grant: Grant,
    id_prefix: String,
    bounds: Bounds,
    projections: Vec<Projection>,
    by_relation: FxHashMap<u32, usize>,
    /// The projection of the last row: rows of one table come in runs.
    last: usize,
    groups: Vec<GroupBuilder>,
    transactions: Vec<Transaction>,
    messages: Vec<LogicalMessage>,
    /// The first and the last message under construction that belong to no transaction.
    loose: Option<(Loose, Loose)>,
    /// Position of the last message taken that belongs to no transaction.
    loose_taken: Lsn,
    rows: usize,
    bytes: usize,
    next_ordinal: u32,
    open: Option<Open>,
    taken: Cursor,
    /// The number of the part that comes next of the transaction `taken` covers in part.
    resume_part: u32,
    ready: VecDeque<Item>,
    known: Known,
    hash_key: Option<Arc<HashKey>>,
    spares: Spares,
    spare_lists: Vec<Vec<Transaction>>,
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
            by_relation: FxHashMap::default(),
            last: usize::MAX,
            groups: Vec::new(),
            transactions: Vec::new(),
            messages: Vec::new(),
            loose: None,
            loose_taken: Lsn::ZERO,
            rows: 0,
            bytes: 0,
            next_ordinal: 0,
            open: None,
            taken: from,
            resume_part: 1,
            ready: VecDeque::new(),
            known: Known::default(),
            hash_key: None,
            spares: Spares::new(bounds.max_bytes.saturating_mul(SPARE_BATCHES)),
            spare_lists: Vec::new(),
        }
    }

    /// With what was learned before a restart, see [`Minimizer::learned`].
    #[must_use]
    pub fn knowing(mut self, tables: impl IntoIterator<Item = KnownTable>) -> Self {
        tables.into_iter().for_each(|table| self.known.add(table));
        self
    }

    /// With the key of the plugin's hashes. Without one, the first row of a table with a hashed column is an error.
    #[must_use]
    pub fn hashing(mut self, key: HashKey) -> Self {
        self.hash_key = Some(Arc::new(key));
        self
    }

    /// Tables met for the first time under a `*` grant since the last call. They have to be durable together with the
    /// next item's rows, or a restart would take later columns for known ones.
    pub fn learned(&mut self) -> Vec<KnownTable> {
        std::mem::take(&mut self.known.learned)
    }

    /// Tables of which other columns are withheld than at the last call, with those columns.
    pub fn newly_withheld(&mut self) -> Vec<KnownTable> {
        std::mem::take(&mut self.known.withheld)
    }

    /// Whether [`Minimizer::learned`], [`Minimizer::newly_withheld`] or [`Minimizer::next_item`] has something.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.ready.is_empty() || !self.known.learned.is_empty() || !self.known.withheld.is_empty()
    }

    /// How far the stream has been taken into batches, delivered or not.
    #[inline]
    pub fn taken(&self) -> Cursor {
        self.taken
    }

    /// Moves the place in the stream forward where the server says that nothing more comes before `to`. Only while
    /// nothing waits here and no transaction is open; answers whether it moved.
    pub fn cover(&mut self, to: Lsn) -> bool {
        let idle = self.is_empty() && self.open.is_none() && self.taken.ordinal == 0;
        idle && self.taken.end.advance(to)
    }

    /// True when nothing waits here: no item, no row, no open transaction with something in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.transactions.is_empty() && self.messages.is_empty() && self.rows == 0
    }

    /// Whether a whole transaction or a message waits to be cut off into a batch.
    #[inline]
    pub fn has_complete(&self) -> bool {
        // Messages of the open transaction stand behind the loose ones.
        !self.transactions.is_empty() || self.messages.first().is_some_and(|message| !message.transactional)
    }

    /// Bytes of values in the batch under construction.
    #[inline]
    pub fn building_bytes(&self) -> usize {
        self.bytes
    }

    /// Columns that are not handed over because they appeared while the plugin ran under a `*` grant that does not
    /// allow new ones: the relation as the plugin sees it, and the names of the columns.
    pub fn withheld(&self) -> impl Iterator<Item = (&ProjectedRelation, &[String])> {
        let told = self.projections.iter().filter_map(|projection| Some((projection, projection.shape()?)));
        told.map(|(projection, shape)| (&shape.relation, projection.withheld())).filter(|(_, names)| !names.is_empty())
    }

    /// The next item for the plugin.
    #[inline]
    pub fn next_item(&mut self) -> Option<Item> {
        self.ready.pop_front()
    }

    /// Takes one event.
    ///
    /// # Errors
    ///
    /// A change that cannot be handed over. It is permanent, and this minimizer must not be used any more.
    #[inline]
    pub fn apply(&mut self, event: &Event<'_>) -> Result<(), MinimizeError> {
        match event {
            Event::Row(_, relation, body, ordinal) => self.row(relation, *body, *ordinal),
            Event::Begin(head) => self.begin(head),
            Event::Origin(head) => {
                self.origin(head);
                Ok(())
            }
            Event::Commit(_, commit, ordinals) => self.commit(*commit, *ordinals),
            Event::Truncate(_, relations, first) => self.truncate(relations, *first),
            Event::Message(message, ordinal) => self.message(message, *ordinal),
            // Every change brings its relation along: it is looked at when the change is taken.
            Event::Relation(_) | Event::Nothing => Ok(()),
        }
    }

    /// Makes a batch of the whole transactions that wait; rows of the open transaction stay.
    ///
    /// # Errors
    ///
    /// A value that cannot be handed over, as for [`Minimizer::apply`].
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
            let Some(shape) = self.projections.get(at).and_then(Projection::shape) else { continue };
            if let Some(builder) = GroupBuilder::recycle(at, group, &shape.kinds) {
                self.spares.put(builder);
            }
        }
        if self.spare_lists.len() < SPARE_LISTS {
            let mut list = batch.transactions;
            list.clear();
            self.spare_lists.push(list);
        }
    }

    fn begin(&mut self, head: &Head) -> Result<(), MinimizeError> {
        let commit = head.begin.commit;
        // Commits come in order: what commits before the transaction that is covered in part was passed on the way there.
        if self.taken.covers(commit) || commit < self.taken.commit {
            return Ok(());
        }
        if self.taken.ordinal > 0 && self.taken.commit != commit {
            return Err(MinimizeError::cursor(self.taken.commit, commit));
        }
        let source_ordinal = self.taken.covered_changes(commit);
        let part = if source_ordinal > 0 { self.resume_part } else { 0 };
        self.open = Some(Open::new(head.clone(), self.next_ordinal, source_ordinal, part));
        Ok(())
    }

    fn origin(&mut self, head: &Head) {
        if let Some(open) = &mut self.open {
            open.head.origin.clone_from(&head.origin);
        }
    }

    fn commit(&mut self, commit: Commit, ordinals: u32) -> Result<(), MinimizeError> {
        if self.open.as_ref().is_some_and(|open| open.is_far(ordinals)) {
            self.cut()?;
        }
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.rows > 0 || open.part > 0 {
            let change_count = ordinals.saturating_sub(open.source_ordinal);
            self.next_ordinal = open.first_ordinal.saturating_add(change_count);
            self.transactions.push(open.transaction(change_count, commit.end, true));
        }
        self.taken = Cursor::at(commit.end);
        // Ordinals of a batch are 32 bits wide: far fewer than that a batch, so that the next transaction has room.
        if self.next_ordinal > u32::MAX / 4 { self.cut() } else { Ok(()) }
    }

    #[inline]
    fn row(&mut self, relation: &Arc<Relation>, body: RowBody<'_>, ordinal: u32) -> Result<(), MinimizeError> {
        let operation = match body.kind() {
            RowKind::Insert => Operation::Insert,
            RowKind::Update => Operation::Update,
            RowKind::Delete => Operation::Delete,
        };
        let Some(at) = self.admit(relation, operation, ordinal)? else { return Ok(()) };
        let Some(shape) = self.projections.get(at).and_then(Projection::shape) else { return Ok(()) };
        let Some(operation) = judge(shape, body)? else { return Ok(()) };
        self.make_room(ordinal)?;
        let (Some(open), Some(projection)) = (&mut self.open, self.projections.get_mut(at)) else { return Ok(()) };
        let batch_ordinal = open.batch_ordinal(ordinal)?;
        let slot = projection.group(at, operation, &mut self.groups, &mut self.spares);
        let (Some(group), Some(shape)) = (self.groups.get_mut(slot), projection.shape()) else { return Ok(()) };
        let bytes = group.push_row(shape, body, batch_ordinal)?;
        open.rows += 1;
        open.bytes += bytes;
        self.rows += 1;
        self.bytes += bytes;
        Ok(())
    }

    fn truncate(&mut self, relations: &[Arc<Relation>], first: u32) -> Result<(), MinimizeError> {
        for (relation, ordinal) in relations.iter().zip(first..) {
            let Some(at) = self.admit(relation, Operation::Truncate, ordinal)? else { continue };
            self.make_room(ordinal)?;
            let (Some(open), Some(projection)) = (&mut self.open, self.projections.get_mut(at)) else { continue };
            let batch_ordinal = open.batch_ordinal(ordinal)?;
            let slot = projection.group(at, Operation::Truncate, &mut self.groups, &mut self.spares);
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
        let ordinal = match message.transactional {
            true => self.place_in_transaction(message, ordinal)?,
            false => self.place_loose(message)?,
        };
        let Some(ordinal) = ordinal else { return Ok(()) };
        self.rows += 1;
        self.bytes += message.content.len();
        self.messages.push(LogicalMessage {
            ordinal,
            transactional: message.transactional,
            prefix: message.prefix.to_owned(),
            content: message.content.to_vec(),
        });
        Ok(())
    }

    fn place_in_transaction(&mut self, message: &MessageBody<'_>, ordinal: u32) -> Result<Option<u32>, MinimizeError> {
        if !self.wants(ordinal) {
            return Ok(None);
        }
        self.make_room(ordinal)?;
        let Some(open) = &mut self.open else { return Ok(None) };
        open.rows += 1;
        open.bytes += message.content.len();
        open.batch_ordinal(ordinal).map(Some)
    }

    fn place_loose(&mut self, message: &MessageBody<'_>) -> Result<Option<u32>, MinimizeError> {
        // Loose messages come in the order of the log, and so do commits: one that lies before either was taken.
        let covered = message.lsn < self.taken.end.max(self.taken.commit) || message.lsn <= self.loose_taken;
        if covered {
            return Ok(None);
        }
        self.make_room(0)?;
        let ordinal = self.next_ordinal;
        self.next_ordinal = ordinal.saturating_add(1);
        self.loose_taken = message.lsn;
        let here = Loose { ordinal, lsn: message.lsn };
        self.loose = Some((self.loose.map_or(here, |(first, _)| first), here));
        Ok(Some(ordinal))
    }

    /// Whether the change with that ordinal in the open transaction was not taken before.
    #[inline]
    fn wants(&self, ordinal: u32) -> bool {
        self.open.as_ref().is_some_and(|open| ordinal >= open.source_ordinal)
    }

    /// Whether a change may be for this plugin. If it may, its relation has been told.
    #[inline]
    fn admit(
        &mut self,
        relation: &Arc<Relation>,
        operation: Operation,
        ordinal: u32,
    ) -> Result<Option<usize>, MinimizeError> {
        if !self.wants(ordinal) {
            return Ok(None);
        }
        let at = match self.projections.get(self.last) {
            Some(last) if last.is_of(relation) => self.last,
            _ => self.find(relation),
        };
        let Some(projection) = self.projections.get(at).filter(|projection| projection.takes(operation)) else {
            return Ok(None);
        };
        if projection.is_stale() {
            self.reshape(at, ordinal)?;
        }
        Ok(Some(at))
    }

    fn find(&mut self, relation: &Arc<Relation>) -> usize {
        let at = *self.by_relation.entry(relation.id).or_insert(self.projections.len());
        match self.projections.get_mut(at) {
            Some(known) if known.is_of(relation) => {}
            Some(known) => known.announced(relation.clone(), &self.grant),
            None => self.projections.push(Projection::new(relation.clone(), &self.grant)),
        }
        self.last = at;
        at
    }

    /// The relation was announced again. Where the plugin can see a difference, all that was written under the old
    /// shape leaves first, the changes of the open transaction before `ordinal` included.
    fn reshape(&mut self, at: usize, ordinal: u32) -> Result<(), MinimizeError> {
        let Some(projection) = self.projections.get_mut(at) else { return Ok(()) };
        let Some(shape) = projection.follow(&self.grant, &mut self.known, self.hash_key.as_ref())? else {
            return Ok(());
        };
        if self.is_building(at) {
            self.cut()?;
        }
        if self.is_building(at) {
            self.cut_part(ordinal)?;
        }
        self.spares.forget(at);
        if let Some(projection) = self.projections.get_mut(at) {
            let (current, previous) = projection.replace(shape);
            self.ready.push_back(Item::Relation { current, previous });
        }
        Ok(())
    }

    fn is_building(&self, at: usize) -> bool {
        self.groups.iter().any(|group| group.projection() == at && !group.is_empty())
    }
}

#[cfg(test)]
mod tests;
