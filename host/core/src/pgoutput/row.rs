//! An undecoded row: which relation, what happened, and a walk over its cells.
//!
//! Holds: the walk. Whoever walks decides cell by cell what is looked at; what nobody asks for is stepped over by its
//! length. Refuses to know types and grants.

use std::fmt;

use super::reader::{DecodeError, DecodeErrorKind, Reader};

/// Which row message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// A new row.
    Insert,
    /// A changed row.
    Update,
    /// A removed row.
    Delete,
}

/// A row message whose cells are not decoded yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RowBody<'a> {
    /// Stands at the first tuple's tag.
    tuples: Reader<'a>,
    relation: u32,
    kind: RowKind,
}

impl fmt::Debug for RowBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowBody")
            .field("relation", &self.relation)
            .field("kind", &self.kind)
            .field("bytes", &self.tuples.remaining())
            .finish()
    }
}

/// What the message says about the old row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldRow {
    /// Nothing: the key did not change, or it is an insert.
    Absent,
    /// Its key: columns outside the key are sent as if NULL and are not.
    Key,
    /// All of it.
    Full,
}

/// One cell of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cell<'a> {
    /// NULL; in a key tuple, not sent.
    Null,
    /// An unchanged TOAST value that was not sent.
    Unchanged,
    /// The text that Postgres prints.
    Text(&'a [u8]),
}

impl<'a> RowBody<'a> {
    #[inline]
    pub(crate) fn new(tuples: Reader<'a>, relation: u32, kind: RowKind) -> Self {
        Self { tuples, relation, kind }
    }

    /// The object id of the relation.
    #[inline]
    pub fn relation(&self) -> u32 {
        self.relation
    }

    /// What happened.
    #[inline]
    pub fn kind(&self) -> RowKind {
        self.kind
    }

    /// Starts walking. First the old row, when [`TupleWalk::old`] says there is one, then the new one.
    #[inline]
    pub fn walk(&self) -> TupleWalk<'a> {
        TupleWalk { reader: self.tuples, kind: self.kind }
    }
}

/// A walk over the tuples of one row message.
pub struct TupleWalk<'a> {
    reader: Reader<'a>,
    kind: RowKind,
}

impl<'a> TupleWalk<'a> {
    /// Reads the tag in front of the first tuple. With `Absent` the new tuple's header comes next, its tag read.
    #[inline]
    pub fn old(&mut self) -> Result<OldRow, DecodeError> {
        let before = self.reader;
        match (self.reader.u8()?, self.kind) {
            (b'N', RowKind::Insert | RowKind::Update) => Ok(OldRow::Absent),
            (b'K', RowKind::Update | RowKind::Delete) => Ok(OldRow::Key),
            (b'O', RowKind::Update | RowKind::Delete) => Ok(OldRow::Full),
            _ => Err(before.error(DecodeErrorKind::UnknownTag)),
        }
    }

    /// Reads the tag in front of the new tuple, after the old one was walked.
    #[inline]
    pub fn new_tag(&mut self) -> Result<(), DecodeError> {
        let before = self.reader;
        match self.reader.u8()? {
            b'N' => Ok(()),
            _ => Err(before.error(DecodeErrorKind::UnknownTag)),
        }
    }

    /// Reads the column count of a tuple, which must be that of its relation.
    #[inline]
    pub fn columns(&mut self, relation: u16) -> Result<(), DecodeError> {
        let before = self.reader;
        let row = self.reader.u16()?;
        if row == relation { Ok(()) } else { Err(before.error(DecodeErrorKind::ColumnCount { row, relation })) }
    }

    /// Walks a tuple of as many columns as it says itself. For tests: a row is read by the shape of its relation.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn any_columns(&mut self) -> Result<(), DecodeError> {
        let columns = self.reader.u16()?;
        (0..columns).try_for_each(|_| self.cell().map(drop))
    }

    /// The next cell.
    #[inline]
    pub fn cell(&mut self) -> Result<Cell<'a>, DecodeError> {
        match self.reader.text_cell() {
            Some(text) => Ok(Cell::Text(text)),
            None => self.other_cell(),
        }
    }

    fn other_cell(&mut self) -> Result<Cell<'a>, DecodeError> {
        let before = self.reader;
        match self.reader.u8()? {
            b'n' => Ok(Cell::Null),
            b'u' => Ok(Cell::Unchanged),
            b't' => self.reader.sized().map(Cell::Text),
            b'b' => Err(before.error(DecodeErrorKind::Binary)),
            _ => Err(before.error(DecodeErrorKind::UnknownTag)),
        }
    }

    /// Fails when bytes are left.
    #[inline]
    pub fn finish(&self) -> Result<(), DecodeError> {
        self.reader.finish()
    }
}
