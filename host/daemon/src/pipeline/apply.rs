//! Rows that a plugin staged, written to its target in one transaction with its position.
//!
//! Holds: one plugin's writer, the retries, and what is told to the lane when the target refuses. What waits is written
//! together. Never knows: the stream, wasmtime, SQL. Stands between [`super::deliver`] and [`super::checkpoint`].
//! Invariants: rows, state, output lengths and the cursor commit together in the state database; in another database rows
//! commit with a copy of the cursor, before the checkpoint stores it here. A refusal leaves nothing of what was refused
//! and of what follows it.

use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
use walgate_core::Cursor;
use walgate_core::rows::RowSet;
use walgate_store::{Class, PluginCursor, Retries, RetryPolicy, RowsError, RowsSink, RowsWork, StateWrite};

use super::checkpoint::{LetterRoom, Position};
use super::columns;
use super::deliver::{Delivered, Settled};
use super::outputs::Outputs;
use super::target::Target;
use crate::exit::chain;
use crate::halt::{Halt, HaltClass};
use crate::status::Board;
use crate::telemetry::events;

/// Rows written together at most. A transaction costs the target a flush; beyond this it costs more memory than it saves.
const MAX_ROWS: usize = 100_000;
/// Deliveries written together at most.
const MAX_TOGETHER: usize = 64;

/// The stage, one a plugin that has targets of rows.
pub(crate) struct Apply {
    plugin: String,
    sink: RowsSink,
    /// The rows live in the state database, and with them all that the plugin stages.
    together: bool,
    /// Where the plugin stands in the target.
    reached: Cursor,
    outputs: Outputs,
    retries: RetryPolicy,
    letters: LetterRoom,
    board: Board,
}

/// Why a transaction was not committed.
enum Refusal {
    /// The rows are not for this target.
    Rows { code: String, detail: String },
    /// The target is not for these rows.
    Target { class: HaltClass, detail: String },
    /// The pipeline cannot go on.
    Pipeline(Halt),
}

impl Apply {
    pub(super) fn new(
        target: Target,
        position: &Position,
        retries: RetryPolicy,
        letters: LetterRoom,
        board: Board,
    ) -> Self {
        let outputs = target.outputs.unwrap_or_else(|| Outputs::none(&position.plugin, board.clone()));
        Self {
            plugin: position.plugin.clone(),
            sink: target.sink,
            together: target.together,
            reached: position.cursor,
            outputs,
            retries,
            letters,
            board,
        }
    }

    /// Works until the lane is gone and everything it gave is written.
    pub(crate) async fn run(
        mut self,
        mut from: mpsc::Receiver<Delivered>,
        to: mpsc::Sender<Delivered>,
    ) -> Result<(), Halt> {
        let mut waiting = Vec::with_capacity(MAX_TOGETHER);
        let mut round = 0;
        while from.recv_many(&mut waiting, MAX_TOGETHER).await > 0 {
            // Void since a refusal that the lane had not heard of.
            waiting.retain(|delivered| delivered.round() >= round);
            while !waiting.is_empty() {
                if !self.together && !letters_first(&mut waiting, self.reached, &to).await {
                    return Ok(());
                }
                let together = how_many(&waiting);
                let outcome = match self.write(waiting.get_mut(..together).unwrap_or_default()).await {
                    // Which of them it is shows one by one.
                    Err(Refusal::Rows { .. }) if together > 1 => self.one_by_one(&mut waiting, together, &to).await,
                    Ok(()) => pass_on(waiting.drain(..together), &to).await,
                    Err(refusal) => Err(refusal),
                };
                let Err(refusal) = outcome else { continue };
                let Some(refused) = waiting.first() else { continue };
                round = refused.round() + 1;
                let told = match refusal {
                    Refusal::Rows { code, detail } => Settled::Refused { code, detail },
                    Refusal::Target { class, detail } => Settled::Failed { class, detail },
                    Refusal::Pipeline(halt) => return Err(halt),
                };
                refused.tell(told);
                waiting.clear();
            }
        }
        Ok(())
    }

    async fn one_by_one(
        &mut self,
        waiting: &mut Vec<Delivered>,
        together: usize,
        to: &mpsc::Sender<Delivered>,
    ) -> Result<(), Refusal> {
        for _ in 0..together {
            self.write(waiting.get_mut(..1).unwrap_or_default()).await?;
            pass_on(waiting.drain(..1), to).await?;
        }
        Ok(())
    }

