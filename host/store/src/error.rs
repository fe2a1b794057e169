//! What can go wrong with the state database, who has to act, and what a halt is called.
//!
//! Holds: one opaque error, its classes, and the reading of SQLSTATE codes. Refuses to know any text of the server
//! beyond the primary message of the connection phase: later messages, and DETAIL always, may hold row values.
//! Read next: [`crate::retrying`].

use std::error::Error as _;
use std::io;

use tokio_postgres::Error as PgError;
use tokio_postgres::error::DbError;

/// Every name that [`StoreError::halt_name`] can answer.
pub const HALT_NAMES: &[&str] = &[
    "checkpoint_store(access)",
    "checkpoint_store(cursor_missing)",
    "checkpoint_store(lineage_changed)",
    "checkpoint_store(lock_shared)",
    "checkpoint_store(migration_changed)",
    "checkpoint_store(migration_missing)",
    "checkpoint_store(migration_unknown)",
    "checkpoint_store(ordinal_scheme)",
    "checkpoint_store(regress)",
    "checkpoint_store(schema)",
    "checkpoint_store(state_too_large)",
    "checkpoint_store(unavailable)",
    "checkpoint_store(write)",
    "dead_letters(order)",
    "fenced",
];

/// Who acts on an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// It may pass: try again, a bounded number of times.
    Retry,
    /// Trying again changes nothing: a person has to act, and the message says how.
    Operator,
    /// walgate itself is wrong: report it.
    Bug,
}

impl Class {
    /// The word used in status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Operator => "operator",
            Self::Bug => "bug",
        }
    }
}

/// A failure of the state database. Its text never holds a row value or a plugin's state.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(Kind);

impl StoreError {
    /// Who acts on it.
    pub fn class(&self) -> Class {
        match &self.0 {
            Kind::Unavailable { .. } | Kind::Write { .. } => Class::Retry,
            Kind::Exhausted { .. }
            | Kind::Access { .. }
            | Kind::Schema { .. }
            | Kind::MigrationChanged { .. }
            | Kind::MigrationUnknown { .. }
            | Kind::MigrationGap { .. }
            | Kind::LineageChanged { .. }
            | Kind::LineageConflict { .. }
            | Kind::OrdinalScheme { .. }
            | Kind::CursorMissing { .. }
            | Kind::Fenced { .. }
            | Kind::LockShared { .. }
            | Kind::OlderLetters { .. }
            | Kind::StateTooLarge { .. } => Class::Operator,
            Kind::AckRegress { .. }
            | Kind::CursorRegress { .. }
            | Kind::OutputRegress { .. }
            | Kind::NamedTwice { .. }
            | Kind::Range { .. }
            | Kind::Server { .. } => Class::Bug,
        }
    }

