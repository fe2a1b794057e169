//! A value of a filter in the type of its column, and how the text of a row stands to it.
//!
//! Holds: which types can be filtered on, the parsing of the operator's values (once a shape), and the comparison (once a
//! row, on the text as Postgres prints it, without an allocation). Refuses to know conditions (see [`super::filter`]).
//!
//! Types whose equality is not that of their text (json, interval, citext, …) are refused: a row that is hidden or shown by
//! mistake is worse than a filter that is not taken. Texts have no order here, because that depends on the collation.

use std::cmp::Ordering;

use crate::assemble::StreamColumn;
use crate::grant::filter::Literal;
use crate::value::{self, Kind};

use super::error::FilterError;

/// Object ids from here on are of types that are not built in: enums, mostly.
const FIRST_USER_OID: u32 = 16_384;

/// How the text of a column is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// One that the kind's own parser turns into a whole number.
    Whole(Kind),
    Float(Kind),
    Numeric,
    Uuid,
    Bytes,
    /// Byte by byte.
    Text,
    /// Byte by byte, blanks at the end aside.
    Padded,
}

/// A value of the operator.
pub(super) enum Operand {
    Whole(Kind, i64),
    Float(Kind, f64),
    Numeric(Vec<u8>),
    Uuid([u8; 16]),
    Text(Vec<u8>),
    Padded(Vec<u8>),
}

impl Family {
    pub(super) fn of(column: &StreamColumn) -> Option<Self> {
        Some(match (column.kind, column.type_name.as_str()) {
            (Kind::Float32 | Kind::Float64, _) => Self::Float(column.kind),
            (Kind::Uuid, _) => Self::Uuid,
            (Kind::Bytes, _) => Self::Bytes,
            (Kind::Text, "numeric") => Self::Numeric,
            (Kind::Text, "bpchar") => Self::Padded,
            (Kind::Text, "text" | "varchar" | "name" | "char") => Self::Text,
            (Kind::Text, name) => {
                // A domain has a high id and the name of its base type, which is not one of those above.
                let own = column.type_oid >= FIRST_USER_OID && name.contains('.');
                return (own && !name.ends_with(".citext")).then_some(Self::Text);
            }
            (kind, _) => Self::Whole(kind),
        })
    }

    /// Whether `<` and `>` mean something.
    pub(super) fn is_ordered(self) -> bool {
        matches!(self, Self::Whole(_) | Self::Float(_) | Self::Numeric) && self != Self::Whole(Kind::Boolean)
    }

    /// How a value of it is written, for people.
    fn form(self) -> &'static str {
        match self {
            Self::Whole(Kind::Boolean) => "true or false",
            Self::Whole(Kind::DateDays) => "'2024-05-06'",
            Self::Whole(Kind::TimeUs) => "'07:08:09'",
            Self::Whole(Kind::TimestampUs) => {
                "'2024-05-06 07:08:09', and for timestamptz only with the offset: '2024-05-06 07:08:09+00'"
            }
            Self::Whole(_) => "a whole number",
            Self::Float(_) => "a number, or 'NaN', 'Infinity', '-Infinity'",
            Self::Numeric => "a number without exponent, or 'NaN', 'Infinity', '-Infinity'",
            Self::Uuid => "'8d3f0c1e-8a55-4d8e-9a31-0123456789ab'",
            Self::Bytes => "'\\x00ff', in lower case",
            Self::Text | Self::Padded => "a text in single quotes",
        }
    }

    /// The operator's value in the type of the column.
    pub(super) fn operand(self, literal: &Literal, column: &StreamColumn) -> Result<Operand, FilterError> {
        let parsed = match (self, literal) {
            (Self::Whole(Kind::Boolean), Literal::Boolean(value)) => {
                Some(Operand::Whole(Kind::Boolean, i64::from(*value)))
            }
            (Self::Whole(Kind::Boolean), _) | (_, Literal::Boolean(_)) => None,
            (Self::Text | Self::Padded | Self::Bytes | Self::Uuid, Literal::Number(_)) => None,
            (_, Literal::Number(text) | Literal::Text(text)) => self.parse(text.as_bytes(), column),
        };
        parsed.ok_or_else(|| FilterError::Value {
            column: column.name.clone(),
            type_name: column.type_name.clone(),
            form: self.form(),
        })
    }

    fn parse(self, text: &[u8], column: &StreamColumn) -> Option<Operand> {
        Some(match self {
            Self::Whole(Kind::TimestampUs) => {
                // Postgres would drop an offset that the type does not have, and guess one that is not there.
                let time = text.iter().position(|byte| *byte == b' ').and_then(|at| text.get(at..)).unwrap_or_default();
                let has_offset = time.contains(&b'+') || time.contains(&b'-');
                let ends = matches!(text, b"infinity" | b"-infinity");
                let fits = ends || has_offset == (column.type_name == "timestamptz");
                Operand::Whole(Kind::TimestampUs, value::timestamp(text).filter(|_| fits)?)
            }
            Self::Whole(kind) => Operand::Whole(kind, whole(kind, text)?),
            Self::Float(kind) => Operand::Float(kind, float(kind, text)?),
            Self::Numeric => Decimal::parse(text).map(|_| Operand::Numeric(text.to_vec()))?,
            Self::Uuid => Operand::Uuid(value::uuid(text)?),
            Self::Bytes => {
                value::bytea(text, &mut Vec::new())?;
                if text.iter().any(u8::is_ascii_uppercase) {
                    return None;
                }
                Operand::Text(text.to_vec())
            }
            Self::Text => Operand::Text(text.to_vec()),
            Self::Padded => Operand::Padded(text.trim_ascii_end().to_vec()),
        })
    }
}

