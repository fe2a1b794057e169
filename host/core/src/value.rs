//! From what Postgres prints to what travels: one parser a typed column.
//!
//! Holds: the mapping from type to column, and exact parsers for the pinned output settings. No calendar library: the
//! whole range of Postgres is covered by integer arithmetic on the proleptic Gregorian calendar.
//! Never knows: relations, grants. Invariant: a parser answers exactly or not at all; it never guesses.

/// The Postgres epoch is 2000-01-01; from there the whole range of timestamps fits 64 bits of microseconds, which it
/// does not from 1970 (the years 294247 to 294276 would be lost).
const DAYS_0000_03_01_TO_EPOCH: i64 = 730_425;
const US_PER_SECOND: i64 = 1_000_000;
const US_PER_DAY: i64 = 86_400 * US_PER_SECOND;

/// How a column's values travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the cases are the table in wit/v0.1/change.wit")]
pub enum Kind {
    Boolean,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    DateDays,
    TimeUs,
    TimestampUs,
    Uuid,
    Bytes,
    Text,
}

impl Kind {
    /// By the object id of a built-in type.
    pub const fn of_oid(oid: u32) -> Kind {
        match oid {
            16 => Self::Boolean,
            17 => Self::Bytes,
            20 | 26 => Self::Int64,
            21 => Self::Int16,
            23 => Self::Int32,
            700 => Self::Float32,
            701 => Self::Float64,
            1082 => Self::DateDays,
            1083 => Self::TimeUs,
            1114 | 1184 => Self::TimestampUs,
            2950 => Self::Uuid,
            _ => Self::Text,
        }
    }

    /// By the name of a base type in `pg_catalog`, as the type message of a domain gives it.
    pub fn of_catalog_name(name: &str) -> Kind {
        match name {
            "bool" => Self::Boolean,
            "bytea" => Self::Bytes,
            "int8" | "oid" => Self::Int64,
            "int2" => Self::Int16,
            "int4" => Self::Int32,
            "float4" => Self::Float32,
            "float8" => Self::Float64,
            "date" => Self::DateDays,
            "time" => Self::TimeUs,
            "timestamp" | "timestamptz" => Self::TimestampUs,
            "uuid" => Self::Uuid,
            _ => Self::Text,
        }
    }
}

/// The name of a built-in type, which the stream never sends. Empty when it is not one of the usual ones.
pub const fn builtin_type_name(oid: u32) -> &'static str {
    match oid {
        16 => "bool",
        17 => "bytea",
        18 => "char",
        19 => "name",
        20 => "int8",
        21 => "int2",
        23 => "int4",
        25 => "text",
        26 => "oid",
        114 => "json",
        142 => "xml",
        600 => "point",
        601 => "lseg",
        602 => "path",
        603 => "box",
        604 => "polygon",
        628 => "line",
        650 => "cidr",
        700 => "float4",
        701 => "float8",
        718 => "circle",
        774 => "macaddr8",
        790 => "money",
        829 => "macaddr",
        869 => "inet",
        1000 => "_bool",
        1001 => "_bytea",
        1005 => "_int2",
        1007 => "_int4",
        1009 => "_text",
        1014 => "_bpchar",
        1015 => "_varchar",
        1016 => "_int8",
        1021 => "_float4",
        1022 => "_float8",
        1042 => "bpchar",
        1043 => "varchar",
        1082 => "date",
        1083 => "time",
        1114 => "timestamp",
        1115 => "_timestamp",
        1182 => "_date",
        1184 => "timestamptz",
        1185 => "_timestamptz",
        1186 => "interval",
        1231 => "_numeric",
        1266 => "timetz",
        1560 => "bit",
        1562 => "varbit",
        1700 => "numeric",
        2950 => "uuid",
        2951 => "_uuid",
        3220 => "pg_lsn",
        3614 => "tsvector",
        3615 => "tsquery",
        3802 => "jsonb",
        3807 => "_jsonb",
        3904 => "int4range",
        3906 => "numrange",
        3908 => "tsrange",
        3910 => "tstzrange",
        3912 => "daterange",
        3926 => "int8range",
        4072 => "jsonpath",
        4451 => "int4multirange",
        4532 => "nummultirange",
        4533 => "tsmultirange",
        4534 => "tstzmultirange",
        4535 => "datemultirange",
        4536 => "int8multirange",
        _ => "",
    }
}

/// `t` or `f`.
#[inline]
pub fn boolean(text: &[u8]) -> Option<u8> {
    match text {
        b"t" => Some(1),
        b"f" => Some(0),
        _ => None,
    }
}

