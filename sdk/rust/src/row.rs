//! Changes one by one, in the order in which they were committed.
//!
//! Holds: the merge of groups and messages by ordinal, and rows with their cells. Refuses to print values. Read next:
//! [`crate::FromCell`] for the types a cell can be read as.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;

use crate::batch::{Batch, Group, columns};
use crate::bindings::walgate::cdc::change as raw;
use crate::relation::{self, ColumnInfo, Operation, Relation, Transaction};
use crate::value::{Cell, CellError, FromCell};

/// One change.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// A row was read, inserted, updated or deleted, or a table was truncated.
    Row(Row<'a>),
    /// A logical message was written.
    Message(Message<'a>),
}

impl<'a> Change<'a> {
    /// The place in the order of the batch: what [`crate::Receipt::reject`] takes.
    pub fn ordinal(&self) -> u32 {
        match self {
            Self::Row(row) => row.ordinal(),
            Self::Message(message) => message.ordinal(),
        }
    }

    /// The transaction; none for a row of a snapshot and for a message outside any transaction.
    pub fn transaction(&self) -> Option<&'a Transaction> {
        match self {
            Self::Row(row) => row.transaction(),
            Self::Message(message) => message.transaction(),
        }
    }
}

/// One row of a batch.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub(crate) group: Group<'a>,
    pub(crate) at: usize,
    pub(crate) ordinal: u32,
    pub(crate) transaction: Option<&'a Transaction>,
}

impl<'a> Row<'a> {
    /// What the change did.
    pub fn operation(&self) -> Operation {
        self.group.operation()
    }

    /// The table, with its granted columns.
    pub fn relation(&self) -> &'a Relation {
        self.group.relation()
    }

    /// The place in the order of the batch: what [`crate::Receipt::reject`] takes. Another batch counts anew; see
    /// [`Row::key`].
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The transaction; none for a row of a snapshot.
    pub fn transaction(&self) -> Option<&'a Transaction> {
        self.transaction
    }

    /// The key of this change that no replay, restart, batch size or grant can alter: the commit position of its
    /// transaction and its ordinal there. `(0, ordinal)` for a row of a snapshot, which has no such key.
    pub fn key(&self) -> (u64, u32) {
        key(self.transaction, self.ordinal)
    }

    /// The new row: of a read, an insert or an update; without a column else.
    pub fn after(&self) -> Image<'a> {
        self.group.after_image(self.at)
    }

    /// The old row or its key, as far as the replica identity sent it: of an update or a delete.
    pub fn before(&self) -> Image<'a> {
        self.group.before_image(self.at)
    }

    /// The new row, or after a delete the old one: the row that the change is about.
    pub fn image(&self) -> Image<'a> {
        match self.operation() {
            Operation::Delete => self.before(),
            _ => self.after(),
        }
    }

    /// Reads a column of [`Row::image`]: `row.get::<i64>("id")?`, `row.get::<Option<&str>>("note")?`.
    pub fn get<T: FromCell<'a>>(&self, column: &str) -> Result<T, CellError> {
        self.image().get(column)
    }

    /// The columns of [`Row::image`] with their cells, in the order of the batch.
    pub fn cells(&self) -> impl Iterator<Item = (&'a ColumnInfo, Cell<'a>)> {
        self.image().cells()
    }
}

impl fmt::Debug for Row<'_> {
    /// Table, operation and key; no values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (commit, ordinal) = self.key();
        write!(f, "Row({} {} {commit:X}+{ordinal})", self.operation().name(), self.relation().full_name())
    }
}

/// The new or the old side of a row.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    pub(crate) columns: &'a [raw::Column],
    pub(crate) relation: &'a Rc<Relation>,
    pub(crate) at: usize,
}

impl<'a> Image<'a> {
    /// True when this side has no column at all.
    pub fn is_empty(self) -> bool {
        self.columns.is_empty()
    }

    /// True when nothing of this side was sent: no column, or all of them [`Cell::NotSent`].
    pub fn is_absent(self) -> bool {
        self.cells().all(|(_, cell)| cell == Cell::NotSent)
    }

