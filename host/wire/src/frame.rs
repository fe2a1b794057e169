//! Where one message ends and the next begins, and what a replication message says about positions.
//!
//! Holds: the length rules, the scan over buffered bytes, and [`Frame`]. Refuses to know sockets, and what is inside a
//! payload. Every function is pure, and no input makes one panic. Read next: [`crate::chunk`], [`crate::pump`].

use std::fmt;

use walgate_core::Lsn;

/// Bytes before a body: one of kind, four of length.
pub(crate) const HEADER_BYTES: usize = 5;

/// The longest message accepted inside a replication stream, in bytes.
///
/// Postgres cannot build a value above 1 GiB, and a change is sent in one message. The extra MiB leaves room for the
/// framing around it. A smaller bound would make a legal row unreadable, a larger one only helps a broken peer.
pub const MAX_STREAM_MESSAGE_BYTES: usize = (1 << 30) + (1 << 20);

/// The longest message accepted outside a stream, in bytes: results of catalog queries and authentication are small.
pub(crate) const MAX_COMMAND_MESSAGE_BYTES: usize = 16 << 20;

const COPY_DATA: u8 = b'd';
const XLOG_DATA: u8 = b'w';
const KEEPALIVE: u8 = b'k';

/// Bytes that no Postgres server sends. Positions and lengths only, never content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length field below the four bytes it counts itself.
    #[error("a message of kind {kind:#04x} announces {length} bytes, less than its own length field")]
    Length {
        /// The kind byte of the message.
        kind: u8,
        /// The length field as sent.
        length: u32,
    },
    /// A length field above the bound.
    #[error(
        "a message of kind {kind:#04x} at or after {near} announces {length} bytes, more than the {limit} that are accepted"
    )]
    TooLong {
        /// The kind byte of the message.
        kind: u8,
        /// The length field as sent.
        length: u32,
        /// The bound, in bytes.
        limit: usize,
        /// Its own start position when enough of it had arrived, else the last position seen.
        near: Lsn,
    },
    /// A message shorter than its kind needs.
    #[error("a replication message ends before its fields do")]
    Truncated,
    /// A keepalive longer than its fields.
    #[error("a keepalive message has {extra} bytes too many")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// A kind of message that has no place here.
    #[error("a message of kind {kind:#04x} has no place in a replication stream")]
    UnknownKind {
        /// The kind byte.
        kind: u8,
    },
}

/// One replication message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A piece of the decoded stream.
    Data {
        /// Where in the log it starts.
        start: Lsn,
        /// For a logical slot the same as `start`: it does not tell how far ahead the server is.
        wal_end: Lsn,
        /// What the output plugin wrote.
        payload: &'a [u8],
    },
    /// A sign of life.
    Keepalive {
        /// The last position the server has handed to the output plugin.
        wal_end: Lsn,
        /// Whether the server wants an answer at once. The pump has given it already.
        reply_requested: bool,
    },
}

/// Positions and sizes; a payload holds row values and is never printed.
impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data { start, payload, .. } => write!(f, "Data {{ start: {start}, {} bytes }}", payload.len()),
            Self::Keepalive { wal_end, reply_requested } => {
                write!(f, "Keepalive {{ wal_end: {wal_end}, reply_requested: {reply_requested} }}")
            }
        }
    }
}

impl<'a> Frame<'a> {
    /// Reads the body of one CopyData message.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (&kind, rest) = body.split_first().ok_or(FrameError::Truncated)?;
        match kind {
            XLOG_DATA => {
                let (start, rest) = take_u64(rest)?;
                let (wal_end, rest) = take_u64(rest)?;
                let (_sent_at, payload) = take_u64(rest)?;
                Ok(Self::Data { start: Lsn::new(start), wal_end: Lsn::new(wal_end), payload })
            }
            KEEPALIVE => {
                let (wal_end, rest) = take_u64(rest)?;
                let (_sent_at, rest) = take_u64(rest)?;
                let (&reply, rest) = rest.split_first().ok_or(FrameError::Truncated)?;
                if !rest.is_empty() {
                    return Err(FrameError::Trailing { extra: rest.len() });
                }
                Ok(Self::Keepalive { wal_end: Lsn::new(wal_end), reply_requested: reply != 0 })
            }
            kind => Err(FrameError::UnknownKind { kind }),
        }
    }

    /// The position the frame names: its start, or the end the server reports.
    pub fn lsn(&self) -> Lsn {
        match *self {
            Self::Data { start, .. } => start,
            Self::Keepalive { wal_end, .. } => wal_end,
        }
    }
}

