//! One plugin's delivery: its queue, its instance, its retries, its failure policy.
//!
//! Holds: what goes into a lane and what comes out. Gives a [`Delivered`] only on the plugin's `durable`. Never knows: the
//! socket, files, SQL.
//! Invariant: items leave in the order they came; one that failed is repeated with the same bytes and the same id, or
//! goes to the dead letters by policy, or the lane ends.
//! Read next: `work.rs` (the loop), `attempt.rs` (what a failure means), `bisect.rs` (poison), `settle.rs` (giving on),
//! then [`super::apply`] and [`super::checkpoint`].

mod accepted;
mod attempt;
mod bisect;
mod flush;
mod instance;
mod recycle;
mod redrive;
mod settle;
mod swap;
mod work;

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use walgate_core::batch::Batch;
use walgate_core::minimize::KnownTable;
use walgate_core::relation::ProjectedRelation;
use walgate_core::rows::RowCall;
use walgate_core::{Cursor, Lsn};
use walgate_plugin::{
    CallError, CheckpointEvery, Disposition, Flush, Mode, OnFailure, OpenContext, Retry, Staged, Worker,
};
use walgate_store::{DeadLetter, NewDeadLetter};

use super::witness::Witness;
use crate::halt::{Halt, HaltClass};
use crate::status::Board;
use attempt::Attempts;
pub(crate) use swap::{Back, Generation, Probation, RolledBack, Swap};

/// What waits in a lane's queue.
pub(crate) enum Todo {
    /// A relation in a new shape.
    Relation { current: ProjectedRelation, previous: Option<ProjectedRelation> },
    /// A table met for the first time under a `*` grant: to be stored with what is delivered next.
    Learned(KnownTable),
    /// Changes to deliver.
    Batch(Batch),
    /// Nothing of this plugin's up to here.
    Covered(Cursor),
    /// Its grant does not fit what the source sends: the lane ends with this.
    Refused(Halt),
    /// Dead letters to try once more, oldest first. Comes from outside the stream and is not counted by the flow.
    Redrive(Vec<(DeadLetter, Vec<u8>)>),
}

/// What a lane tells the flow.
pub(crate) enum LaneEvent {
    /// One item is done; a batch that nothing needs any more gives its buffers back.
    Done { lane: usize, batch: Option<Batch> },
    /// The bytes of batches that are kept until they are durable; one of them may give its buffers back.
    Kept { lane: usize, bytes: usize, batch: Option<Batch> },
    /// The plugin is parked: nothing more is wanted for it.
    Parked { lane: usize },
}

/// A plugin's work that survives a power cut once what it staged is committed. Made only in `settle.rs`.
pub(crate) struct Delivered {
    lane: usize,
    seq: u64,
    round: u64,
    /// The generation that did the work.
    generation: u64,
    cursor: Cursor,
    staged: Staged,
    /// What a sink that keeps its own position must answer from now on, if a batch moved it.
    own: Option<Cursor>,
    learned: Vec<KnownTable>,
    letters: Letters,
    /// Where to say that it is durable, when the lane waits for that.
    settled: Option<mpsc::UnboundedSender<Settled>>,
    /// The last transaction that ended in it.
    witness: Option<Witness>,
    /// It comes from a batch, not from following an idle stream.
    carries: bool,
    /// The commit should not wait for more: somebody waits for it.
    pub(crate) urgent: bool,
    /// How many calls of rows were taken out and may come back.
    taken_calls: usize,
}

/// What a delivery does to the dead letters.
#[derive(Default)]
pub(crate) struct Letters {
    /// Changes that the plugin will never take.
    pub(crate) new: Vec<NewDeadLetter>,
    /// Letters that were taken after all.
    pub(crate) redriven: Vec<i64>,
    /// Letters that were refused again.
    pub(crate) refused_again: Vec<i64>,
}

impl Letters {
    pub(crate) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.redriven.is_empty() && self.refused_again.is_empty()
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.new.append(&mut other.new);
        self.redriven.append(&mut other.redriven);
        self.refused_again.append(&mut other.refused_again);
    }
}

/// What became of something that a lane gave on.
pub(crate) enum Settled {
    /// Everything up to that number is durable.
    Durable(u64),
    /// The target of rows refuses the first that is not durable; nothing of it and of what follows in its round was applied.
    Refused { code: String, detail: String },
    /// The plugin's target cannot be used.
    Failed { class: HaltClass, detail: String },
}

impl Delivered {
    pub(crate) fn learned(&self) -> &[KnownTable] {
        &self.learned
    }