    /// Reads a column by name. Walks the columns: for hot loops over wide tables use [`Group::after`].
    pub fn get<T: FromCell<'a>>(self, column: &str) -> Result<T, CellError> {
        let found = self.cells().find(|(info, _)| info.name == column);
        let (_, cell) = found
            .ok_or_else(|| CellError::NoColumn { relation: self.relation.full_name(), column: column.to_owned() })?;
        T::from_cell(column, cell)
    }

    /// The columns with their cells, in the order of the batch.
    pub fn cells(self) -> impl Iterator<Item = (&'a ColumnInfo, Cell<'a>)> {
        let at = self.at;
        // The row exists, so every column has a slot for it and no cell is left out.
        columns(self.columns, self.relation).filter_map(move |column| Some((column.info(), column.cell(at)?)))
    }
}

/// What `pg_logical_emit_message` wrote.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    raw: &'a raw::Message,
    transaction: Option<&'a Transaction>,
}

impl<'a> Message<'a> {
    /// The place in the order of the batch.
    pub fn ordinal(&self) -> u32 {
        self.raw.ordinal
    }

    /// The transaction it belongs to.
    pub fn transaction(&self) -> Option<&'a Transaction> {
        self.transaction
    }

    /// The stable key, as [`Row::key`].
    pub fn key(&self) -> (u64, u32) {
        key(self.transaction, self.raw.ordinal)
    }

    /// Whether it was written as part of its transaction.
    pub fn transactional(&self) -> bool {
        self.raw.transactional
    }

    /// The prefix, one that the grant names.
    pub fn prefix(&self) -> &'a str {
        &self.raw.prefix
    }

    /// The content.
    pub fn content(&self) -> &'a [u8] {
        &self.raw.content
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.raw.content.len())
    }
}

fn key(transaction: Option<&Transaction>, ordinal: u32) -> (u64, u32) {
    transaction.map_or((0, ordinal), |owner| (owner.commit_lsn, owner.source_ordinal_of(ordinal)))
}

/// All changes of a batch in commit order; see [`Batch::rows`].
pub struct Changes<'a> {
    batch: &'a Batch,
    groups: Vec<Group<'a>>,
    /// Ordinal, source and place in the source of the next change of every source but the current. The messages are
    /// the source after the last group.
    waiting: BinaryHeap<Reverse<(u32, usize, usize)>>,
    /// The same of the source that gave the last change. Runs of one group are long, so it is kept out of the heap.
    current: Option<(u32, usize, usize)>,
    transaction: Option<&'a Transaction>,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(batch: &'a Batch) -> Self {
        let groups: Vec<_> = batch.groups().collect();
        let mut all = Self { batch, groups, waiting: BinaryHeap::new(), current: None, transaction: None };
        let heads: Vec<_> = (0..=all.groups.len()).filter_map(|source| all.place(source, 0)).collect();
        all.waiting.extend(heads.into_iter().map(Reverse));
        all
    }

    fn place(&self, source: usize, at: usize) -> Option<(u32, usize, usize)> {
        let ordinal = match self.groups.get(source) {
            Some(group) => *group.ordinals().get(at)?,
            None => self.batch.messages().get(at)?.ordinal,
        };
        Some((ordinal, source, at))
    }

    /// Takes the place with the lowest ordinal.
    fn step(&mut self) -> Option<(u32, usize, usize)> {
        let lowest = self.waiting.peek().map(|Reverse(place)| *place);
        match (self.current.take(), lowest) {
            (Some(current), Some(other)) if other < current => {
                self.waiting.pop();
                self.waiting.push(Reverse(current));
                Some(other)
            }
            (Some(current), _) => Some(current),
            (None, _) => self.waiting.pop().map(|Reverse(place)| place),
        }
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        let (ordinal, source, at) = self.step()?;
        self.current = self.place(source, at + 1);
        if !self.transaction.is_some_and(|owner| owner.owns(ordinal)) {
            self.transaction = relation::owner(self.batch.transactions(), ordinal);
        }
        let transaction = self.transaction;
        match self.groups.get(source) {
            Some(group) => Some(Change::Row(Row { group: *group, at, ordinal, transaction })),
            None => {
                let raw = self.batch.messages().get(at)?;
                Some(Change::Message(Message { raw, transaction }))
            }
        }
    }
}
