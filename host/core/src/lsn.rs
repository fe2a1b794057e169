//! The log sequence number: a position in the write-ahead log of one server history.
//!
//! Holds: the newtype, its text form, its order. Refuses to know which lineage it belongs to (see [`crate::lineage`]).

use std::fmt;
use std::str::FromStr;

/// A position in a write-ahead log, in bytes: `file << 32 | offset`.
///
/// Order is integer order. Two positions may only be compared within one [`crate::Lineage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// The position before everything; Postgres calls it invalid and never assigns it.
    pub const ZERO: Lsn = Lsn(0);

    /// Wraps the integer form used on the wire.
    #[inline]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The integer form used on the wire.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// True for [`Lsn::ZERO`].
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Bytes from `earlier` to `self`, 0 when `earlier` is not earlier.
    #[inline]
    pub const fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Moves to `to` if that is further; never back. Returns whether it moved.
    #[inline]
    pub fn advance(&mut self, to: Lsn) -> bool {
        let further = to > *self;
        if further {
            *self = to;
        }
        further
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text was not of the form `16/B374D848`. Does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a log position: expected two hexadecimal numbers of at most 8 digits with a slash between, like 16/B374D848"
)]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let half = |part: &str| {
            let well_formed = (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !well_formed {
                return Err(ParseLsnError);
            }
            u64::from_str_radix(part, 16).map_err(|_| ParseLsnError)
        };
        let (file, offset) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Self(half(file)? << 32 | half(offset)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(text.parse::<Lsn>().ok().map(Lsn::get), expect, "{text:?}");
    }

    #[test]
    fn parses_what_postgres_prints_and_nothing_else() {
        check("0/0", Some(0));
        check("16/B374D848", Some(0x16_B374_D848));
        check("FFFFFFFF/FFFFFFFF", Some(u64::MAX));
        check("16", None);
        check("16/", None);
        check("/1", None);
        check("1/2/3", None);
        check("+1/2", None);
        check("1/2\n", None);
        check("123456789/0", None);
    }

    #[test]
    fn prints_uppercase_hex_without_padding() {
        assert_eq!(Lsn::new(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(Lsn::new(0x1_0000_000A).to_string(), "1/A");
    }

    #[test]
    fn never_moves_back() {
        let mut at = Lsn::new(10);
        assert!(!at.advance(Lsn::new(9)));
        assert!(!at.advance(Lsn::new(10)));
        assert!(at.advance(Lsn::new(11)));
        assert_eq!(at, Lsn::new(11));
    }
}
