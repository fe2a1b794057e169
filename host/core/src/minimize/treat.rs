//! What is done to one value on its way into a column: treatments, carried out.
//!
//! Holds: the key of hashes, and one way to write a value for each treatment and kind, without an allocation. Refuses to know
//! rows, and which column has which treatment (see [`super::project`]). Invariant: neither a value nor the key prints.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::column::{Absent, ColumnBuilder, ValueError};
use crate::grant::rules::Treatment;
use crate::pgoutput::Cell;
use crate::value::Kind;

use super::error::TreatmentError;

/// What a slot without a value counts against the byte bound of a batch: about what it takes in memory. Without it, a
/// wide table full of NULLs would have no bound but that of rows.
const ABSENT_BYTES: usize = 8;

const HASH_DIGITS: usize = 64;

/// The key of one plugin's hashes. It has no `Debug`, and there is no way to get it back.
#[derive(Clone)]
pub struct HashKey(Hmac<Sha256>);

/// A key of hashes that is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key of hashes must have at least {} bytes: shorter ones can be found by trying", HashKey::MIN_BYTES)]
pub struct ShortHashKey;

impl HashKey {
    /// Shortest key, in bytes: as long as what HMAC-SHA-256 gives.
    pub const MIN_BYTES: usize = 32;

    /// A key from secret bytes, which should be random and not shared with another plugin.
    ///
    /// # Errors
    /// When there are fewer than [`HashKey::MIN_BYTES`].
    pub fn new(secret: &[u8]) -> Result<Self, ShortHashKey> {
        if secret.len() < Self::MIN_BYTES {
            return Err(ShortHashKey);
        }
        Hmac::new_from_slice(secret).map(Self).map_err(|_| ShortHashKey)
    }

    fn hash(&self, text: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(text).finalize().into_bytes().into()
    }
}

/// How the values of one column are written.
pub(super) enum Apply {
    Plain,
    /// Always this text, which is one of the kind.
    Neutral(&'static [u8]),
    /// The shape of a text.
    Outline,
    /// As many zero bytes.
    Zeroes,
    Hash(Arc<HashKey>),
    Truncate(usize),
    Null,
}

impl Apply {
    pub(super) fn new(treatment: Treatment, kind: Kind, key: Option<&Arc<HashKey>>) -> Result<Self, TreatmentError> {
        Ok(match treatment {
            Treatment::Plain => Self::Plain,
            Treatment::Nulled => Self::Null,
            Treatment::Hashed => Self::Hash(Arc::clone(key.ok_or(TreatmentError::NoHashKey)?)),
            Treatment::Truncated(length) if kind == Kind::Text => {
                Self::Truncate(usize::try_from(length.get()).unwrap_or(usize::MAX))
            }
            Treatment::Truncated(_) => return Err(TreatmentError::NotText),
            Treatment::Masked => match kind {
                Kind::Text => Self::Outline,
                Kind::Bytes => Self::Zeroes,
                Kind::Boolean => Self::Neutral(b"f"),
                Kind::Int16 | Kind::Int32 | Kind::Int64 | Kind::Float32 | Kind::Float64 => Self::Neutral(b"0"),
                Kind::DateDays => Self::Neutral(b"2000-01-01"),
                Kind::TimeUs => Self::Neutral(b"00:00:00"),
                Kind::TimestampUs => Self::Neutral(b"2000-01-01 00:00:00"),
                Kind::Uuid => Self::Neutral(b"00000000-0000-0000-0000-000000000000"),
            },
        })
    }

    /// Adds one slot to the column; gives what it counts in bytes.
    #[inline]
    pub(super) fn push(&self, column: &mut ColumnBuilder, cell: Cell<'_>) -> Result<usize, ValueError> {
        match (self, cell) {
            (Self::Plain, Cell::Text(text)) => {
                column.push(text)?;
                Ok(text.len())
            }
            (Self::Null, _) | (_, Cell::Null) => Ok(push_absent(column, Absent::Null)),
            (_, Cell::Unchanged) => Ok(push_absent(column, Absent::Unchanged)),
            (_, Cell::Text(text)) => self.push_treated(column, text),
        }
    }

