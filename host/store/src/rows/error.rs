//! What can go wrong when rows are written, who has to act, and what a halt is called.
//!
//! Holds: one opaque error, its classes, the reading of SQLSTATE codes for tables of other people. Refuses to know any
//! text of the server: messages, details and contexts may hold row values, also what a trigger raises. Names come from
//! the grant and from the catalogs, never from an error. Read next: [`super::sink`].

use tokio_postgres::Error as PgError;

use crate::error::{Class, StoreError};

/// Rows could not be written. Nothing of the work was kept. Its text never holds a row value.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RowsError(Box<Kind>);

impl RowsError {
    /// Who acts on it.
    pub fn class(&self) -> Class {
        match &*self.0 {
            Kind::Unavailable { .. } => Class::Retry,
            Kind::Statement { .. } | Kind::OtherPlugin { .. } | Kind::Range { .. } => Class::Bug,
            Kind::Store(error) => error.class(),
            _ => Class::Operator,
        }
    }

    /// The name a halt carries in `status`, in the exit message and in documentation.
    pub fn halt_name(&self) -> &'static str {
        match &*self.0 {
            Kind::Refused { .. } | Kind::Malformed { .. } => "rows_refused",
            Kind::Unavailable { .. } => "rows_unavailable",
            Kind::Fenced { .. } => "fenced",
            Kind::Store(error) => error.halt_name(),
            _ => "rows_target",
        }
    }

    /// True when the rows themselves are the problem: without them, or with other rows, the same target would do.
    pub fn refusal(&self) -> bool {
        matches!(*self.0, Kind::Refused { .. } | Kind::Malformed { .. })
    }

    /// A word for status and dead letters: the SQLSTATE where there is one, in small letters.
    pub fn code(&self) -> String {
        match &*self.0 {
            Kind::Refused { code, .. }
            | Kind::Target { code, .. }
            | Kind::Position { code, .. }
            | Kind::Statement { code, .. } => code.to_ascii_lowercase(),
            Kind::Malformed { .. } => "malformed".to_owned(),
            Kind::Unavailable { .. } => "unavailable".to_owned(),
            Kind::Fenced { .. } => "fenced".to_owned(),
            _ => "target".to_owned(),
        }
    }

    /// A failure of the connection, read for a database that is not the state database.
    pub(super) fn connection(error: &StoreError) -> Self {
        let reason = error.reason();
        if error.is_unavailable() {
            Kind::Unavailable { doing: "asking for a session", reason }.into()
        } else {
            Kind::Access { reason }.into()
        }
    }

    /// Reads a failure of a statement on a target.
    pub(super) fn server(at: &At, error: &PgError) -> Self {
        let Some(db) = error.as_db_error() else {
            return if oversized(error) {
                Kind::Malformed { at: at.clone(), column: None, reason: "a value is longer than a gigabyte" }.into()
            } else {
                Kind::Unavailable { doing: at.doing, reason: "the session was lost".to_owned() }.into()
            };
        };
        let code = db.code().code().to_owned();
        let (at, column) = (at.clone(), at.known_column(db.column()));
        let kind = match reading(&code) {
            Reading::Passing => Kind::Unavailable { doing: at.doing, reason: format!("SQLSTATE {code}") },
            Reading::Rows => Kind::Refused { at, column, code },
            Reading::Statement => Kind::Statement { at, code },
            Reading::Target => Kind::Target { at, column, code },
        };
        kind.into()
    }
}

impl From<Kind> for RowsError {
    fn from(kind: Kind) -> Self {
        Self(Box::new(kind))
    }
}

impl From<StoreError> for RowsError {
    fn from(error: StoreError) -> Self {
        Self(Box::new(Kind::Store(error)))
    }
}

/// Where something failed: names from the grant and the catalogs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct At {
    /// The plugin.
    pub(super) plugin: String,
    /// The name of the target, or nothing when a statement was about all of them.
    pub(super) target: String,
    /// Schema and table.
    pub(super) table: String,
    /// What was being done.
    pub(super) doing: &'static str,
    /// The columns that may be named.
    pub(super) columns: std::sync::Arc<[String]>,
}

impl At {
    /// The server names a column; a trigger may put anything there, so only a name that the catalog knows passes.
    fn known_column(&self, name: Option<&str>) -> Option<String> {
        name.filter(|name| self.columns.iter().any(|column| column == name)).map(str::to_owned)
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.target.is_empty() {
            return write!(f, "the targets of plugin {:?}", self.plugin);
        }
        write!(f, "target {:?} of plugin {:?} (table {})", self.target, self.plugin, self.table)
    }
}

/// A column as an error names it, when it can.
fn of_column(column: &Option<String>) -> String {
    column.as_ref().map(|column| format!("column {column:?}, ")).unwrap_or_default()
}

