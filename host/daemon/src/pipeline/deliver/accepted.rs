//! What an instance has taken and not yet made durable: kept until a flush, because an instance that ends takes it along.
//!
//! Holds: the batches, what they staged, and when a flush is due: by count, time, bytes or log. Refuses to call anybody.

use std::time::Duration;

use tokio::time::Instant;
use walgate_core::batch::Batch;
use walgate_core::{Cursor, Lsn};
use walgate_plugin::{Flush, Staged};

use super::{Letters, own_position};

/// In the order of delivery. Empties only by a flush, or when it is delivered again.
#[derive(Default)]
pub(super) struct Accepted {
    pub(super) batches: Vec<Batch>,
    pub(super) staged: Staged,
    /// What was rejected of each batch.
    letters: Vec<Letters>,
    /// Nothing of the plugin's lies between the last batch and here.
    pub(super) covered: Option<Cursor>,
    since: Option<Instant>,
    transactions: u64,
    bytes: usize,
    first: Lsn,
}

impl Accepted {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn push(&mut self, batch: Batch, staged: Staged, letters: Letters) {
        if self.batches.is_empty() {
            self.since = Some(Instant::now());
            self.first = batch.transactions.first().map_or(batch.reaches.end, |first| first.commit);
        }
        self.transactions += batch.transactions.len() as u64;
        self.bytes += batch.bytes;
        self.covered = None;
        self.batches.push(batch);
        self.letters.push(letters);
        self.add(staged);
    }

    /// What a delivery of something that is in here, or comes right behind, staged.
    pub(super) fn add(&mut self, mut staged: Staged) {
        self.staged.state.append(&mut staged.state);
        self.staged.outputs.append(&mut staged.outputs);
        self.staged.rows.append(&mut staged.rows);
    }

    /// What was rejected of the batch at this index when it was delivered again. Of one that was not, because a sink has it
    /// already, what was rejected then stays.
    pub(super) fn reject_again(&mut self, at: usize, letters: Letters) {
        if let Some(before) = self.letters.get_mut(at) {
            *before = letters;
        }
    }

    /// The instance is gone and what it staged with it; the batches stay, and what was rejected of them.
    pub(super) fn lose_staged(&mut self) {
        self.staged = Staged::default();
    }

    /// Takes out all that was rejected.
    pub(super) fn take_letters(&mut self) -> Letters {
        let mut all = Letters::default();
        self.letters.iter_mut().for_each(|letters| all.append(std::mem::take(letters)));
        all
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// When a flush is due for the time alone.
    pub(super) fn due(&self, policy: &Flush) -> Option<Instant> {
        self.since.map(|since| since + policy.max_delay)
    }

    /// Whether one of the bounds is reached.
    pub(super) fn is_due(&self, policy: &Flush) -> bool {
        let reached = self.batches.last().map_or(self.first, |last| last.reaches.end);
        !self.is_empty()
            && (self.transactions >= policy.max_transactions
                || self.bytes >= policy.max_bytes
                || reached.bytes_since(self.first) >= policy.max_wal_bytes
                || self.since.is_some_and(|since| since.elapsed() >= policy.max_delay.max(Duration::from_millis(1))))
    }

    /// Where a flush leads to: the cursor, and the position a sink of its own must answer then.
    pub(super) fn reaches(&self) -> Option<(Cursor, Option<Cursor>)> {
        let last = self.batches.last()?;
        Some((self.covered.unwrap_or(last.reaches), own_position(last)))
    }
}
