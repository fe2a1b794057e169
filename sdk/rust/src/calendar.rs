//! Dates, times and timestamps as integers, and how Postgres prints them.
//!
//! Holds: newtypes over the integers of the contract and their text, over the whole range of Postgres and without a
//! calendar library. Refuses to know time zones other than UTC, locales and clocks. Read next: [`crate::Value`].

use std::fmt;

const US_PER_SECOND: i64 = 1_000_000;
const US_PER_DAY: i64 = 86_400 * US_PER_SECOND;

/// Days in 400 Gregorian years, after which the calendar repeats.
const DAYS_PER_ERA: i64 = 146_097;

/// Days from 0000-03-01 to 2000-01-01, where Postgres and the contract count from: the algorithm counts years from March,
/// so that the leap day comes last.
const DAYS_TO_EPOCH: i64 = 730_425;

/// Days from 1970-01-01 to 2000-01-01.
const UNIX_DAYS: i64 = 10_957;

/// A `date`: days from 2000-01-01 in the proleptic Gregorian calendar.
///
/// Prints as Postgres does under `DateStyle ISO`: `2024-02-29`, `0044-03-15 BC`, `infinity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(pub i32);

impl Date {
    /// Later than every date.
    pub const INFINITY: Date = Date(i32::MAX);
    /// Earlier than every date.
    pub const NEG_INFINITY: Date = Date(i32::MIN);

    /// The date of a year (0 is 1 BC, -1 is 2 BC), a month from 1 and a day from 1; none when there is no such day or
    /// it lies outside what an `i32` of days can say.
    pub fn from_ymd(year: i32, month: u32, day: u32) -> Option<Date> {
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        let days = days_from_civil(i64::from(year), month, day);
        // A day that the month does not have lands in the next month, so the round trip finds it.
        let exists = civil_from_days(days) == (i64::from(year), month, day);
        i32::try_from(days).ok().filter(|_| exists).map(Date).filter(|date| date.is_finite())
    }

    /// Days from 1970-01-01; none for the infinities.
    pub fn unix_days(self) -> Option<i64> {
        self.is_finite().then(|| i64::from(self.0) + UNIX_DAYS)
    }

    /// False for the two infinities.
    pub fn is_finite(self) -> bool {
        self != Self::INFINITY && self != Self::NEG_INFINITY
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::INFINITY => f.write_str("infinity"),
            Self::NEG_INFINITY => f.write_str("-infinity"),
            Self(days) => {
                let era = write_day(f, i64::from(days))?;
                f.write_str(era)
            }
        }
    }
}

/// A `time`: microseconds of the day. The end of the day, `24:00:00`, is 86,400,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_clock(f, self.0)
    }
}

/// A `timestamp` or `timestamptz`: microseconds from 2000-01-01 00:00, in UTC for `timestamptz`.
///
/// Prints as Postgres prints a `timestamp` under `DateStyle ISO`: `2024-02-29 12:30:00.5`, `0044-03-15 12:00:00 BC`,
/// `infinity`. [`Timestamp::text`] and [`Timestamp::iso`] give the other forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Later than every timestamp.
    pub const INFINITY: Timestamp = Timestamp(i64::MAX);
    /// Earlier than every timestamp.
    pub const NEG_INFINITY: Timestamp = Timestamp(i64::MIN);

    /// Microseconds from 1970-01-01 00:00, in 128 bits because the last thirty years of Postgres do not fit 64; none for
    /// the infinities.
    pub fn unix_us(self) -> Option<i128> {
        let finite = self != Self::INFINITY && self != Self::NEG_INFINITY;
        finite.then(|| i128::from(self.0) + i128::from(UNIX_DAYS * US_PER_DAY))
    }

    /// False for the two infinities.
    pub fn is_finite(self) -> bool {
        self != Self::INFINITY && self != Self::NEG_INFINITY
    }

    /// What Postgres prints: with `zoned` as a `timestamptz` under `TimeZone UTC` (`2024-02-29 12:30:00+00`), else as
    /// a `timestamp`.
    pub fn text(self, zoned: bool) -> TimestampText {
        TimestampText { at: self, separator: " ", zone: if zoned { "+00" } else { "" } }
    }

    /// What Postgres puts into JSON, the form of ISO 8601: `2024-02-29T12:30:00`, and `…+00:00` with `zoned`.
    pub fn iso(self, zoned: bool) -> TimestampText {
        TimestampText { at: self, separator: "T", zone: if zoned { "+00:00" } else { "" } }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(false).fmt(f)
    }
}

