//! One plugin's delivery: its queue, its instance, its retries, its failure policy.
//!
//! Holds: the order of calls of the contract, redelivery to a fresh instance, and the plugin's state as its last
//! delivery left it. Gives a [`Delivered`] only on the plugin's `durable`. Never knows: the socket, files, SQL.
//! Invariant: items leave in the order they came; one that failed is repeated with the same bytes and the same id, or
//! the lane ends.
//! Read next: [`super::checkpoint`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use walgate_core::batch::Batch;
use walgate_core::minimize::KnownTable;
use walgate_core::relation::ProjectedRelation;
use walgate_core::{Cursor, Lsn};
use walgate_plugin::{CallError, Disposition, OnFailure, OpenContext, Receipt, Staged, Verdict, Worker};
use walgate_wire::Backoff;

use crate::exit::Halt;
use crate::status::Board;

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
}

/// What a lane tells the flow.
pub(crate) enum LaneEvent {
    /// One item is done; a batch gives its buffers back.
    Done { lane: usize, batch: Option<Batch> },
    /// The plugin is parked: nothing more is wanted for it.
    Parked { lane: usize },
}

/// A plugin's work that survives a power cut once what it staged is committed. Made only here.
pub(crate) struct Delivered {
    lane: usize,
    cursor: Cursor,
    staged: Staged,
    /// What a sink that keeps its own position must answer from now on, if a batch moved it.
    own: Option<Cursor>,
    learned: Vec<KnownTable>,
}

impl Delivered {
    pub(crate) fn learned(&self) -> &[KnownTable] {
        &self.learned
    }

    pub(crate) fn lane(&self) -> usize {
        self.lane
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(crate) fn own(&self) -> Option<Cursor> {
        self.own
    }

    /// Bytes that wait to be appended to outputs.
    pub(crate) fn staged_bytes(&self) -> usize {
        self.staged.outputs.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    pub(crate) fn into_staged(self) -> Staged {
        self.staged
    }
}

/// What a lane needs to know of its plugin.
pub(crate) struct Lane {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) worker: Arc<Worker>,
    pub(crate) on_failure: OnFailure,
    pub(crate) max_attempts: u32,
    /// What `open` is told; its state is kept up to date here, its epoch rises with every open.
    pub(crate) context: OpenContext,
    /// What was given on last.
    pub(crate) reached: Cursor,
    /// What is stored with what is given on next.
    pub(crate) learned: Vec<KnownTable>,
    pub(crate) board: Board,
}

/// The channels of a lane.
pub(crate) struct Channels {
    pub(crate) todo: mpsc::UnboundedReceiver<Todo>,
    pub(crate) delivered: mpsc::Sender<Delivered>,
    pub(crate) events: mpsc::UnboundedSender<LaneEvent>,
    /// Set when the pipeline ends without draining: no attempt is begun after that.
    pub(crate) abandon: watch::Receiver<bool>,
}

/// Why a lane stops before its queue ended.
enum Stop {
    /// The failure policy decides.
    Plugin { name: String, detail: String },
    /// The pipeline ends anyway.
    Abandoned,
}

/// How much longer a pause is after `retry` than after a trap: about 1, 2, 4, 8 seconds.
const PEER_PATIENCE: u32 = 10;
/// Longest pause between two attempts that a plugin can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

impl Lane {
    /// Opens the instance; answers the sink's own position, if it keeps one.
    pub(crate) async fn open(&mut self) -> Result<Option<Cursor>, CallError> {
        self.context.epoch += 1;
        self.worker.open(self.context.clone()).await
    }

