//! Why a change cannot be handed to a plugin. Names and positions, never a value.
//!
//! Holds: the error. Refuses to know what is done about it (the pipeline halts; nothing is lost).

use crate::Lsn;
use crate::column::ValueError;
use crate::grant::rules::Treatment;
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
    /// The row filter does not fit the table.
    #[error("row_filter of {namespace:?}.{table:?}: {error}")]
    Filter {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
        /// What does not fit.
        error: FilterError,
    },
    /// The stream does not tell whether the row filter lets a row through.
    #[error(
        "row_filter of {namespace:?}.{table:?} looks at a value that the source did not send, so it cannot be told whether \
         the row is granted: set REPLICA IDENTITY FULL on the table, or leave the column out of row_filter"
    )]
    FilterUndecided {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
    },
    /// A treatment does not fit the column.
    #[error("column {column:?} of {namespace:?}.{table:?} cannot be {treatment}: {error}")]
    Treatment {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
        /// Column.
        column: String,
        /// The treatment.
        treatment: Treatment,
        /// Why not.
        error: TreatmentError,
    },
    /// The grant needs the key of a table whose stream does not tell it.
    #[error(
        "{namespace:?}.{table:?} has replica identity full, which does not tell its key: name the columns in plugin.toml, \
         key = [\"id\"], or hand over old rows, before = \"granted\""
    )]
    KeyUnknown {
        /// Schema.
        namespace: String,
        /// Table.
        table: String,
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

/// How a row filter does not fit a table. Never holds a value of the filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The column is not in the stream.
    #[error(
        "the source does not send column {column:?}: add it to the publication's column list, or take it out of row_filter"
    )]
    Missing {
        /// Column.
        column: String,
    },
    /// Old rows do not tell the column.
    #[error(
        "column {column:?} is not part of the replica identity, so it cannot be told whether an old row was granted: set \
         REPLICA IDENTITY FULL on the table (or an index with that column), or grant only operations = [\"insert\"]"
    )]
    OutsideIdentity {
        /// Column.
        column: String,
    },
    /// The type cannot be compared here.
    #[error(
        "rows cannot be filtered by column {column:?} (type {type_name}) except by is null: its equality is not that of its text"
    )]
    Type {
        /// Column.
        column: String,
        /// Its type.
        type_name: String,
    },
    /// The type has no order here.
    #[error(
        "column {column:?} (type {type_name}) has no order here, which a collation could change: compare it with =, <> and in"
    )]
    Order {
        /// Column.
        column: String,
        /// Its type.
        type_name: String,
    },
    /// A value is not one of the type.
    #[error("column {column:?} (type {type_name}) is compared with something else than {form}")]
    Value {
        /// Column.
        column: String,
        /// Its type.
        type_name: String,
        /// How its values are written.
        form: &'static str,
    },
}

/// Why a column cannot have a treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreatmentError {
    /// It is part of the key.
    #[error("it is part of the key, and rows could not be told apart; grant it plain or hashed, or not at all")]
    Key,
    /// It has no characters.
    #[error("its type is not a text; grant it masked, hashed or nulled")]
    NotText,
    /// There is no key of hashes.
    #[error("there is no key for hashes; name a secret in plugin.toml, under [grant]: hash_key = \"NAME\"")]
    NoHashKey,
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

    /// As [`MinimizeError::value`], of a column that is not handed over.
    #[cold]
    pub(super) fn hidden_value(relation: &ProjectedRelation, column: &str, type_name: &str, error: ValueError) -> Self {
        MinimizeErrorKind::Value {
            namespace: relation.namespace.clone(),
            table: relation.name.clone(),
            column: column.to_owned(),
            type_name: type_name.to_owned(),
            error,
        }
        .into()
    }

    pub(super) fn filter(namespace: &str, table: &str, error: FilterError) -> Self {
        MinimizeErrorKind::Filter { namespace: namespace.to_owned(), table: table.to_owned(), error }.into()
    }

    #[cold]
    pub(super) fn undecided(relation: &ProjectedRelation) -> Self {
        let (namespace, table) = (relation.namespace.clone(), relation.name.clone());
        MinimizeErrorKind::FilterUndecided { namespace, table }.into()
    }

    pub(super) fn treatment(
        namespace: &str,
        table: &str,
        column: &str,
        treatment: Treatment,
        error: TreatmentError,
    ) -> Self {
        let (namespace, table, column) = (namespace.to_owned(), table.to_owned(), column.to_owned());
        MinimizeErrorKind::Treatment { namespace, table, column, treatment, error }.into()
    }

    pub(super) fn key_unknown(namespace: &str, table: &str) -> Self {
        MinimizeErrorKind::KeyUnknown { namespace: namespace.to_owned(), table: table.to_owned() }.into()
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
