//! Reading every value of a column into one number.
//!
//! Holds: sums that touch every byte and do not depend on the order of the rows or on where batches are cut, so that two
//! runs over the same changes can be compared. Refuses to be a checksum against anything but loss and repetition.
//! Read next: [`crate::Totals`].

use walgate_sdk::ColumnValues;

/// The number of slots of a column, and the wrapping sum of all its values. A slot without a value adds nothing.
///
/// Integers add their value, floats their bits, everything else the sum of its bytes.
pub fn fingerprint(values: ColumnValues<'_>) -> (u64, u64) {
    match values {
        ColumnValues::Bool(v) => (v.len() as u64, byte_sum(v)),
        ColumnValues::Int16(v) => sum(v, |n| i64::from(n) as u64),
        ColumnValues::Int32(v) | ColumnValues::Date(v) => sum(v, |n| i64::from(n) as u64),
        ColumnValues::Int64(v) | ColumnValues::Time(v) | ColumnValues::Timestamp(v) => sum(v, |n| n as u64),
        ColumnValues::Float32(v) => sum(v, |x| u64::from(x.to_bits())),
        ColumnValues::Float64(v) => sum(v, f64::to_bits),
        ColumnValues::Uuid(v) => (v.len() as u64, byte_sum(v.as_flattened())),
        ColumnValues::Bytes(v) => (v.ends().len() as u64, byte_sum(v.concatenated())),
        ColumnValues::Text(v) => (v.ends().len() as u64, byte_sum(v.concatenated().as_bytes())),
    }
}

/// The number of slots without a value.
pub fn absent(presence: &[u8]) -> u64 {
    presence.iter().map(|code| u64::from(*code != walgate_sdk::VALUE)).sum()
}

fn sum<T: Copy>(values: &[T], bits: impl Fn(T) -> u64) -> (u64, u64) {
    let sum = values.iter().fold(0u64, |sum, value| sum.wrapping_add(bits(*value)));
    (values.len() as u64, sum)
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
        let lanes = run.iter().fold(0u64, |lanes, word| {
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

    #[test]
    fn byte_sums_are_exact_at_every_length_and_at_the_largest_byte() {
        for length in [0, 1, 7, 8, 9, 1023, 1024, 1025, 5000] {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 % 256) as u8).collect();
            let want: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
            assert_eq!(byte_sum(&bytes), want, "{length} bytes");
            assert_eq!(byte_sum(&vec![255; length]), 255 * length as u64, "{length} bytes of 255");
        }
    }

    #[test]
    fn every_slot_without_a_value_is_counted() {
        assert_eq!(absent(&[0, 1, 2, 3, 0]), 3);
    }
}
