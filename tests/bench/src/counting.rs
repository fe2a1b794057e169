//! The counter as a sink compiled into the host: the same work as the plugin `counter-rust`, without a sandbox.
//!
//! Holds: the totals, and reading every value of every column into one number the way the plugin does. The bench compares
//! the totals of both, so neither can do less than the other. Never knows: how batches come about.
//! Read next: `sandbox.rs`; the plugin's side is `plugins/counter-rust/src`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use walgate_core::batch::{Batch, Column, Operation, VALUE, Values};
use walgate_core::relation::ProjectedRelation;
use walgate_plugin::{NativeSink, Receipt, Verdict};

/// Operations in the order of the plugin's text form.
const OPERATIONS: [Operation; 5] =
    [Operation::Read, Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];

/// Sums over everything delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    rows: [u64; 5],
    values: u64,
    absent: u64,
    fingerprint: u64,
}

/// The text form of the totals after the last batch, as the plugin keeps it in its state.
pub(crate) type Kept = Arc<Mutex<String>>;

/// The sink.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    totals: Totals,
    kept: Kept,
}

impl Counting {
    /// A sink that keeps its totals in `kept`.
    pub(crate) fn new(kept: Kept) -> Self {
        Self { totals: Totals::default(), kept }
    }
}

impl NativeSink for Counting {
    fn relation_changed(&mut self, _: &ProjectedRelation, _: Option<&ProjectedRelation>) -> Verdict {
        Verdict::Accept
    }

    fn deliver(&mut self, batch: &Batch) -> Receipt {
        for group in &batch.groups {
            let slot = OPERATIONS.iter().position(|operation| *operation == group.operation);
            if let Some(rows) = slot.and_then(|slot| self.totals.rows.get_mut(slot)) {
                *rows += group.ordinals.len() as u64;
            }
            group.after.iter().chain(&group.before).for_each(|column| self.totals.read(column));
        }
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = self.totals.to_string();
        Receipt { durable: true, rejected: Vec::new() }
    }
}

impl Totals {
    fn read(&mut self, column: &Column) {
        let absent =
            column.presence.as_deref().map_or(0, |codes| codes.iter().map(|code| u64::from(*code != VALUE)).sum());
        let (slots, sum) = fingerprint(&column.values);
        self.absent += absent;
        self.values += slots - absent;
        self.fingerprint = self.fingerprint.wrapping_add(sum);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (operation, rows) in OPERATIONS.iter().zip(self.rows) {
            write!(f, "{}={rows} ", operation.name())?;
        }
        write!(f, "values={} absent={} fingerprint={}", self.values, self.absent, self.fingerprint)
    }
}

/// The slots of a column and the wrapping sum of its values: integers by value, floats by bits, the rest by bytes.
fn fingerprint(values: &Values) -> (u64, u64) {
    match values {
        Values::Boolean(v) => (v.len() as u64, byte_sum(v)),
        Values::Int16(v) => sum(v, |n| i64::from(n) as u64),
        Values::Int32(v) | Values::DateDays(v) => sum(v, |n| i64::from(n) as u64),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => sum(v, |n| n as u64),
        Values::Float32(v) => sum(v, |x| u64::from(x.to_bits())),
        Values::Float64(v) => sum(v, f64::to_bits),
        Values::Uuid(v) => (v.len() as u64 / 16, byte_sum(v)),
        Values::Bytes(v) => (v.ends.len() as u64, byte_sum(&v.data)),
        Values::Text(v) => (v.ends.len() as u64, byte_sum(v.data.as_bytes())),
    }
}

fn sum<T: Copy>(values: &[T], bits: impl Fn(T) -> u64) -> (u64, u64) {
    (values.len() as u64, values.iter().fold(0, |sum, value| sum.wrapping_add(bits(*value))))
}

/// The sum of all bytes, eight at a time: the bytes of a word are added in four lanes of 16 bits.
fn byte_sum(bytes: &[u8]) -> u64 {
    /// Every second byte of a word.
    const LANES: u64 = 0x00FF_00FF_00FF_00FF;
    /// Words until a lane could overflow: each adds at most 510 to a lane of 65,535.
    const WORDS: usize = 128;

    let (words, rest) = bytes.as_chunks::<8>();
    let mut total: u64 = rest.iter().map(|byte| u64::from(*byte)).sum();
    for run in words.chunks(WORDS) {
        let lanes = run.iter().fold(0_u64, |lanes, word| {
            let word = u64::from_le_bytes(*word);
            lanes + (word & LANES) + ((word >> 8) & LANES)
        });
        total += (lanes & 0xFFFF) + ((lanes >> 16) & 0xFFFF) + ((lanes >> 32) & 0xFFFF) + (lanes >> 48);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use walgate_core::batch::{Group, NULL, TextValues};

    #[test]
    fn every_value_is_read_and_counted() {
        let column = |index, presence, values| Column { index, presence, values };
        let text = TextValues { ends: vec![3, 3], data: "abc".to_owned() };
        let group = Group {
            relation: 1,
            operation: Operation::Insert,
            ordinals: vec![0, 1],
            after: vec![
                column(0, None, Values::Int32(vec![5, -1])),
                column(1, Some(vec![VALUE, NULL]), Values::Text(text)),
            ],
            before: Vec::new(),
        };
        let kept = Kept::default();
        let mut sink = Counting::new(Arc::clone(&kept));
        assert!(sink.deliver(&Batch { groups: vec![group], ..Batch::default() }).durable);
        let bytes = u64::from(b'a') + u64::from(b'b') + u64::from(b'c');
        let expect =
            format!("read=0 insert=2 update=0 delete=0 truncate=0 values=3 absent=1 fingerprint={}", 4 + bytes);
        assert_eq!(*kept.lock().unwrap(), expect);
    }

    #[test]
    fn byte_sums_are_exact() {
        for length in [0, 7, 8, 1024, 5000] {
            assert_eq!(byte_sum(&vec![255; length]), 255 * length as u64);
        }
    }
}
