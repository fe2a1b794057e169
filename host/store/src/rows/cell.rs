//! One value on its way into the binary copy format.
//!
//! Holds: the encoding of each kind, which counts days and microseconds from 2000-01-01 as Postgres itself does, and
//! the bytes by which keys are told apart. Refuses to know tables. Every slot is looked up with a check: values come
//! from a plugin. Read next: [`super::stage`].

use std::error::Error;
use std::fmt;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};
use walgate_core::batch::{VALUE, Values};
use walgate_core::rows::Cells;
use walgate_core::value::Kind;

use super::error::Oversized;

/// The longest field that Postgres reads.
const LONGEST: usize = 0x3FFF_FFFF;

/// How the values of a column travel.
pub(super) fn kind_of(values: &Values) -> Kind {
    match values {
        Values::Boolean(_) => Kind::Boolean,
        Values::Int16(_) => Kind::Int16,
        Values::Int32(_) => Kind::Int32,
        Values::Int64(_) => Kind::Int64,
        Values::Float32(_) => Kind::Float32,
        Values::Float64(_) => Kind::Float64,
        Values::DateDays(_) => Kind::DateDays,
        Values::TimeUs(_) => Kind::TimeUs,
        Values::TimestampUs(_) => Kind::TimestampUs,
        Values::Uuid(_) => Kind::Uuid,
        Values::Bytes(_) => Kind::Bytes,
        Values::Text(_) => Kind::Text,
    }
}

/// The kind that holds the values of both: integers widen, everything else has to be one kind.
pub(super) fn joined(one: Kind, other: Kind) -> Option<Kind> {
    let width = |kind| match kind {
        Kind::Int16 => Some(2),
        Kind::Int32 => Some(4),
        Kind::Int64 => Some(8),
        _ => None,
    };
    if one == other {
        return Some(one);
    }
    Some(if width(one)? > width(other)? { one } else { other })
}

/// The bytes of one value.
#[derive(Clone, Copy)]
enum Slot<'a> {
    Integer(i64),
    Four([u8; 4]),
    Eight([u8; 8]),
    Bytes(&'a [u8]),
}

/// The value of one row; `None` when the plugin sent fewer than it said.
#[inline]
fn slot(values: &Values, row: usize) -> Option<Slot<'_>> {
    Some(match values {
        Values::Int64(v) => Slot::Integer(*v.get(row)?),
        Values::Int32(v) => Slot::Integer(i64::from(*v.get(row)?)),
        Values::Int16(v) => Slot::Integer(i64::from(*v.get(row)?)),
        Values::Text(v) => Slot::Bytes(between(&v.ends, v.data.as_bytes(), row)?),
        Values::Bytes(v) => Slot::Bytes(between(&v.ends, &v.data, row)?),
        Values::Boolean(v) => Slot::Bytes(if *v.get(row)? == 0 { &[0] } else { &[1] }),
        Values::Float32(v) => Slot::Four(v.get(row)?.to_bits().to_be_bytes()),
        Values::Float64(v) => Slot::Eight(v.get(row)?.to_bits().to_be_bytes()),
        Values::DateDays(v) => Slot::Four(v.get(row)?.to_be_bytes()),
        Values::TimeUs(v) | Values::TimestampUs(v) => Slot::Eight(v.get(row)?.to_be_bytes()),
        Values::Uuid(v) => Slot::Bytes(v.as_chunks::<16>().0.get(row)?),
    })
}

#[inline]
fn between<'a>(ends: &[u32], data: &'a [u8], row: usize) -> Option<&'a [u8]> {
    let end = *ends.get(row)? as usize;
    let start = match row.checked_sub(1) {
        Some(before) => *ends.get(before)? as usize,
        None => 0,
    };
    data.get(start..end)
}

