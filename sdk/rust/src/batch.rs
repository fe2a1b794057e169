//! The unit of delivery: committed transactions, as groups of columns or as changes in commit order.
//!
//! Holds: [`Batch`] and [`Group`], and the check that makes every later read sound. Refuses to print values. Read next:
//! [`crate::Change`] for commit order, [`crate::Column`] for speed.

use std::fmt;
use std::rc::Rc;

use crate::bindings::walgate::cdc::change as raw;
use crate::column::{self, Column};
use crate::relation::{self, Operation, Relation, Relations, SnapshotChunk, Transaction};
use crate::row::{Changes, Image, Row};

/// Whole committed transactions in commit order, or numbered parts of one too large.
pub struct Batch {
    raw: raw::Batch,
    /// The relation of each group, in the order of the groups.
    relations: Vec<Rc<Relation>>,
}

/// The host sent a batch that breaks the contract. Names the place, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed batch: group {group} of relation {relation}: {what}")]
pub(crate) struct Malformed {
    /// Which group, from 0.
    pub group: usize,
    /// The id of its relation.
    pub relation: u32,
    /// What is wrong.
    pub what: &'static str,
}

impl Batch {
    /// Checks what crossed the boundary, so that reading it cannot fail later.
    pub(crate) fn new(raw: raw::Batch, told: &Relations) -> Result<Self, Malformed> {
        let mut relations = Vec::with_capacity(raw.groups.len());
        for (at, group) in raw.groups.iter().enumerate() {
            let malformed = |what| Malformed { group: at, relation: group.relation, what };
            let relation = told.get(&group.relation).ok_or(malformed("relation-changed was never called"))?;
            if let Some(what) = group_defect(group, relation) {
                return Err(malformed(what));
            }
            relations.push(Rc::clone(relation));
        }
        Ok(Self { raw, relations })
    }

    /// The same on every redelivery of the same content: the idempotency key to hand to systems outside.
    pub fn id(&self) -> &str {
        &self.raw.id
    }

    /// 1 on the first delivery, then 2, 3, ….
    pub fn attempt(&self) -> u32 {
        self.raw.attempt
    }

    /// Which piece of which table this is, when the rows are a snapshot.
    pub fn snapshot(&self) -> Option<&SnapshotChunk> {
        self.raw.snapshot.as_ref()
    }

    /// The transactions, in commit order.
    pub fn transactions(&self) -> &[Transaction] {
        &self.raw.transactions
    }

    /// All changes, logical messages included, one by one in exact commit order. Costs more than
    /// [`Batch::groups`], a cell being found at a time, and is what order needs.
    pub fn rows(&self) -> Changes<'_> {
        Changes::new(self)
    }

    /// The changes as columns, by relation and operation: the fast way when order between groups does not matter.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = Group<'_>> {
        self.raw.groups.iter().zip(&self.relations).map(|(raw, relation)| Group {
            raw,
            relation,
            transactions: &self.raw.transactions,
        })
    }

    /// The number of row changes, a truncated table counting as one.
    pub fn row_count(&self) -> usize {
        self.raw.groups.iter().map(|group| group.ordinals.len()).sum()
    }

    /// The logical messages of the batch, rising by ordinal.
    pub(crate) fn messages(&self) -> &[raw::Message] {
        &self.raw.messages
    }
}

impl fmt::Debug for Batch {
    /// Counts and positions, no values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("id", &self.raw.id)
            .field("attempt", &self.raw.attempt)
            .field("transactions", &self.raw.transactions.len())
            .field("groups", &self.raw.groups.len())
            .field("rows", &self.row_count())
            .field("messages", &self.raw.messages.len())
            .finish()
    }
}

/// Changes of one relation and one operation, as columns.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    pub(crate) raw: &'a raw::ChangeGroup,
    pub(crate) relation: &'a Rc<Relation>,
    pub(crate) transactions: &'a [Transaction],
}

impl<'a> Group<'a> {
    /// The relation.
    pub fn relation(self) -> &'a Relation {
        self.relation
    }

    /// What the changes did.
    pub fn operation(self) -> Operation {
        self.raw.operation
    }

    /// The number of rows. A truncate group has one row a truncated table, without columns.
    pub fn len(self) -> usize {
        self.raw.ordinals.len()
    }

    /// True when there is no row.
    pub fn is_empty(self) -> bool {
        self.raw.ordinals.is_empty()
    }

    /// The place of each row in the order of the batch, rising.
    pub fn ordinals(self) -> &'a [u32] {
        &self.raw.ordinals
    }

    /// The columns of the new rows: read, insert, update.
    pub fn after(self) -> impl Iterator<Item = Column<'a>> {
        columns(&self.raw.after, self.relation)
    }

    /// The columns of the old rows or their keys: update, delete.
    pub fn before(self) -> impl Iterator<Item = Column<'a>> {
        columns(&self.raw.before, self.relation)
    }

    /// One row of the group, from 0.
    pub fn row(self, at: usize) -> Option<Row<'a>> {
        let ordinal = *self.raw.ordinals.get(at)?;
        Some(Row { group: self, at, ordinal, transaction: relation::owner(self.transactions, ordinal) })
    }

    /// The rows of the group.
    pub fn rows(self) -> impl Iterator<Item = Row<'a>> {
        (0..self.len()).filter_map(move |at| self.row(at))
    }

    /// The new row at `at`, without a column after a delete or truncate.
    pub(crate) fn after_image(self, at: usize) -> Image<'a> {
        Image { columns: &self.raw.after, relation: self.relation, at }
    }

    /// The old row at `at`.
    pub(crate) fn before_image(self, at: usize) -> Image<'a> {
        Image { columns: &self.raw.before, relation: self.relation, at }
    }
}

/// The columns of one side of a group with what the relation says about them.
pub(crate) fn columns<'a>(raw: &'a [raw::Column], relation: &'a Relation) -> impl Iterator<Item = Column<'a>> {
    // Every index was checked when the batch was made, so no column is left out here.
    raw.iter().filter_map(|raw| Some(Column { info: relation.columns.get(usize::from(raw.index))?, raw }))
}

fn group_defect(group: &raw::ChangeGroup, relation: &Relation) -> Option<&'static str> {
    if !group.ordinals.is_sorted_by(|earlier, later| earlier < later) {
        return Some("ordinals do not rise");
    }
    group.after.iter().chain(&group.before).find_map(|column| {
        if usize::from(column.index) >= relation.columns.len() {
            return Some("a column the relation does not have");
        }
        column::defect(column.presence.as_deref(), &column.values, group.ordinals.len())
    })
}
