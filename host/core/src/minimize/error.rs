//! Why a change cannot be handed to a plugin. Names and positions, never a value.
//!
//! Holds: the error. Refuses to know what is done about it (the pipeline halts; nothing is lost).

use crate::Lsn;
use crate::column::ValueError;
use crate::pgoutput::DecodeError;
use crate::relation::ProjectedRelation;

/// A change cannot be handed over. Permanent: the same bytes would come again, so an operator has to decide. The
/// minimizer that gave it must not be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct MinimizeError {
    /// Boxed: a result that carries this is returned for every row.
    kind: Box<MinimizeErrorKind>,
}

/// Why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MinimizeErrorKind {
    /// The row message is malformed.
    #[error("row of {namespace:?}.{table:?}: {error}")]
    Row {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
        /// What is wrong, and where in the message.
        error: DecodeError,
    },
    /// A value cannot be carried exactly.
    #[error("column {column:?} of {namespace:?}.{table:?} (type {type_name}): {error}")]
    Value {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
        /// Column.
        column: String,
        /// Its type, by name or object id.
        type_name: String,
        /// What is wrong.
        error: ValueError,
    },
    /// A column that the grant excepts is not there.
    #[error(
        "the grant excepts column {column:?} of {namespace:?}.{table:?}, which has no such column: a misspelled exception \
         would let through what it is meant to keep; correct except in plugin.toml"
    )]
    ExceptMissing {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
        /// Name under `except`.
        column: String,
    },
    /// A column the grant names is not in the stream.
    #[error(
        "column {column:?} of {namespace:?}.{table:?} is granted, but the source does not send it: \
         add it to the publication's column list, or take it out of the grant"
    )]
    GrantedColumnMissing {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
        /// Column.
        column: String,
    },
    /// More columns than a row can have.
    #[error("{namespace:?}.{table:?} has more columns than the protocol can number")]
    TooManyColumns {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
    },
    /// The cursor covers part of a transaction, and another one came.
    #[error(
        "the stored position covers part of the transaction that commits at {expected}, but the stream goes on with {found}"
    )]
    Cursor {
        /// Commit position in the cursor.
        expected: Lsn,
        /// Commit position in the stream.
        found: Lsn,
    },
    /// More changes than ordinals.
    #[error("the transaction that commits at {0} has more changes than one batch can number")]
    TooManyChanges(Lsn),
}

impl MinimizeError {
    /// Why.
    pub fn kind(&self) -> &MinimizeErrorKind {
        &self.kind
    }

    #[cold]
    pub(super) fn row(relation: &ProjectedRelation, error: DecodeError) -> Self {
        let (namespace, table) = (relation.namespace.clone(), relation.name.clone());
        MinimizeErrorKind::Row { namespace, table, error }.into()
    }

    #[cold]
    pub(super) fn value(relation: &ProjectedRelation, index: usize, error: ValueError) -> Self {
        let column = relation.columns.get(index);
        let type_name = column.map_or_else(String::new, |column| {
            if column.type_name.is_empty() { format!("with id {}", column.type_oid) } else { column.type_name.clone() }
        });
        MinimizeErrorKind::Value {
            namespace: relation.namespace.clone(),
            table: relation.name.clone(),
            column: column.map_or_else(String::new, |column| column.name.clone()),
            type_name,
            error,
        }
        .into()
    }

    pub(super) fn missing(namespace: &str, table: &str, column: &str) -> Self {
        MinimizeErrorKind::GrantedColumnMissing {
            namespace: namespace.to_owned(),
            table: table.to_owned(),
            column: column.to_owned(),
        }
        .into()
    }

    pub(super) fn except(namespace: &str, table: &str, column: &str) -> Self {
        MinimizeErrorKind::ExceptMissing {
            namespace: namespace.to_owned(),
            table: table.to_owned(),
            column: column.to_owned(),
        }
        .into()
    }

    pub(super) fn too_many_columns(namespace: &str, table: &str) -> Self {
        MinimizeErrorKind::TooManyColumns { namespace: namespace.to_owned(), table: table.to_owned() }.into()
    }

    pub(super) fn cursor(expected: Lsn, found: Lsn) -> Self {
        MinimizeErrorKind::Cursor { expected, found }.into()
    }

    pub(super) fn too_many_changes(commit: Lsn) -> Self {
        MinimizeErrorKind::TooManyChanges(commit).into()
    }
}

impl From<MinimizeErrorKind> for MinimizeError {
    fn from(kind: MinimizeErrorKind) -> Self {
        Self { kind: Box::new(kind) }
    }
}
