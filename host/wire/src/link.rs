//! One byte stream to a server, with what came in and what waits to go out.
//!
//! Holds: both buffers, the parameters the server reports, and reads that lose nothing when they are cancelled: every
//! byte that left the socket is in the inbox. Refuses to know what commands mean. Read next: [`crate::connection`].

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{ErrorFields, Message};
use tokio::io::{AsyncReadExt, AsyncWrite};
use walgate_core::Lsn;

use crate::error::{Kind, WireError};
use crate::frame::{Header, MAX_COMMAND_MESSAGE_BYTES};
use crate::socket::Stream;
use crate::verdict::Phase;

/// Room made for a read, in bytes: as much as the receive buffer of the socket gives at once.
pub(crate) const READ_BYTES: usize = 256 << 10;

/// A new buffer is taken when less than this is left in the old one, so that at most a quarter of each is wasted.
const LEAST_ROOM_BYTES: usize = 64 << 10;

/// Reported parameters kept, and bytes of each: Postgres reports about fifteen short ones.
const MAX_PARAMETERS: usize = 256;
const MAX_PARAMETER_BYTES: usize = 1024;

/// A stream and its two buffers.
pub(crate) struct Link {
    stream: Box<dyn Stream>,
    pub(crate) inbox: BytesMut,
    pub(crate) outbox: BytesMut,
    /// Bytes were written that the stream may still hold back.
    unflushed: bool,
    parameters: BTreeMap<String, String>,
}

/// What one read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    /// Bytes added to the inbox; 0 means the peer closed the stream.
    pub(crate) bytes: usize,
    /// Whether nothing more was there to read.
    pub(crate) drained: bool,
}

/// A message outside a stream. Notices, parameters and notifications were dealt with already.
pub(crate) enum Reply {
    Message(Message),
    /// CopyBothResponse, which the protocol library does not know.
    CopyBoth,
}

impl Link {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, inbox: BytesMut::new(), outbox: BytesMut::new(), unflushed: false, parameters: BTreeMap::new() }
    }

    /// A parameter the server reported, such as `server_version`.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// True while bytes wait to go out.
    pub(crate) fn has_output(&self) -> bool {
        self.unflushed || !self.outbox.is_empty()
    }

    /// Writes what waits. Cancelled and polled again, it goes on where it was.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.outbox))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outbox.advance(written);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads until the room is used up or the socket is drained; pending while nothing is there.
    ///
    /// `missing` is what the message at the end of the inbox still lacks: room grows towards it by doubling, so memory
    /// follows the bytes that really came, not the length a peer announced.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, missing: usize) -> Poll<io::Result<Filled>> {
        let room = self.inbox.capacity() - self.inbox.len();
        if room < LEAST_ROOM_BYTES {
            self.inbox.reserve(missing.min(self.inbox.len()).max(READ_BYTES));
        }
        let mut bytes = 0;
        while self.inbox.len() < self.inbox.capacity() {
            match pin!(self.stream.read_buf(&mut self.inbox)).poll(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(Filled { bytes, drained: true })),
                Poll::Ready(Ok(read)) => bytes += read,
                // What was read before the error is handled first; the next read meets the error again.
                Poll::Ready(Err(error)) if bytes == 0 => return Poll::Ready(Err(error)),
                Poll::Pending if bytes == 0 => return Poll::Pending,
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(Ok(Filled { bytes, drained: true })),
            }
        }
        Poll::Ready(Ok(Filled { bytes, drained: false }))
    }

    /// Sends what waits and then reads the next message.
    pub(crate) async fn reply(&mut self, phase: Phase) -> Result<Reply, WireError> {
        let doing = phase.doing();
        let mut unsent = None;
        if self.has_output() {
            unsent = poll_fn(|cx| self.poll_flush(cx)).await.err();
        }
        loop {
            if let Some(reply) = self.take_reply()? {
                return Ok(reply);
            }
            // A server that refuses says why and closes: its words count for more than that we could not write.
            match (poll_fn(|cx| self.poll_fill(cx, 1)).await, unsent.take()) {
                (Ok(filled), earlier) if filled.bytes > 0 => unsent = earlier,
                (_, Some(error)) | (Err(error), None) => return Err(WireError::io(doing, error)),
                (Ok(_), None) => return Err(Kind::Closed { doing }.into()),
            }
        }
    }

    /// The next message in the inbox that concerns the caller; `None` when more must be read first.
    fn take_reply(&mut self) -> Result<Option<Reply>, WireError> {
        while let Some(header) = Header::peek(&self.inbox, MAX_COMMAND_MESSAGE_BYTES, Lsn::ZERO)? {
            if self.inbox.len() < header.total {
                return Ok(None);
            }
            let mut raw = self.inbox.split_to(header.total);
            if header.kind == b'W' {
                return Ok(Some(Reply::CopyBoth));
            }
            let message = Message::parse(&mut raw)
                .map_err(|e| WireError::unreadable("an unreadable message", e))?
                .ok_or_else(|| WireError::protocol("a message without an end"))?;
            if let Some(message) = self.absorb(message) {
                return Ok(Some(Reply::Message(message)));
            }
        }
        Ok(None)
    }

    /// Deals with messages that may come at any time, and gives back all others.
    pub(crate) fn absorb(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::NoticeResponse(body) => {
                let code = error_fields(body.fields()).0;
                tracing::debug!(sqlstate = %code, "the source sent a notice");
            }
            Message::NotificationResponse(_) => {}
            Message::ParameterStatus(body) => {
                let (Ok(name), Ok(value)) = (body.name(), body.value()) else { return None };
                let room = self.parameters.len() < MAX_PARAMETERS || self.parameters.contains_key(name);
                if room && name.len().max(value.len()) <= MAX_PARAMETER_BYTES {
                    self.parameters.insert(name.to_owned(), value.to_owned());
                }
            }
            other => return Some(other),
        }
        None
    }
}

/// The SQLSTATE and the primary message of an error. Detail, hint and context are not even read: they quote rows.
pub(crate) fn error_fields(mut fields: ErrorFields<'_>) -> (String, String) {
    let (mut code, mut message) = (String::new(), String::new());
    while let Ok(Some(field)) = fields.next() {
        let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = value(),
            b'M' => message = value(),
            _ => {}
        }
    }
    // A code is five letters or digits; anything else is not repeated.
    if code.len() != 5 || !code.bytes().all(|b| b.is_ascii_alphanumeric()) {
        code = "XX000".to_owned();
    }
    (code, message)
}

/// The error a server reported during this phase.
pub(crate) fn server_error(phase: Phase, fields: ErrorFields<'_>) -> WireError {
    let (code, message) = error_fields(fields);
    Kind::Server { phase, code, message: phase.keeps_message().then_some(message) }.into()
}
