//! A session on the source that speaks the replication protocol, outside a stream.
//!
//! Holds: startup with pinned settings, simple queries, what the server says about itself. Refuses to know slots (see
//! [`crate::slot`]) and streams (see [`crate::stream`]).

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;
use tokio::sync::watch;
use tokio::time::timeout;
use walgate_core::Lsn;

use crate::auth;
use crate::backoff::Backoff;
use crate::config::SourceOptions;
use crate::error::{Class, Kind, WireError};
use crate::link::{Link, Reply, server_error};
use crate::quote::literal;
use crate::socket;
use crate::verdict::Phase;

/// The bytes a result may have in all. Catalog queries of this program stay far below.
const MAX_RESULT_BYTES: usize = 64 << 20;

/// Settings every session pins, so that a value has the same text whatever the role or the database is set to.
///
/// The timeouts are off because a stream lives for months and its session counts as idle all that time.
const PINNED: [(&str, &str); 11] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("TimeZone", "UTC"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
];

/// Who the server is, from `IDENTIFY_SYSTEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The identifier of the cluster; copies of its files share it.
    pub system_id: String,
    /// The timeline it is on.
    pub timeline: u32,
    /// The flushed end of its log; on a standby the replayed end.
    pub xlog_pos: Lsn,
    /// The database of this session.
    pub database: String,
}

/// One row of a result, as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Row(Vec<Option<String>>);

/// The number of columns only: a row may hold anything.
impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Row {{ {} columns }}", self.0.len())
    }
}

impl Row {
    /// The text of a column; `None` for NULL and behind the last column.
    pub fn get(&self, column: usize) -> Option<&str> {
        self.0.get(column)?.as_deref()
    }

    /// How many columns it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for a row without columns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn read(body: &DataRowBody) -> Result<Self, WireError> {
        let unreadable = |e| WireError::unreadable("an unreadable row", e);
        let mut columns = Vec::new();
        let mut ranges = body.ranges();
        while let Some(range) = ranges.next().map_err(unreadable)? {
            let bytes = range.map(|range| body.buffer().get(range).unwrap_or_default().to_vec());
            let text = bytes.map(String::from_utf8).transpose();
            columns.push(text.map_err(|_| WireError::protocol("a value that is not UTF-8"))?);
        }
        Ok(Self(columns))
    }
}

