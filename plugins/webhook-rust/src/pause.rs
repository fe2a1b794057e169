//! `Retry-After`: the pause that a receiver asks for, in seconds or as a date.
//!
//! Holds: reading both forms. Refuses to have a clock: a date is held against the `Date` of the same answer, which is the
//! receiver's own clock, so that a wrong one on either side makes no difference.

use walgate_sdk::host::http::Response;

/// The longest pause that is asked for, in milliseconds. The host has a bound of its own, which may be shorter.
const MAX_MS: u64 = 3_600_000;

/// The pause that an answer asks for, in milliseconds; none when it asks for none, or in a form that nobody knows.
pub(crate) fn asked(answer: &Response) -> Option<u32> {
    let after = answer.header_value("retry-after")?.trim();
    let seconds = match digits(after) {
        Some(seconds) => seconds,
        None => u64::try_from(date(after)?.saturating_sub(date(answer.header_value("date")?.trim())?)).unwrap_or(0),
    };
    u32::try_from(seconds.saturating_mul(1_000).min(MAX_MS)).ok()
}

/// Digits alone; more than fit are very many.
fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    all.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, the one form of dates that may be sent.
fn date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let mut words = rest.split(' ');
    let mut word = || words.next();
    let number = |text: &str, length: usize| digits(text).filter(|_| text.len() == length);
    let day = number(word()?, 2).filter(|day| (1..=31).contains(day))?;
    let month = word().and_then(|name| MONTHS.iter().position(|month| *month == name))?;
    let year = number(word()?, 4)?;
    let mut time = word()?.split(':');
    let mut two = |below: u64| time.next().and_then(|text| number(text, 2)).filter(|value| *value < below);
    // A leap second is the 61st.
    let (hours, minutes, seconds) = (two(24)?, two(60)?, two(61)?);
    if time.next().is_some() || word() != Some("GMT") || word().is_some() {
        return None;
    }
    let days = days(i64::try_from(year).ok()?, i64::try_from(month).ok()? + 1, i64::try_from(day).ok()?);
    let of_day = i64::try_from(hours * 3600 + minutes * 60 + seconds).ok()?;
    Some(days * 86_400 + of_day)
}

/// Days from 1970-01-01 in the Gregorian calendar. Years begin in March, so that the leap day is their last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + in_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(after: &str, date: Option<&str>) -> Option<u32> {
        let answer = Response::new(503).header("Retry-After", after);
        asked(&match date {
            Some(date) => answer.header("Date", date),
            None => answer,
        })
    }

    #[test]
    fn seconds_are_taken_as_they_are_and_capped() {
        assert_eq!(of("0", None), Some(0));
        assert_eq!(of(" 7 ", None), Some(7_000));
        assert_eq!(of("3601", None), Some(3_600_000));
        assert_eq!(of("99999999999999999999999", None), Some(3_600_000));
        for bad in ["", "-1", "+1", "1.5", "soon", "7 s"] {
            assert_eq!(of(bad, None), None, "{bad}");
        }
        assert_eq!(asked(&Response::new(503)), None);
    }

    #[test]
    fn a_date_counts_from_the_date_of_the_answer() {
        let at = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(of("Sun, 06 Nov 1994 08:50:07 GMT", Some(at)), Some(30_000));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:36 GMT", Some(at)), Some(0));
        assert_eq!(of("Mon, 07 Nov 1994 08:49:37 GMT", Some(at)), Some(3_600_000));
        assert_eq!(of("Sun, 06 Nov 1994 08:50:07 GMT", None), None);
        for bad in [
            "Sun, 06 Nov 1994 08:50:07",
            "06 Nov 1994 08:50:07 GMT",
            "Sun, 6 Nov 1994 08:50:07 GMT",
            "Sun, 06 Nov 94 08:50:07 GMT",
            "Sun, 06 Foo 1994 08:50:07 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:50 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:50:07 GMT",
        ] {
            assert_eq!(of(bad, Some(at)), None, "{bad}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 23:59:59 GMT", 951_868_799),
            ("Wed, 31 Dec 1969 23:59:59 GMT", -1),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
        ] {
            assert_eq!(date(text), Some(seconds), "{text}");
        }
    }
}
