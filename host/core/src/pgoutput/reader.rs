//! Checked reading of a message from front to back.
//!
//! Holds: the reader and the decode error. Refuses to know what the fields mean.

use crate::Lsn;

/// A message was not what the protocol says. Holds where and what kind, never a byte of the message.
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
    /// A tag inside a message that the protocol does not have there.
    #[error("unexpected tag 0x{0:02x}")]
    UnknownTag(u8),
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
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError { offset: self.at, kind }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.get(..len) {
            Some(bytes) => {
                self.at += len;
                Ok(bytes)
            }
            None => Err(self.error(DecodeErrorKind::Truncated)),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.error(DecodeErrorKind::Truncated)),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
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

    /// A length that the rest of the message can hold.
    #[inline]
    pub(crate) fn length(&mut self) -> Result<usize, DecodeError> {
        let before = self.at;
        let len = self.u32()? as usize;
        if len > self.remaining() {
            return Err(DecodeError { offset: before, kind: DecodeErrorKind::Length });
        }
        Ok(len)
    }

    /// A name: bytes up to a NUL, as UTF-8.
    pub(crate) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|byte| *byte == 0).ok_or_else(|| self.error(DecodeErrorKind::Truncated))?;
        let start = self.at;
        let bytes = self.take(len)?;
        self.at += 1;
        std::str::from_utf8(bytes).map_err(|_| DecodeError { offset: start, kind: DecodeErrorKind::Name })
    }

    /// Fails when anything is left.
    #[inline]
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.error(DecodeErrorKind::Trailing)) }
    }
}
