//! Giving on what a plugin made durable, and hearing when the host made it durable, too.
//!
//! Holds: the one place that makes a [`Delivered`], and what is kept until it is settled. A plugin whose effects are all
//! inside the host's transaction does not wait: the next batch is delivered while the last one commits. One with effects
//! outside waits, so that a crash repeats no more than its policy says. One with targets of rows goes on, and its batches
//! are kept until the target has taken them, because a target may refuse.
//! Read next: [`super::super::apply`], [`super::super::checkpoint`].

use std::collections::VecDeque;

use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::minimize::KnownTable;
use walgate_plugin::{Mode, Staged};

use super::super::witness::Witness;
use super::attempt::Trouble;
use super::work::Work;
use super::{Delivered, LaneEvent, Letters, Settled, Stop};

/// Something given on and not yet known to be durable.
pub(super) struct Unsettled {
    seq: u64,
    transactions: u64,
    /// Kept only where it may be refused.
    pub(super) batch: Option<Batch>,
    state: Vec<(String, Option<Vec<u8>>)>,
    pub(super) learned: Vec<KnownTable>,
}

impl Unsettled {
    pub(super) fn state(&self) -> &[(String, Option<Vec<u8>>)] {
        &self.state
    }
}

/// What is given on at once.
#[derive(Default)]
pub(super) struct Given {
    pub(super) cursor: Cursor,
    pub(super) own: Option<Cursor>,
    pub(super) staged: Staged,
    pub(super) letters: Letters,
    /// The batch it came from. Several that were flushed together are kept under the number of the last.
    pub(super) batches: Vec<Batch>,
    /// It is heard of again whatever the mode: somebody waits for it.
    pub(super) waits: bool,
}

impl Work {
    /// Whether what is given on is heard of again.
    fn settles(&self) -> bool {
        self.lane.policy.applies || self.lane.policy.mode == Mode::HostCheckpointed
    }

    /// Gives on. Answers its number, and the batches that nothing needs any more.
    pub(super) async fn give(&mut self, given: Given) -> Result<(u64, Vec<Batch>), Stop> {
        let Given { cursor, own, staged, letters, mut batches, waits } = given;
        self.lane.reached = cursor;
        self.last_own = own.or(self.last_own);
        self.seq += 1;
        let transactions = batches.iter().map(|batch| batch.transactions.len() as u64).sum();
        let settles = self.settles() || waits;
        let witness = Witness::of(&batches);
        let carries = !batches.is_empty() || !letters.is_empty();
        let learned = std::mem::take(&mut self.learned);
        if settles {
            let kept = self.lane.policy.applies;
            let last = batches.pop();
            for batch in batches.drain(..).filter(|_| kept) {
                let (state, learned) = (Vec::new(), Vec::new());
                let entry = Unsettled { seq: self.seq, transactions: 0, batch: Some(batch), state, learned };
                self.unsettled.push_back(entry);
            }
            let (batch, back) = if kept { (last, None) } else { (None, last) };
            let (state, learned) = (staged.state.clone(), learned.clone());
            self.unsettled.push_back(Unsettled { seq: self.seq, transactions, batch, state, learned });
            batches.extend(back);
        } else {
            // From here on it is committed, or the pipeline ends.
            self.keep(&staged.state);
        }
        let one_by_one = self.lane.policy.mode == Mode::HostCheckpointed && self.lane.policy.checkpoint.is_none();
        let delivered = Delivered {
            lane: self.lane.index,
            seq: self.seq,
            round: self.round,
            generation: self.lane.context.generation,
            cursor,
            staged,
            own,
            learned,
            letters,
            settled: settles.then(|| self.settled_sender.clone()),
            witness,
            carries,
            urgent: waits || one_by_one || self.one_by_one,
            taken_calls: 0,
        };
        walgate_failpoint::hit("deliver.given");
        // The stage behind ends first only when it has halted the pipeline.
        self.channels.delivered.send(delivered).await.map_err(|_| Stop::Abandoned)?;
        self.tell_kept(None);
        Ok((self.seq, batches))
    }

