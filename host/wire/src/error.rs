//! What can go wrong on the replication connection, and who has to act.
//!
//! Holds: one opaque error with the questions that callers ask. Refuses to know retry policies (the daemon has them) and
//! row values: of a server's error it keeps the SQLSTATE, and its primary message only where that cannot quote a row.
//! Read next: [`crate::verdict`], the table from SQLSTATE to class.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::frame::FrameError;
use crate::timeline::HistoryError;
use crate::tls::TlsError;
use crate::verdict::{self, Phase, Verdict};

/// Who has to act before the same thing can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nobody: trying again later can succeed.
    Retry,
    /// An operator: configuration, permissions or the source must change first.
    Operator,
    /// A programmer: this program or the peer broke the protocol.
    Bug,
}

/// Every word that [`WireError::halt_name`] can answer.
pub const HALT_NAMES: &[&str] = &[
    "authentication",
    "bad_name",
    "configuration_limit",
    "conflict",
    "connect_timeout",
    "connection_lost",
    "database_missing",
    "lineage_changed",
    "message_too_large",
    "not_ready",
    "peer_silent",
    "permission",
    "protocol",
    "publication_missing",
    "refused_command",
    "result_too_large",
    "server_error",
    "server_resources",
    "server_too_old",
    "server_unavailable",
    "slot_active",
    "slot_exists",
    "slot_invalidated",
    "slot_missing",
    "slot_unusable",
    "stream_ended",
    "tls",
    "too_many_connections",
    "wal_missing",
];

/// An error of the replication connection.
///
/// Its text names the thing, the place and the fix, and never holds a row value or a password. A cause below it is
/// attached as `source()` and is not repeated in the text.
pub struct WireError(Box<Inner>);

struct Inner {
    kind: Kind,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    #[error("{doing}: the connection to the source failed; it is tried again")]
    Io { doing: &'static str },
    #[error("{doing}: no answer within {} s; check that the host and the port can be reached", after.as_secs())]
    TimedOut { doing: &'static str, after: Duration },
    #[error("{doing}: the source closed the connection; it is tried again")]
    Closed { doing: &'static str },
    #[error("nothing was heard from the source for {} s, so the connection is given up and tried again", after.as_secs())]
    Silent { after: Duration },
    #[error("the source ended the replication stream, as it does when it shuts down; it is tried again")]
    Ended,
    #[error("an earlier command on this connection was given up half way, so the connection cannot be used any more")]
    Interrupted,
    #[error("TLS with the source failed; check sslmode, sslrootcert and the certificate of the server")]
    Tls,
    #[error("the source offers no TLS, and sslmode asks for it; turn on ssl in Postgres, or choose another sslmode")]
    TlsRefused,
    #[error("the source asks for a password and none is configured; set password_file or password_env")]
    PasswordMissing,
    #[error(
        "the source asks for the password by {method} over an open network, which would give it away; use scram-sha-256 in pg_hba.conf, or TLS"
    )]
    PasswordExposed { method: &'static str },
    #[error(
        "the source asks for authentication by {method}, which is not supported; use scram-sha-256 or a client certificate"
    )]
    AuthUnsupported { method: &'static str },
    #[error(
        "the source could not prove that it knows the password, so it may not be the server it claims to be; check host and sslmode"
    )]
    AuthUnproven,
    #[error("{}", Answered(.phase, .code, .message.as_deref()))]
    Server { phase: Phase, code: String, message: Option<String> },
    #[error("{}", SlotInUse(.slot, .pid.as_ref(), .application.as_deref()))]
    SlotActive { slot: String, pid: Option<i32>, application: Option<String> },
    #[error(
        "replication slot {slot:?} can no longer be used ({reason}); drop it, create a new one and copy the tables again"
    )]
    SlotInvalidated { slot: String, reason: String },
    #[error(
        "replication slot {slot:?} does not exist on the source; create it with `walgate slot create`, or correct source.slot"
    )]
    SlotMissing { slot: String },
    #[error("{what} needs Postgres {needs} or newer, and the source is {have}; leave it out or upgrade the source")]
    TooOld { what: &'static str, needs: u32, have: u32 },
    #[error("not a slot name: Postgres takes 1 to 63 lower-case letters, digits and underscores")]
    SlotName,
    #[error("a result from the source is larger than {limit} bytes, which no query of this program expects")]
    ResultTooLarge { limit: usize },
    #[error(
        "the source sent a message that does not belong here ({what}); check that the port is that of Postgres itself"
    )]
    Protocol { what: &'static str },
    #[error(
        "the source sent a message longer than any row can be, at or after {near}; the stream cannot be read past it"
    )]
    MessageTooLarge { near: walgate_core::Lsn },
    #[error("the source sent bytes that are no replication message")]
    Frame,
    #[error("the source sent a timeline history that cannot be read; look at the newest .history file in its pg_wal")]
    History,
    #[error("a text for the source holds a NUL byte, which Postgres cannot take; correct the configured name")]
    Nul,
}

/// The words for an error that the server reported.
struct Answered<'a>(&'a Phase, &'a str, Option<&'a str>);

