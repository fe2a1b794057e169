//! The loop of a lane: one item after the other, and what happens between them.
//!
//! Holds: the order of things, what a failure leads to, and the last calls. Refuses to know what a failure means (see
//! `attempt.rs`), how an instance comes to be (see `instance.rs`), and what becomes of what is given on (see `settle.rs`).

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use tokio::sync::mpsc;
use walgate_core::batch::Batch;
use walgate_core::minimize::KnownTable;
use walgate_core::relation::ProjectedRelation;
use walgate_core::{Cursor, Lsn};
use walgate_plugin::{OnFailure, Receipt, Staged};

use super::accepted::Accepted;
use super::attempt::{Attempts, Judgement, Trouble};
use super::flush::merge;
use super::settle::{Given, Unsettled};
use super::swap::{Fallback, Swap};
use super::{Channels, Lane, LaneEvent, Settled, Stop, Todo, own_position, place};
use crate::halt::{Halt, HaltClass};
use crate::telemetry::events;

/// A lane at work.
pub(super) struct Work {
    pub(super) lane: Lane,
    pub(super) channels: Channels,
    /// The shapes the instance knows, or has to be told before its next call.
    pub(super) told: BTreeMap<u32, ProjectedRelation>,
    /// An instance is there and knows everything in `told` and in `accepted`.
    pub(super) is_open: bool,
    pub(super) accepted: Accepted,
    pub(super) unsettled: VecDeque<Unsettled>,
    /// What is stored with what is given on next.
    pub(super) learned: Vec<KnownTable>,
    pub(super) seq: u64,
    /// Counts refusals: what was given on before one is void behind it.
    pub(super) round: u64,
    /// Each batch is flushed and settled before the next: something in them cannot be taken, and it has to be found.
    pub(super) one_by_one: bool,
    /// Letters that were tried in this process, by the attempts that were known of each: one may be queued twice.
    pub(super) tried: BTreeMap<i64, u32>,
    pub(super) settled: mpsc::UnboundedReceiver<Settled>,
    pub(super) settled_sender: mpsc::UnboundedSender<Settled>,
    pub(super) told_kept: Cell<usize>,
    /// What a sink that keeps its own position said it has, or was given since.
    pub(super) last_own: Option<Cursor>,
    /// The furthest place that its sink can know of.
    pub(super) handed: (Lsn, u32),
    /// The generation before, while the one at work is on probation.
    pub(super) fallback: Option<Fallback>,
}

/// What came of a batch.
pub(super) enum Outcome {
    /// Taken; the batch comes back when nothing needs it any more.
    Taken(Option<Batch>),
    /// Its content cannot be taken.
    Poison(Batch, Trouble),
}

/// What the lane does next.
enum Step {
    Todo(Todo),
    Settled(Settled),
    Swap(Swap),
    Flush,
    End,
}