/// A decimal integer with an optional minus sign.
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    // Negative accumulation: it reaches i64::MIN. 18 digits cannot overflow in either direction.
    let (safe, rest) = digits.split_at_checked(18).unwrap_or((digits, &[]));
    let mut value = 0_i64;
    for byte in safe {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.wrapping_mul(10).wrapping_sub(i64::from(digit));
    }
    for byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// A float as Postgres prints it, `NaN` and infinities included. Digits that no finite value is meant by are refused.
#[inline]
pub fn float<F: std::str::FromStr + Into<f64> + Copy>(text: &[u8]) -> Option<F> {
    let value: F = std::str::from_utf8(text).ok()?.parse().ok()?;
    let by_name = matches!(text, b"NaN" | b"Infinity" | b"-Infinity");
    (by_name || value.into().is_finite() && !text.starts_with(b"+")).then_some(value)
}

/// Where the digit pairs of a uuid begin.
const UUID_PAIRS: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

/// 32 hexadecimal digits in the usual five groups.
#[inline]
pub fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; 36] = text.try_into().ok()?;
    if [8, 13, 18, 23].iter().any(|at| text.get(*at) != Some(&b'-')) {
        return None;
    }
    let mut out = [0_u8; 16];
    for (byte, at) in out.iter_mut().zip(UUID_PAIRS) {
        let &[high, low] = text.get(at..at + 2)? else { return None };
        *byte = hex(high, low)?;
    }
    Some(out)
}

/// Appends the bytes of `\x…` to `out`; leaves `out` as it was when the text is not of that form.
pub fn bytea(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let digits = text.strip_prefix(b"\\x")?;
    if digits.len() % 2 != 0 {
        return None;
    }
    let start = out.len();
    out.reserve(digits.len() / 2);
    for pair in digits.chunks_exact(2) {
        let &[high, low] = pair else { return None };
        let Some(byte) = hex(high, low) else {
            out.truncate(start);
            return None;
        };
        out.push(byte);
    }
    Some(())
}

/// The byte that two hexadecimal digits mean.
#[inline]
fn hex(high: u8, low: u8) -> Option<u8> {
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        _ => 0xFF,
    };
    let (high, low) = (nibble(high), nibble(low));
    (high <= 15 && low <= 15).then_some(high << 4 | low)
}

/// Days from 2000-01-01; the infinities are the ends of the range.
pub fn date(text: &[u8]) -> Option<i32> {
    match text {
        b"infinity" => return Some(i32::MAX),
        b"-infinity" => return Some(i32::MIN),
        _ => {}
    }
    let (text, before_christ) = era(text);
    let (days, rest) = day(text, before_christ)?;
    if !rest.is_empty() {
        return None;
    }
    i32::try_from(days).ok().filter(|days| *days != i32::MAX && *days != i32::MIN)
}

/// Microseconds of the day; 24:00:00 is allowed, as in Postgres.
pub fn time(text: &[u8]) -> Option<i64> {
    let (us, rest) = clock(text)?;
    (rest.is_empty() && us <= US_PER_DAY).then_some(us)
}

/// Microseconds from 2000-01-01 00:00:00; with a zone, in UTC. The infinities are the ends of the range.
pub fn timestamp(text: &[u8]) -> Option<i64> {
    match text {
        b"infinity" => return Some(i64::MAX),
        b"-infinity" => return Some(i64::MIN),
        _ => {}
    }
    let (text, before_christ) = era(text);
    let (days, rest) = day(text, before_christ)?;
    let (us, rest) = clock(rest.strip_prefix(b" ")?).filter(|(us, _)| *us < US_PER_DAY)?;
    let offset = zone(rest)?;
    let us = days.checked_mul(US_PER_DAY)?.checked_add(us)?.checked_sub(offset)?;
    (us != i64::MAX && us != i64::MIN).then_some(us)
}

#[inline]
fn era(text: &[u8]) -> (&[u8], bool) {
    text.strip_suffix(b" BC").map_or((text, false), |text| (text, true))
}

#[inline]
fn digit(text: &[u8]) -> Option<(i64, &[u8])> {
    let (digit, rest) = text.split_first()?;
    let digit = digit.wrapping_sub(b'0');
    (digit <= 9).then_some((i64::from(digit), rest))
}

#[inline]
fn two_digits(text: &[u8]) -> Option<(i64, &[u8])> {
    let (&[high, low], rest) = text.split_first_chunk()?;
    let (high, low) = (high.wrapping_sub(b'0'), low.wrapping_sub(b'0'));
    (high <= 9 && low <= 9).then_some((i64::from(high) * 10 + i64::from(low), rest))
}