    pub(crate) fn lane(&self) -> usize {
        self.lane
    }

    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(crate) fn carries(&self) -> bool {
        self.carries
    }

    pub(crate) fn witness(&self) -> Option<Witness> {
        self.witness
    }

    pub(crate) fn own(&self) -> Option<Cursor> {
        self.own
    }

    /// Bytes that wait to be appended to outputs.
    pub(crate) fn staged_bytes(&self) -> usize {
        self.staged.outputs.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Whether it makes new letters.
    pub(crate) fn has_new_letters(&self) -> bool {
        !self.letters.new.is_empty()
    }

    /// Rows that wait to be applied.
    pub(crate) fn rows(&self) -> usize {
        self.staged.rows.iter().flatten().map(|set| set.ordinals.len()).sum()
    }

    pub(crate) fn letters(&self) -> &Letters {
        &self.letters
    }

    pub(crate) fn staged_state(&self) -> &[(String, Option<Vec<u8>>)] {
        &self.staged.state
    }

    /// Takes out the rows, to be applied by whoever takes them.
    pub(crate) fn take_rows(&mut self) -> Vec<RowCall> {
        self.taken_calls = self.staged.rows.len();
        std::mem::take(&mut self.staged.rows)
    }

    /// Puts back what [`Delivered::take_rows`] took, from the front of `calls`.
    pub(crate) fn put_rows(&mut self, calls: &mut impl Iterator<Item = RowCall>) {
        self.staged.rows = calls.take(std::mem::take(&mut self.taken_calls)).collect();
    }

    pub(crate) fn staged_outputs(&self) -> &[(String, Vec<u8>)] {
        &self.staged.outputs
    }

    pub(crate) fn has_nothing_staged(&self) -> bool {
        self.staged.is_empty()
    }

    /// Takes out what was staged, to be made durable by whoever takes it.
    pub(crate) fn take_staged(&mut self) -> Staged {
        std::mem::take(&mut self.staged)
    }

    /// Takes out what it does to the dead letters.
    pub(crate) fn take_letters(&mut self) -> Letters {
        std::mem::take(&mut self.letters)
    }

    /// Takes out what was learned.
    pub(crate) fn take_learned(&mut self) -> Vec<KnownTable> {
        std::mem::take(&mut self.learned)
    }

    /// Its new letters alone, at a position that moves nothing: they have to be durable before something is that passes over
    /// what they hold. Letters that were taken go the other way: they are forgotten once their rows are durable.
    pub(crate) fn letters_first(&mut self, at: Cursor, settled: mpsc::UnboundedSender<Settled>) -> Self {
        Self {
            lane: self.lane,
            seq: self.seq,
            round: self.round,
            generation: self.generation,
            cursor: at,
            staged: Staged::default(),
            own: None,
            learned: Vec::new(),
            letters: Letters { new: std::mem::take(&mut self.letters.new), ..Letters::default() },
            settled: Some(settled),
            witness: None,
            carries: true,
            urgent: true,
            taken_calls: 0,
        }
    }

    /// Tells the lane what became of it.
    pub(crate) fn tell(&self, settled: Settled) {
        if let Some(lane) = &self.settled {
            // A lane that has ended knows why.
            let _ = lane.send(settled);
        }
    }

    /// Tells the lane that all of it is durable. Called once, by the stage that made the last of it so.
    pub(crate) fn tell_durable(&mut self) {
        if let Some(settled) = self.settled.take() {
            // A lane that has ended has nothing to release.
            let _ = settled.send(Settled::Durable(self.seq));
        }
    }
}

/// What the operator decided for a plugin.
#[derive(Clone)]
pub(crate) struct LanePolicy {
    pub(crate) on_failure: OnFailure,
    pub(crate) retry: Retry,
    pub(crate) flush: Flush,
    /// For a host-checkpointed plugin: how much may be delivered before it is checkpointed. None: one batch.
    pub(crate) checkpoint: Option<CheckpointEvery>,
    pub(crate) mode: Mode,
    /// It has targets of rows, so that its work passes through [`super::apply`].
    pub(crate) applies: bool,
    /// It has effects that the host makes durable: they must not be skipped because a sink of its own is further.
    pub(crate) effects: bool,
}

/// What a lane needs to know of its plugin.
pub(crate) struct Lane {
    pub(crate) index: usize,
    pub(crate) name: String,
    /// What its generation calls itself.
    pub(crate) version: String,
    pub(crate) worker: Arc<Worker>,
    pub(crate) policy: LanePolicy,
    /// What `open` is told; its state is kept up to date here, its epoch rises with every open.
    pub(crate) context: OpenContext,
    /// What was given on last.
    pub(crate) reached: Cursor,
    /// What its sink answered at the first open.
    pub(crate) answered: Option<Cursor>,
    /// How far the source had written at the start of the pipeline.
    pub(crate) source_end: Lsn,
    pub(crate) board: Board,
}

/// The channels of a lane.
pub(crate) struct Channels {
    pub(crate) todo: mpsc::UnboundedReceiver<Todo>,
    pub(crate) delivered: mpsc::Sender<Delivered>,
    pub(crate) events: mpsc::UnboundedSender<LaneEvent>,
    /// Set when the pipeline ends without draining: no attempt is begun after that.
    pub(crate) abandon: watch::Receiver<bool>,
    /// Set when reading has waited for this plugin longer than is allowed.
    pub(crate) too_slow: watch::Receiver<bool>,
    /// Generations that are to take over.
    pub(crate) swaps: mpsc::Receiver<Swap>,
    pub(crate) probation: Probation,
    /// Where to go back to from a version that has not proven itself when the pipeline begins.
    pub(crate) back: Option<Back>,
    /// Told of generations that went back by themselves.
    pub(crate) rolled_back: mpsc::UnboundedSender<RolledBack>,
    /// Told when the lane waits for a checkpoint that may be waiting for more.
    pub(crate) hurry: Arc<Notify>,
}

/// Why a lane stops before its queue ended.
enum Stop {
    /// The failure policy decides.
    Plugin { class: HaltClass, detail: String },
    /// On probation, and the pipeline has to turn back.
    Trial { class: HaltClass, detail: String },
    /// The pipeline ends anyway.
    Abandoned,
}

impl Lane {
    /// Opens the instance; answers the sink's own position, if it keeps one.
    async fn open(&mut self) -> Result<Option<Cursor>, CallError> {
        self.open_with(std::iter::empty()).await
    }

