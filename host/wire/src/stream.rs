//! Starts replication on a slot.
//!
//! Holds: the START_REPLICATION command, and the connection once it streams. Refuses to know how the stream is read;
//! [`crate::pump`] does that.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use postgres_protocol::message::backend::Message;
use walgate_core::Lsn;

use crate::connection::Connection;
use crate::error::WireError;
use crate::feedback::Feedback;
use crate::link::{Link, Reply, server_error};
use crate::pacing::Pacing;
use crate::quote::{identifier, literal};
use crate::slot::slot_identifier;
use crate::thread;
use crate::verdict::Phase;

/// The longest a silent peer is believed, when `wal_sender_timeout` is not longer.
const DEFAULT_DEAD_PEER_AFTER: Duration = Duration::from_secs(60);

/// What to stream and from where.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The slot.
    pub slot: String,
    /// Where to begin: the position up to which everything is durable. The server silently begins later when the slot
    /// has been confirmed further. No flush position below it is ever reported, so that a slot cannot move back.
    pub start: Lsn,
    /// The publications, by any legal name.
    pub publications: Vec<String>,
    /// Also send logical messages (`pg_logical_emit_message`).
    pub messages: bool,
    /// Version of the pgoutput protocol; 1 is what the decoder reads today.
    pub proto_version: u8,
    /// Further options of pgoutput, such as `("streaming", "on")` for version 2 and up. Names are plain identifiers.
    pub plugin_options: Vec<(&'static str, String)>,
    /// How long a silent peer is believed; `None` takes the larger of a minute and `wal_sender_timeout`.
    pub dead_peer_after: Option<Duration>,
    /// Pause while behind, so that messages coalesce on the server. Off only to measure what it gains; on a
    /// socket directory only on a thread of its own ([`crate::own_thread`]).
    pub lazy: bool,
}

impl StartOptions {
    /// Version 1, no logical messages, lazy reading.
    pub fn new(slot: impl Into<String>, start: Lsn, publications: Vec<String>) -> Self {
        Self {
            slot: slot.into(),
            start,
            publications,
            messages: false,
            proto_version: 1,
            plugin_options: Vec::new(),
            dead_peer_after: None,
            lazy: true,
        }
    }

    fn command(&self) -> Result<String, WireError> {
        let names: Vec<_> = self.publications.iter().map(|name| identifier(name)).collect();
        let mut list =
            format!("proto_version '{}', publication_names {}", self.proto_version, literal(&names.join(",")));
        if self.messages {
            list.push_str(", messages 'true'");
        }
        for (name, value) in &self.plugin_options {
            list.push_str(&format!(", {} {}", identifier(name), literal(value)));
        }
        let slot = slot_identifier(&self.slot)?;
        Ok(format!("START_REPLICATION SLOT {slot} LOGICAL {} ({list})", self.start))
    }
}

/// A connection that streams. Everything not handed over yet is kept in it, so a pump may be dropped and started again.
pub struct CopyStream {
    pub(crate) link: Link,
    /// Runs of whole messages that were read and not handed over.
    pub(crate) ready: VecDeque<Bytes>,
    /// Why the stream is over; told once everything before it is handed over.
    pub(crate) ended: Option<WireError>,
    pub(crate) feedback: Feedback,
    pub(crate) pacing: Pacing,
    /// The socket's buffer is small and fixed: a pause that is too long leaves the server waiting.
    pub(crate) short_pauses: bool,
    /// What the message at the end of the inbox still lacks.
    pub(crate) missing: usize,
    /// The last position seen.
    pub(crate) last: Lsn,
}

impl std::fmt::Debug for CopyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyStream")
            .field("last", &self.last)
            .field("chunks", &self.ready.len())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Starts to stream from a slot. A slot that another session uses, that is gone or that was invalidated is an
    /// error of its own (`slot_active`, `slot_missing`, `slot_invalidated`).
    pub async fn start_replication(mut self, options: &StartOptions) -> Result<CopyStream, WireError> {
        let command = options.command()?;
        let timeout = self.setting("wal_sender_timeout").await?;
        let timeout = timeout.and_then(|ms| ms.parse().ok()).map_or(Duration::ZERO, Duration::from_millis);
        self.begin(&command)?;
        let mut failure = None;
        loop {
            match self.link.reply(Phase::Start).await? {
                Reply::CopyBoth => break,
                Reply::Message(Message::ErrorResponse(body)) => {
                    let error = server_error(Phase::Start, body.fields());
                    if error.is_connection_loss() {
                        return Err(error);
                    }
                    failure = Some(error);
                }
                Reply::Message(Message::ReadyForQuery(_)) => {
                    self.done();
                    let error = failure.unwrap_or_else(|| WireError::protocol("the end of a stream that never began"));
                    return Err(self.explain(&options.slot, error).await);
                }
                Reply::Message(_) => return Err(WireError::protocol("something else than the start of a stream")),
            }
        }
        // A timer is too coarse for the short pauses that a socket directory needs.
        let lazy = options.lazy && (self.coalesces || thread::is_own());
        let mut stream = CopyStream::new(self.link, timeout, &StartOptions { lazy, ..options.clone() });
        stream.short_pauses = !self.coalesces;
        Ok(stream)
    }
}

impl CopyStream {
    /// A stream that has just begun on this link.
    pub(crate) fn new(link: Link, wal_sender_timeout: Duration, options: &StartOptions) -> Self {
        let dead_peer_after = options.dead_peer_after.unwrap_or(DEFAULT_DEAD_PEER_AFTER.max(wal_sender_timeout));
        Self {
            link,
            ready: VecDeque::new(),
            ended: None,
            feedback: Feedback::new(wal_sender_timeout, dead_peer_after, options.start),
            pacing: Pacing::new(options.lazy),
            short_pauses: false,
            missing: 1,
            last: options.start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_twice() {
        let mut options = StartOptions::new("s", Lsn::new(0x1_0000_000A), vec!["a,b".into(), "it's \"so\"".into()]);
        assert_eq!(
            options.command().unwrap(),
            "START_REPLICATION SLOT \"s\" LOGICAL 1/A \
             (proto_version '1', publication_names '\"a,b\",\"it''s \"\"so\"\"\"')"
        );
        options.proto_version = 4;
        options.messages = true;
        options.plugin_options.push(("streaming", "parallel".into()));
        assert!(options.command().unwrap().ends_with("messages 'true', \"streaming\" 'parallel')"));
    }
}
