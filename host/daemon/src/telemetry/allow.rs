//! The keys that a log line may carry, and the shape of the value of each.
//!
//! Holds: the closed list, and the check of a value against a shape. Refuses to know how a line looks. A new key comes here
//! first; a shape is as narrow as the values allow, and free text is for the host's own words alone.
//! Read next: `format.rs`.

use std::fmt;
use std::net::SocketAddr;

use crate::halt::HaltClass;

/// The most that is kept of one value, in bytes.
pub(super) const MAX_BYTES: usize = 2 << 10;
/// A table with its schema is two names of 63 bytes, and some quotes.
const MAX_IDENTIFIER_BYTES: usize = 255;

/// What a value of a key looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The name of a plugin.
    Plugin,
    /// The name of a replication slot.
    Slot,
    /// A position in the log, such as `16/B374D848`.
    Lsn,
    /// A whole number: of things, bytes, attempts, milliseconds.
    Integer,
    /// The name of a class of halt.
    Class,
    /// A plugin's own word or the name of a trap: `[a-z0-9-]{1,40}`.
    Code,
    /// Five characters, or `none`.
    SqlState,
    /// A word of the host's own: `[a-z0-9_.:/-]{1,64}`.
    Word,
    /// An address to listen on.
    Address,
    /// A host with its port, as an operator wrote it in a grant: `[a-z0-9_.:-]`, brackets around IPv6.
    Host,
    /// Names of tables or columns, with `, ` between.
    Identifiers,
    /// The host's own words, a path among them. Never a row's value.
    Text,
    /// The same in several lines.
    Lines,
}

/// The key of the text of an event.
pub(super) const MESSAGE: &str = "message";

/// All keys, in order.
pub(super) const KEYS: &[(&str, Shape)] = &[
    ("allow", Shape::Lines),
    ("applied", Shape::Integer),
    ("at", Shape::Lsn),
    ("attempt", Shape::Integer),
    ("attempts", Shape::Integer),
    ("bytes", Shape::Integer),
    ("cache", Shape::Text),
    ("call", Shape::Word),
    ("cause", Shape::Text),
    ("class", Shape::Class),
    ("code", Shape::Code),
    ("column", Shape::Integer),
    ("columns", Shape::Identifiers),
    ("end", Shape::Lsn),
    ("entry", Shape::Text),
    ("epoch", Shape::Integer),
    ("error", Shape::Text),
    ("from", Shape::Lsn),
    ("from_timeline", Shape::Integer),
    ("generation", Shape::Integer),
    ("host", Shape::Host),
    ("interface", Shape::Word),
    ("kept_bytes", Shape::Integer),
    ("kind", Shape::Word),
    ("letters", Shape::Integer),
    ("lines", Shape::Integer),
    ("listen", Shape::Address),
    ("max_retries", Shape::Integer),
    (MESSAGE, Shape::Text),
    ("method", Shape::Word),
    ("module", Shape::Word),
    ("outcome", Shape::Word),
    ("output", Shape::Word),
    ("path", Shape::Text),
    ("pause_us", Shape::Integer),
    ("pipeline", Shape::Slot),
    ("plugin", Shape::Plugin),
    ("process", Shape::Integer),
    ("reason", Shape::Word),
    ("received_bytes", Shape::Integer),
    ("rows", Shape::Integer),
    ("rule", Shape::Text),
    ("script", Shape::Word),
    ("sent_bytes", Shape::Integer),
    ("set", Shape::Integer),
    ("slot", Shape::Slot),
    ("sqlstate", Shape::SqlState),
    ("status", Shape::Word),
    ("stream", Shape::Word),
    ("table", Shape::Identifiers),
    ("tables", Shape::Identifiers),
    ("to", Shape::Lsn),
    ("to_timeline", Shape::Integer),
    ("took_ms", Shape::Integer),
    ("transactions", Shape::Integer),
    ("wait_ms", Shape::Integer),
    ("why", Shape::Text),
];

/// The shape of a key's value; none for a key that is not on the list.
pub(super) fn shape_of(key: &str) -> Option<Shape> {
    let found = KEYS.binary_search_by(|(known, _)| (*known).cmp(key)).ok()?;
    KEYS.get(found).map(|(_, shape)| *shape)
}

/// A value as an event gave it.
pub(super) enum Value {
    /// A whole number.
    Integer(i128),
    /// Anything that was written as text.
    Text(Clipped),
    /// A truth or a fraction: no key has one.
    Other,
}