/// Four to seven digits.
#[inline]
fn year(text: &[u8]) -> Option<(i64, &[u8])> {
    let (century, rest) = two_digits(text)?;
    let (year, mut rest) = two_digits(rest)?;
    let mut year = century * 100 + year;
    for _ in 0..3 {
        let Some((more, after)) = digit(rest) else { break };
        (year, rest) = (year * 10 + more, after);
    }
    Some((year, rest))
}

/// `YYYY-MM-DD` with four digits of year or more; days from 2000-01-01.
#[inline]
fn day(text: &[u8], before_christ: bool) -> Option<(i64, &[u8])> {
    let (year, rest) = year(text)?;
    let (month, rest) = two_digits(rest.strip_prefix(b"-")?)?;
    let (day, rest) = two_digits(rest.strip_prefix(b"-")?)?;
    if year == 0 {
        return None;
    }
    // There is no year 0: 1 BC is the year before 1 AD.
    let year = if before_christ { 1 - year } else { year };
    let exists = (1..=days_of_month(year, month)?).contains(&day);
    exists.then(|| (days_from_civil(year, month, day), rest))
}

fn days_of_month(year: i64, month: i64) -> Option<i64> {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => Some(29),
        2 => Some(28),
        _ => None,
    }
}

/// Days from 2000-01-01 on the proleptic Gregorian calendar: years start in March, so that the leap day is the last
/// day of a year, and 400 years are always 146,097 days.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - DAYS_0000_03_01_TO_EPOCH
}

/// `HH:MM:SS` with up to six digits of fraction.
#[inline]
fn clock(text: &[u8]) -> Option<(i64, &[u8])> {
    let (hour, rest) = two_digits(text)?;
    let (minute, rest) = two_digits(rest.strip_prefix(b":")?)?;
    let (second, rest) = two_digits(rest.strip_prefix(b":")?)?;
    if hour > 24 || minute > 59 || second > 59 {
        return None;
    }
    let whole = ((hour * 60 + minute) * 60 + second) * US_PER_SECOND;
    let Some(fraction) = rest.strip_prefix(b".") else {
        return Some((whole, rest));
    };
    let (tenths, mut rest) = digit(fraction)?;
    let mut scale = US_PER_SECOND / 10;
    let mut us = tenths * scale;
    while scale > 1 {
        let Some((more, after)) = digit(rest) else { break };
        scale /= 10;
        (us, rest) = (us + more * scale, after);
    }
    Some((whole + us, rest))
}

