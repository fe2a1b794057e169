//! A batch: what one plugin receives in one call. The host's form of `wit/v0.1/change.wit`.
//!
//! Holds: owned columns, ready to be moved across the boundary and back. Refuses to know how they were filled
//! (see [`crate::minimize`]) and what carries them (wasmtime, in the plugin crate).
//! Invariant: `Debug` of anything here tells kinds and counts, never a value.
//! Read next: [`pick`] for a part of a batch, [`image`] for a batch as text that an operator can read.

mod form;
pub mod image;
pub(crate) mod name;
pub mod pick;
mod slot;

use std::fmt;

use crate::{Cursor, Lsn};

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A row of a snapshot.
    Read,
    /// A new row.
    Insert,
    /// A changed row.
    Update,
    /// A removed row.
    Delete,
    /// A table emptied as a whole.
    Truncate,
}

impl Operation {
    /// The word used in grants, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Truncate => "truncate",
        }
    }
}

/// Presence code: the slot holds a value.
pub const VALUE: u8 = 0;
/// Presence code: NULL.
pub const NULL: u8 = 1;
/// Presence code: an unchanged TOAST value that the server did not send.
pub const UNCHANGED: u8 = 2;
/// Presence code: a column outside the key in a before image, not sent.
pub const NOT_SENT: u8 = 3;

/// Texts of one column, one after the other.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TextValues {
    /// The end of each row's text in `data`, in bytes.
    pub ends: Vec<u32>,
    /// All texts. Every end is a character boundary.
    pub data: String,
}

/// Byte strings of one column, one after the other.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ByteValues {
    /// The end of each row's bytes in `data`.
    pub ends: Vec<u32>,
    /// All bytes.
    pub data: Vec<u8>,
}

/// The values of one column, one slot a row.
#[derive(Clone, PartialEq)]
#[expect(missing_docs, reason = "the cases are the table in wit/v0.1/change.wit")]
pub enum Values {
    Boolean(Vec<u8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    DateDays(Vec<i32>),
    TimeUs(Vec<i64>),
    TimestampUs(Vec<i64>),
    Uuid(Vec<u8>),
    Bytes(ByteValues),
    Text(TextValues),
}

impl Values {
    /// The number of row slots.
    pub fn len(&self) -> usize {
        match self {
            Self::Boolean(v) => v.len(),
            Self::Int16(v) => v.len(),
            Self::Int32(v) | Self::DateDays(v) => v.len(),
            Self::Int64(v) | Self::TimeUs(v) | Self::TimestampUs(v) => v.len(),
            Self::Float32(v) => v.len(),
            Self::Float64(v) => v.len(),
            Self::Uuid(v) => v.len() / 16,
            Self::Bytes(v) => v.ends.len(),
            Self::Text(v) => v.ends.len(),
        }
    }

    /// True when there is no row slot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for TextValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextValues").field("rows", &self.ends.len()).field("bytes", &self.data.len()).finish()
    }
}

impl fmt::Debug for ByteValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteValues").field("rows", &self.ends.len()).field("bytes", &self.data.len()).finish()
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Boolean(_) => "Boolean",
            Self::Int16(_) => "Int16",
            Self::Int32(_) => "Int32",
            Self::Int64(_) => "Int64",
            Self::Float32(_) => "Float32",
            Self::Float64(_) => "Float64",
            Self::DateDays(_) => "DateDays",
            Self::TimeUs(_) => "TimeUs",
            Self::TimestampUs(_) => "TimestampUs",
            Self::Uuid(_) => "Uuid",
            Self::Bytes(_) => "Bytes",
            Self::Text(_) => "Text",
        };
        write!(f, "{name}({} rows)", self.len())
    }
}

/// One column of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Index into the columns of the projected relation.
    pub index: u16,
    /// None when every row has a value, else a presence code a row.
    pub presence: Option<Vec<u8>>,
    /// The values.
    pub values: Values,
}

/// Changes of one relation and one operation under one schema version.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The relation's object id.
    pub relation: u32,
    /// What the changes did.
    pub operation: Operation,
    /// Position of each row in the order of the batch, rising.
    pub ordinals: Vec<u32>,
    /// The new rows.
    pub after: Vec<Column>,
    /// The old rows or their keys.
    pub before: Vec<Column>,
}

/// One source transaction, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The transaction id at the source.
    pub xid: u32,
    /// Start of the commit record.
    pub commit: Lsn,
    /// First byte after the commit record; zero in every part but the last.
    pub end: Lsn,
    /// Microseconds from 1970-01-01 UTC.
    pub commit_time_us: i64,
    /// The replication origin, if any.
    pub origin: Option<String>,
    /// First ordinal of this transaction in the batch.
    pub first_ordinal: u32,
    /// How many ordinals it owns in the batch; hidden changes count.
    pub change_count: u32,
    /// Ordinal in the source transaction of the one at `first_ordinal`.
    pub source_ordinal: u32,
    /// Number of the part, from 0.
    pub part: u32,
    /// True for the final part and for a whole transaction.
    pub last_part: bool,
}

/// A logical message. Prefix and content count as values.
#[derive(Clone, PartialEq, Eq)]
pub struct LogicalMessage {
    /// Position in the order of the batch.
    pub ordinal: u32,
    /// Whether it belongs to a transaction.
    pub transactional: bool,
    /// Its prefix.
    pub prefix: String,
    /// Its content.
    pub content: Vec<u8>,
}

impl fmt::Debug for LogicalMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("ordinal", &self.ordinal)
            .field("transactional", &self.transactional)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

/// What one plugin receives in one call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// The idempotency key: equal for equal content to the same plugin.
    pub id: String,
    /// 1 on the first delivery.
    pub attempt: u32,
    /// The transactions, in commit order.
    pub transactions: Vec<Transaction>,
    /// The changes.
    pub groups: Vec<Group>,
    /// The logical messages the grant names.
    pub messages: Vec<LogicalMessage>,
    /// Where the plugin's cursor stands once this batch is durable. Not handed to the guest.
    pub reaches: Cursor,
    /// Rows in all groups, for metrics and bounds.
    pub rows: usize,
    /// Bytes of the values in all groups as Postgres printed them, and a slot's worth for each absent one; for metrics
    /// and bounds.
    pub bytes: usize,
}

#[cfg(test)]
mod tests;
