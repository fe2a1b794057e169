//! An ordinary SQL session on the source, opened again after a failure.
//!
//! Holds: its settings, a deadline on every answer, and what failures are called. Refuses to know what is asked.
//! Invariant: a session on which anything failed is never used again. No error repeats a text of the server, which may
//! hold values: the SQLSTATE is kept, with what to do about it.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use walgate_wire::{Class, Host, SourceOptions, TlsMode};

use crate::connect::state_config;
use crate::exit::chain;

/// Longest wait for one answer; above the server's own `statement_timeout`, so that it ends only what a server that is
/// gone would leave open.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The path is pinned so that nothing of another schema stands in for a built-in one. Nothing here has to survive a
/// crash, and a heartbeat must not wait for a standby that is away.
const SETTINGS: &str = "SET statement_timeout = '5s'; SET lock_timeout = '5s'; SET client_min_messages = error; \
     SET search_path = pg_catalog; SET synchronous_commit = off; SET idle_session_timeout = 0";

/// Why the source could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MonitorError {
    /// Its certificate files cannot be used.
    #[error("TLS of the monitor's connection: {reason}")]
    Tls {
        /// Of our own code; names files.
        reason: String,
    },
    /// No session, or it broke.
    #[error("{doing}: {reason}")]
    Away {
        /// What was tried.
        doing: &'static str,
        /// Of the driver or the system.
        reason: String,
    },
    /// The server did not answer in time.
    #[error("{doing}: no answer within {} s", .within.as_secs())]
    Silent {
        /// What was tried.
        doing: &'static str,
        /// The bound.
        within: Duration,
    },
    /// The server answered with an error.
    #[error("{doing}: SQLSTATE {code}{}", advice(.code))]
    Refused {
        /// What was tried.
        doing: &'static str,
        /// The five characters.
        code: String,
    },
    /// The answer does not have the columns that were asked for.
    #[error("{doing}: an answer in another form than this version of walgate understands; please report this")]
    Unreadable {
        /// What was tried.
        doing: &'static str,
    },
    /// There is no logical slot of that name.
    #[error("slot {slot} does not exist on the source; see: walgate slot list")]
    SlotMissing {
        /// Its name.
        slot: String,
    },
    /// Heartbeats are for a primary.
    #[error("the server of the heartbeat is a standby, which cannot write; name its primary with source.ddl_url")]
    NotPrimary,
}

impl MonitorError {
    /// Who can mend it. All of it is tried again.
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Away { .. } | Self::Silent { .. } => Class::Retry,
            Self::Refused { code, .. }
                if ["08", "40", "53", "55", "57", "58", "XX"].iter().any(|c| code.starts_with(c)) =>
            {
                Class::Retry
            }
            Self::Tls { .. } | Self::Refused { .. } | Self::SlotMissing { .. } | Self::NotPrimary => Class::Operator,
            Self::Unreadable { .. } => Class::Bug,
        }
    }

    fn of(doing: &'static str, error: &tokio_postgres::Error) -> Self {
        if let Some(state) = error.code() {
            return Self::Refused { doing, code: state.code().to_owned() };
        }
        // Without an SQLSTATE it is a text of the driver and the system below it; what a cell holds is in none of them.
        Self::Away { doing, reason: chain(error) }
    }
}

/// What to do about an SQLSTATE, when that can be told.
fn advice(code: &str) -> &'static str {
    match code {
        "28000" | "28P01" => "; check role, password and pg_hba.conf: the monitor opens an ordinary connection",
        "3D000" => "; the database does not exist, correct source.url",
        "42501" => "; the role may not do this: GRANT it the right, or make it a member of pg_monitor",
        "53300" => "; the server has no connection left, raise max_connections",
        "57014" => "; it took longer than five seconds",
        _ => "",
    }
}

/// How to open a session, and the one that is open. Ends with its value.
pub(super) struct Session<'a> {
    options: &'a SourceOptions,
    client: Option<Client>,
}

impl<'a> Session<'a> {
    /// Opens nothing yet.
    pub(super) fn new(options: &'a SourceOptions) -> Self {
        Self { options, client: None }
    }

    /// Asks, on a new session when there is none.
    pub(super) async fn query(
        &mut self,
        doing: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, MonitorError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => open(self.options).await?,
        };
        match timeout(ANSWER_WITHIN, client.query(sql, parameters)).await {
            Ok(Ok(rows)) => {
                self.client = Some(client);
                Ok(rows)
            }
            Ok(Err(error)) => Err(MonitorError::of(doing, &error)),
            Err(_) => Err(MonitorError::Silent { doing, within: ANSWER_WITHIN }),
        }
    }

    /// The same for an answer of exactly one row.
    pub(super) async fn query_one(
        &mut self,
        doing: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, MonitorError> {
        let mut rows = self.query(doing, sql, parameters).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            _ => Err(MonitorError::Unreadable { doing }),
        }
    }
}

async fn open(options: &SourceOptions) -> Result<Client, MonitorError> {
    let doing = "connecting";
    let mut config = state_config(options);
    config.application_name(format!("{}-monitor", options.application_name)).tcp_user_timeout(ANSWER_WITHIN);
    // A socket file has no host name for a certificate to match.
    let tls = match (&options.host, options.tls.mode) {
        (Host::Unix(_), _) | (_, TlsMode::Disable) => None,
        _ => {
            let tls = walgate_wire::client_config(&options.tls);
            Some(tls.map_err(|error| MonitorError::Tls { reason: chain(&error) })?)
        }
    };
    let opening = async {
        let client = match tls {
            Some(tls) => {
                let (client, connection) = config.connect(MakeRustlsConnect::new(tls)).await?;
                tokio::spawn(connection);
                client
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                // The end of a connection shows in the next question.
                tokio::spawn(connection);
                client
            }
        };
        client.batch_execute(SETTINGS).await?;
        Ok(client)
    };
    match timeout(options.connect_timeout, opening).await {
        Ok(opened) => opened.map_err(|error| MonitorError::of(doing, &error)),
        Err(_) => Err(MonitorError::Silent { doing, within: options.connect_timeout }),
    }
}

/// A column of a row, of the type it was asked for.
pub(super) fn column<'r, T: tokio_postgres::types::FromSql<'r>>(
    doing: &'static str,
    row: &'r Row,
    at: usize,
) -> Result<T, MonitorError> {
    row.try_get(at).map_err(|_| MonitorError::Unreadable { doing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_place_and_the_fix() {
        let refused = |code: &str| MonitorError::Refused { doing: "reading the slot", code: code.to_owned() };
        for (error, class, words) in [
            (refused("42501"), Class::Operator, "reading the slot: SQLSTATE 42501; the role may not"),
            (refused("28P01"), Class::Operator, "pg_hba.conf"),
            (refused("57P01"), Class::Retry, "SQLSTATE 57P01"),
            (refused("53300"), Class::Retry, "max_connections"),
            (MonitorError::NotPrimary, Class::Operator, "source.ddl_url"),
            (MonitorError::SlotMissing { slot: "s".to_owned() }, Class::Operator, "slot s does not exist"),
            (MonitorError::Unreadable { doing: "x" }, Class::Bug, "please report"),
        ] {
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
