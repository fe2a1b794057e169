//! The table from SQLSTATE to class, name and fix.
//!
//! Holds: what each code means at each phase of the connection. Refuses to know the server's words, which change with
//! its language and may quote rows. Read next: [`crate::error`].

use crate::error::Class;

/// What the connection was doing when the server reported an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Startup and authentication.
    Connect,
    /// A catalog query.
    Query,
    /// IDENTIFY_SYSTEM.
    Identify,
    /// TIMELINE_HISTORY.
    History,
    /// CREATE_REPLICATION_SLOT.
    Create,
    /// DROP_REPLICATION_SLOT.
    Drop,
    /// START_REPLICATION, before the stream begins.
    Start,
    /// Inside the stream.
    Stream,
}

impl Phase {
    /// The phase as the beginning of a sentence.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Self::Connect => "connecting to the source",
            Self::Query => "asking the source for its state",
            Self::Identify => "identifying the source",
            Self::History => "reading the timeline history of the source",
            Self::Create => "creating the replication slot",
            Self::Drop => "dropping the replication slot",
            Self::Start => "starting replication",
            Self::Stream => "reading the replication stream",
        }
    }

    /// Whether the server's primary message may be kept: in these phases no row has been looked at.
    pub(crate) fn keeps_message(self) -> bool {
        !matches!(self, Self::Query | Self::Stream)
    }
}

/// What a code means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Who has to act.
    pub(crate) class: Class,
    /// The stable word.
    pub(crate) name: &'static str,
    /// What to do, as the end of a sentence.
    pub(crate) fix: &'static str,
}

const fn verdict(class: Class, name: &'static str, fix: &'static str) -> Verdict {
    Verdict { class, name, fix }
}

/// The verdict on a code. Unknown codes go to an operator: repeating them for ever would hide them.
pub(crate) fn judge(phase: Phase, code: &str) -> Verdict {
    use Class::{Bug, Operator, Retry};
    let class = code.get(..2).unwrap_or_default();
    match (code, class, phase) {
        ("42704", _, Phase::Stream) => verdict(
            Operator,
            "publication_missing",
            "the publication must exist at the slot's own position: create it first, then the slot",
        ),
        ("42704", ..) => verdict(Operator, "slot_missing", "create it with `walgate slot create`, or correct its name"),
        ("42501", ..) => {
            verdict(Operator, "permission", "grant the role REPLICATION, and SELECT where it copies tables")
        }
        ("42710", ..) => verdict(Operator, "slot_exists", "choose another name, or drop the old slot first"),
        ("55000", _, Phase::Start | Phase::Stream) => verdict(
            Operator,
            "slot_unusable",
            "look at the slot with `walgate slot list`: it may be invalidated, of another database, or wal_level may be too low",
        ),
        ("55000", ..) => {
            verdict(Operator, "not_ready", "check wal_level = logical on the source, and max_replication_slots")
        }
        ("55006", ..) => verdict(Retry, "slot_active", "stop the other reader of the slot, or wait until it is gone"),
        ("53300", ..) => {
            verdict(Retry, "too_many_connections", "raise max_connections or max_wal_senders on the source")
        }
        ("53400", ..) => verdict(
            Operator,
            "configuration_limit",
            "raise max_replication_slots on the source, or drop an unused slot",
        ),
        (_, "53", _) => verdict(Retry, "server_resources", "the source is out of disk or memory; it is tried again"),
        ("57P04", ..) => verdict(Operator, "database_missing", "the database was dropped; correct source.url"),
        ("57014" | "57P01" | "57P02" | "57P03" | "57P05", ..) => verdict(
            Retry,
            "server_unavailable",
            "the source is starting, stopping or has ended the session; it is tried again",
        ),
        ("3D000", ..) => verdict(Operator, "database_missing", "correct the database in source.url"),
        ("58P01", _, Phase::Start | Phase::Stream) => verdict(
            Operator,
            "wal_missing",
            "the log from the slot's position on is gone: drop the slot, create a new one and copy the tables again",
        ),
        ("58P01", _, Phase::History) => verdict(
            Operator,
            "lineage_changed",
            "the source was promoted or restored and has lost the file that says from what: without it, positions of its past \
             cannot be carried over. Put the .history file back into pg_wal, or begin anew",
        ),
        ("58030", ..) => {
            verdict(Retry, "server_resources", "the source could not read or write its disk; it is tried again")
        }
        ("08P01", ..) => verdict(Bug, "protocol", "report this together with the version of Postgres"),
        ("0A000" | "42601" | "42703" | "42883" | "42P01", ..) => {
            verdict(Bug, "refused_command", "report this together with the version of Postgres")
        }
        (_, "08", _) => verdict(Retry, "connection_lost", "it is tried again"),
        (_, "28", _) => verdict(
            Operator,
            "authentication",
            "check user, password and pg_hba.conf (it needs a line for the database)",
        ),
        (_, "40", _) => verdict(Retry, "conflict", "it is tried again"),
        _ => verdict(Operator, "server_error", "the log of the source has the details"),
    }
}