/// Nothing, or `+HH`, `+HH:MM`, `+HH:MM:SS`; in microseconds east of UTC.
#[inline]
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, rest) = match text {
        [] | b"+00" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (mut seconds, mut rest) = two_digits(rest).map(|(hour, rest)| (hour * 3600, rest))?;
    for unit in [60, 1] {
        let Some(more) = rest.strip_prefix(b":") else { break };
        let (value, after) = two_digits(more)?;
        seconds += value * unit;
        rest = after;
    }
    rest.is_empty().then_some(sign * seconds * US_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: PartialEq + std::fmt::Debug>(parse: impl Fn(&[u8]) -> Option<T>, text: &str, expect: Option<T>) {
        assert_eq!(parse(text.as_bytes()), expect, "{text}");
    }

    #[test]
    fn integers_are_exact_to_the_ends_of_their_range() {
        check(integer, "0", Some(0));
        check(integer, "-1", Some(-1));
        check(integer, "9223372036854775807", Some(i64::MAX));
        check(integer, "-9223372036854775808", Some(i64::MIN));
        for bad in ["", "-", "9223372036854775808", "1x", "+1", "1 ", "99999999999999999999"] {
            check(integer, bad, None);
        }
    }

    #[test]
    fn kf_083_dates_before_christ_are_exact() {
        check(date, "2000-01-01", Some(0));
        check(date, "1999-12-31", Some(-1));
        check(date, "1970-01-01", Some(-10_957));
        check(date, "2000-03-01", Some(60));
        check(date, "1991-02-10 BC", Some(-1_457_277));
        // What the server computes: ('0001-01-01'::date - '2000-01-01'::date) and one day earlier.
        check(date, "0001-01-01", Some(-730_119));
        check(date, "0001-12-31 BC", Some(-730_120));
        check(date, "4713-01-01 BC", Some(-2_451_507));
        check(date, "5874897-12-31", Some(2_145_031_948));
        check(timestamp, "0214-02-05 15:40:00 BC", Some((-808_246 * 86_400 + 15 * 3600 + 40 * 60) * 1_000_000));
    }

    #[test]
    fn kf_084_infinities_are_their_own_values() {
        check(date, "infinity", Some(i32::MAX));
        check(date, "-infinity", Some(i32::MIN));
        check(timestamp, "infinity", Some(i64::MAX));
        check(timestamp, "-infinity", Some(i64::MIN));
    }

    #[test]
    fn kf_085_the_whole_range_of_timestamps_fits() {
        check(timestamp, "2000-01-01 00:00:00", Some(0));
        check(timestamp, "1970-01-01 00:00:00+00", Some(-946_684_800_000_000));
        check(timestamp, "294276-12-31 23:59:59.999999+00", Some(9_223_371_331_199_999_999));
        check(timestamp, "4714-11-24 00:00:00 BC", Some(-211_813_488_000_000_000));
        check(timestamp, "20231-05-06 07:08:09.5+00", Some(575_325_616_089_500_000));
        check(timestamp, "2000-01-01 00:00:00+05:30", Some(-19_800_000_000));
    }

    #[test]
    fn kf_086_no_julian_shift_before_1582() {
        check(date, "1582-10-15", Some(-152_384));
        check(date, "1582-10-14", Some(-152_385));
    }

    #[test]
    fn times_of_day_allow_the_end_of_the_day() {
        check(time, "00:00:00", Some(0));
        check(time, "24:00:00", Some(86_400_000_000));
        check(time, "23:59:59.000001", Some(86_399_000_001));
        check(time, "12:00", None);
        check(time, "25:00:00", None);
    }

    #[test]
    fn malformed_text_is_refused_not_guessed() {
        check(date, "2000-02-29", Some(59));
        check(date, "0001-02-29 BC", Some(-730_426));
        for bad in [
            "",
            "2000",
            "2000-13-01",
            "2000-01-32",
            "2000-02-30",
            "1900-02-29",
            "2001-02-29",
            "2000-01-01x",
            "0000-01-01",
            "2000-1-1",
            "20000000-01-01",
            "２０００-01-01",
            "2000-01-01  BC",
            "Infinity",
        ] {
            check(date, bad, None);
        }
        for bad in [
            "2000-01-01",
            "2000-01-01T00:00:00",
            "2000-01-01 00:00:00.1234567",
            "2000-01-01 00:00:00+5",
            "2000-01-01 24:00:00",
            "2000-01-01 00:00:60",
            "2000-01-01 00:00:00.",
        ] {
            check(timestamp, bad, None);
        }
        check(boolean, "true", None);
    }

    #[test]
    fn kf_092_bytea_is_bytes_in_bytes_out() {
        let mut out = vec![7];
        assert_eq!(bytea(b"\\xDEadbeef", &mut out), Some(()));
        assert_eq!(out, [7, 0xDE, 0xAD, 0xBE, 0xEF]);
        for bad in [&b"\\xd"[..], b"\\xzz", b"xff", b"\\x0\xff"] {
            assert_eq!(bytea(bad, &mut out), None);
            assert_eq!(out.len(), 5, "a refused text leaves nothing behind");
        }
    }

    #[test]
    fn uuids_need_their_groups() {
        check(
            uuid,
            "00112233-4455-6677-8899-aabbccddeeff",
            Some([0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]),
        );
        for bad in [
            "00112233445566778899aabbccddeeff",
            "00112233-4455-6677-8899-aabbccddeefg",
            "0011223344-55-6677-8899-aabbccddeeff",
        ] {
            check(uuid, bad, None);
        }
    }

    #[test]
    fn floats_keep_their_odd_values() {
        assert_eq!(float::<f64>(b"-0").map(f64::to_bits), Some((-0.0_f64).to_bits()));
        assert_eq!(float::<f64>(b"Infinity"), Some(f64::INFINITY));
        assert_eq!(float::<f64>(b"-Infinity"), Some(f64::NEG_INFINITY));
        assert!(float::<f64>(b"NaN").is_some_and(f64::is_nan));
        assert_eq!(float::<f32>(b"1.1754944e-38"), Some(f32::MIN_POSITIVE));
        assert_eq!(float::<f32>(b"1e-45").map(f32::to_bits), Some(1));
        assert_eq!(float::<f64>(b"5e-324").map(f64::to_bits), Some(1));
        for bad in [&b"x"[..], b"", b"1e999", b"inf", b"nan", b"infinity", b"+1", b"1 ", b"\xff"] {
            assert_eq!(float::<f64>(bad), None);
        }
    }
}