impl Operand {
    /// How the text of a row stands to this value; none when the text is not of the type.
    #[inline]
    pub(super) fn order(&self, text: &[u8]) -> Option<Ordering> {
        Some(match self {
            Self::Whole(kind, own) => whole(*kind, text)?.cmp(own),
            // As in Postgres, NaN equals itself and is the largest.
            Self::Float(kind, own) => {
                let value = float(*kind, text)?;
                value.partial_cmp(own).unwrap_or_else(|| value.is_nan().cmp(&own.is_nan()))
            }
            Self::Numeric(own) => Decimal::parse(text)?.cmp(&Decimal::parse(own)?),
            Self::Uuid(own) => value::uuid(text)?.cmp(own),
            Self::Text(own) => text.cmp(own.as_slice()),
            Self::Padded(own) => trim_blanks(text).cmp(trim_blanks(own)),
        })
    }
}

fn trim_blanks(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    text.get(..end).unwrap_or(text)
}

fn whole(kind: Kind, text: &[u8]) -> Option<i64> {
    match kind {
        Kind::Boolean => value::boolean(text).map(i64::from),
        Kind::Int16 | Kind::Int32 | Kind::Int64 => value::integer(text),
        Kind::DateDays => value::date(text).map(i64::from),
        Kind::TimeUs => value::time(text),
        Kind::TimestampUs => value::timestamp(text),
        Kind::Float32 | Kind::Float64 | Kind::Uuid | Kind::Bytes | Kind::Text => None,
    }
}

/// A float4 is read as one, so that `0.1` means the float4 nearest to it.
fn float(kind: Kind, text: &[u8]) -> Option<f64> {
    if kind == Kind::Float32 { value::float::<f32>(text).map(f64::from) } else { value::float::<f64>(text) }
}

/// A numeric as Postgres prints it, taken apart: leading and trailing zeros are gone, and zero has no sign.
#[derive(PartialEq, Eq)]
struct Decimal<'a> {
    /// -1 for -Infinity, 0 for a number, 1 for Infinity, 2 for NaN.
    class: i8,
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
}

impl<'a> Decimal<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let named = |class| Some(Self { class, negative: false, whole: &[], fraction: &[] });
        match text {
            b"NaN" => return named(2),
            b"Infinity" => return named(1),
            b"-Infinity" => return named(-1),
            _ => {}
        }
        let unsigned = text.strip_prefix(b"-").unwrap_or(text);
        let point = unsigned.iter().position(|byte| *byte == b'.');
        let (whole, fraction) = match point {
            Some(point) => (unsigned.get(..point)?, unsigned.get(point + 1..)?),
            None => (unsigned, &b""[..]),
        };
        let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        if whole.is_empty() || !digits(whole) || !digits(fraction) {
            return None;
        }
        let first = whole.iter().position(|byte| *byte != b'0').unwrap_or(whole.len());
        let last = fraction.iter().rposition(|byte| *byte != b'0').map_or(0, |last| last + 1);
        let (whole, fraction) = (whole.get(first..)?, fraction.get(..last)?);
        let negative = unsigned.len() < text.len() && !(whole.is_empty() && fraction.is_empty());
        Some(Self { class: 0, negative, whole, fraction })
    }
}

