//! Making durable what was only accepted.
//!
//! Holds: the flush, and what is laid aside before it. Refuses to know when one is due (see `accepted.rs`).

use walgate_plugin::{CallError, Mode, Staged};

use super::attempt::{Attempts, Trouble};
use super::settle::Given;
use super::work::{Work, stop_for};
use super::{Letters, Stop};

impl Work {
    /// Gives on, and hands buffers that are free to the flow.
    pub(super) async fn give_back(&mut self, given: Given) -> Result<(), Stop> {
        let (_, back) = self.give(given).await?;
        for batch in back {
            self.tell_kept(Some(batch));
        }
        Ok(())
    }

    /// Asks the plugin to make durable what it accepted.
    pub(super) async fn flush(&mut self) -> Result<Staged, CallError> {
        walgate_failpoint::hit("deliver.before_flush");
        self.lane.worker.flush().await
    }

    /// What was rejected, laid aside before a flush: a sink that keeps its own position is not given it again once the flush
    /// has moved that. Where the host commits the effects itself, letters commit with them instead.
    pub(super) async fn lay_aside(&mut self, letters: &mut Letters) -> Result<(), Stop> {
        let outside = matches!(self.lane.policy.mode, Mode::SinkOwned | Mode::HostCheckpointed);
        if !outside || letters.is_empty() {
            return Ok(());
        }
        let (cursor, letters) = (self.lane.reached, std::mem::take(letters));
        let (seq, _) = self.give(Given { cursor, letters, waits: true, ..Given::default() }).await?;
        self.settle(seq).await?.map_err(|trouble| stop_for(&trouble))
    }

    /// Makes everything accepted durable, on as many instances as the policy allows.
    pub(super) async fn flush_accepted(&mut self) -> Result<(), Stop> {
        let mut attempts = Attempts::new(&self.lane.policy.retry);
        while !self.accepted.is_empty() {
            // First: what is heard there may take along what was accepted.
            self.settle_for(self.accepted.transactions()).await?;
            let error = match self.ready().await? {
                Ok(_) => match self.flush_all().await? {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        self.is_open = false;
                        error
                    }
                },
                Err(error) => error,
            };
            if self.after(&Trouble::Call(error), &mut attempts).await?.is_some() {
                return self.one_by_one(Vec::new()).await;
            }
        }
        Ok(())
    }

    /// One attempt to flush all that was accepted.
    pub(super) async fn flush_all(&mut self) -> Result<Result<(), CallError>, Stop> {
        // After a failure they come anew, from the batches that are delivered once more.
        let mut letters = self.accepted.take_letters();
        self.lay_aside(&mut letters).await?;
        let more = match self.flush().await {
            Ok(more) => more,
            Err(error) => return Ok(Err(error)),
        };
        let mut accepted = std::mem::take(&mut self.accepted);
        let Some((cursor, own)) = accepted.reaches() else { return Ok(Ok(())) };
        let mut staged = std::mem::take(&mut accepted.staged);
        merge(&mut staged, more);
        let batches = std::mem::take(&mut accepted.batches);
        self.give_back(Given { cursor, own, staged, letters, batches, waits: false }).await.map(Ok)
    }
}

/// Adds what a flush staged.
pub(super) fn merge(staged: &mut Staged, mut more: Staged) {
    staged.state.append(&mut more.state);
    staged.outputs.append(&mut more.outputs);
    staged.rows.append(&mut more.rows);
}