    /// The first open of the process, with the same patience as a delivery. A plugin that cannot be opened at start has
    /// taken nothing, so its failure policy has nothing to park: the start fails.
    pub(crate) async fn open_first(&mut self) -> Result<Option<Cursor>, Halt> {
        let mut attempts = Attempts::new(self.max_attempts);
        loop {
            let error = match self.open().await {
                Ok(position) => return Ok(position),
                Err(error) => error,
            };
            attempts.made += 1;
            let final_word = matches!(&error, CallError::Refused(failure) if failure.disposition != Disposition::Retry);
            if final_word || attempts.made >= attempts.most {
                let detail = format!("it cannot be opened: {error}; {} attempts were made", attempts.made);
                self.board.plugin_state(&self.name, "parked", Some(detail.clone()));
                return Err(Halt::of_plugin("plugin_failed", &self.name, detail));
            }
            tracing::warn!(
                plugin = self.name,
                code = error.code(),
                attempt = attempts.made,
                "open failed and is repeated: {error}"
            );
            tokio::time::sleep(attempts.pause(&error)).await;
        }
    }

    /// Works through the queue until its sender is gone, then flushes and closes.
    pub(crate) async fn run(mut self, mut channels: Channels) -> Result<(), Halt> {
        let mut told: BTreeMap<u32, ProjectedRelation> = BTreeMap::new();
        self.board.plugin_state(&self.name, "running", None);
        while let Some(todo) = channels.todo.recv().await {
            match self.work(todo, &mut told, &mut channels).await {
                Ok(batch) => {
                    // The flow may be gone already when the pipeline drains.
                    let _ = channels.events.send(LaneEvent::Done { lane: self.index, batch });
                }
                Err(Stop::Abandoned) => return Ok(()),
                Err(Stop::Plugin { name, detail }) => return self.fail(name, detail, &channels),
            }
        }
        self.close(&channels).await;
        Ok(())
    }

    async fn work(
        &mut self,
        todo: Todo,
        told: &mut BTreeMap<u32, ProjectedRelation>,
        channels: &mut Channels,
    ) -> Result<Option<Batch>, Stop> {
        match todo {
            Todo::Relation { current, previous } => {
                self.tell(&current, previous.as_ref(), told, channels).await?;
                told.insert(current.id, current);
                Ok(None)
            }
            Todo::Learned(table) => {
                self.learned.push(table);
                Ok(None)
            }
            Todo::Batch(batch) => self.deliver(batch, told, channels).await.map(Some),
            Todo::Covered(cursor) => {
                self.give(cursor, Staged::default(), None, channels).await?;
                Ok(None)
            }
        }
    }

    async fn tell(
        &mut self,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
        told: &BTreeMap<u32, ProjectedRelation>,
        channels: &mut Channels,
    ) -> Result<(), Stop> {
        let mut attempts = Attempts::new(self.max_attempts);
        loop {
            match self.worker.relation_changed(current, previous).await {
                Ok(Verdict::Accept) => {
                    self.board.recovered(&self.name);
                    return Ok(());
                }
                Ok(verdict) => return Err(declined(current, verdict)),
                Err(error) => {
                    let fresh = error.ends_instance();
                    let mut error = Some(error);
                    while let Some(failed) = error.take() {
                        self.after_failure(&failed, &mut attempts, channels).await?;
                        if fresh {
                            error = self.reopen(told).await.err();
                        }
                    }
                }
            }
        }
    }

    async fn deliver(
        &mut self,
        mut batch: Batch,
        told: &BTreeMap<u32, ProjectedRelation>,
        channels: &mut Channels,
    ) -> Result<Batch, Stop> {
        let mut attempts = Attempts::new(self.max_attempts);
        loop {
            batch.attempt = attempts.made + 1;
            let (reaches, rows, own) = (batch.reaches, batch.rows, own_position(&batch));
            let delivery = self.worker.deliver(batch).await;
            batch = delivery.batch;
            // Once a delivery was taken, the instance reads what it staged. When its flush is refused that is dropped here,
            // so the instance has to go as well, or the repeated call would count on top of it.
            let (outcome, taken) = match delivery.outcome {
                Ok(receipt) => (self.settle(receipt, delivery.staged).await?, true),
                Err(error) => (Err(error), false),
            };
            let mut error = match outcome {
                Ok(staged) => {
                    self.keep(&staged);
                    self.give(reaches, staged, own, channels).await?;
                    self.delivered(rows, reaches);
                    return Ok(batch);
                }
                Err(error) => Some(error),
            };
            // A refused `open` leaves no instance either, so that once needed, a reopening is needed until it works.
            let fresh = taken || error.as_ref().is_some_and(CallError::ends_instance);
            while let Some(failed) = error.take() {
                self.after_failure(&failed, &mut attempts, channels).await?;
                if fresh {
                    match self.reopen(told).await {
                        // A sink that keeps its own position may have stored the batch before it ended.
                        Ok(Some(position)) if own.is_some_and(|own| place(position) >= place(own)) => {
                            self.give(reaches, Staged::default(), own, channels).await?;
                            self.delivered(rows, reaches);
                            return Ok(batch);
                        }
                        Ok(_) => {}
                        Err(again) => error = Some(again),
                    }
                }
            }
        }
    }