/// A timestamp on its way to text; see [`Timestamp::text`].
#[derive(Debug, Clone, Copy)]
pub struct TimestampText {
    at: Timestamp,
    separator: &'static str,
    zone: &'static str,
}

impl fmt::Display for TimestampText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Timestamp::INFINITY => f.write_str("infinity"),
            Timestamp::NEG_INFINITY => f.write_str("-infinity"),
            Timestamp(us) => {
                let era = write_day(f, us.div_euclid(US_PER_DAY))?;
                f.write_str(self.separator)?;
                write_clock(f, us.rem_euclid(US_PER_DAY))?;
                f.write_str(self.zone)?;
                f.write_str(era)
            }
        }
    }
}

/// A `uuid`, in the order of its text.
///
/// Prints as Postgres does: lowercase, with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Writes `YYYY-MM-DD` and answers the era that belongs at the very end, after the time of day.
fn write_day(f: &mut fmt::Formatter<'_>, days: i64) -> Result<&'static str, fmt::Error> {
    let (year, month, day) = civil_from_days(days);
    // There is no year 0: the year before 1 AD is 1 BC.
    let (shown, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    write!(f, "{shown:04}-{month:02}-{day:02}")?;
    Ok(era)
}

/// Writes `HH:MM:SS`, and the fraction without trailing zeros when there is one.
fn write_clock(f: &mut fmt::Formatter<'_>, us_of_day: i64) -> fmt::Result {
    let seconds = us_of_day.div_euclid(US_PER_SECOND);
    let mut fraction = us_of_day.rem_euclid(US_PER_SECOND);
    write!(f, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
    if fraction == 0 {
        return Ok(());
    }
    let mut digits = 6;
    while fraction % 10 == 0 {
        fraction /= 10;
        digits -= 1;
    }
    write!(f, ".{fraction:0digits$}")
}

/// Year, month and day of a day number; the well-known era algorithm of Howard Hinnant.
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + DAYS_TO_EPOCH;
    let era = shifted.div_euclid(DAYS_PER_ERA);
    let day_of_era = shifted.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let march_month = i64::from((month + 9) % 12);
    let day_of_year = (153 * march_month + 2) / 5 + i64::from(day) - 1;
    era * DAYS_PER_ERA + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - DAYS_TO_EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check_date(days: i32, expect: &str) {
        assert_eq!(Date(days).to_string(), expect);
    }

    #[test]
    fn dates_print_as_postgres_prints_them() {
        check_date(-10_957, "1970-01-01");
        check_date(-10_958, "1969-12-31");
        check_date(8_825, "2024-02-29");
        check_date(59, "2000-02-29");
        check_date(-730_119, "0001-01-01");
        check_date(-730_120, "0001-12-31 BC");
        check_date(-746_117, "0044-03-15 BC");
        // The edges: Julian day 0, which Postgres prints in the Gregorian calendar, and the last date it takes.
        check_date(-2_451_545, "4714-11-24 BC");
        check_date(2_145_031_948, "5874897-12-31");
        check_date(i32::MAX, "infinity");
        check_date(i32::MIN, "-infinity");
    }

    #[test]
    fn dates_are_made_from_days_that_exist() {
        assert_eq!(Date::from_ymd(-43, 3, 15), Some(Date(-746_117)));
        assert_eq!(Date::from_ymd(-4713, 11, 24), Some(Date(-2_451_545)));
        assert_eq!(Date::from_ymd(5_874_897, 12, 31), Some(Date(2_145_031_948)));
        assert_eq!(Date::from_ymd(2023, 2, 29), None);
        assert_eq!(Date::from_ymd(1900, 2, 29), None);
        assert_eq!(Date::from_ymd(2024, 13, 1), None);
        assert_eq!(Date::from_ymd(2024, 1, 0), None);
        assert_eq!(Date::from_ymd(i32::MAX, 1, 1), None);
    }

    #[test]
    fn times_drop_trailing_zeros_and_reach_the_end_of_the_day() {
        assert_eq!(Time(0).to_string(), "00:00:00");
        assert_eq!(Time(45_296_000_001).to_string(), "12:34:56.000001");
        assert_eq!(Time(45_296_500_000).to_string(), "12:34:56.5");
        assert_eq!(Time(86_399_999_999).to_string(), "23:59:59.999999");
        assert_eq!(Time(86_400_000_000).to_string(), "24:00:00");
    }

    #[track_caller]
    fn check_timestamp(us: i64, plain: &str, zoned: &str, iso: &str) {
        assert_eq!(Timestamp(us).to_string(), plain);
        assert_eq!(Timestamp(us).text(true).to_string(), zoned);
        assert_eq!(Timestamp(us).iso(true).to_string(), iso);
    }

    #[test]
    fn timestamps_print_as_postgres_prints_them() {
        check_timestamp(0, "2000-01-01 00:00:00", "2000-01-01 00:00:00+00", "2000-01-01T00:00:00+00:00");
        check_timestamp(
            -1,
            "1999-12-31 23:59:59.999999",
            "1999-12-31 23:59:59.999999+00",
            "1999-12-31T23:59:59.999999+00:00",
        );
        let ides = i64::from(Date::from_ymd(-43, 3, 15).unwrap().0) * US_PER_DAY + US_PER_DAY / 2;
        check_timestamp(ides, "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00+00 BC", "0044-03-15T12:00:00+00:00 BC");
        check_timestamp(
            -2_451_545 * US_PER_DAY,
            "4714-11-24 00:00:00 BC",
            "4714-11-24 00:00:00+00 BC",
            "4714-11-24T00:00:00+00:00 BC",
        );
        // The last microsecond that Postgres has.
        let last = 9_223_371_331_199_999_999;
        assert_eq!(Timestamp(last).unix_us(), Some(9_224_318_015_999_999_999));
        check_timestamp(
            last,
            "294276-12-31 23:59:59.999999",
            "294276-12-31 23:59:59.999999+00",
            "294276-12-31T23:59:59.999999+00:00",
        );
        check_timestamp(i64::MAX, "infinity", "infinity", "infinity");
        check_timestamp(i64::MIN, "-infinity", "-infinity", "-infinity");
    }

    #[test]
    fn uuids_print_lowercase_with_hyphens() {
        let bytes = std::array::from_fn(|at| (at as u8) * 16 + 10);
        assert_eq!(Uuid(bytes).to_string(), "0a1a2a3a-4a5a-6a7a-8a9a-aabacadaeafa");
    }

    proptest! {
        #[test]
        fn every_day_survives_the_round_trip(days in -2_451_545..=2_145_031_948_i32) {
            let (year, month, day) = civil_from_days(i64::from(days));
            prop_assert_eq!(Date::from_ymd(year as i32, month, day), Some(Date(days)));
        }

        #[test]
        fn the_next_day_is_the_next_date(days in -2_440_588..2_145_042_905_i64) {
            let (y, m, d) = civil_from_days(days);
            let next = civil_from_days(days + 1);
            prop_assert!(next == (y, m, d + 1) || next == (y, m + 1, 1) || next == (y + 1, 1, 1));
        }

        #[test]
        fn no_timestamp_breaks_the_printer(us in any::<i64>()) {
            prop_assert!(!Timestamp(us).iso(true).to_string().is_empty());
        }
    }
}