impl fmt::Display for Answered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(phase, code, message) = *self;
        let Verdict { fix, .. } = verdict::judge(*phase, code);
        match message {
            Some(message) => write!(f, "{}: the source answered {message:?} (SQLSTATE {code}); {fix}", phase.doing()),
            None => write!(f, "{}: the source answered SQLSTATE {code}; {fix}", phase.doing()),
        }
    }
}

/// The words for a slot that another session uses.
struct SlotInUse<'a>(&'a str, Option<&'a i32>, Option<&'a str>);

impl fmt::Display for SlotInUse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(slot, pid, application) = *self;
        write!(f, "replication slot {slot:?} is in use")?;
        if let Some(pid) = pid {
            write!(f, " by server process {pid}")?;
        }
        if let Some(application) = application.filter(|name| !name.is_empty()) {
            write!(f, " ({application:?})")?;
        }
        write!(f, "; stop the other reader, or wait until the server notices that it is gone")
    }
}

impl WireError {
    /// Who has to act.
    pub fn class(&self) -> Class {
        match &self.0.kind {
            Kind::Io { .. }
            | Kind::TimedOut { .. }
            | Kind::Closed { .. }
            | Kind::Silent { .. }
            | Kind::Ended
            | Kind::Interrupted
            | Kind::SlotActive { .. } => Class::Retry,
            Kind::Server { phase, code, .. } => verdict::judge(*phase, code).class,
            Kind::Protocol { .. } | Kind::Frame | Kind::History => Class::Bug,
            _ => Class::Operator,
        }
    }

    /// The five characters of the server's own error code, when the server reported the error.
    pub fn sqlstate(&self) -> Option<&str> {
        match &self.0.kind {
            Kind::Server { code, .. } => Some(code),
            Kind::SlotActive { .. } => Some("55006"),
            Kind::SlotInvalidated { .. } => Some("55000"),
            Kind::SlotMissing { .. } => Some("42704"),
            _ => None,
        }
    }

    /// One stable word for status pages and alerts.
    pub fn halt_name(&self) -> &'static str {
        match &self.0.kind {
            Kind::Server { phase, code, .. } => verdict::judge(*phase, code).name,
            Kind::Io { .. } | Kind::Closed { .. } | Kind::Interrupted => "connection_lost",
            Kind::TimedOut { .. } => "connect_timeout",
            Kind::Silent { .. } => "peer_silent",
            Kind::Ended => "stream_ended",
            Kind::Tls | Kind::TlsRefused => "tls",
            Kind::PasswordMissing
            | Kind::PasswordExposed { .. }
            | Kind::AuthUnsupported { .. }
            | Kind::AuthUnproven => "authentication",
            Kind::SlotActive { .. } => "slot_active",
            Kind::SlotInvalidated { .. } => "slot_invalidated",
            Kind::SlotMissing { .. } => "slot_missing",
            Kind::SlotName | Kind::Nul => "bad_name",
            Kind::TooOld { .. } => "server_too_old",
            Kind::MessageTooLarge { .. } => "message_too_large",
            Kind::ResultTooLarge { .. } => "result_too_large",
            Kind::Protocol { .. } | Kind::Frame | Kind::History => "protocol",
        }
    }

    /// True when the connection is gone or cannot be made now, as opposed to a command that was refused.
    pub fn is_connection_loss(&self) -> bool {
        match &self.0.kind {
            Kind::Io { .. }
            | Kind::TimedOut { .. }
            | Kind::Closed { .. }
            | Kind::Silent { .. }
            | Kind::Ended
            | Kind::Interrupted => true,
            Kind::Server { code, .. } => code.starts_with("08") || code.starts_with("57P0"),
            _ => false,
        }
    }

    /// The server process that uses the slot, when [`WireError::halt_name`] is `slot_active` and the server told.
    pub fn active_pid(&self) -> Option<i32> {
        match &self.0.kind {
            Kind::SlotActive { pid, .. } => *pid,
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    pub(crate) fn io(doing: &'static str, source: io::Error) -> Self {
        // A certificate that does not fit stays wrong however often it is tried.
        if source.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
            return Self::caused(Kind::Tls, source);
        }
        Self::caused(Kind::Io { doing }, source)
    }

    pub(crate) fn protocol(what: &'static str) -> Self {
        Kind::Protocol { what }.into()
    }

    /// The body could not be read; the reason is a fixed text of the protocol library.
    pub(crate) fn unreadable(what: &'static str, source: io::Error) -> Self {
        Self::caused(Kind::Protocol { what }, source)
    }

    fn caused(kind: Kind, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Box::new(Inner { kind, source: Some(source.into()) }))
    }
}

impl From<Kind> for WireError {
    fn from(kind: Kind) -> Self {
        Self(Box::new(Inner { kind, source: None }))
    }
}

impl From<FrameError> for WireError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLong { near, .. } => Self::caused(Kind::MessageTooLarge { near }, error),
            _ => Self::caused(Kind::Frame, error),
        }
    }
}