    // Kept out of the loop over plain values, which it would slow down by a tenth.
    #[inline(never)]
    fn push_treated(&self, column: &mut ColumnBuilder, text: &[u8]) -> Result<usize, ValueError> {
        let text = match self {
            Self::Neutral(text) => text,
            Self::Truncate(length) => truncated(text, *length),
            Self::Outline => {
                let text = std::str::from_utf8(text).map_err(|_| ValueError::Encoding)?;
                return column.push_bytes(text.chars().map(outline));
            }
            Self::Zeroes => {
                let digits = text.strip_prefix(b"\\x").ok_or(ValueError::Form)?;
                return column.push_bytes(std::iter::repeat_n(0, digits.len() / 2));
            }
            Self::Hash(key) => {
                let mut digits = [0_u8; HASH_DIGITS];
                for (pair, byte) in digits.chunks_exact_mut(2).zip(key.hash(text)) {
                    pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
                }
                return column.push_bytes(digits.into_iter());
            }
            Self::Plain | Self::Null => text,
        };
        column.push(text)?;
        Ok(text.len())
    }

    /// Whether a plugin could not tell one value from the other.
    pub(super) fn is_same(&self, old: Cell<'_>, new: Cell<'_>) -> bool {
        let (old, new) = match (self, old, new) {
            (Self::Null, ..) | (_, Cell::Null, Cell::Null) => return true,
            (_, Cell::Text(old), Cell::Text(new)) => (old, new),
            _ => return false,
        };
        match self {
            Self::Neutral(_) => true,
            Self::Zeroes => old.len() == new.len(),
            Self::Truncate(length) => truncated(old, *length) == truncated(new, *length),
            Self::Outline => match (std::str::from_utf8(old), std::str::from_utf8(new)) {
                (Ok(old), Ok(new)) => old.chars().map(outline).eq(new.chars().map(outline)),
                _ => false,
            },
            Self::Plain | Self::Hash(_) | Self::Null => old == new,
        }
    }
}

fn push_absent(column: &mut ColumnBuilder, absent: Absent) -> usize {
    column.push_absent(absent);
    ABSENT_BYTES
}

/// The first characters. Bytes that are no characters are left for the column to refuse.
fn truncated(text: &[u8], characters: usize) -> &[u8] {
    if text.len() <= characters {
        return text;
    }
    let starts = text.iter().enumerate().filter(|(_, byte)| **byte & 0xC0 != 0x80);
    let end = starts.map(|(at, _)| at).nth(characters);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// What stands for a character. The signs that stay are those that separate: they tell how a text is built.
fn outline(c: char) -> u8 {
    match c {
        ' ' | '-' | '_' | '.' | ',' | ':' | ';' | '@' | '/' | '+' | '(' | ')' => u8::try_from(c).unwrap_or(b'*'),
        _ if c.is_uppercase() => b'X',
        _ if c.is_alphabetic() => b'x',
        _ if c.is_numeric() => b'0',
        _ => b'*',
    }
}

const fn digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Values;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn apply(treatment: &str, kind: Kind) -> Apply {
        let key = Arc::new(HashKey::new(SECRET).unwrap());
        Apply::new(Treatment::parse(treatment).unwrap(), kind, Some(&key)).unwrap()
    }

    #[track_caller]
    fn check(treatment: &str, kind: Kind, told: Kind, text: &str, expect: &str) {
        let mut column = ColumnBuilder::new(told);
        let bytes = apply(treatment, kind).push(&mut column, Cell::Text(text.as_bytes())).unwrap();
        let mut plain = ColumnBuilder::new(told);
        plain.push(expect.as_bytes()).unwrap();
        let (column, plain) = (column.finish(0).unwrap(), plain.finish(0).unwrap());
        assert!(
            column == plain,
            "{treatment} {kind:?} {text}: {:?}",
            match column.values {
                Values::Text(text) => text.data,
                other => format!("{other:?}"),
            }
        );
        assert_eq!(bytes, if told == Kind::Bytes { (expect.len() - 2) / 2 } else { expect.len() });
    }

    #[test]
    fn masked_values_keep_their_kind_or_their_outline() {
        for (kind, text, neutral) in [
            (Kind::Boolean, "t", "f"),
            (Kind::Int16, "-7", "0"),
            (Kind::Int32, "731", "0"),
            (Kind::Int64, "731", "0"),
            (Kind::Float32, "1.5", "0"),
            (Kind::Float64, "NaN", "0"),
            (Kind::DateDays, "1984-05-06", "2000-01-01"),
            (Kind::TimeUs, "12:34:56", "00:00:00"),
            (Kind::TimestampUs, "1984-05-06 01:02:03+00", "2000-01-01 00:00:00"),
            (Kind::Uuid, "8d3f0c1e-8a55-4d8e-9a31-0123456789ab", "00000000-0000-0000-0000-000000000000"),
            (Kind::Bytes, "\\x0102ff", "\\x000000"),
        ] {
            check("masked", kind, kind, text, neutral);
        }
        check("masked", Kind::Text, Kind::Text, "Größe 42, a@B.de 日🦀\"{", "Xxxxx 00, x@X.xx x***");
    }

    #[test]
    fn hashes_are_those_of_the_printed_text() {
        // printf 731 | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
        let digits = "7dd350034049f2d5fb2c9952f59dfdcf5f339082aa8515c8bdf714025a5cf6f0";
        check("hashed", Kind::Int32, Kind::Text, "731", digits);
        check("hashed", Kind::Int64, Kind::Text, "731", digits);
        check("hashed", Kind::Text, Kind::Text, "731", digits);
    }

    #[test]
    fn truncated_counts_characters() {
        check("truncated(3)", Kind::Text, Kind::Text, "größe", "grö");
        check("truncated(5)", Kind::Text, Kind::Text, "größe", "größe");
        check("truncated(9)", Kind::Text, Kind::Text, "日本🦀", "日本🦀");
        check("truncated(2)", Kind::Text, Kind::Text, "日本🦀", "日本");
        assert!(Apply::new(Treatment::parse("truncated(2)").unwrap(), Kind::Int32, None).is_err());
    }

    #[test]
    fn null_stays_null_and_what_is_left_alone_stays_so() {
        let words = ["plain", "masked", "hashed", "truncated(1)", "nulled"];
        for word in words {
            let mut column = ColumnBuilder::new(Kind::Text);
            for cell in [Cell::Null, Cell::Unchanged] {
                apply(word, Kind::Text).push(&mut column, cell).unwrap();
            }
            let unchanged = if word == "nulled" { crate::batch::NULL } else { crate::batch::UNCHANGED };
            assert_eq!(column.finish(0).unwrap().presence, Some(vec![crate::batch::NULL, unchanged]), "{word}");
        }
    }

    #[test]
    fn a_difference_counts_only_where_a_plugin_could_see_it() {
        let same = |word: &str, kind, old: &str, new: &str| {
            apply(word, kind).is_same(Cell::Text(old.as_bytes()), Cell::Text(new.as_bytes()))
        };
        assert!(same("plain", Kind::Text, "a", "a") && !same("plain", Kind::Text, "a", "b"));
        assert!(same("masked", Kind::Int32, "1", "2") && same("nulled", Kind::Int32, "1", "2"));
        assert!(same("masked", Kind::Text, "ab1", "cd2") && !same("masked", Kind::Text, "ab", "a"));
        assert!(same("truncated(1)", Kind::Text, "ab", "ac") && !same("truncated(2)", Kind::Text, "ab", "ac"));
        assert!(!same("hashed", Kind::Text, "a", "b"));
        assert!(!apply("masked", Kind::Int32).is_same(Cell::Null, Cell::Text(b"1")));
    }

    #[test]
    fn a_short_key_is_refused() {
        assert!(HashKey::new(&[7; 31]).is_err() && HashKey::new(&[7; 32]).is_ok());
    }
}
