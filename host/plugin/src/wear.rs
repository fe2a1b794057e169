//! When an instance has served long enough: after a number of deliveries, or above a mark of its memory.
//!
//! Holds: the count, the marks, and the sign for whoever exchanges instances. Refuses to know how that is done. Memory of a
//! guest only grows, whatever it has given up inside, and what leaks in it is never found by anyone; a fresh instance has
//! neither.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::limits::{Limits, size};

/// Why an instance should be exchanged between two batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worn {
    /// It took `recycle_calls` batches.
    Calls,
    /// It uses more than `recycle_memory_mib`.
    Memory,
}

impl Worn {
    /// A stable word for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Memory => "memory",
        }
    }
}

/// What one instance has been through.
#[derive(Debug, Default)]
pub(crate) struct Wear {
    calls: u64,
    /// Whether it was above the mark after its first delivery: then a fresh one would be, too, and nothing is won.
    is_large: bool,
}

impl Wear {
    /// Counts a delivery after which the instance has that many bytes of memory.
    pub(crate) fn delivered(&mut self, memory: usize, limits: &Limits) -> Option<Worn> {
        self.calls = self.calls.saturating_add(1);
        let mark = size(limits.recycle_memory_mib.saturating_mul(1 << 20));
        let above = mark > 0 && memory > mark;
        if self.calls == 1 {
            self.is_large = above;
        }
        if limits.recycle_calls > 0 && self.calls >= limits.recycle_calls {
            return Some(Worn::Calls);
        }
        (above && !self.is_large).then_some(Worn::Memory)
    }
}

/// Tells the other side of the mailbox. Set before a delivery is answered.
#[derive(Debug, Default)]
pub(crate) struct Sign(AtomicU8);

impl Sign {
    pub(crate) fn set(&self, worn: Option<Worn>) {
        let code = match worn {
            None => 0,
            Some(Worn::Calls) => 1,
            Some(Worn::Memory) => 2,
        };
        self.0.store(code, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<Worn> {
        match self.0.load(Ordering::Acquire) {
            1 => Some(Worn::Calls),
            2 => Some(Worn::Memory),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn limits(recycle_calls: u64, recycle_memory_mib: u64) -> Limits {
        Limits { recycle_calls, recycle_memory_mib, ..Limits::default() }
    }

    /// The answers to deliveries that leave so many MiB.
    fn worn(limits: &Limits, memory: &[usize]) -> Vec<Option<Worn>> {
        let mut wear = Wear::default();
        memory.iter().map(|mib| wear.delivered(mib * MIB, limits)).collect()
    }

    #[test]
    fn calls_are_counted() {
        let calls = Some(Worn::Calls);
        assert_eq!(worn(&limits(3, 0), &[1, 1, 1, 1]), [None, None, calls, calls]);
        assert_eq!(worn(&limits(1, 0), &[1]), [calls]);
        assert_eq!(worn(&limits(0, 0), &[4000; 3]), [None; 3]);
    }

    #[test]
    fn memory_above_the_mark_is_worn() {
        assert_eq!(worn(&limits(0, 8), &[1, 8, 9]), [None, None, Some(Worn::Memory)]);
    }

    #[test]
    fn an_instance_that_is_large_from_the_first_is_left_alone() {
        assert_eq!(worn(&limits(0, 8), &[9, 9, 200]), [None; 3]);
    }

    #[test]
    fn a_sign_says_what_was_set_last() {
        let sign = Sign::default();
        for worn in [None, Some(Worn::Calls), Some(Worn::Memory), None] {
            sign.set(worn);
            assert_eq!(sign.get(), worn);
        }
    }
}