/// Appends the bytes that tell one key from another. Integers of all widths have one form.
#[inline]
pub(super) fn append_key(cells: &Cells, row: usize, out: &mut Vec<u8>) -> Option<()> {
    match slot(&cells.values, row)? {
        Slot::Integer(number) => out.extend_from_slice(&number.to_be_bytes()),
        Slot::Four(bytes) => out.extend_from_slice(&bytes),
        Slot::Eight(bytes) => out.extend_from_slice(&bytes),
        Slot::Bytes(bytes) => {
            out.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_be_bytes());
            out.extend_from_slice(bytes);
        }
    }
    Some(())
}

/// The presence code of one row.
#[inline]
pub(super) fn code(cells: &Cells, row: usize) -> u8 {
    match &cells.presence {
        None => VALUE,
        Some(codes) => codes.get(row).copied().unwrap_or(VALUE),
    }
}

/// One field of a row that is copied.
#[derive(Clone, Copy)]
pub(super) enum Cell<'a> {
    /// NULL, or a column that the row's statement does not read.
    Absent,
    /// The number of the statement that the row is for.
    Group(i16),
    /// A number of our own.
    Number(i32),
    /// A value, as one of a kind.
    Value(&'a Cells, usize, Kind),
}

impl fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

type Refusal = Box<dyn Error + Sync + Send>;

impl ToSql for Cell<'_> {
    #[inline]
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Refusal> {
        let (cells, row, kind) = match self {
            Self::Absent => return Ok(IsNull::Yes),
            Self::Group(number) => {
                out.extend_from_slice(&number.to_be_bytes());
                return Ok(IsNull::No);
            }
            Self::Number(number) => {
                out.extend_from_slice(&number.to_be_bytes());
                return Ok(IsNull::No);
            }
            Self::Value(cells, row, kind) => (cells, *row, *kind),
        };
        match slot(&cells.values, row).ok_or(Oversized)? {
            Slot::Integer(number) => match kind {
                Kind::Int16 => out.extend_from_slice(&i16::try_from(number)?.to_be_bytes()),
                Kind::Int32 => out.extend_from_slice(&i32::try_from(number)?.to_be_bytes()),
                _ => out.extend_from_slice(&number.to_be_bytes()),
            },
            Slot::Four(bytes) => out.extend_from_slice(&bytes),
            Slot::Eight(bytes) => out.extend_from_slice(&bytes),
            Slot::Bytes(bytes) if bytes.len() > LONGEST => return Err(Oversized.into()),
            Slot::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        // The copy names its types itself; there is no parameter type to compare with.
        true
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Refusal> {
        self.to_sql(ty, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walgate_core::batch::TextValues;

    #[test]
    fn integers_widen_and_nothing_else_does() {
        assert_eq!(joined(Kind::Int16, Kind::Int64), Some(Kind::Int64));
        assert_eq!(joined(Kind::Int32, Kind::Int16), Some(Kind::Int32));
        assert_eq!(joined(Kind::Text, Kind::Text), Some(Kind::Text));
        assert_eq!(joined(Kind::Text, Kind::Int64), None);
        assert_eq!(joined(Kind::Float32, Kind::Float64), None);
    }

    #[test]
    fn slots_that_are_not_there_are_no_value() {
        let cells = |ends: Vec<u32>| Cells {
            name: "a".into(),
            presence: None,
            values: Values::Text(TextValues { ends, data: "ab".into() }),
        };
        for ends in [vec![3], vec![], vec![2, 1], vec![0, u32::MAX]] {
            let row = ends.len().saturating_sub(1);
            assert_eq!(append_key(&cells(ends), row, &mut Vec::new()), None);
        }
        let mut out = Vec::new();
        append_key(&cells(vec![1, 2]), 1, &mut out).unwrap();
        assert_eq!(out, [0, 0, 0, 1, b'b']);
    }

    #[test]
    fn debug_shows_nothing() {
        let cells = Cells { name: "a".into(), presence: None, values: Values::Int32(vec![4111]) };
        assert_eq!(format!("{:?}", Cell::Value(&cells, 0, Kind::Int32)), "hidden");
    }
}