/// The cases behind [`RowsError`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Kind {
    #[error(
        "{at} refused rows ({}SQLSTATE {code}, while {}); make the table accept what the plugin writes, or correct the \
         plugin", of_column(column), at.doing
    )]
    Refused { at: At, column: Option<String>, code: String },
    #[error("rows for {at} cannot be written: {}{reason}; correct the plugin", of_column(column))]
    Malformed { at: At, column: Option<String>, reason: &'static str },
    #[error(
        "plugin {plugin:?} writes to target {target:?}, which its grant does not name; add the target to plugin.toml"
    )]
    NotGranted { plugin: String, target: String },
    #[error(
        "plugin {plugin:?} writes its rows to schema {schema:?}, which does not exist; create it, or name another one in \
         plugin.toml"
    )]
    NoSchema { plugin: String, schema: String },
    #[error("{at} does not exist or is not a table; create it, or name another one in plugin.toml")]
    NoTable { at: At },
    #[error("{at} has no column {column:?}; add it with ALTER TABLE, or take it out of the grant or the plugin")]
    NoColumn { at: At, column: String },
    #[error("column {column:?} of {at} is not granted; add it to the columns of the target in plugin.toml")]
    ColumnNotGranted { at: At, column: String },
    #[error(
        "column {column:?} of {at} is generated and cannot be written; take it out of the columns and the key of the \
         target in plugin.toml"
    )]
    Generated { at: At, column: String },
    #[error(
        "{at} has no key, so it takes inserts only, and the plugin wants to change or delete rows; add a primary key, or \
         name the key columns in plugin.toml"
    )]
    NoKey { at: At },
    #[error("the key of {at} is not backed by a unique index; run: {line}")]
    NoUnique { at: At, line: String },
    #[error(
        "the key of {at} is a constraint that may be deferred, by which rows cannot be found; make it NOT DEFERRABLE, or \
         name other key columns in plugin.toml"
    )]
    Deferrable { at: At },
    #[error(
        "{at} could not be written ({}SQLSTATE {code}, while {}); check that the role may use the schema and SELECT, \
         INSERT, UPDATE, DELETE and TRUNCATE on the table and make temporary tables, and that its column types can hold \
         what the plugin writes", of_column(column), at.doing
    )]
    Target { at: At, column: Option<String>, code: String },
    #[error("a database of row targets refused access ({reason}); check its url, the role and its rights")]
    Access { reason: String },
    #[error(
        "schema walgate_target could not be made or used (SQLSTATE {code}, while {doing}); grant the role CREATE on the \
         database for the first start, then USAGE on the schema and SELECT, INSERT and UPDATE on its tables"
    )]
    Position { doing: &'static str, code: String },
    #[error(
        "schema walgate_target is not what this version made ({what}); install the version of walgate that used it last, \
         or restore the schema from a backup"
    )]
    Ledger { what: String },
    #[error(
        "pipeline {pipeline:?} was taken over: epoch {ours} may not write rows for plugin {plugin:?} any more, epoch \
         {stored} may; stop this process. If no other one runs and the state database was restored from a backup, which set \
         its epochs back: DELETE FROM walgate_target.leaders WHERE pipeline = '{pipeline}' in the database of the rows"
    )]
    Fenced { pipeline: String, plugin: String, ours: u64, stored: u64 },
    #[error(
        "plugin {plugin:?} of pipeline {pipeline:?} has no row in walgate_target.positions; if it was deleted by hand, \
         restart to begin anew"
    )]
    PositionMissing { pipeline: String, plugin: String },
    #[error(
        "the database of row targets is unavailable while {doing} ({reason}); check that it runs and can be reached"
    )]
    Unavailable { doing: &'static str, reason: String },
    #[error("{at} answered SQLSTATE {code} while {}; please report this defect", at.doing)]
    Statement { at: At, code: String },
    #[error("work of plugin {named:?} came to the rows of plugin {plugin:?}; please report this defect")]
    OtherPlugin { plugin: String, named: String },
    #[error("{what} is too large for the database; please report this defect")]
    Range { what: &'static str },
    #[error(transparent)]
    Store(StoreError),
}

/// A value that no field of the copy format can hold: found by us, not by the server.
#[derive(Debug, thiserror::Error)]
#[error("a value does not fit the copy format")]
pub(super) struct Oversized;

fn oversized(error: &PgError) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Oversized>())
}

#[derive(Debug, PartialEq, Eq)]
enum Reading {
    Passing,
    Rows,
    Target,
    Statement,
}

/// What a SQLSTATE says about rows written to a table of someone else.
fn reading(code: &str) -> Reading {
    match code {
        // Canceled by a timeout, waited too long for a lock, read-only (a failover under way).
        "57014" | "55P03" | "55006" | "25006" => Reading::Passing,
        // A syntax error can only be in a statement of ours.
        "42601" => Reading::Statement,
        _ => match code.get(..2) {
            Some("08" | "53" | "57" | "58" | "40") => Reading::Passing,
            // Values, constraints, check options, what a trigger raises, two rows where one may be, program limits.
            Some("21" | "22" | "23" | "44" | "P0" | "09" | "27" | "54") => Reading::Rows,
            _ => Reading::Target,
        },
    }
}

/// States that rows applied together can meet although one by one they would not: secondary unique keys, exclusions
/// and foreign keys that are checked at once, and two rows of a statement for one row of the table.
pub(super) fn may_pass_one_by_one(error: &PgError) -> bool {
    let code = error.code().map(|code| code.code());
    matches!(code, Some("21000" | "23001" | "23503" | "23505" | "23P01"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_documented() {
        for code in ["22P02", "22003", "22001", "23505", "23514", "23502", "44000", "P0001"] {
            assert_eq!(reading(code), Reading::Rows, "{code}");
        }
        for code in ["42P01", "42703", "42501", "42846", "42804", "0A000", "3F000", "428C9"] {
            assert_eq!(reading(code), Reading::Target, "{code}");
        }
        for code in ["40001", "40P01", "57P01", "55P03", "53300", "08006"] {
            assert_eq!(reading(code), Reading::Passing, "{code}");
        }
        assert_eq!(reading("42601"), Reading::Statement);
    }

    #[test]
    fn a_column_that_the_catalog_does_not_know_is_not_named() {
        let at = At { columns: ["amount".to_owned()].into(), ..At::default() };
        assert_eq!(at.known_column(Some("amount")), Some("amount".to_owned()));
        assert_eq!(at.known_column(Some("4111-1111")), None);
        assert_eq!(at.known_column(None), None);
    }
}
