//! One slot of a column as a JSON value, exactly, and back.
//!
//! Holds: the names of the kinds of `wit/v0.1/change.wit`, and the form of a value of each. Refuses to know presence, rows
//! and relations (see [`super::image`]). Invariant: what is written reads back to the same bits; what does not read leaves
//! the column as it was.
//!
//! | kinds | form |
//! |---|---|
//! | boolean | `true`, `false` |
//! | int16, int32, int64, date-days, time-us, timestamp-us | a number |
//! | float32, float64 | a text, the shortest that is exact; `Infinity`, `NaN`, or `NaN:` and its bits if it is another |
//! | uuid, bytes | a text as Postgres prints it |
//! | text | a text |

use std::fmt::Write;

use serde_json::Value;

use super::{ByteValues, TextValues, Values};
use crate::value;

/// Every kind, empty.
pub(super) fn kinds() -> [Values; 12] {
    [
        Values::Boolean(Vec::new()),
        Values::Int16(Vec::new()),
        Values::Int32(Vec::new()),
        Values::Int64(Vec::new()),
        Values::Float32(Vec::new()),
        Values::Float64(Vec::new()),
        Values::DateDays(Vec::new()),
        Values::TimeUs(Vec::new()),
        Values::TimestampUs(Vec::new()),
        Values::Uuid(Vec::new()),
        Values::Bytes(ByteValues::default()),
        Values::Text(TextValues::default()),
    ]
}

/// The name of a kind.
pub(super) const fn kind(values: &Values) -> &'static str {
    match values {
        Values::Boolean(_) => "boolean",
        Values::Int16(_) => "int16",
        Values::Int32(_) => "int32",
        Values::Int64(_) => "int64",
        Values::Float32(_) => "float32",
        Values::Float64(_) => "float64",
        Values::DateDays(_) => "date-days",
        Values::TimeUs(_) => "time-us",
        Values::TimestampUs(_) => "timestamp-us",
        Values::Uuid(_) => "uuid",
        Values::Bytes(_) => "bytes",
        Values::Text(_) => "text",
    }
}

/// No values yet, of the kind with that name.
pub(super) fn empty(name: &str) -> Option<Values> {
    kinds().into_iter().find(|values| kind(values) == name)
}

macro_rules! write_float {
    ($value:expr, $type:ty) => {{
        let value: $type = $value;
        if value.to_bits() == <$type>::NAN.to_bits() {
            "NaN".to_owned()
        } else if value.is_nan() {
            format!("NaN:{:x}", value.to_bits())
        } else if value.is_infinite() {
            if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() }
        } else {
            format!("{value:?}")
        }
    }};
}

macro_rules! read_float {
    ($text:expr, $type:ty, $bits:ty) => {{
        let text: &str = $text;
        match text.strip_prefix("NaN:") {
            Some(bits) => <$bits>::from_str_radix(bits, 16).ok().map(<$type>::from_bits).filter(|value| value.is_nan()),
            None if text == "NaN" => Some(<$type>::NAN),
            None => text.parse::<$type>().ok().filter(|value| !value.is_nan()),
        }
    }};
}

/// The value of a slot; none when there is no such slot.
pub(super) fn write(values: &Values, row: usize) -> Option<Value> {
    Some(match values {
        Values::Boolean(v) => Value::from(*v.get(row)? != 0),
        Values::Int16(v) => Value::from(*v.get(row)?),
        Values::Int32(v) | Values::DateDays(v) => Value::from(*v.get(row)?),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => Value::from(*v.get(row)?),
        Values::Float32(v) => Value::from(write_float!(*v.get(row)?, f32)),
        Values::Float64(v) => Value::from(write_float!(*v.get(row)?, f64)),
        Values::Uuid(v) => {
            let start = row.checked_mul(16)?;
            Value::from(write_uuid(v.get(start..start.checked_add(16)?)?))
        }
        Values::Bytes(v) => {
            let (start, end) = place(&v.ends, row)?;
            Value::from(write_bytes(v.data.get(start..end)?))
        }
        Values::Text(v) => {
            let (start, end) = place(&v.ends, row)?;
            Value::from(v.data.get(start..end)?)
        }
    })
}

/// Where the data of a slot is.
fn place(ends: &[u32], row: usize) -> Option<(usize, usize)> {
    let start = row.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    Some((start as usize, *ends.get(row)? as usize))
}

/// Adds a slot; none when the value is not one of this kind.
pub(super) fn push(values: &mut Values, value: &Value) -> Option<()> {
    match values {
        Values::Boolean(v) => v.push(u8::from(value.as_bool()?)),
        Values::Int16(v) => v.push(i16::try_from(value.as_i64()?).ok()?),
        Values::Int32(v) | Values::DateDays(v) => v.push(i32::try_from(value.as_i64()?).ok()?),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => v.push(value.as_i64()?),
        Values::Float32(v) => v.push(read_float!(value.as_str()?, f32, u32)?),
        Values::Float64(v) => v.push(read_float!(value.as_str()?, f64, u64)?),
        Values::Uuid(v) => v.extend(value::uuid(value.as_str()?.as_bytes())?),
        Values::Bytes(v) => {
            let text = value.as_str()?.as_bytes();
            let end = v.data.len().checked_add(text.len().saturating_sub(2) / 2)?;
            let end = u32::try_from(end).ok()?;
            value::bytea(text, &mut v.data)?;
            v.ends.push(end);
        }
        Values::Text(v) => {
            let text = value.as_str()?;
            let end = u32::try_from(v.data.len().checked_add(text.len())?).ok()?;
            v.data.push_str(text);
            v.ends.push(end);
        }
    }
    Some(())
}

/// Adds a slot that holds no value.
pub(super) fn push_absent(values: &mut Values) {
    match values {
        Values::Boolean(v) => v.push(0),
        Values::Int16(v) => v.push(0),
        Values::Int32(v) | Values::DateDays(v) => v.push(0),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => v.push(0),
        Values::Float32(v) => v.push(0.0),
        Values::Float64(v) => v.push(0.0),
        Values::Uuid(v) => v.extend([0; 16]),
        Values::Bytes(v) => v.ends.push(v.ends.last().copied().unwrap_or(0)),
        Values::Text(v) => v.ends.push(v.ends.last().copied().unwrap_or(0)),
    }
}

/// Bytes as Postgres prints them.
pub(super) fn write_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2).saturating_add(2));
    text.push_str("\\x");
    write_hex(&mut text, bytes);
    text
}

fn write_uuid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    let mut rest = bytes;
    for length in [4, 2, 2, 2, 6] {
        let (group, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        if !text.is_empty() {
            text.push('-');
        }
        write_hex(&mut text, group);
        rest = after;
    }
    text
}

fn write_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing into a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}