fn take_u64(bytes: &[u8]) -> Result<(u64, &[u8]), FrameError> {
    let (head, rest) = bytes.split_first_chunk().ok_or(FrameError::Truncated)?;
    Ok((u64::from_be_bytes(*head), rest))
}

/// The first five bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The kind byte.
    pub(crate) kind: u8,
    /// Length of the whole message, header included.
    pub(crate) total: usize,
}

impl Header {
    /// The header of the message that `bytes` starts with; `None` when fewer than five bytes are there.
    pub(crate) fn peek(bytes: &[u8], limit: usize, last: Lsn) -> Result<Option<Self>, FrameError> {
        let Some(([kind, length @ ..], body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (kind, length) = (*kind, u32::from_be_bytes(*length));
        if length < 4 {
            return Err(FrameError::Length { kind, length });
        }
        let total = length as usize + 1;
        if total > limit {
            let near = own_start(kind, body).unwrap_or(last);
            return Err(FrameError::TooLong { kind, length, limit, near });
        }
        Ok(Some(Self { kind, total }))
    }
}

/// The start position inside a CopyData body of which only the beginning may have arrived.
fn own_start(kind: u8, body: &[u8]) -> Option<Lsn> {
    let (&inner, rest) = body.split_first()?;
    let (start, _) = take_u64(rest).ok()?;
    (kind == COPY_DATA && inner == XLOG_DATA).then(|| Lsn::new(start))
}

/// What stands at the front of buffered bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes of whole CopyData messages from the front on.
    pub(crate) run: usize,
    /// What follows them.
    pub(crate) next: Next,
}

/// What follows a run of CopyData messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The start of a message (or nothing yet); at least this many bytes of it are missing.
    Partial {
        /// Missing bytes, at least 1.
        missing: usize,
    },
    /// A whole message of another kind.
    Other(Header),
}

/// Walks over whole CopyData messages, telling `seen` about each, up to the first byte that is not part of one.
pub(crate) fn scan(bytes: &[u8], last: Lsn, mut seen: impl FnMut(&Frame<'_>)) -> Result<Scan, FrameError> {
    let (mut run, mut last) = (0, last);
    loop {
        let rest = bytes.get(run..).unwrap_or_default();
        let Some(header) = Header::peek(rest, MAX_STREAM_MESSAGE_BYTES, last)? else {
            return Ok(Scan { run, next: Next::Partial { missing: HEADER_BYTES - rest.len() } });
        };
        let Some(message) = rest.get(..header.total) else {
            return Ok(Scan { run, next: Next::Partial { missing: header.total - rest.len() } });
        };
        if header.kind != COPY_DATA {
            return Ok(Scan { run, next: Next::Other(header) });
        }
        let frame = Frame::parse(message.get(HEADER_BYTES..).unwrap_or_default())?;
        last = frame.lsn();
        seen(&frame);
        run += header.total;
    }
}

/// The frames of a chunk, in order. After an error it yields nothing more.
#[derive(Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn step(&mut self) -> Result<Option<Frame<'a>>, FrameError> {
        let bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() {
            return Ok(None);
        }
        let header = Header::peek(bytes, MAX_STREAM_MESSAGE_BYTES, Lsn::ZERO)?.ok_or(FrameError::Truncated)?;
        if header.kind != COPY_DATA {
            return Err(FrameError::UnknownKind { kind: header.kind });
        }
        let (message, rest) = bytes.split_at_checked(header.total).ok_or(FrameError::Truncated)?;
        let frame = Frame::parse(message.get(HEADER_BYTES..).unwrap_or_default())?;
        self.rest = rest;
        Ok(Some(frame))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

impl std::iter::FusedIterator for Frames<'_> {}

/// Only how much is left.
impl fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frames {{ {} bytes }}", self.rest.len())
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