    /// Writes several deliveries as one transaction. What they staged stays with them when it fails.
    async fn write(&mut self, all: &mut [Delivered]) -> Result<(), Refusal> {
        let Some((cursor, generation)) = all.last().map(|last| (last.cursor(), last.generation())) else {
            return Ok(());
        };
        let marks = self.outputs.marks();
        let mut work = RowsWork {
            cursor: PluginCursor { plugin: self.plugin.clone(), cursor, generation },
            moves: cursor > self.reached,
            again: false,
            calls: all.iter_mut().flat_map(Delivered::take_rows).collect(),
            state: Vec::new(),
            outputs: Vec::new(),
            dead_letters: Vec::new(),
            redriven: Vec::new(),
            refused_again: Vec::new(),
        };
        if self.together {
            for one in all.iter_mut() {
                work.state.extend(one.learned().iter().map(|table| columns::write(&self.plugin, table)));
                let state = one.staged_state().iter().cloned();
                let plugin = &self.plugin;
                work.state.extend(state.map(|(key, value)| StateWrite { plugin: plugin.clone(), key, value }));
                let letters = one.letters();
                work.dead_letters.extend(letters.new.iter().cloned());
                work.redriven.extend(&letters.redriven);
                work.refused_again.extend(&letters.refused_again);
            }
            let more: u64 = work.dead_letters.iter().map(|letter| letter.image.len() as u64).sum();
            if more > 0 && !self.letters.has_room(more) {
                give_back(all, work.calls);
                let (class, detail) = (HaltClass::DeadLettersFull, self.letters.full(more));
                return Err(Refusal::Target { class, detail });
            }
            let staged = all.iter().flat_map(|one| one.staged_outputs().iter().cloned()).collect();
            work.outputs = self.outputs.write(staged).await.map_err(Refusal::Pipeline)?;
        } else {
            // The letters themselves are forgotten by the checkpoint, once this is committed.
            work.redriven = all.iter().flat_map(|one| one.letters().redriven.iter().copied()).collect();
            if work.calls.is_empty() && cursor <= self.reached {
                return Ok(());
            }
        }
        let rows: usize = work.calls.iter().flatten().map(|set: &RowSet| set.ordinals.len()).sum();
        let outcome = self.commit(&mut work, rows as u64).await;
        if outcome.is_err() {
            // Back to where each came from: a call is one delivery's, in order.
            give_back(all, work.calls);
            self.outputs.revert(&marks).map_err(Refusal::Pipeline)?;
            return outcome;
        }
        self.reached = cursor;
        for letter in &work.dead_letters {
            events::dead_lettered(&self.plugin, &letter.class, &letter.code, u64::from(letter.rows));
        }
        let kept: u64 = work.dead_letters.iter().map(|letter| letter.image.len() as u64).sum();
        self.letters.bytes.fetch_add(kept, Ordering::Relaxed);
        if self.together && (!work.redriven.is_empty() || !work.refused_again.is_empty() || kept > 0) {
            self.letters.changed.notify_one();
        }
        for one in all.iter_mut().filter(|_| self.together) {
            let (_, _, _) = (one.take_staged(), one.take_learned(), one.take_letters());
        }
        Ok(())
    }

    async fn commit(&mut self, work: &mut RowsWork, rows: u64) -> Result<(), Refusal> {
        let mut retries = Retries::new(self.retries);
        loop {
            walgate_failpoint::hit("apply.before_rows");
            let error = match self.sink.commit(work).await {
                Ok(done) => {
                    walgate_failpoint::hit("apply.committed");
                    if retries.failures() > 0 {
                        self.board.recovered(&self.plugin);
                    }
                    events::rows_applied(&self.plugin, rows, done.missed);
                    return Ok(());
                }
                Err(error) => error,
            };
            if error.class() != Class::Retry {
                return Err(self.refusal(&error));
            }
            self.board.plugin_state(&self.plugin, "retrying", Some(chain(&error)));
            events::delivery_retried(&self.plugin, &error.code(), retries.failures() + 1, &chain(&error));
            if !retries.pause().await {
                return Err(self.refusal(&error));
            }
            work.again = true;
        }
    }

    fn refusal(&self, error: &RowsError) -> Refusal {
        let (class, detail) = (HaltClass::named(error.halt_name()), chain(error));
        if error.refusal() {
            return Refusal::Rows { code: error.code(), detail };
        }
        match class {
            HaltClass::RowsTarget | HaltClass::RowsUnavailable => Refusal::Target { class, detail },
            _ => Refusal::Pipeline(Halt::of_plugin(class, &self.plugin, detail)),
        }
    }
}

/// What a target elsewhere passes over has to be laid aside here before. False when the checkpoint stage is gone.
async fn letters_first(waiting: &mut [Delivered], at: Cursor, to: &mpsc::Sender<Delivered>) -> bool {
    let (settled, mut heard) = mpsc::unbounded_channel();
    let mut sent = 0;
    for delivered in waiting.iter_mut().filter(|delivered| delivered.has_new_letters()) {
        if to.send(delivered.letters_first(at, settled.clone())).await.is_err() {
            return false;
        }
        sent += 1;
    }
    drop(settled);
    for _ in 0..sent {
        if heard.recv().await.is_none() {
            return false;
        }
    }
    true
}

/// How many of those that wait go into the next transaction.
fn how_many(waiting: &[Delivered]) -> usize {
    let mut rows = 0;
    let fits = |delivered: &&Delivered| {
        let before = rows;
        rows += delivered.rows();
        before < MAX_ROWS
    };
    waiting.iter().take_while(fits).count().max(1)
}

async fn pass_on(written: impl Iterator<Item = Delivered>, to: &mpsc::Sender<Delivered>) -> Result<(), Refusal> {
    for mut delivered in written {
        // What else it staged is made durable by the checkpoint, which tells the lane then.
        if delivered.has_nothing_staged() && delivered.letters().is_empty() {
            delivered.tell_durable();
        }
        if to.send(delivered).await.is_err() {
            // The checkpoint stage has halted the pipeline, which says so itself.
            return Ok(());
        }
    }
    Ok(())
}

fn give_back(all: &mut [Delivered], calls: Vec<walgate_core::rows::RowCall>) {
    let mut calls = calls.into_iter();
    for one in all {
        one.put_rows(&mut calls);
    }
}
