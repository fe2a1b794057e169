//! Writing JSON by hand: the few forms a change needs.
//!
//! Holds: strings, numbers, and cells as JSON. Refuses to know what a change holds (see `change.rs`). By hand, because a
//! value tree of a library would allocate once a cell.

use std::fmt::Display;
use std::io::Write as _;

use walgate_sdk::{ColumnInfo, Value};

/// Writes anything that prints itself. Writing to memory cannot fail.
pub fn display(out: &mut Vec<u8>, value: impl Display) {
    let _ = write!(out, "{value}");
}

/// Writes something whose text needs no escape as a string.
pub fn quoted(out: &mut Vec<u8>, value: impl Display) {
    out.push(b'"');
    display(out, value);
    out.push(b'"');
}

/// Writes a word that needs no escape as a string.
pub fn word(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Writes an integer.
pub fn integer(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a string. Runs that need no escape are copied as a whole.
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| needs_escape(*byte)) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((byte, after)) = special.split_first() else { break };
        escape(out, *byte);
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        _ => {
            let _ = write!(out, "\\u{byte:04x}");
        }
    }
}

/// Writes bytes as Postgres prints them, `\x00ff`, in a string.
pub(crate) fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or(b'0');
    out.reserve(bytes.len() * 2 + 5);
    out.extend_from_slice(b"\"\\\\x");
    for byte in bytes {
        out.extend_from_slice(&[digit(byte >> 4), digit(byte & 0x0F)]);
    }
    out.push(b'"');
}

/// Writes a value. What JSON cannot say exactly as a number is a string.
pub(crate) fn value(out: &mut Vec<u8>, column: &ColumnInfo, value: Value<'_>) {
    match value {
        Value::Bool(v) => display(out, v),
        Value::Int16(v) => integer(out, v),
        Value::Int32(v) => integer(out, v),
        Value::Int64(v) => integer(out, v),
        // `{:?}` gives the shortest digits that read back to the same float, and an exponent where Display has none.
        Value::Float32(v) if v.is_finite() => display(out, format_args!("{v:?}")),
        Value::Float64(v) if v.is_finite() => display(out, format_args!("{v:?}")),
        Value::Float32(v) => word(out, float_word(v.into())),
        Value::Float64(v) => word(out, float_word(v)),
        Value::Date(v) => quoted(out, v),
        Value::Time(v) => quoted(out, v),
        Value::Timestamp(v) => quoted(out, v.iso(column.is_timestamptz())),
        Value::Uuid(v) => quoted(out, v),
        Value::Bytes(v) => hex(out, v),
        Value::Text(v) => string(out, v),
    }
}

/// The three floats that are no number in JSON, spelled as Postgres does.
fn float_word(value: f64) -> &'static str {
    match value {
        v if v.is_nan() => "NaN",
        v if v > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}