impl Ord for Decimal<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let class = self.class.cmp(&other.class);
        let sign = other.negative.cmp(&self.negative);
        let size = (self.whole.len().cmp(&other.whole.len()))
            .then_with(|| self.whole.cmp(other.whole))
            .then_with(|| self.fraction.cmp(other.fraction));
        class.then(sign).then(if self.negative { size.reverse() } else { size })
    }
}

impl PartialOrd for Decimal<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_are_compared_by_what_they_are() {
        let rising =
            ["-Infinity", "-10", "-9.99", "-0.5", "0", "0.05", "0.1", "1", "1.01", "9", "10", "Infinity", "NaN"];
        let decimals: Vec<_> = rising.iter().map(|text| Decimal::parse(text.as_bytes()).unwrap()).collect();
        for (a, x) in decimals.iter().enumerate() {
            for (b, y) in decimals.iter().enumerate() {
                assert_eq!(x.cmp(y), a.cmp(&b), "{} {}", rising[a], rising[b]);
            }
        }
        for (a, b) in [("5", "5.00"), ("0", "-0.0"), ("007.10", "7.1")] {
            assert!(Decimal::parse(a.as_bytes()) == Decimal::parse(b.as_bytes()), "{a} {b}");
        }
        for bad in ["", "-", ".", ".5", "1e3", "1.2.3", "+1", " 1"] {
            assert!(Decimal::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    fn column(type_oid: u32, type_name: &str) -> StreamColumn {
        let kind = Kind::of_catalog_name(type_name);
        StreamColumn { name: "c".into(), type_oid, type_modifier: -1, key: false, type_name: type_name.into(), kind }
    }

    #[track_caller]
    fn check(oid: u32, type_name: &str, literal: &str, texts: [&str; 2]) {
        let column = column(oid, type_name);
        let family = Family::of(&column).unwrap();
        let operand = family.operand(&Literal::Text(literal.to_owned()), &column).unwrap();
        let orders = texts.map(|text| operand.order(text.as_bytes()).unwrap());
        assert!(orders[0].is_eq() && orders[1].is_ne(), "{type_name}: {orders:?}");
    }

    #[test]
    fn every_family_knows_its_equals() {
        check(23, "int4", "-7", ["-7", "7"]);
        check(700, "float4", "0.1", ["0.1", "0.2"]);
        check(701, "float8", "NaN", ["NaN", "Infinity"]);
        check(1082, "date", "2024-05-06", ["2024-05-06", "2024-05-07"]);
        check(1184, "timestamptz", "2024-05-06 07:08:09+02", ["2024-05-06 05:08:09+00", "2024-05-06 07:08:09+00"]);
        check(1114, "timestamp", "2024-05-06 07:08:09", ["2024-05-06 07:08:09", "2024-05-06 07:08:09.1"]);
        check(
            2950,
            "uuid",
            "8D3F0C1E-8a55-4d8e-9a31-0123456789ab",
            ["8d3f0c1e-8a55-4d8e-9a31-0123456789ab", "8d3f0c1e-8a55-4d8e-9a31-0123456789ac"],
        );
        check(17, "bytea", "\\x00ff", ["\\x00ff", "\\x00fe"]);
        check(1042, "bpchar", "ab", ["ab   ", "a b"]);
        check(1700, "numeric", "5", ["5.000", "5.001"]);
        check(20_000, "public.state", "open", ["open", "opened"]);
        check(20_000, "text", "open", ["open", "opened"]);
    }

    #[test]
    fn values_of_another_form_are_refused_without_being_repeated() {
        let text = |text: &str| Literal::Text(text.to_owned());
        let number = |text: &str| Literal::Number(text.to_owned());
        for (oid, type_name, literal) in [
            (23, "int4", number("7.31")),
            (25, "text", number("731")),
            (16, "bool", text("t731")),
            (25, "text", Literal::Boolean(true)),
            (1184, "timestamptz", text("2024-07-31 00:00:00")),
            (1114, "timestamp", text("2024-07-31 00:00:00+00")),
            (1700, "numeric", number("731e2")),
            (17, "bytea", text("\\x731F")),
        ] {
            let column = column(oid, type_name);
            let error = Family::of(&column).unwrap().operand(&literal, &column).map(drop).unwrap_err().to_string();
            assert!(error.contains(type_name) && !error.contains("731"), "{error}");
        }
    }

    #[test]
    fn types_whose_equality_is_not_that_of_their_text_are_refused() {
        for (oid, name) in [
            (114, "json"),
            (3802, "jsonb"),
            (1186, "interval"),
            (20_000, "public.citext"),
            (20_000, "json"),
            (20_000, ""),
        ] {
            assert_eq!(Family::of(&column(oid, name)), None, "{name}");
        }
    }
}