    /// Turns a receipt into durability: what is only accepted is flushed before anything is told to anybody.
    async fn settle(&mut self, receipt: Receipt, mut staged: Staged) -> Result<Result<Staged, CallError>, Stop> {
        if let Some(first) = receipt.rejected.first() {
            return Err(Stop::Plugin {
                name: "rows_rejected".to_owned(),
                detail: format!(
                    "the plugin rejected {} changes of a batch, the first at ordinal {} with code {}; this version keeps no \
                     dead letters, so nothing was acknowledged",
                    receipt.rejected.len(),
                    first.ordinal,
                    first.code
                ),
            });
        }
        if receipt.durable {
            return Ok(Ok(staged));
        }
        Ok(self.worker.flush().await.map(|more| {
            staged.state.extend(more.state);
            staged.outputs.extend(more.outputs);
            staged
        }))
    }

    /// Counts a failure and waits before the next attempt, or stops.
    async fn after_failure(
        &mut self,
        error: &CallError,
        attempts: &mut Attempts,
        channels: &mut Channels,
    ) -> Result<(), Stop> {
        let name = self.name.clone();
        attempts.made += 1;
        if error.ends_instance() {
            metrics::counter!("walgate_instances_ended_total", "plugin" => name.clone()).increment(1);
        }
        if let CallError::Refused(failure) = error
            && failure.disposition != Disposition::Retry
        {
            let word = if failure.disposition == Disposition::Reject { "batch_rejected" } else { "plugin_halted" };
            return Err(Stop::Plugin { name: word.to_owned(), detail: error.to_string() });
        }
        if attempts.made >= attempts.most {
            let word = if matches!(error, CallError::Refused(_)) { "plugin_refused" } else { "plugin_failed" };
            return Err(Stop::Plugin {
                name: word.to_owned(),
                detail: format!("{error}; {} attempts were made", attempts.made),
            });
        }
        let pause = attempts.pause(error);
        tracing::warn!(
            plugin = name,
            code = error.code(),
            attempt = attempts.made,
            "delivery failed and is repeated: {error}"
        );
        metrics::counter!("walgate_delivery_retries_total", "plugin" => name.clone()).increment(1);
        self.board.plugin_state(&name, "retrying", Some(error.to_string()));
        self.board.plugin(&name, |plugin| {
            plugin.retries += 1;
            plugin.ended_instances += u64::from(error.ends_instance());
            plugin.attempt = attempts.made;
            plugin.next_attempt_ms = Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        });
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            _ = channels.abandon.wait_for(|abandon| *abandon) => Err(Stop::Abandoned),
        }
    }

    /// A fresh instance that knows the relations the ended one was told about.
    async fn reopen(&mut self, told: &BTreeMap<u32, ProjectedRelation>) -> Result<Option<Cursor>, CallError> {
        let position = self.open().await?;
        for relation in told.values() {
            // It accepted this shape before; one that changes its mind is told what it declines when a row of it comes.
            self.worker.relation_changed(relation, None).await?;
        }
        Ok(position)
    }