    /// The name a halt carries in `status`, in the exit message and in documentation.
    pub fn halt_name(&self) -> &'static str {
        match &self.0 {
            Kind::Unavailable { .. } => "checkpoint_store(unavailable)",
            Kind::Exhausted { last, .. } => last.halt_name(),
            Kind::Access { .. } => "checkpoint_store(access)",
            Kind::Schema { .. } => "checkpoint_store(schema)",
            Kind::MigrationChanged { .. } => "checkpoint_store(migration_changed)",
            Kind::MigrationUnknown { .. } => "checkpoint_store(migration_unknown)",
            Kind::MigrationGap { .. } => "checkpoint_store(migration_missing)",
            Kind::LineageChanged { .. } | Kind::LineageConflict { .. } => "checkpoint_store(lineage_changed)",
            Kind::OrdinalScheme { .. } => "checkpoint_store(ordinal_scheme)",
            Kind::CursorMissing { .. } => "checkpoint_store(cursor_missing)",
            Kind::StateTooLarge { .. } => "checkpoint_store(state_too_large)",
            Kind::LockShared { .. } => "checkpoint_store(lock_shared)",
            Kind::Fenced { .. } => "fenced",
            Kind::OlderLetters { .. } => "dead_letters(order)",
            Kind::AckRegress { .. } | Kind::CursorRegress { .. } | Kind::OutputRegress { .. } => {
                "checkpoint_store(regress)"
            }
            Kind::Write { .. } | Kind::NamedTwice { .. } | Kind::Range { .. } | Kind::Server { .. } => {
                "checkpoint_store(write)"
            }
        }
    }

    /// Reads a refusal by `walgate.hold_epoch` as what it means for this pipeline.
    pub(crate) fn or_fenced(self, pipeline: &str) -> Self {
        match self.0 {
            Kind::Server { code, .. } if code == "WG007" => Kind::Fenced { pipeline: pipeline.to_owned() }.into(),
            kind => Self(kind),
        }
    }

    /// True when the database could not be asked, as opposed to a statement it refused: the connection may be dead or in
    /// an unknown state, and the next operation opens another.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0, Kind::Unavailable { .. })
    }

    /// What happened, without the name of the database: for connections to others.
    pub(crate) fn reason(&self) -> String {
        match &self.0 {
            Kind::Unavailable { reason, .. } => reason.clone(),
            Kind::Access { code, detail, .. } => format!("SQLSTATE {code}: {detail}"),
            Kind::Write { code, .. } | Kind::Server { code, .. } => format!("SQLSTATE {code}"),
            Kind::Schema { detail, .. } => detail.clone(),
            _ => "refused".to_owned(),
        }
    }

    pub(crate) fn unavailable(doing: &'static str, reason: impl Into<String>) -> Self {
        Self(Kind::Unavailable { doing, reason: reason.into() })
    }

    /// Reads a failure of the connection phase. No row is in sight there, so the primary message is kept.
    pub(crate) fn connecting(error: &PgError) -> Self {
        let doing = "connecting to it";
        if let Some(db) = error.as_db_error() {
            let code = db.code().code();
            return match state_class(code) {
                StateClass::Passing => Self::unavailable(doing, format!("SQLSTATE {code}: {}", db.message())),
                _ => Self(Kind::Access { doing, code: code.into(), detail: db.message().into() }),
            };
        }
        let text = match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        match io_cause(error) {
            // A certificate that does not verify is an io error on the surface, and does not get better by itself.
            Some(io) if !is_tls(io) => Self::unavailable(doing, text),
            None if error.is_closed() => Self::unavailable(doing, text),
            _ => Self(Kind::Access { doing, code: "none".into(), detail: text }),
        }
    }

    /// Reads a failure of a statement: the SQLSTATE is kept, the server's words are not.
    pub(crate) fn server(doing: &'static str, error: &PgError) -> Self {
        let Some(db) = error.as_db_error() else {
            return if error.is_closed() || io_cause(error).is_some() {
                Self::unavailable(doing, error.to_string())
            } else {
                // What is left are columns of another number or type than ours; the driver names only their index.
                Self(Kind::Schema { doing, detail: error.to_string() })
            };
        };
        Self(Self::of_state(doing, db))
    }

    fn of_state(doing: &'static str, db: &DbError) -> Kind {
        let code = db.code().code().to_owned();
        match state_class(&code) {
            StateClass::Passing => Kind::Unavailable { doing, reason: format!("SQLSTATE {code}{}", meaning(&code)) },
            StateClass::Constraint => Kind::Write { doing, code },
            StateClass::Access => Kind::Access { doing, code, detail: "refused".into() },
            StateClass::Schema => Kind::Schema { doing, detail: format!("SQLSTATE {code}") },
            StateClass::Other => Kind::Server { doing, code },
        }
    }
}

impl From<Kind> for StoreError {
    fn from(kind: Kind) -> Self {
        Self(kind)
    }
}