/// A session in replication mode, bound to one database. Dropping it closes the connection.
pub struct Connection {
    pub(crate) link: Link,
    major: u32,
    /// Whether the socket gains from lazy reading.
    pub(crate) coalesces: bool,
    /// A command is under way. Still set when the next one begins, its future was dropped half way, and what would
    /// arrive is the answer to the wrong question.
    busy: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.major).field("busy", &self.busy).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects, authenticates, pins the session's settings. Takes at most `options.connect_timeout`.
    pub async fn connect(options: &SourceOptions) -> Result<Self, WireError> {
        Self::connect_as(options, &[("replication", "database")]).await
    }

    /// The same for an ordinary session, which takes SQL only: its role needs no REPLICATION, and it uses no walsender.
    pub async fn connect_sql(options: &SourceOptions) -> Result<Self, WireError> {
        Self::connect_as(options, &[]).await
    }

    async fn connect_as(options: &SourceOptions, kind: &[(&str, &str)]) -> Result<Self, WireError> {
        let doing = Phase::Connect.doing();
        let after = options.connect_timeout;
        match timeout(after, Self::open(options, kind)).await {
            Ok(result) => result,
            Err(_) => Err(Kind::TimedOut { doing, after }.into()),
        }
    }

    /// Connects, however often it takes, with growing waits between; `Ok(None)` once `stop` is true or its sender gone.
    ///
    /// An error whose class is not [`Class::Retry`] ends it at once. Success resets the backoff.
    pub async fn connect_retrying(
        options: &SourceOptions,
        backoff: &mut Backoff,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Option<Self>, WireError> {
        loop {
            let attempt = tokio::select! {
                biased;
                () = stopped(stop) => return Ok(None),
                attempt = Self::connect(options) => attempt,
            };
            let error = match attempt {
                Ok(connection) => {
                    backoff.reset();
                    return Ok(Some(connection));
                }
                Err(error) if error.class() == Class::Retry => error,
                Err(error) => return Err(error),
            };
            let wait = backoff.next_delay();
            tracing::warn!(%error, attempts = backoff.attempts(), wait_ms = wait.as_millis(), "cannot connect to the source");
            tokio::select! {
                biased;
                () = stopped(stop) => return Ok(None),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn open(options: &SourceOptions, kind: &[(&str, &str)]) -> Result<Self, WireError> {
        let socket = socket::open(options).await?;
        let mut link = Link::new(socket.stream);
        let own = [
            ("user", options.user.as_str()),
            ("database", options.database.as_str()),
            ("application_name", options.application_name.as_str()),
        ];
        if own.iter().any(|(_, value)| value.contains('\0')) {
            return Err(Kind::Nul.into());
        }
        frontend::startup_message(own.into_iter().chain(kind.iter().copied()).chain(PINNED), &mut link.outbox)
            .map_err(|e| WireError::unreadable("startup options that are too long", e))?;
        auth::authenticate(&mut link, options, socket.private).await?;
        loop {
            match link.reply(Phase::Connect).await? {
                Reply::Message(Message::ReadyForQuery(_)) => break,
                Reply::Message(Message::BackendKeyData(_)) => {}
                Reply::Message(Message::ErrorResponse(body)) => {
                    return Err(server_error(Phase::Connect, body.fields()));
                }
                _ => return Err(WireError::protocol("something else than the end of startup")),
            }
        }
        if link.parameter("client_encoding") != Some("UTF8") {
            return Err(WireError::protocol("a session that does not use UTF8"));
        }
        let major = link.parameter("server_version").and_then(major_version);
        let major = major.ok_or_else(|| WireError::protocol("no server version"))?;
        Ok(Self { link, major, coalesces: socket.coalesces, busy: false })
    }

    /// The major version of the server, for example 18.
    pub fn server_version(&self) -> u32 {
        self.major
    }

    /// A parameter that the server reports by itself, such as `server_version` or `TimeZone`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.link.parameter(name)
    }

    /// Runs one simple query and gives its rows as text.
    ///
    /// Names and texts in it must be quoted with [`crate::identifier`] and [`literal`]. The result is bounded to
    /// 64 MiB. A future dropped half way makes the connection unusable, and the next command says so.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Row>, WireError> {
        self.command(sql, Phase::Query).await
    }

    /// A server setting in its base unit (`wal_sender_timeout` in milliseconds); `None` when the server has none of
    /// that name or hides it from this role.
    pub async fn setting(&mut self, name: &str) -> Result<Option<String>, WireError> {
        let sql = format!("SELECT setting FROM pg_catalog.pg_settings WHERE name = {}", literal(name));
        let rows = self.query(&sql).await?;
        Ok(rows.first().and_then(|row| row.get(0)).map(str::to_owned))
    }

    /// Whether the server is a standby now.
    pub async fn in_recovery(&mut self) -> Result<bool, WireError> {
        let rows = self.query("SELECT pg_catalog.pg_is_in_recovery()").await?;
        let answer = rows.first().and_then(|row| row.get(0)).map(|value| value == "t");
        answer.ok_or_else(|| WireError::protocol("no answer to whether it is in recovery"))
    }

    /// Who the server is and how far its log goes.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, WireError> {
        let rows = self.command("IDENTIFY_SYSTEM", Phase::Identify).await?;
        let identity = rows.first().and_then(|row| {
            Some(SystemIdentity {
                system_id: row.get(0)?.to_owned(),
                timeline: row.get(1)?.parse().ok()?,
                xlog_pos: row.get(2)?.parse().ok()?,
                database: row.get(3)?.to_owned(),
            })
        });
        identity.ok_or_else(|| WireError::protocol("an incomplete identity"))
    }

    /// Which of these publications the database does not have. Compared by equality, whatever characters they hold.
    pub async fn missing_publications(&mut self, names: &[String]) -> Result<Vec<String>, WireError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let list = names.iter().map(|name| literal(name)).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT pubname FROM pg_catalog.pg_publication WHERE pubname::text IN ({list})");
        let rows = self.query(&sql).await?;
        let exists = |name: &String| rows.iter().any(|row| row.get(0) == Some(name.as_str()));
        Ok(names.iter().filter(|name| !exists(name)).cloned().collect())
    }

    /// Sends a command and reads its rows up to the end of the command.
    pub(crate) async fn command(&mut self, text: &str, phase: Phase) -> Result<Vec<Row>, WireError> {
        self.begin(text)?;
        let (mut rows, mut bytes, mut failure) = (Vec::new(), 0_usize, None);
        loop {
            match self.link.reply(phase).await? {
                Reply::Message(Message::DataRow(body)) => {
                    bytes = bytes.saturating_add(body.buffer().len());
                    if bytes > MAX_RESULT_BYTES {
                        return Err(Kind::ResultTooLarge { limit: MAX_RESULT_BYTES }.into());
                    }
                    rows.push(Row::read(&body)?);
                }
                Reply::Message(Message::ErrorResponse(body)) => failure = Some(server_error(phase, body.fields())),
                Reply::Message(Message::ReadyForQuery(_)) => break,
                Reply::Message(
                    Message::RowDescription(_) | Message::CommandComplete(_) | Message::EmptyQueryResponse,
                ) => {}
                // A fatal error ends the session without the end of the command.
                _ => return Err(WireError::protocol("an answer that does not belong to a query")),
            }
            if let Some(error) = failure.take_if(|error| error.is_connection_loss()) {
                return Err(error);
            }
        }
        self.busy = false;
        failure.map_or(Ok(rows), Err)
    }

    /// Sends a command whose answer is to be read by the caller.
    pub(crate) fn begin(&mut self, text: &str) -> Result<(), WireError> {
        if self.busy {
            return Err(Kind::Interrupted.into());
        }
        if text.contains('\0') {
            return Err(Kind::Nul.into());
        }
        self.busy = true;
        frontend::query(text, &mut self.link.outbox).map_err(|e| WireError::unreadable("a command that is too long", e))
    }

    /// The caller has read an answer to its end.
    pub(crate) fn done(&mut self) {
        self.busy = false;
    }
}

/// Ends when the flag is true, or when nobody is left who could set it.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Either way it is time to stop; and the borrow that a success returns must not outlive this line.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// 18 from `18.4`, `18beta1` or `15.18 (Debian 15.18-1)`.
fn major_version(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_major_version() {
        assert_eq!(major_version("18.4"), Some(18));
        assert_eq!(major_version("19beta1"), Some(19));
        assert_eq!(major_version("15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major_version("EnterpriseDB"), None);
    }

    #[test]
    fn a_row_is_never_printed() {
        let row = Row(vec![Some("secret".into()), None]);
        assert_eq!(format!("{row:?}"), "Row { 2 columns }");
        assert_eq!((row.get(0), row.get(1), row.get(2)), (Some("secret"), None, None));
    }
}