impl From<HistoryError> for WireError {
    fn from(error: HistoryError) -> Self {
        Self::caused(Kind::History, error)
    }
}

impl From<TlsError> for WireError {
    fn from(error: TlsError) -> Self {
        Self::caused(Kind::Tls, error)
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.fmt(f)
    }
}

impl fmt::Debug for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireError").field("kind", &self.0.kind).field("source", &self.0.source).finish()
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(phase: Phase, code: &str) -> WireError {
        Kind::Server { phase, code: code.to_owned(), message: None }.into()
    }

    #[track_caller]
    fn check(error: WireError, class: Class, name: &str, loss: bool) {
        assert_eq!((error.class(), error.halt_name(), error.is_connection_loss()), (class, name, loss), "{error}");
    }

    #[test]
    fn classes_of_server_errors() {
        use Class::{Bug, Operator, Retry};
        for code in ["28000", "28P01"] {
            check(server(Phase::Connect, code), Operator, "authentication", false);
        }
        check(server(Phase::Connect, "3D000"), Operator, "database_missing", false);
        check(server(Phase::Connect, "53300"), Retry, "too_many_connections", false);
        check(server(Phase::Connect, "57P03"), Retry, "server_unavailable", true);
        check(server(Phase::Stream, "57P01"), Retry, "server_unavailable", true);
        check(server(Phase::Stream, "08006"), Retry, "connection_lost", true);
        check(server(Phase::Start, "42704"), Operator, "slot_missing", false);
        check(server(Phase::Stream, "42704"), Operator, "publication_missing", false);
        check(server(Phase::Start, "55000"), Operator, "slot_unusable", false);
        check(server(Phase::Start, "55006"), Retry, "slot_active", false);
        check(server(Phase::Start, "42501"), Operator, "permission", false);
        check(server(Phase::Create, "42710"), Operator, "slot_exists", false);
        check(server(Phase::Create, "53400"), Operator, "configuration_limit", false);
        check(server(Phase::Stream, "58P01"), Operator, "wal_missing", false);
        check(server(Phase::Query, "42601"), Bug, "refused_command", false);
        check(server(Phase::Stream, "22021"), Operator, "server_error", false);
    }

    #[test]
    fn classes_of_our_own_errors() {
        check(Kind::Silent { after: Duration::from_secs(60) }.into(), Class::Retry, "peer_silent", true);
        check(Kind::TlsRefused.into(), Class::Operator, "tls", false);
        check(WireError::io("reading", io::ErrorKind::ConnectionReset.into()), Class::Retry, "connection_lost", true);
        let certificate = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        check(WireError::io("connecting", io::Error::other(certificate)), Class::Operator, "tls", false);
        let slot = Kind::SlotActive { slot: "s".into(), pid: Some(7), application: Some("other".into()) };
        let slot = WireError::from(slot);
        assert_eq!((slot.active_pid(), slot.sqlstate()), (Some(7), Some("55006")));
        assert!(slot.to_string().contains("server process 7 (\"other\")"), "{slot}");
        check(slot, Class::Retry, "slot_active", false);
    }

    #[test]
    fn a_cause_is_attached_and_not_printed_twice() {
        let error = WireError::io("reading", io::Error::other("the cause"));
        assert!(!error.to_string().contains("the cause"));
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the cause");
    }

    /// The codes are those that the table itself spells, so that a line added there is met here.
    #[test]
    fn every_name_is_listed_and_every_listed_name_is_answered() {
        use Phase::{Connect, Create, Drop, History, Identify, Query, Start, Stream};
        let mut names = std::collections::BTreeSet::new();
        for code in include_str!("verdict.rs").split('"').filter(|word| matches!(word.len(), 2 | 5)) {
            let code = format!("{code:0<5}");
            for phase in [Connect, Query, Identify, History, Create, Drop, Start, Stream] {
                names.insert(verdict::judge(phase, &code).name);
            }
        }
        let (doing, slot, after) = ("", String::new, Duration::ZERO);
        for kind in [
            Kind::Io { doing },
            Kind::TimedOut { doing, after },
            Kind::Closed { doing },
            Kind::Silent { after },
            Kind::Ended,
            Kind::Interrupted,
            Kind::Tls,
            Kind::TlsRefused,
            Kind::PasswordMissing,
            Kind::PasswordExposed { method: "" },
            Kind::AuthUnsupported { method: "" },
            Kind::AuthUnproven,
            Kind::SlotActive { slot: slot(), pid: None, application: None },
            Kind::SlotInvalidated { slot: slot(), reason: slot() },
            Kind::SlotMissing { slot: slot() },
            Kind::TooOld { what: "", needs: 0, have: 0 },
            Kind::SlotName,
            Kind::ResultTooLarge { limit: 0 },
            Kind::Protocol { what: "" },
            Kind::MessageTooLarge { near: walgate_core::Lsn::ZERO },
            Kind::Frame,
            Kind::History,
            Kind::Nul,
        ] {
            names.insert(WireError::from(kind).halt_name());
        }
        assert_eq!(names.into_iter().collect::<Vec<_>>(), HALT_NAMES);
    }
}