/// The cases behind [`StoreError`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    #[error("the state database is unavailable while {doing} ({reason}); check that it runs and can be reached")]
    Unavailable { doing: &'static str, reason: String },
    #[error(
        "the state database refused a write while {doing} (SQLSTATE {code}); remove the constraint or trigger that was \
         added to the tables of schema walgate"
    )]
    Write { doing: &'static str, code: String },
    #[error("gave up on the state database after {attempts} attempts; repair it, then start walgate again")]
    Exhausted {
        attempts: u32,
        #[source]
        last: Box<StoreError>,
    },
    #[error(
        "the state database refused access while {doing} (SQLSTATE {code}: {detail}); check [state] url, the role and its \
         rights: CREATE on the database for the first start, then SELECT, INSERT, UPDATE, DELETE, USAGE and EXECUTE in \
         schema walgate"
    )]
    Access { doing: &'static str, code: String, detail: String },
    #[error(
        "the tables of schema walgate are not what this version made ({detail}, while {doing}); undo the change made by \
         hand, or restore the schema from a backup; tables of an older version are brought up to date by `walgate run`"
    )]
    Schema { doing: &'static str, detail: String },
    #[error(
        "migration {name:?} was applied with another text than this version has; install the walgate version that \
         applied it (walgate.schema_migrations.tool_version), or restore its checksum"
    )]
    MigrationChanged { name: String },
    #[error(
        "migration {name:?} in walgate.schema_migrations is unknown to this version: the state database was used by a \
         newer walgate; install that version or a later one"
    )]
    MigrationUnknown { name: String },
    #[error(
        "migration {name:?} is missing in walgate.schema_migrations although a later one was applied; restore the row or \
         the schema from a backup"
    )]
    MigrationGap { name: String },
    #[error(
        "pipeline {pipeline:?} is gone from walgate.pipelines, or now belongs to another source history; make sure that \
         one walgate alone uses this pipeline name and start it again"
    )]
    LineageChanged { pipeline: String },
    #[error(
        "pipeline {pipeline:?} has checkpoints of another source history ({differs}); point [source] back at it, or give \
         the checkpoints up with `walgate slot drop --forget` and begin anew"
    )]
    LineageConflict { pipeline: String, differs: String },
    #[error(
        "checkpoints of pipeline {pipeline:?} count changes by scheme {stored}, this version by scheme {known}; finish \
         with the version that wrote them, or give them up with `walgate slot drop --forget`"
    )]
    OrdinalScheme { pipeline: String, stored: i32, known: i32 },
    #[error(
        "plugin {plugin:?} of pipeline {pipeline:?} has no row in walgate.checkpoints; if it was deleted by hand, restart \
         to begin the plugin anew"
    )]
    CursorMissing { pipeline: String, plugin: String },
    #[error(
        "state of plugin {plugin:?} in pipeline {pipeline:?} has {keys} keys and {bytes} bytes, allowed are {max_keys} and \
         {max_bytes}; raise the limits in plugin.toml"
    )]
    StateTooLarge { pipeline: String, plugin: String, keys: u64, bytes: u64, max_keys: u64, max_bytes: u64 },
    #[error(
        "pipeline {pipeline:?} was taken over by another process, so nothing more is written by this one; see who it is in \
         walgate.leaders, and let one of the two run"
    )]
    Fenced { pipeline: String },
    #[error(
        "pipelines {pipeline:?} and {other:?} have names that share one lock, so they cannot be led at the same time in \
         one state database; rename one of them, or give it a state database of its own"
    )]
    LockShared { pipeline: String, other: String },
    #[error(
        "older dead letters of pipeline {pipeline:?} hold rows of the same tables and would be overtaken: {ids}; redrive \
         them too, or drop them"
    )]
    OlderLetters { pipeline: String, ids: String },
    #[error("the acknowledged position of pipeline {pipeline:?} would move back to {to}; please report this defect")]
    AckRegress { pipeline: String, to: walgate_core::Lsn },
    #[error("the cursor of plugin {plugin:?} in pipeline {pipeline:?} would move back; please report this defect")]
    CursorRegress { pipeline: String, plugin: String },
    #[error("an output of pipeline {pipeline:?} would become shorter; please report this defect")]
    OutputRegress { pipeline: String },
    #[error("a checkpoint of pipeline {pipeline:?} names one thing twice; please report this defect")]
    NamedTwice { pipeline: String },
    #[error("{what} is too large for the state database; please report this defect")]
    Range { what: &'static str },
    #[error("the state database answered SQLSTATE {code} while {doing}; please report this defect")]
    Server { doing: &'static str, code: String },
}

enum StateClass {
    Passing,
    Constraint,
    Access,
    Schema,
    Other,
}

/// What a SQLSTATE asks for. Data and internal errors of the server fall to `Other`.
fn state_class(code: &str) -> StateClass {
    match code {
        // Undefined or duplicate things and changed types are schema, but this one of their class is a right.
        "42501" | "3D000" => StateClass::Access,
        // Also: canceled by a timeout, waited too long for a lock, read-only (a failover under way).
        "57014" | "55P03" | "55006" | "25006" => StateClass::Passing,
        _ => match code.get(..2) {
            Some("08" | "53" | "58" | "40") => StateClass::Passing,
            Some("57") => StateClass::Passing,
            // Our own rows satisfy our own constraints, so the constraint is someone else's and may be taken away again.
            // So is a trigger that raises an exception.
            Some("23" | "P0") => StateClass::Constraint,
            Some("28" | "0L" | "0P") => StateClass::Access,
            Some("42" | "3F") => StateClass::Schema,
            _ => StateClass::Other,
        },
    }
}

/// What a passing state is where its cause is not that the server cannot be reached.
fn meaning(code: &str) -> &'static str {
    match code {
        "25006" => ": it is read-only, as a standby is; [state] url has to name the primary",
        "55P03" => ": somebody else holds a lock on tables of schema walgate",
        "57014" => ": cancelled, by hand or by statement_timeout",
        "53100" => ": its disk is full",
        "53300" => ": it has too many connections",
        _ => "",
    }
}

