//! A fresh instance in the place of one that has served its time.
//!
//! Holds: the exchange between two batches. Refuses to know what wears an instance out: the worker says so. Invariant: what
//! was accepted is durable before, so the fresh one is opened from the same state and is given the next batch.

use super::Stop;
use super::work::Work;
use crate::telemetry::events;

impl Work {
    /// Closes an instance that is worn out. The next call opens another one, with all that an opening after a trap has:
    /// attempts, the shapes it has to know, the check of a position of its own.
    pub(super) async fn recycle(&mut self) -> Result<(), Stop> {
        if !self.is_open || self.lane.worker.worn().is_none() {
            return Ok(());
        }
        self.flush_accepted().await?;
        // A flush that failed has brought a fresh one already.
        let Some(worn) = self.lane.worker.worn().filter(|_| self.is_open) else { return Ok(()) };
        if let Err(error) = self.lane.worker.close().await {
            let name = &self.lane.name;
            tracing::warn!(plugin = name, call = "close", "a last call failed, which changes nothing: {error}");
        }
        self.is_open = false;
        events::recycled(&self.lane.name, worn.name());
        Ok(())
    }
}
