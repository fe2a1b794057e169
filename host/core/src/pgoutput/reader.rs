//! Checked reading of a message from front to back.
//!
//! Holds: the reader and the decode error. Refuses to know what the fields mean.

use crate::Lsn;

/// A message was not what the protocol says. Holds where and what kind, never a byte of the message. Permanent: the
/// same bytes would come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset} of the message")]
pub struct DecodeError {
    /// Byte offset in the message at which reading failed.
    pub offset: usize,
    /// What was wrong.
    pub kind: DecodeErrorKind,
}

/// What can be wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeErrorKind {
    /// The message ends inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// Bytes are left after the last field.
    #[error("bytes are left over after the last field")]
    Trailing,
    /// A message type this protocol version does not have.
    #[error("unknown message type 0x{0:02x}")]
    UnknownMessage(u8),
    /// A tag inside a message that the protocol does not have there. The tag is not repeated: behind a broken length
    /// it would be a byte of a value.
    #[error("a tag that the protocol does not have there")]
    UnknownTag,
    /// A declared count or length is negative or larger than the message.
    #[error("a declared count or length does not fit the message")]
    Length,
    /// A name is not UTF-8.
    #[error("a name is not UTF-8")]
    Name,
    /// A value came in binary format, which was not asked for.
    #[error("a value in binary format, which was not asked for")]
    Binary,
    /// A tuple has another number of columns than its relation.
    #[error("a row has {row} columns where its relation has {relation}")]
    ColumnCount {
        /// In the row.
        row: u16,
        /// In the relation.
        relation: u16,
    },
}

/// Reads a message from front to back; every step is checked.
///
/// Keeps the rest of the message rather than an index into it, so that each step is one comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Length of the whole message, for offsets in errors.
    len: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { rest: message, len: message.len() }
    }

    /// The offset of the next byte.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.len - self.rest.len()
    }

    #[cold]
    pub(crate) fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError { offset: self.at(), kind }
    }

    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.error(DecodeErrorKind::Truncated))?;
        self.rest = rest;
        Ok(bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.error(DecodeErrorKind::Truncated))?;
        self.rest = rest;
        Ok(*bytes)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn::new)
    }

    /// As many bytes as a length in front of them says.
    pub(crate) fn sized(&mut self) -> Result<&'a [u8], DecodeError> {
        let before = *self;
        let len = self.u32()? as usize;
        if len > self.remaining() {
            return Err(before.error(DecodeErrorKind::Length));
        }
        self.take(len)
    }

    /// A `t` cell in one step: tag, length and bytes. Nothing moves when the rest does not begin with a whole one.
    #[inline]
    pub(crate) fn text_cell(&mut self) -> Option<&'a [u8]> {
        let ([b't', a, b, c, d], rest) = self.rest.split_first_chunk()? else { return None };
        let (text, rest) = rest.split_at_checked(u32::from_be_bytes([*a, *b, *c, *d]) as usize)?;
        self.rest = rest;
        Some(text)
    }

    /// A name: bytes up to a NUL, as UTF-8.
    pub(crate) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let before = *self;
        let len = self.rest.iter().position(|byte| *byte == 0);
        let bytes = self.take(len.ok_or_else(|| before.error(DecodeErrorKind::Truncated))?)?;
        self.u8()?;
        std::str::from_utf8(bytes).map_err(|_| before.error(DecodeErrorKind::Name))
    }

    /// Fails when anything is left.
    #[inline]
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error(DecodeErrorKind::Trailing)) }
    }
}
