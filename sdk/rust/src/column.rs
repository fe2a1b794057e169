//! One column of one group: the fast way to read a batch.
//!
//! Holds: borrowed columns and their cells. Refuses to know commit order (see [`crate::Change`]). Every offset in a
//! column was checked when its batch was made, so reading a cell fails only for a row that is not there. Read next:
//! [`crate::Group`].

use crate::bindings::walgate::cdc::change as raw;
use crate::{Cell, ColumnInfo, Date, Time, Timestamp, Uuid, Value};

/// Presence code: the slot holds a value.
pub const VALUE: u8 = 0;
/// Presence code: NULL.
pub const NULL: u8 = 1;
/// Presence code: an unchanged large value that was not sent.
pub const UNCHANGED: u8 = 2;
/// Presence code: a column outside the key in an old row.
pub const NOT_SENT: u8 = 3;

/// One column of one group, one slot a row.
#[derive(Clone, Copy)]
pub struct Column<'a> {
    pub(crate) info: &'a ColumnInfo,
    pub(crate) raw: &'a raw::Column,
}

impl<'a> Column<'a> {
    /// Name, type and key position.
    pub fn info(self) -> &'a ColumnInfo {
        self.info
    }

    /// One presence code a row, or none when every row has a value.
    pub fn presence(self) -> Option<&'a [u8]> {
        self.raw.presence.as_deref()
    }

    /// The slots. A slot without a value is zero or empty: ask [`Column::presence`].
    pub fn values(self) -> ColumnValues<'a> {
        match &self.raw.values {
            raw::Values::Boolean(v) => ColumnValues::Bool(v),
            raw::Values::Int16(v) => ColumnValues::Int16(v),
            raw::Values::Int32(v) => ColumnValues::Int32(v),
            raw::Values::Int64(v) => ColumnValues::Int64(v),
            raw::Values::Float32(v) => ColumnValues::Float32(v),
            raw::Values::Float64(v) => ColumnValues::Float64(v),
            raw::Values::DateDays(v) => ColumnValues::Date(v),
            raw::Values::TimeUs(v) => ColumnValues::Time(v),
            raw::Values::TimestampUs(v) => ColumnValues::Timestamp(v),
            raw::Values::Uuid(v) => ColumnValues::Uuid(v.as_chunks().0),
            raw::Values::Bytes(v) => ColumnValues::Bytes(BytesColumn { ends: &v.ends, data: &v.data }),
            raw::Values::Text(v) => ColumnValues::Text(TextColumn { ends: &v.ends, data: &v.data }),
        }
    }

    /// The cell of a row of the group, none when there is no such row.
    pub fn cell(self, row: usize) -> Option<Cell<'a>> {
        match self.presence().and_then(|codes| codes.get(row).copied()).unwrap_or(VALUE) {
            VALUE => self.values().get(row).map(Cell::Value),
            NULL => Some(Cell::Null),
            UNCHANGED => Some(Cell::Unchanged),
            _ => Some(Cell::NotSent),
        }
    }
}

/// The slots of a column, by type.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "each case is the type it names, in the integers of the contract")]
pub enum ColumnValues<'a> {
    Bool(&'a [u8]),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    Date(&'a [i32]),
    Time(&'a [i64]),
    Timestamp(&'a [i64]),
    Uuid(&'a [[u8; 16]]),
    Bytes(BytesColumn<'a>),
    Text(TextColumn<'a>),
}

impl<'a> ColumnValues<'a> {
    /// The value in the slot of a row, none when there is no such row.
    pub fn get(self, row: usize) -> Option<Value<'a>> {
        Some(match self {
            Self::Bool(v) => Value::Bool(*v.get(row)? != 0),
            Self::Int16(v) => Value::Int16(*v.get(row)?),
            Self::Int32(v) => Value::Int32(*v.get(row)?),
            Self::Int64(v) => Value::Int64(*v.get(row)?),
            Self::Float32(v) => Value::Float32(*v.get(row)?),
            Self::Float64(v) => Value::Float64(*v.get(row)?),
            Self::Date(v) => Value::Date(Date(*v.get(row)?)),
            Self::Time(v) => Value::Time(Time(*v.get(row)?)),
            Self::Timestamp(v) => Value::Timestamp(Timestamp(*v.get(row)?)),
            Self::Uuid(v) => Value::Uuid(Uuid(*v.get(row)?)),
            Self::Bytes(v) => Value::Bytes(v.get(row)?),
            Self::Text(v) => Value::Text(v.get(row)?),
        })
    }
}

/// Byte strings, one after the other.
#[derive(Clone, Copy)]
pub struct BytesColumn<'a> {
    ends: &'a [u32],
    data: &'a [u8],
}

impl<'a> BytesColumn<'a> {
    /// The bytes of a row.
    pub fn get(self, row: usize) -> Option<&'a [u8]> {
        self.data.get(slot(self.ends, row)?)
    }

    /// The bytes of all rows together.
    pub fn concatenated(self) -> &'a [u8] {
        self.data
    }

    /// The end of each row in [`BytesColumn::concatenated`].
    pub fn ends(self) -> &'a [u32] {
        self.ends
    }
}

