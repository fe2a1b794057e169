//! The few statistics of a benchmark: median, range and percentiles.
//!
//! Holds: pure functions over numbers. Never knows: what they measure.

/// The median of some values, and how far they spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The smallest.
    pub(crate) min: f64,
    /// The middle one; the mean of the two in the middle of an even number.
    pub(crate) median: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of all values that are numbers; `None` when there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Self { min, median: f64::midpoint(lower, upper), max })
    }
}

/// The value that `percent` of all values do not exceed (nearest rank); `None` when there is none.
pub(crate) fn percentile(values: impl IntoIterator<Item = f64>, percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get((rank - 1).min(sorted.len().saturating_sub(1))).copied()
}

/// `a` divided by `b`; `None` when that says nothing, because `b` is not above zero or `a` is negative.
pub(crate) fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0 && a >= 0.0).then(|| a / b)
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_smallest_middle_and_largest() {
        let check = |values: &[f64], expect| {
            let spread = Spread::of(values.iter().copied()).map(|s| (s.min, s.median, s.max));
            assert_eq!(spread, expect, "{values:?}");
        };
        check(&[3.0, 1.0, 2.0], Some((1.0, 2.0, 3.0)));
        check(&[4.0, 1.0, 2.0, 3.0], Some((1.0, 2.5, 4.0)));
        check(&[7.0], Some((7.0, 7.0, 7.0)));
        check(&[f64::NAN, 7.0], Some((7.0, 7.0, 7.0)));
        check(&[], None);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred = || (1..=100).map(f64::from);
        assert_eq!(percentile(hundred(), 50.0), Some(50.0));
        assert_eq!(percentile(hundred(), 99.0), Some(99.0));
        assert_eq!(percentile(hundred(), 100.0), Some(100.0));
        assert_eq!(percentile([5.0], 1.0), Some(5.0));
        assert_eq!(percentile([], 50.0), None);
    }

    #[test]
    fn a_ratio_to_nothing_is_no_ratio() {
        assert_eq!(ratio(1.0, 2.0), Some(0.5));
        assert_eq!(ratio(1.0, 0.0), None);
        assert_eq!(ratio(-1.0, 2.0), None);
    }
}
