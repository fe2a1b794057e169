//! Tables as the plugin may see them, and small questions about them.
//!
//! Holds: methods on the records of the contract. Refuses to know rows. Read next: [`crate::Batch`].

use std::collections::BTreeMap;
use std::rc::Rc;

pub use crate::bindings::walgate::cdc::change::{
    ColumnInfo, Operation, Position, Relation, SchemaVersion, SnapshotChunk, Transaction,
};

/// The relations this instance has been told about, by id.
pub(crate) type Relations = BTreeMap<u32, Rc<Relation>>;

impl Relation {
    /// The granted column of that name and its index.
    pub fn column(&self, name: &str) -> Option<(usize, &ColumnInfo)> {
        self.columns.iter().enumerate().find(|(_, column)| column.name == name)
    }

    /// Schema and name with a dot between, for messages. Not quoted: not for SQL.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.namespace, self.name)
    }
}

impl ColumnInfo {
    /// Whether the column is part of the replica identity.
    pub fn is_key(&self) -> bool {
        self.key_position.is_some()
    }

    /// Whether the type is `timestamptz` itself, so that its text carries a zone. A domain over it has its own type and
    /// answers false.
    pub fn is_timestamptz(&self) -> bool {
        /// The object id of `timestamptz`, the same in every Postgres.
        const TIMESTAMPTZ: u32 = 1184;
        self.type_oid == TIMESTAMPTZ
    }
}

impl Operation {
    /// All operations, in the order of their declaration.
    pub const ALL: [Operation; 5] = [Self::Read, Self::Insert, Self::Update, Self::Delete, Self::Truncate];

    /// `read`, `insert`, `update`, `delete` or `truncate`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Truncate => "truncate",
        }
    }
}

impl Transaction {
    /// Whether the change with that ordinal of the batch belongs to this transaction.
    pub fn owns(&self, ordinal: u32) -> bool {
        ordinal.checked_sub(self.first_ordinal).is_some_and(|offset| offset < self.change_count)
    }

    /// The ordinal, counted from 0 in the whole source transaction, of the change with that ordinal of the batch.
    pub fn source_ordinal_of(&self, ordinal: u32) -> u32 {
        self.source_ordinal.wrapping_add(ordinal.wrapping_sub(self.first_ordinal))
    }
}

/// The transaction that owns an ordinal. None for rows of a snapshot, which belong to no transaction.
pub(crate) fn owner(transactions: &[Transaction], ordinal: u32) -> Option<&Transaction> {
    let after = transactions.partition_point(|transaction| transaction.first_ordinal <= ordinal);
    // Transactions without a change share their first ordinal with the next one, so the owner need not be the last.
    let before = transactions.get(..after)?;
    before.iter().rev().find(|transaction| transaction.change_count > 0).filter(|found| found.owns(ordinal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(first_ordinal: u32, change_count: u32) -> Transaction {
        Transaction {
            xid: 1,
            commit_lsn: 16,
            end_lsn: 24,
            commit_time_us: 0,
            origin: None,
            first_ordinal,
            change_count,
            source_ordinal: 100,
            part: 1,
            last_part: true,
        }
    }

    #[test]
    fn an_ordinal_has_one_owner_or_none() {
        let all = [transaction(0, 2), transaction(2, 0), transaction(2, 3), transaction(5, 0)];
        assert_eq!(owner(&all, 1).map(|t| t.first_ordinal), Some(0));
        assert_eq!(owner(&all, 2).map(|t| t.change_count), Some(3));
        assert_eq!(owner(&all, 4).map(|t| t.source_ordinal_of(4)), Some(102));
        assert!(owner(&all, 5).is_none());
        assert!(owner(&[], 0).is_none());
    }
}