/// Texts, one after the other.
#[derive(Clone, Copy)]
pub struct TextColumn<'a> {
    ends: &'a [u32],
    data: &'a str,
}

impl<'a> TextColumn<'a> {
    /// The text of a row.
    pub fn get(self, row: usize) -> Option<&'a str> {
        self.data.get(slot(self.ends, row)?)
    }

    /// The texts of all rows together.
    pub fn concatenated(self) -> &'a str {
        self.data
    }

    /// The end of each row in [`TextColumn::concatenated`], in bytes.
    pub fn ends(self) -> &'a [u32] {
        self.ends
    }
}

fn slot(ends: &[u32], row: usize) -> Option<std::ops::Range<usize>> {
    let end = *ends.get(row)? as usize;
    let start = match row.checked_sub(1) {
        Some(before) => *ends.get(before)? as usize,
        None => 0,
    };
    Some(start..end)
}

/// What is wrong with a column of a group of `rows` rows, if anything.
pub(crate) fn defect(presence: Option<&[u8]>, values: &raw::Values, rows: usize) -> Option<&'static str> {
    if let Some(presence) = presence {
        if presence.len() != rows {
            return Some("presence has not one code a row");
        }
        if presence.iter().any(|code| *code > NOT_SENT) {
            return Some("an unknown presence code");
        }
    }
    let slots = match values {
        raw::Values::Boolean(v) => v.len(),
        raw::Values::Int16(v) => v.len(),
        raw::Values::Int32(v) | raw::Values::DateDays(v) => v.len(),
        raw::Values::Int64(v) | raw::Values::TimeUs(v) | raw::Values::TimestampUs(v) => v.len(),
        raw::Values::Float32(v) => v.len(),
        raw::Values::Float64(v) => v.len(),
        raw::Values::Uuid(v) if v.len() % 16 != 0 => return Some("a part of a uuid"),
        raw::Values::Uuid(v) => v.len() / 16,
        raw::Values::Bytes(v) => return ends_defect(&v.ends, v.data.len(), rows, |_| true),
        raw::Values::Text(v) => {
            let at_boundary = |end| v.data.is_char_boundary(end);
            return ends_defect(&v.ends, v.data.len(), rows, at_boundary);
        }
    };
    (slots != rows).then_some("a column has not one slot a row")
}

fn ends_defect(ends: &[u32], length: usize, rows: usize, at_boundary: impl Fn(usize) -> bool) -> Option<&'static str> {
    if ends.len() != rows {
        return Some("a column has not one end a row");
    }
    if !ends.is_sorted() {
        return Some("ends go back");
    }
    if ends.last().map_or(0, |end| *end as usize) != length {
        return Some("the last end is not the end of the data");
    }
    let all_at_boundary = ends.iter().all(|end| at_boundary(*end as usize));
    (!all_at_boundary).then_some("an end inside a character")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ends: &[u32], data: &str) -> raw::Values {
        raw::Values::Text(raw::TextValues { ends: ends.to_vec(), data: data.into() })
    }

    #[track_caller]
    fn check(presence: Option<&[u8]>, values: raw::Values, rows: usize, expect: Option<&str>) {
        assert_eq!(defect(presence, &values, rows), expect);
    }

    #[test]
    fn defects_are_found_before_any_cell_is_read() {
        check(None, text(&[1, 1, 3], "aéx").clone(), 3, Some("the last end is not the end of the data"));
        check(None, text(&[1, 1, 3], "aé"), 3, None);
        check(None, text(&[1, 2, 3], "aé"), 3, Some("an end inside a character"));
        check(None, text(&[2, 1, 3], "abc"), 3, Some("ends go back"));
        check(None, text(&[1], "a"), 2, Some("a column has not one end a row"));
        check(None, raw::Values::Int32(vec![1]), 2, Some("a column has not one slot a row"));
        check(None, raw::Values::Uuid(vec![0; 17]), 1, Some("a part of a uuid"));
        check(None, raw::Values::Uuid(vec![0; 32]), 2, None);
        check(Some(&[0, 4]), raw::Values::Int32(vec![1, 2]), 2, Some("an unknown presence code"));
        check(Some(&[0]), raw::Values::Int32(vec![1, 2]), 2, Some("presence has not one code a row"));
        check(Some(&[0, 3]), raw::Values::Int32(vec![1, 2]), 2, None);
        check(None, text(&[], ""), 0, None);
    }
}