    /// The plugin's state as the next instance must find it.
    fn keep(&mut self, state: &[(String, Option<Vec<u8>>)]) {
        let kept = &mut self.lane.context.state;
        for (key, value) in state {
            match value {
                Some(value) => kept.insert(key.clone(), value.clone()),
                None => kept.remove(key),
            };
        }
    }

    /// Everything up to `seq` is durable.
    pub(super) fn is_durable(&mut self, seq: u64) {
        while let Some(entry) = self.unsettled.pop_front_if(|entry| entry.seq <= seq) {
            self.keep(&entry.state);
            self.tell_kept(entry.batch);
        }
    }

    /// Waits until `seq` is durable. The trouble is the target's: nothing of it was applied.
    pub(super) async fn settle(&mut self, seq: u64) -> Result<Result<(), Trouble>, Stop> {
        while self.unsettled.front().is_some_and(|first| first.seq <= seq) {
            match self.hear().await? {
                Settled::Durable(seq) => self.is_durable(seq),
                Settled::Refused { code, detail } => {
                    self.round += 1;
                    return Ok(Err(Trouble::Rows { code, detail }));
                }
                Settled::Failed { class, detail } => return Err(Stop::Plugin { class, detail }),
            }
        }
        Ok(Ok(()))
    }

    /// Before a call with effects outside: room for that many more transactions that a crash may repeat.
    pub(super) async fn settle_for(&mut self, transactions: u64) -> Result<(), Stop> {
        if self.lane.policy.mode != Mode::HostCheckpointed {
            return Ok(());
        }
        let most = self.lane.policy.checkpoint.map_or(0, |every| every.max_transactions);
        loop {
            let waiting: u64 = self.unsettled.iter().map(|entry| entry.transactions).sum();
            if self.unsettled.is_empty() || waiting + transactions <= most {
                return Ok(());
            }
            self.channels.hurry.notify_one();
            match self.hear().await? {
                Settled::Durable(seq) => self.is_durable(seq),
                Settled::Refused { code, detail } => {
                    self.round += 1;
                    self.redo(Trouble::Rows { code, detail }).await?;
                }
                Settled::Failed { class, detail } => return Err(Stop::Plugin { class, detail }),
            }
        }
    }

    async fn hear(&mut self) -> Result<Settled, Stop> {
        tokio::select! {
            settled = self.settled.recv() => settled.ok_or(Stop::Abandoned),
            _ = self.channels.abandon.wait_for(|abandon| *abandon) => Err(Stop::Abandoned),
        }
    }

    /// Drops what was refused; what was learned with it is stored with what comes next.
    pub(super) fn forget_unsettled(&mut self) {
        for entry in self.take_unsettled() {
            self.learned.extend(entry.learned);
        }
    }

    /// The batches that were given on and refused, in order, with what the last one reaches.
    pub(super) fn take_unsettled(&mut self) -> VecDeque<Unsettled> {
        // What it had is not what it was given any more.
        self.last_own = self.last_own.filter(|_| self.unsettled.is_empty());
        std::mem::take(&mut self.unsettled)
    }

    /// Tells the flow how many bytes are kept, and gives it the buffers of a batch that is not any more.
    pub(super) fn tell_kept(&self, batch: Option<Batch>) {
        let unsettled: usize = self.unsettled.iter().filter_map(|e| e.batch.as_ref()).map(|batch| batch.bytes).sum();
        let bytes = unsettled + self.accepted.bytes();
        if self.lane.policy.applies || batch.is_some() || bytes > 0 || self.told_kept.get() > 0 {
            self.told_kept.set(bytes);
            // The flow may be gone already when the pipeline drains.
            let _ = self.channels.events.send(LaneEvent::Kept { lane: self.lane.index, bytes, batch });
        }
    }
}