impl Work {
    pub(super) fn new(lane: Lane, mut channels: Channels) -> Self {
        let (settled_sender, settled) = mpsc::unbounded_channel();
        let last_own = lane.answered;
        let fallback = channels.back.take().map(|back| Fallback::new(back, channels.probation));
        if fallback.is_some() {
            lane.board.on_probation(&lane.name, channels.probation.window);
        }
        // Another process may have handed it what this one has not yet read.
        let handed = place(Cursor::at(lane.source_end));
        Self {
            lane,
            channels,
            told: BTreeMap::new(),
            // The first open was made at the start of the pipeline.
            is_open: true,
            accepted: Accepted::default(),
            unsettled: VecDeque::new(),
            learned: Vec::new(),
            seq: 0,
            round: 0,
            one_by_one: false,
            tried: BTreeMap::new(),
            settled,
            settled_sender,
            told_kept: Cell::new(0),
            last_own,
            handed,
            fallback,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Halt> {
        self.lane.board.plugin_state(&self.lane.name, "running", None);
        let mut too_slow = self.channels.too_slow.clone();
        loop {
            let stepped = tokio::select! {
                biased;
                // A flow that has ended waits for nobody.
                Ok(_) = too_slow.wait_for(|too_slow| *too_slow) => Err(self.too_slow()),
                stepped = self.step() => stepped,
            };
            match stepped {
                Ok(true) => {}
                Ok(false) => break,
                Err(Stop::Abandoned) => return Ok(()),
                Err(Stop::Plugin { class, detail }) => return self.fail(class, detail),
                Err(Stop::Trial { class, detail }) => return Err(Halt::of_plugin(class, &self.lane.name, detail)),
            }
        }
        match self.close().await {
            Ok(()) | Err(Stop::Abandoned) => Ok(()),
            Err(Stop::Plugin { class, detail } | Stop::Trial { class, detail }) => self.fail(class, detail),
        }
    }

    fn too_slow(&self) -> Stop {
        Stop::Plugin {
            class: HaltClass::SinkTooSlow,
            detail: "it took nothing for delivery.max_stalled_ms while reading waited for it; nothing is lost: mend what it \
                     writes to, then start walgate again"
                .to_owned(),
        }
    }

    /// Does one thing. False when nothing more comes.
    async fn step(&mut self) -> Result<bool, Stop> {
        match self.next().await {
            Step::End => return Ok(false),
            Step::Flush => self.flush_accepted().await?,
            Step::Swap(swap) => self.swap(swap).await?,
            Step::Settled(settled) => self.on_settled(settled).await?,
            Step::Todo(Todo::Redrive(letters)) => self.redrive(letters).await?,
            Step::Todo(todo) => {
                let is_batch = matches!(todo, Todo::Batch(_));
                let batch = self.work(todo).await?;
                // The flow may be gone already when the pipeline drains.
                let _ = self.channels.events.send(LaneEvent::Done { lane: self.lane.index, batch });
                if self.accepted.is_due(&self.lane.policy.flush) {
                    self.flush_accepted().await?;
                }
                if is_batch {
                    self.recycle().await?;
                }
            }
        }
        Ok(true)
    }

    async fn next(&mut self) -> Step {
        let due = self.accepted.due(&self.lane.policy.flush);
        let flush_due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(settled) = self.settled.recv(), if !self.unsettled.is_empty() => Step::Settled(settled),
            Some(swap) = self.channels.swaps.recv() => Step::Swap(swap),
            () = flush_due => Step::Flush,
            todo = self.channels.todo.recv() => todo.map_or(Step::End, Step::Todo),
        }
    }

    async fn work(&mut self, todo: Todo) -> Result<Option<Batch>, Stop> {
        match todo {
            Todo::Relation { current, previous } => {
                self.tell(&current, previous.as_ref()).await?;
                if self.told.contains_key(&current.id) {
                    events::schema_changed(&self.lane.name, &format!("{}.{}", current.namespace, current.name));
                }
                self.told.insert(current.id, current);
                Ok(None)
            }
            Todo::Learned(table) => {
                self.learned.push(table);
                Ok(None)
            }
            Todo::Batch(batch) => self.take(batch).await,
            Todo::Covered(cursor) => {
                if self.accepted.is_empty() {
                    self.give(Given { cursor, ..Given::default() }).await?;
                } else {
                    self.accepted.covered = Some(cursor);
                }
                Ok(None)
            }
            Todo::Refused(halt) => Err(Stop::Plugin { class: halt.class, detail: halt.detail }),
            // Not from the flow.
            Todo::Redrive(_) => Ok(None),
        }
    }

    async fn on_settled(&mut self, settled: Settled) -> Result<(), Stop> {
        match settled {
            Settled::Durable(seq) => {
                self.is_durable(seq);
                Ok(())
            }
            Settled::Refused { code, detail } => {
                self.round += 1;
                self.redo(Trouble::Rows { code, detail }).await
            }
            Settled::Failed { class, detail } => Err(Stop::Plugin { class, detail }),
        }
    }

    /// Delivers a batch until it is taken, its poison is in the dead letters, or the policy stops the lane.
    pub(super) async fn take(&mut self, batch: Batch) -> Result<Option<Batch>, Stop> {
        let (batch, trouble) = match self.attempt(batch, Attempts::new(&self.lane.policy.retry)).await? {
            Outcome::Taken(batch) => return Ok(batch),
            Outcome::Poison(batch, trouble) => (batch, trouble),
        };
        if self.accepted.is_empty() {
            self.bisect(batch, trouble).await.map(Some)
        } else {
            // The poison may be in what was accepted before.
            self.one_by_one(vec![batch]).await?;
            Ok(None)
        }
    }

    /// Tries to deliver a batch as it is.
    pub(super) async fn attempt(&mut self, mut batch: Batch, mut attempts: Attempts) -> Result<Outcome, Stop> {
        let own = own_position(&batch);
        let first_attempt = batch.attempt;
        loop {
            // First: what is heard there may end the instance.
            self.settle_for(batch.transactions.len() as u64).await?;
            let mut opening = false;
            let trouble = match self.ready().await? {
                // A sink that keeps its own position may have stored the batch before it ended.
                Ok(Some(position))
                    if !self.lane.policy.effects && own.is_some_and(|own| place(position) >= place(own)) =>
                {
                    let given = Given { cursor: batch.reaches, own, ..Given::default() };
                    self.give(given).await?;
                    self.lane.board.recovered(&self.lane.name);
                    return Ok(Outcome::Taken(Some(batch)));
                }
                Ok(_) => {
                    batch.attempt = first_attempt + attempts.made();
                    self.handed = self.handed.max(place(own.unwrap_or(batch.reaches)));
                    walgate_failpoint::hit("deliver.before_call");
                    let delivery = self.lane.worker.deliver(batch).await;
                    walgate_failpoint::hit("deliver.after_call");
                    batch = delivery.batch;
                    match delivery.outcome {
                        Ok(receipt) => match self.taken(batch, receipt, delivery.staged).await? {
                            Ok(back) => return Ok(Outcome::Taken(back)),
                            Err((back, trouble)) => {
                                batch = back;
                                trouble
                            }
                        },
                        Err(error) => Trouble::Call(error),
                    }
                }
                Err(error) => {
                    opening = self.accepted.is_empty();
                    Trouble::Call(error)
                }
            };
            if let Some(trouble) = self.after(&trouble, &mut attempts).await? {
                if opening {
                    // Nothing was delivered that could be to blame.
                    return Err(stop_for(&trouble));
                }
                batch.attempt = first_attempt;
                return Ok(Outcome::Poison(batch, trouble));
            }
        }
    }

    /// The plugin took a batch: it is given on, or kept until a flush. The trouble is one of making it durable.
    async fn taken(
        &mut self,
        batch: Batch,
        receipt: Receipt,
        mut staged: Staged,
    ) -> Result<Result<Option<Batch>, (Batch, Trouble)>, Stop> {
        let (rows, reaches) = (batch.rows, batch.reaches);
        let mut letters = self.letters_of(&batch, &receipt.rejected);
        if !receipt.durable {
            if !self.one_by_one {
                self.accepted.push(batch, staged, letters);
                self.tell_kept(None);
                self.delivered(rows, reaches);
                return Ok(Ok(None));
            }
            self.lay_aside(&mut letters).await?;
            match self.flush().await {
                Ok(more) => merge(&mut staged, more),
                Err(error) => {
                    // The instance holds what the repeated call would count on top of.
                    self.is_open = false;
                    return Ok(Err((batch, Trouble::Call(error))));
                }
            }
        } else if !self.accepted.is_empty() {
            // Durable means this one and all before it.
            let mut before = std::mem::take(&mut self.accepted);
            before.add(staged);
            let mut all = before.take_letters();
            all.append(letters);
            let given = Given {
                cursor: reaches,
                own: own_position(&batch),
                staged: std::mem::take(&mut before.staged),
                letters: all,
                batches: before.batches.drain(..).chain([batch]).collect(),
                waits: false,
            };
            self.give_back(given).await?;
            self.delivered(rows, reaches);
            return Ok(Ok(None));
        }
        let kept = self.one_by_one && self.lane.policy.applies;
        let copy = kept.then(|| batch.clone());
        let own = own_position(&batch);
        let taken_letters = std::mem::take(&mut letters);
        let (seq, mut back) = self
            .give(Given { cursor: reaches, own, staged, letters: taken_letters, batches: vec![batch], waits: false })
            .await?;
        if let Some(copy) = copy
            && let Err(trouble) = self.settle(seq).await?
        {
            self.forget_unsettled();
            self.is_open = false;
            return Ok(Err((copy, trouble)));
        }
        self.delivered(rows, reaches);
        Ok(Ok(back.pop()))
    }

    /// What an operation does after a failure: waits and goes on, answers the trouble for poison, or stops.
    pub(super) async fn after(&mut self, trouble: &Trouble, attempts: &mut Attempts) -> Result<Option<Trouble>, Stop> {
        let judgement = attempts.judge(trouble, self.lane.policy.on_failure);
        let is_final = !matches!(judgement, Judgement::Again(_));
        if let Trouble::Call(error) = trouble
            && error.ends_instance()
        {
            self.is_open = false;
            events::instance_ended(&self.lane.name);
        }
        if self.is_last_straw(trouble, is_final) {
            self.roll_back(trouble.halt_class(), trouble.to_string(), attempts)?;
            return Ok(None);
        }
        let (pause, error) = match (judgement, trouble) {
            (Judgement::Stop(stop), _) => return Err(stop),
            (Judgement::Again(pause), Trouble::Call(error)) => (pause, error),
            (Judgement::Poison | Judgement::Again(_), _) => return Ok(Some(trouble_again(trouble))),
        };
        let name = self.lane.name.clone();
        events::delivery_retried(&name, error.code(), attempts.made(), &error.to_string());
        self.lane.board.plugin_state(&name, "retrying", Some(error.to_string()));
        self.lane.board.plugin(&name, |plugin| {
            plugin.retries += 1;
            plugin.ended_instances += u64::from(error.ends_instance());
            plugin.attempt = attempts.made();
            plugin.last_error_code = Some(error.code().to_owned());
            plugin.next_attempt_ms = Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        });
        let swap = tokio::select! {
            () = tokio::time::sleep(pause) => return Ok(None),
            // What cannot be delivered may be what the next generation is for.
            Some(swap) = self.channels.swaps.recv() => swap,
            _ = self.channels.abandon.wait_for(|abandon| *abandon) => return Err(Stop::Abandoned),
        };
        *attempts = Attempts::new(&swap.next.policy.retry);
        // A swap flushes, and a flush may come here.
        Box::pin(self.swap(swap)).await?;
        Ok(None)
    }

    fn delivered(&mut self, rows: usize, reaches: Cursor) {
        self.end_probation();
        let name = &self.lane.name;
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        events::delivered(name, rows, reaches.end);
        self.lane.board.write(|status| {
            let Some(plugin) = status.plugins.get_mut(name) else { return };
            plugin.rows += rows;
            plugin.batches += 1;
            if plugin.state != "running" {
                "running".clone_into(&mut plugin.state);
                (plugin.cause, plugin.next_attempt_ms, plugin.attempt) = (None, None, 0);
            }
        });
    }

    fn fail(self, class: HaltClass, detail: String) -> Result<(), Halt> {
        let halt = Halt::of_plugin(class, &self.lane.name, detail);
        self.lane.board.plugin_state(&self.lane.name, "parked", Some(format!("{class}: {}", halt.detail)));
        self.lane.board.plugin(&self.lane.name, |status| (status.attempt, status.next_attempt_ms) = (0, None));
        let turns_back = self.is_on_probation() && self.fallback.as_ref().is_some_and(Fallback::is_by_turn);
        if turns_back || self.lane.policy.on_failure != OnFailure::Park {
            return Err(halt);
        }
        events::parked(&self.lane.name, class, &halt.detail);
        let _ = self.channels.events.send(LaneEvent::Parked { lane: self.lane.index });
        Ok(())
    }

    /// The last calls: everything accepted becomes durable, what was given on is waited for, and the plugin may tidy up.
    async fn close(&mut self) -> Result<(), Stop> {
        self.flush_accepted().await?;
        while !self.unsettled.is_empty() {
            let settled = tokio::select! {
                settled = self.settled.recv() => settled.ok_or(Stop::Abandoned)?,
                _ = self.channels.abandon.wait_for(|abandon| *abandon) => return Err(Stop::Abandoned),
            };
            self.on_settled(settled).await?;
        }
        if self.is_open {
            let flushed = match self.lane.worker.flush().await {
                Ok(staged) if staged.is_empty() => Ok(()),
                Ok(staged) => {
                    let cursor = self.lane.reached;
                    let (seq, _) = self.give(Given { cursor, staged, ..Given::default() }).await?;
                    self.settle(seq).await?.map_err(|trouble| stop_for(&trouble))?;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            for (call, outcome) in [("flush", flushed), ("close", self.lane.worker.close().await)] {
                if let Err(error) = outcome {
                    let name = &self.lane.name;
                    tracing::warn!(plugin = name, call, "a last call failed, which changes nothing: {error}");
                }
            }
        }
        self.lane.board.plugin_state(&self.lane.name, "stopped", None);
        Ok(())
    }
}

/// The same trouble by value; a call's error is small.
fn trouble_again(trouble: &Trouble) -> Trouble {
    match trouble {
        Trouble::Call(error) => Trouble::Call(error.clone()),
        Trouble::Rows { code, detail } => Trouble::Rows { code: code.clone(), detail: detail.clone() },
    }
}

/// For trouble that no dead letter can hold.
pub(super) fn stop_for(trouble: &Trouble) -> Stop {
    match trouble {
        Trouble::Call(error) => Stop::Plugin { class: HaltClass::PluginFailed, detail: error.to_string() },
        Trouble::Rows { detail, .. } => Stop::Plugin { class: HaltClass::RowsRefused, detail: detail.clone() },
    }
}

/// Where a piece lies: the commit of its first transaction, the end of its last, and the place of its first change in the
/// source transaction.
pub(super) fn whereabouts(piece: &Batch) -> (Lsn, Lsn, u32) {
    let Some(first) = piece.transactions.first() else { return (Lsn::ZERO, piece.reaches.end, 0) };
    let rows = piece.groups.iter().filter_map(|group| group.ordinals.first().copied());
    let messages = piece.messages.iter().map(|message| message.ordinal);
    let ordinal = rows.chain(messages).min().unwrap_or(first.first_ordinal);
    let end = piece.transactions.last().map_or(Lsn::ZERO, |last| last.end);
    (first.commit, end, first.source_ordinal + ordinal.saturating_sub(first.first_ordinal))
}