    /// The plugin's state as the next instance must find it.
    fn keep(&mut self, staged: &Staged) {
        for (key, value) in &staged.state {
            match value {
                Some(value) => self.context.state.insert(key.clone(), value.clone()),
                None => self.context.state.remove(key),
            };
        }
    }

    async fn give(
        &mut self,
        cursor: Cursor,
        staged: Staged,
        own: Option<Cursor>,
        channels: &Channels,
    ) -> Result<(), Stop> {
        self.reached = cursor;
        let learned = std::mem::take(&mut self.learned);
        let delivered = Delivered { lane: self.index, cursor, staged, own, learned };
        // The checkpoint stage ends first only when it has halted the pipeline.
        channels.delivered.send(delivered).await.map_err(|_| Stop::Abandoned)
    }

    fn delivered(&self, rows: usize, reaches: Cursor) {
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        metrics::counter!("walgate_rows_delivered_total", "plugin" => self.name.clone()).increment(rows);
        metrics::counter!("walgate_batches_delivered_total", "plugin" => self.name.clone()).increment(1);
        tracing::debug!(plugin = self.name, rows, to = %reaches.end, "batch delivered");
        self.board.write(|status| {
            let Some(plugin) = status.plugins.get_mut(&self.name) else { return };
            plugin.rows += rows;
            plugin.batches += 1;
            if plugin.state != "running" {
                "running".clone_into(&mut plugin.state);
                (plugin.cause, plugin.next_attempt_ms, plugin.attempt) = (None, None, 0);
            }
        });
    }

    fn fail(self, name: String, detail: String, channels: &Channels) -> Result<(), Halt> {
        let halt = Halt::of_plugin(name, &self.name, detail);
        self.board.plugin_state(&self.name, "parked", Some(halt.detail.clone()));
        if self.on_failure == OnFailure::Halt {
            return Err(halt);
        }
        tracing::error!(plugin = self.name, class = halt.name, "plugin parked, the others go on: {}", halt.detail);
        metrics::gauge!("walgate_parked", "plugin" => self.name.clone()).set(1.0);
        let _ = channels.events.send(LaneEvent::Parked { lane: self.index });
        Ok(())
    }

    /// Everything delivered is given on already: the last calls are the plugin's chance to tidy up.
    async fn close(&mut self, channels: &Channels) {
        let flushed = match self.worker.flush().await {
            Ok(staged) if staged.is_empty() => Ok(()),
            Ok(staged) => {
                let _ = self.give(self.reached, staged, None, channels).await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        for (call, outcome) in [("flush", flushed), ("close", self.worker.close().await)] {
            if let Err(error) = outcome {
                tracing::warn!(plugin = self.name, call, "a last call failed, which changes nothing: {error}");
            }
        }
        self.board.plugin_state(&self.name, "stopped", None);
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

struct Attempts {
    made: u32,
    most: u32,
    backoff: Backoff,
}

impl Attempts {
    fn new(most: u32) -> Self {
        Self { made: 0, most: most.max(1), backoff: Backoff::new() }
    }

    /// A fresh instance is tried soon; a peer that the plugin found away is given time to come back.
    fn pause(&mut self, error: &CallError) -> Duration {
        let pause = self.backoff.next_delay();
        match error {
            CallError::Refused(failure) => {
                let asked = Duration::from_millis(u64::from(failure.retry_after_ms.unwrap_or(0)));
                (pause * PEER_PATIENCE).max(asked).min(MAX_RETRY_AFTER)
            }
            _ => pause,
        }
    }
}

fn declined(relation: &ProjectedRelation, verdict: Verdict) -> Stop {
    let word = if verdict == Verdict::Resync { "resync_needed" } else { "relation_declined" };
    let answer = if verdict == Verdict::Resync {
        "asks for another copy of the table, which this version cannot make"
    } else {
        "declines its new shape"
    };
    Stop::Plugin {
        name: word.to_owned(),
        detail: format!(
            "the plugin {answer}: {:?}.{:?}; no row of that shape was delivered",
            relation.namespace, relation.name
        ),
    }
}