impl Shape {
    /// Whether the value may be printed under a key of this shape.
    pub(super) fn admits(self, value: &Value) -> bool {
        let text = match value {
            Value::Integer(number) => {
                return self == Self::Integer && (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(number);
            }
            Value::Text(text) => text,
            Value::Other => return false,
        };
        // What was cut has lost its end, which only free text can do without.
        let whole = (!text.cut).then_some(text.text.as_str());
        match self {
            Self::Integer => false,
            Self::Plugin => whole.is_some_and(is_plugin),
            Self::Slot => whole.is_some_and(|text| made_of(text, 63, |b| lower_or_digit(b) || b == b'_')),
            Self::Lsn => whole.is_some_and(is_lsn),
            Self::Class => whole.is_some_and(|text| HaltClass::of_name(text).is_some()),
            Self::Code => whole.is_some_and(|text| made_of(text, 40, |b| lower_or_digit(b) || b == b'-')),
            Self::SqlState => whole.is_some_and(is_sqlstate),
            Self::Word => whole.is_some_and(|text| made_of(text, 64, |b| lower_or_digit(b) || b"_.:/-".contains(&b))),
            Self::Host => whole.is_some_and(|text| made_of(text, 265, |b| lower_or_digit(b) || b"_.:-[]".contains(&b))),
            Self::Address => whole.is_some_and(|text| text.parse::<SocketAddr>().is_ok()),
            Self::Identifiers => text.text.split(", ").all(|name| (1..=MAX_IDENTIFIER_BYTES).contains(&name.len())),
            Self::Text | Self::Lines => true,
        }
    }
}

/// Whether a plugin may have this name: as a log key and as a metric label.
pub(super) fn is_plugin(text: &str) -> bool {
    !text.starts_with('-') && made_of(text, 40, |b| lower_or_digit(b) || b == b'-')
}

fn is_lsn(text: &str) -> bool {
    let half = |half: &str| made_of(half, 8, |b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
    text.split_once('/').is_some_and(|(high, low)| half(high) && half(low))
}

fn is_sqlstate(text: &str) -> bool {
    text == "none" || (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()))
}

fn made_of(text: &str, most: usize, allowed: impl Fn(u8) -> bool) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(allowed)
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Text that stops growing at [`MAX_BYTES`], whatever is written to it.
#[derive(Default)]
pub(super) struct Clipped {
    pub(super) text: String,
    /// Something did not fit.
    pub(super) cut: bool,
}

impl fmt::Write for Clipped {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = MAX_BYTES.saturating_sub(self.text.len());
        let end = more.floor_char_boundary(room);
        self.text.push_str(more.get(..end).unwrap_or_default());
        self.cut |= end < more.len();
        // An error ends what is being formatted, which may be endless.
        if self.cut { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn text(text: &str) -> Value {
        let mut clipped = Clipped::default();
        let _ = clipped.write_str(text);
        Value::Text(clipped)
    }

    #[track_caller]
    fn check(shape: Shape, good: &[&str], bad: &[&str]) {
        for one in good {
            assert!(shape.admits(&text(one)), "{shape:?} refuses {one:?}");
        }
        for one in bad {
            assert!(!shape.admits(&text(one)), "{shape:?} takes {one:?}");
        }
        assert_eq!(shape.admits(&Value::Integer(1)), shape == Shape::Integer);
        assert!(!shape.admits(&Value::Other));
    }

    #[test]
    fn keys_are_in_order_and_found() {
        assert!(KEYS.is_sorted_by(|a, b| a.0 < b.0), "binary search needs the order");
        for (key, shape) in KEYS {
            assert_eq!(shape_of(key), Some(*shape));
        }
        assert_eq!(shape_of("value"), None);
    }

    #[test]
    fn shapes_take_theirs_and_nothing_else() {
        let hostile = ["", "a b", "alice@example.com", "a\nb", "A", "ä"];
        check(Shape::Plugin, &["p", "mirror-rust-2"], &[&hostile[..], &["-a", "a_b", &"a".repeat(41)]].concat());
        check(Shape::Slot, &["walgate_1"], &[&hostile[..], &["a-b", &"a".repeat(64)]].concat());
        check(Shape::Lsn, &["0/0", "16/B374D848"], &["", "16", "16/b3", "/1", "1/", "1/2/3", "1/123456789"]);
        check(Shape::Class, &["bug", "data_gap(cursor)"], &["", "Bug", "data_gap", "secret"]);
        check(Shape::Code, &["peer-away", "unreachable"], &[&hostile[..], &["a_b", &"a".repeat(41)]].concat());
        check(Shape::SqlState, &["55P03", "none"], &["", "55p03", "55P031", "secret"]);
        check(Shape::Word, &["001_checkpoints.sql", "wasi:http/types"], &hostile);
        check(
            Shape::Host,
            &["hooks.example.com:8443", "[::1]:80"],
            &[&hostile[..], &["a/b", "a?b", &"a".repeat(266)]].concat(),
        );
        check(Shape::Address, &["127.0.0.1:9187", "[::1]:1"], &["", "localhost:1", "127.0.0.1"]);
        let long = "x".repeat(256);
        check(Shape::Identifiers, &["public.orders", "a, B b, ü"], &["", "a, , b", &long, &format!("a, {long}")]);
        check(Shape::Integer, &[], &["1", ""]);
        check(Shape::Text, &["", "anything\n", &"x".repeat(MAX_BYTES + 1)], &[]);
        assert!(!Shape::Integer.admits(&Value::Integer(i128::from(u64::MAX) + 1)));
    }

    #[test]
    fn text_is_cut_at_a_character() {
        let mut clipped = Clipped::default();
        assert!(write!(clipped, "{}", "é".repeat(MAX_BYTES)).is_err());
        assert_eq!((clipped.text.len(), clipped.cut), (MAX_BYTES, true));
        let mut odd = Clipped::default();
        assert!(write!(odd, "x{}", "é".repeat(MAX_BYTES)).is_err());
        assert_eq!((odd.text.len(), odd.cut), (MAX_BYTES - 1, true));
        let mut whole = Clipped::default();
        write!(whole, "{}", "x".repeat(MAX_BYTES)).unwrap();
        assert!(!whole.cut);
    }
}
