//! What the counter has seen, and its text form in the plugin's state.
//!
//! Holds: six counts and a fingerprint. Refuses to know batches. Read next: [`crate::Counter`].

use std::fmt;

use walgate_sdk::Operation;

/// Sums over everything delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    rows: [u64; 5],
    /// Cells that held a value.
    pub values: u64,
    /// Cells that held none: NULL, unchanged or not sent.
    pub absent: u64,
    /// The wrapping sum of all values; see [`crate::fingerprint`].
    pub fingerprint: u64,
}

impl Totals {
    /// Rows of one operation.
    pub fn rows(&self, operation: Operation) -> u64 {
        self.rows.get(operation as usize).copied().unwrap_or_default()
    }

    /// Counts rows of one operation.
    pub fn add_rows(&mut self, operation: Operation, rows: u64) {
        if let Some(count) = self.rows.get_mut(operation as usize) {
            *count += rows;
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Totals) -> Totals {
        let mut sum = *self;
        for operation in Operation::ALL {
            sum.add_rows(operation, other.rows(operation));
        }
        sum.values += other.values;
        sum.absent += other.absent;
        sum.fingerprint = sum.fingerprint.wrapping_add(other.fingerprint);
        sum
    }

    /// Reads the text form.
    pub fn parse(bytes: &[u8]) -> Option<Totals> {
        let mut totals = Totals::default();
        for field in std::str::from_utf8(bytes).ok()?.split(' ') {
            let (name, number) = field.split_once('=')?;
            let number: u64 = number.parse().ok()?;
            match name {
                "values" => totals.values = number,
                "absent" => totals.absent = number,
                "fingerprint" => totals.fingerprint = number,
                name => {
                    let operation = Operation::ALL.into_iter().find(|operation| operation.name() == name)?;
                    totals.add_rows(operation, number);
                }
            }
        }
        Some(totals)
    }
}

impl fmt::Display for Totals {
    /// `read=0 insert=2 update=1 delete=0 truncate=0 values=14 absent=1 fingerprint=4242`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in Operation::ALL {
            write!(f, "{}={} ", operation.name(), self.rows(operation))?;
        }
        write!(f, "values={} absent={} fingerprint={}", self.values, self.absent, self.fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_survives_the_round_trip_and_refuses_what_it_is_not() {
        let mut totals = Totals { values: 3, absent: 1, fingerprint: u64::MAX, ..Totals::default() };
        for (count, operation) in (1..).zip(Operation::ALL) {
            totals.add_rows(operation, count);
        }
        assert_eq!(Totals::parse(totals.to_string().as_bytes()), Some(totals));
        for text in ["", "rows", "insert=x", "other=1", "insert=1  values=2"] {
            assert_eq!(Totals::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
