//! Emptied group builders, kept so that the next batch need not allocate.
//!
//! Holds: a pool with a bound in bytes, oldest out first, so that tables which are gone or seldom written do not hold
//! memory. Refuses to know what is in a group (see [`super::group`]).

use std::collections::VecDeque;

use crate::batch::Operation;

use super::group::GroupBuilder;

/// Builders kept, whatever their size. A batch of 50 tables with three operations needs 150, and two batches can be on
/// their way while one is built; finding one walks the pool, so it must not be long.
const MAX_BUILDERS: usize = 512;

pub(super) struct Spares {
    free: VecDeque<GroupBuilder>,
    bytes: usize,
    max_bytes: usize,
}

impl Spares {
    /// A pool that holds at most `max_bytes` of buffers.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { free: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// An empty builder of that projection and operation.
    pub(super) fn take(&mut self, projection: usize, operation: Operation) -> Option<GroupBuilder> {
        // The newest fits best: its buffers have the size of the last batch, and they are still in the cache.
        let at =
            self.free.iter().rposition(|group| group.projection() == projection && group.operation() == operation)?;
        let group = self.free.remove(at)?;
        self.bytes = self.bytes.saturating_sub(group.capacity_bytes());
        Some(group)
    }

    /// Keeps an empty builder.
    pub(super) fn put(&mut self, group: GroupBuilder) {
        self.bytes = self.bytes.saturating_add(group.capacity_bytes());
        self.free.push_back(group);
        while self.bytes > self.max_bytes || self.free.len() > MAX_BUILDERS {
            let Some(oldest) = self.free.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.capacity_bytes());
        }
    }

    /// Drops the builders of a projection whose shape is about to change.
    pub(super) fn forget(&mut self, projection: usize) {
        self.free.retain(|group| group.projection() != projection);
        self.bytes = self.free.iter().map(GroupBuilder::capacity_bytes).sum();
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
