//! Rows that a plugin wants written to a table of Postgres: by name, so that the target may have another shape than the
//! source. The host's form of `interface rows` in `wit/v0.1/world.wit`.
//!
//! Holds: owned columns. Refuses to know who may write where (see the plugin crate) and how they are applied (the store).
//! Invariant: `Debug` of anything here tells names, kinds and counts, never a value.

use crate::batch::{Operation, Values};

/// One named column of a target.
#[derive(Debug, Clone, PartialEq)]
pub struct Cells {
    /// Its name in the target.
    pub name: String,
    /// None when every row has a value, else a presence code a row as in a batch. Rows at [`crate::batch::UNCHANGED`]
    /// or [`crate::batch::NOT_SENT`] leave the target's value alone.
    pub presence: Option<Vec<u8>>,
    /// The values.
    pub values: Values,
}

/// Changes of one operation for one target.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSet {
    /// The name of the target in the plugin's grant.
    pub target: String,
    /// What the changes do.
    pub operation: Operation,
    /// Where each row belongs among all sets of one call; rising within the set.
    pub ordinals: Vec<u32>,
    /// The new rows.
    pub after: Vec<Cells>,
    /// The old rows or their keys.
    pub before: Vec<Cells>,
}

/// The sets of one call of `apply`, which are merged by ordinal.
pub type RowCall = Vec<RowSet>;
