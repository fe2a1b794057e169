//! What the stream says about tables, and what a plugin may see of it.
//!
//! Holds: the relation message as owned data, its version, and the projected form. Refuses to know today's catalog of
//! the source: the log's own relation messages decide how the log is read.

use crate::Lsn;

/// How a table identifies its rows in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key.
    Default,
    /// Nothing.
    Nothing,
    /// The whole row.
    Full,
    /// A unique index.
    Index,
}

impl ReplicaIdentity {
    /// The word used in the contract.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Nothing => "nothing",
            Self::Full => "full",
            Self::Index => "index",
        }
    }
}

/// Which shape of a relation a row was written under; strictly rising per relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SchemaVersion {
    /// Commit position of the transaction that announced the shape.
    pub commit: Lsn,
    /// Where in that transaction it was announced: the number of changes before it, because the server gives these
    /// announcements no position of their own. Tells two shapes in one transaction apart.
    pub message: Lsn,
}

/// One granted column as a plugin is told about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedColumn {
    /// The name in the source.
    pub name: String,
    /// The name of the type, empty when the source never told it.
    pub type_name: String,
    /// The object id of the type.
    pub type_oid: u32,
    /// The type modifier, or -1.
    pub type_modifier: i32,
    /// Place in the replica identity, if part of it.
    pub key_position: Option<u16>,
    /// `plain` or a treatment.
    pub treatment: String,
}

/// A relation as one plugin may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedRelation {
    /// The table's object id.
    pub id: u32,
    /// Its schema.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The version of its shape.
    pub version: SchemaVersion,
    /// Its replica identity.
    pub identity: ReplicaIdentity,
    /// The granted columns, in table order.
    pub columns: Vec<ProjectedColumn>,
}
