//! Sets of columns, each known by a number.
//!
//! Holds: the sets that occur in one work for one target. Refuses to know what is in the columns. Two rows with equal
//! numbers are written by one statement. Read next: [`super::view`].

use std::collections::HashMap;

/// The number of a set.
pub(super) type Mask = u32;

/// The set without a column.
pub(super) const EMPTY: Mask = 0;

/// The sets met so far.
pub(super) struct Masks {
    words: usize,
    sets: Vec<Box<[u64]>>,
    numbers: HashMap<Box<[u64]>, Mask>,
    scratch: Vec<u64>,
}

impl Masks {
    /// Over so many columns.
    pub(super) fn new(columns: usize) -> Self {
        let words = columns.div_ceil(64).max(1);
        let mut masks = Self { words, sets: Vec::new(), numbers: HashMap::new(), scratch: vec![0; words] };
        masks.of(std::iter::empty());
        masks
    }

    /// The number of a set of columns. Allocates when the set is new.
    pub(super) fn of(&mut self, columns: impl Iterator<Item = usize>) -> Mask {
        self.scratch.fill(0);
        for column in columns {
            if let Some(word) = self.scratch.get_mut(column / 64) {
                *word |= 1 << (column % 64);
            }
        }
        self.known()
    }

    /// The number of what either set holds.
    pub(super) fn union(&mut self, one: Mask, other: Mask) -> Mask {
        if one == other {
            return one;
        }
        for index in 0..self.words {
            let word = self.word(one, index) | self.word(other, index);
            if let Some(slot) = self.scratch.get_mut(index) {
                *slot = word;
            }
        }
        self.known()
    }

    /// Whether `one` holds every column of `other`.
    pub(super) fn covers(&self, one: Mask, other: Mask) -> bool {
        one == other || (0..self.words).all(|index| self.word(other, index) & !self.word(one, index) == 0)
    }

    /// Whether a set holds a column.
    pub(super) fn has(&self, mask: Mask, column: usize) -> bool {
        self.word(mask, column / 64) >> (column % 64) & 1 == 1
    }

    fn word(&self, mask: Mask, index: usize) -> u64 {
        self.sets.get(mask as usize).and_then(|set| set.get(index)).copied().unwrap_or(0)
    }

    fn known(&mut self) -> Mask {
        if let Some(number) = self.numbers.get(self.scratch.as_slice()) {
            return *number;
        }
        // There are at most as many sets as rows, and rows are counted with 32 bits.
        let number = u32::try_from(self.sets.len()).unwrap_or(u32::MAX);
        let set: Box<[u64]> = self.scratch.as_slice().into();
        self.sets.push(set.clone());
        self.numbers.insert(set, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_one_number_each() {
        let mut masks = Masks::new(130);
        let low = masks.of([0, 3].into_iter());
        let high = masks.of([129].into_iter());
        let both = masks.union(low, high);
        assert_eq!(masks.of([129, 3, 0].into_iter()), both);
        assert_eq!(masks.of(std::iter::empty()), EMPTY);
        assert!(masks.covers(both, low) && masks.covers(both, high) && !masks.covers(low, both));
        assert!(masks.has(both, 129) && !masks.has(low, 129) && masks.covers(low, EMPTY));
    }
}
