//! How a granted table is handed over: what is done to values, which rows, what of old rows, which updates.
//!
//! Holds: the words of plugin.toml as types. The default of each changes and hides nothing. Refuses to know how they are
//! carried out (see [`crate::minimize`]), where the key of hashes comes from, and what plugin.toml means by leaving one out.
//! Read next: [`super::filter`].

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use super::filter::Filter;

/// What the host does to the values of a column before it hands them over. NULL stays NULL under each of them.
///
/// | treatment | a value becomes | the column is told as |
/// |---|---|---|
/// | plain | itself | its type |
/// | masked | a neutral value of its type (0, false, 2000-01-01, as many zero bytes); of a text its shape: letters become `x` and `X`, digits `0`, blanks and `-_.,:;@/+()` stay, the rest becomes `*` | its type; `text` where a masked text is not of the type (numeric, json, arrays, …) |
/// | hashed | 64 hexadecimal digits: HMAC-SHA-256 of the text Postgres prints. Equal for equal texts in every column and table of the plugin, so that keys still join, an int4 with an int8 included | `text` |
/// | truncated(n) | its first n characters | its type if that is text, varchar, bpchar or name, else `text` |
/// | nulled | NULL | its type |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Treatment {
    /// As Postgres sent it.
    #[default]
    Plain,
    /// Its shape without its content.
    Masked,
    /// A keyed hash.
    Hashed,
    /// The first characters of a text.
    Truncated(NonZeroU32),
    /// NULL.
    Nulled,
}

impl Treatment {
    /// The treatment of that name, as plugin.toml spells it.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "plain" => Some(Self::Plain),
            "masked" => Some(Self::Masked),
            "hashed" => Some(Self::Hashed),
            "nulled" => Some(Self::Nulled),
            _ => {
                let length = word.strip_prefix("truncated(")?.strip_suffix(')')?;
                let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
                digits.then(|| length.parse().ok()).flatten().map(Self::Truncated)
            }
        }
    }

    /// Whether different values stay different, which the columns of a key need.
    pub const fn keeps_apart(self) -> bool {
        matches!(self, Self::Plain | Self::Hashed)
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Masked => f.write_str("masked"),
            Self::Hashed => f.write_str("hashed"),
            Self::Truncated(length) => write!(f, "truncated({length})"),
            Self::Nulled => f.write_str("nulled"),
        }
    }
}

/// What of an old row is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Before {
    /// Nothing, of deletes neither.
    None,
    /// The granted columns of the key.
    Key,
    /// Every granted column that the replica identity sends.
    #[default]
    Granted,
}

/// What an update hands over of granted columns that it leaves as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Untouched {
    /// Their values, as far as the server sends them.
    #[default]
    Deliver,
    /// Nothing (`changed_only`): they count as not touched, except those of the key. It takes the old row to tell, so this
    /// does something only under replica identity full.
    Withhold,
}

/// What becomes of an update in which the plugin could see no difference: it touches hidden columns only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EmptyUpdates {
    /// It is not handed over. The server tells so much only of the columns of the replica identity, of all of them under
    /// identity full, and of TOAST values that it left out; an update that may have touched others is handed over.
    Drop,
    /// It is handed over (`deliver_empty`): that it happened is granted, too.
    #[default]
    Deliver,
}

/// What happens when a column that the operator granted by name is no longer in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMissing {
    /// The pipeline halts before the first row without it.
    #[default]
    Halt,
    /// The plugin is told a shape without it. What the plugin itself requires, a filter or a treatment under `*` names, halts
    /// all the same.
    Omit,
}

/// How a granted table is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// What is done to values, by column; the others are plain.
    pub treatments: BTreeMap<String, Treatment>,
    /// Which rows; all without one.
    pub filter: Option<Filter>,
    /// What of old rows.
    pub before: Before,
    /// The key, for a table with replica identity full, whose stream does not tell it. Not looked at otherwise.
    pub key: Vec<String>,
    /// What of columns that an update left as they were.
    pub untouched: Untouched,
    /// What becomes of updates without a visible difference.
    pub empty_updates: EmptyUpdates,
    /// What a vanished column does.
    pub on_missing: OnMissing,
}

impl Rules {
    /// What is done to the values of a column.
    pub fn treatment(&self, column: &str) -> Treatment {
        self.treatments.get(column).copied().unwrap_or_default()
    }

    /// Whether the key of hashes is needed.
    pub fn hashes(&self) -> bool {
        self.treatments.values().any(|treatment| *treatment == Treatment::Hashed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn treatments_print_as_they_are_read() {
        for word in ["plain", "masked", "hashed", "truncated(1)", "truncated(4294967295)", "nulled"] {
            assert_eq!(Treatment::parse(word).unwrap().to_string(), word);
        }
        for bad in
            ["", "null", "Masked", "truncated", "truncated()", "truncated(0)", "truncated(+1)", "truncated(4294967296)"]
        {
            assert_eq!(Treatment::parse(bad), None, "{bad}");
        }
    }
}