fn io_cause(error: &PgError) -> Option<&io::Error> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref() {
            return Some(io);
        }
        cause = inner.source();
    }
    None
}

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: &str, expect: &str) {
        let got = match state_class(code) {
            StateClass::Passing => "passing",
            StateClass::Constraint => "constraint",
            StateClass::Access => "access",
            StateClass::Schema => "schema",
            StateClass::Other => "other",
        };
        assert_eq!(got, expect, "{code}");
    }

    #[test]
    fn states_are_read_as_documented() {
        for code in ["08006", "57P01", "57P03", "53100", "53300", "40001", "40P01", "57014", "25006"] {
            check(code, "passing");
        }
        for code in ["28P01", "28000", "42501", "3D000"] {
            check(code, "access");
        }
        for code in ["42P01", "42703", "42804", "42883", "3F000", "42P07"] {
            check(code, "schema");
        }
        check("23514", "constraint");
        check("P0001", "constraint");
        check("22021", "other");
        check("XX000", "other");
        check("", "other");
    }

    /// Read off the source: a name that is answered and not listed is found also when nobody thought of a test for it.
    #[test]
    fn every_halt_name_is_listed() {
        assert_eq!(names_answered(include_str!("error.rs")), HALT_NAMES);
        assert_eq!(names_answered(include_str!("output/error.rs")), crate::OUTPUT_HALT_NAMES);
    }

    fn names_answered(source: &str) -> Vec<&str> {
        let body = source.split_once("pub fn halt_name").unwrap().1.split_once("\n    }\n").unwrap().0;
        let names: std::collections::BTreeSet<_> = body.split('"').skip(1).step_by(2).collect();
        names.into_iter().collect()
    }

    #[test]
    fn giving_up_is_for_the_operator_and_keeps_the_name() {
        let last = Box::new(StoreError::unavailable("testing", "no reason"));
        let error = StoreError::from(Kind::Exhausted { attempts: 6, last });
        assert_eq!(error.class(), Class::Operator);
        assert_eq!(error.halt_name(), "checkpoint_store(unavailable)");
        assert!(error.to_string().contains("6 attempts"));
    }
}