    /// The same with writes to its state that are on their way to a commit.
    async fn open_with<'w>(
        &mut self,
        writes: impl Iterator<Item = &'w (String, Option<Vec<u8>>)>,
    ) -> Result<Option<Cursor>, CallError> {
        self.context.epoch += 1;
        let mut context = self.context.clone();
        for (key, value) in writes {
            match value {
                Some(value) => context.state.insert(key.clone(), value.clone()),
                None => context.state.remove(key),
            };
        }
        self.worker.open(context).await
    }

    /// The first open of the process, with the same patience as a delivery. A plugin that cannot be opened at start has
    /// taken nothing, so there is no batch to give up. `once`: others wait for it.
    pub(crate) async fn open_first(&mut self, once: bool) -> Result<Option<Cursor>, Halt> {
        let mut attempts = Attempts::new(&self.policy.retry);
        loop {
            let error = match self.open().await {
                Ok(position) => return Ok(position),
                Err(error) => error,
            };
            attempts.failed();
            let final_word = matches!(&error, CallError::Refused(failure) if failure.disposition != Disposition::Retry);
            if once || final_word || attempts.used_up() {
                let detail = format!("it cannot be opened: {error}; {} attempts were made", attempts.made());
                self.board.plugin_state(&self.name, "parked", Some(detail.clone()));
                return Err(Halt::of_plugin(HaltClass::PluginFailed, &self.name, detail));
            }
            tracing::warn!(
                plugin = self.name,
                code = error.code(),
                attempt = attempts.made(),
                "open failed and is repeated: {error}"
            );
            tokio::time::sleep(attempts.pause(&error)).await;
        }
    }

    /// Works through the queue until its sender is gone, then flushes and closes.
    pub(crate) async fn run(self, channels: Channels) -> Result<(), Halt> {
        work::Work::new(self, channels).run().await
    }
}

/// Where a sink that keeps its own position stands after a batch. The batch may reach further, over transactions that
/// were not for it; those the sink never sees. None for a batch of messages that belong to no transaction.
fn own_position(batch: &Batch) -> Option<Cursor> {
    batch.transactions.last().map(|last| if last.last_part { Cursor::at(last.end) } else { batch.reaches })
}

/// Orders positions of a sink by what they cover: within a transaction, the end of the one before says nothing more.
pub(crate) fn place(cursor: Cursor) -> (Lsn, u32) {
    (if cursor.ordinal > 0 { cursor.commit } else { cursor.end }, cursor.ordinal)
}
