//! From delivered to durable: outputs are written, then everything moves in one commit.
//!
//! Holds: the cursors of all plugins, the rule of what may be acknowledged, and the bounded retries. Never knows: the
//! socket, the plugins. Invariant: output bytes are safe before the commit that counts them; the acknowledged position
//! is the smallest cursor of the required plugins, and it is stored before it is told.
//! Read next: [`super::ack`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use walgate_core::{Cursor, Lineage, Lsn};
use walgate_store::{
    Checkpoint as Write, Class, Durable, Output, OutputLength, OutputMark, PluginCursor, Retries, RetryPolicy,
    StateWrite, Store,
};

use super::columns;
use super::deliver::Delivered;
use crate::connect::state_halt;
use crate::exit::{Halt, chain};
use crate::status::Board;

/// Deliveries that may be committed together. Whatever has piled up during the last commit goes into the next.
const MAX_TOGETHER: usize = 1_024;
/// Bytes for outputs above which a commit waits for nothing more.
const MAX_STAGED_BYTES: usize = 8 << 20;
/// Commits come at most ten times a second. No plugin waits for them, and each costs the state database, which is often
/// the source itself, as much as some hundred rows cost to decode: a hundred a second tripled the slowest percent of
/// deliveries at a thousand transactions a second. The first one after a quiet time comes at once, and so does one with
/// much to write.
const PACE: Duration = Duration::from_millis(100);
/// Attempts to write an output before the pipeline halts.
const OUTPUT_ATTEMPTS: u32 = 5;
/// How long the wire may take to end a stream it was asked to end.
const HANG_UP: Duration = Duration::from_secs(5);
const OUTPUT_PAUSE: Duration = Duration::from_millis(500);

/// One plugin as the checkpoint sees it.
pub(crate) struct Position {
    pub(crate) plugin: String,
    pub(crate) required: bool,
    pub(crate) generation: u64,
    pub(crate) cursor: Cursor,
    /// What is stored: never moves back. For a sink that keeps its own position it is what the sink has to answer, so
    /// that a quiet time is told from a sink that lost something.
    pub(crate) stored: Cursor,
    pub(crate) sink_owned: bool,
    pub(crate) outputs: BTreeMap<String, Output>,
}

/// The stage.
pub(crate) struct Checkpoint {
    pub(crate) store: Store,
    pub(crate) pipeline: String,
    pub(crate) lineage: Lineage,
    pub(crate) retries: RetryPolicy,
    pub(crate) positions: Vec<Position>,
    pub(crate) acked: Lsn,
    /// Proofs for the ack stage, one a commit.
    pub(crate) durable: mpsc::UnboundedSender<Durable>,
    /// When the state lives on the source's own server: whether the stream is connected, and how to end it.
    pub(crate) shared: Option<(watch::Receiver<bool>, Arc<Notify>)>,
    pub(crate) board: Board,
}

/// What one commit carries.
#[derive(Default)]
struct Gathered {
    cursors: BTreeMap<usize, Cursor>,
    own: BTreeMap<usize, Cursor>,
    state: Vec<StateWrite>,
    outputs: BTreeMap<(usize, String), Vec<u8>>,
}

impl Checkpoint {
    /// Works until every sender is gone and everything sent is durable. Gives the store back.
    pub(crate) async fn run(mut self, mut delivered: mpsc::Receiver<Delivered>) -> Result<Store, (Store, Halt)> {
        let mut waiting = Vec::with_capacity(MAX_TOGETHER);
        let mut due = Instant::now();
        while delivered.recv_many(&mut waiting, MAX_TOGETHER).await > 0 {
            gather_until(due, &mut waiting, &mut delivered).await;
            let gathered = self.gather(waiting.drain(..));
            if let Err(halt) = self.settle(gathered).await {
                return Err((self.store, halt));
            }
            due = Instant::now() + PACE;
        }
        Ok(self.store)
    }

    fn gather(&self, delivered: impl Iterator<Item = Delivered>) -> Gathered {
        let mut gathered = Gathered::default();
        for one in delivered {
            let lane = one.lane();
            gathered.cursors.insert(lane, one.cursor());
            if let Some(own) = one.own() {
                gathered.own.insert(lane, own);
            }
            let plugin = self.positions.get(lane).map_or("", |position| &position.plugin);
            gathered.state.extend(one.learned().iter().map(|table| columns::write(plugin, table)));
            let staged = one.into_staged();
            for (name, bytes) in staged.outputs {
                gathered.outputs.entry((lane, name)).or_default().extend(bytes);
            }
            let plugin = self.positions.get(lane).map_or("", |position| &position.plugin);
            gathered.state.extend(staged.state.into_iter().map(|(key, value)| StateWrite {
                plugin: plugin.to_owned(),
                key,
                value,
            }));
        }
        gathered
    }

    async fn settle(&mut self, gathered: Gathered) -> Result<(), Halt> {
        let mut lengths = Vec::with_capacity(gathered.outputs.len());
        for ((lane, name), bytes) in gathered.outputs {
            let mark = self.write_output(lane, &name, bytes).await?;
            let plugin = self.positions.get(lane).map(|position| position.plugin.clone()).unwrap_or_default();
            lengths.push(OutputLength { plugin, name, mark });
        }
        for (lane, cursor) in &gathered.cursors {
            if let Some(position) = self.positions.get_mut(*lane) {
                position.cursor = *cursor;
                let reached = if position.sink_owned { gathered.own.get(lane) } else { Some(cursor) };
                position.stored = reached.map_or(position.stored, |reached| position.stored.max(*reached));
            }
        }
        self.acked.advance(self.covered_by_all());
        let write = Write {
            acked: self.acked,
            cursors: gathered.cursors.keys().filter_map(|lane| self.positions.get(*lane)).map(cursor_of).collect(),
            state: gathered.state,
            outputs: lengths,
        };
        self.commit(&write).await?;
        self.board.write(|status| {
            for position in gathered.cursors.keys().filter_map(|lane| self.positions.get(*lane)) {
                if let Some(plugin) = status.plugins.get_mut(&position.plugin) {
                    plugin.cursor = position.cursor.end.to_string();
                }
            }
        });
        Ok(())
    }

    /// What every required plugin has; with none required, what every plugin has.
    fn covered_by_all(&self) -> Lsn {
        let any_required = self.positions.iter().any(|position| position.required);
        let holding = self.positions.iter().filter(|position| position.required || !any_required);
        holding.map(|position| position.cursor.end).min().unwrap_or(self.acked)
    }

    async fn commit(&mut self, write: &Write) -> Result<(), Halt> {
        let mut retries = Retries::new(self.retries);
        loop {
            match self.store.commit(&self.pipeline, &self.lineage, write).await {
                Ok(durable) => {
                    metrics::counter!("walgate_checkpoints_total").increment(1);
                    if retries.failures() > 0 {
                        self.board.write(|status| status.state_error = None);
                    }
                    // The ack stage ends after this one.
                    let _ = self.durable.send(durable);
                    return Ok(());
                }
                Err(error) => {
                    let why = chain(&error);
                    self.board
                        .write(|status| status.state_error = Some(format!("a checkpoint cannot be written: {why}")));
                    metrics::counter!("walgate_state_retries_total").increment(1);
                    self.let_the_server_stop(&error).await;
                    retries.after(error).await.map_err(|error| state_halt(&error))?;
                }
            }
        }
    }

    /// A server that stops waits for the stream to confirm everything, which this stage cannot while the state database
    /// on the same server is already closed: each would wait for the other. So the stream is ended, and the time until the
    /// wire has another one, however long the server is away, is one failed attempt.
    async fn let_the_server_stop(&mut self, error: &walgate_store::StoreError) {
        let Some((connected, hang_up)) = self.shared.as_mut().filter(|_| error.is_unavailable()) else { return };
        if *connected.borrow() {
            hang_up.notify_waiters();
        }
        let ended = connected.wait_for(|connected| !*connected);
        if matches!(tokio::time::timeout(HANG_UP, ended).await, Ok(Ok(_))) {
            // The sender is gone when the wire halted, which the pipeline learns by itself.
            let _ = connected.wait_for(|connected| *connected).await;
        }
    }

    /// Appends and syncs where blocking is allowed. A write that fails leaves the file as it was.
    async fn write_output(&mut self, lane: usize, name: &str, bytes: Vec<u8>) -> Result<OutputMark, Halt> {
        let position = self.positions.get_mut(lane);
        let plugin = position.as_ref().map(|position| position.plugin.clone()).unwrap_or_default();
        let taken = position.and_then(|position| position.outputs.remove(name));
        let Some(mut output) = taken else {
            return Err(Halt::of_plugin("bug", &plugin, format!("output {name:?} has no target; please report this")));
        };
        let mut attempt = 1;
        let bytes = Arc::new(bytes);
        let outcome = loop {
            let bytes = Arc::clone(&bytes);
            let written = tokio::task::spawn_blocking(move || {
                let outcome = output.append(&bytes).and_then(|()| output.sync());
                (output, outcome)
            });
            let Ok((back, outcome)) = written.await else {
                return Err(Halt::of_plugin("bug", &plugin, format!("writing output {name:?} ended unexpectedly")));
            };
            output = back;
            match outcome {
                Err(error) if error.class() == Class::Retry && attempt < OUTPUT_ATTEMPTS => {
                    tracing::warn!(
                        plugin,
                        output = name,
                        attempt,
                        "the output cannot be written and is tried again: {}",
                        chain(&error)
                    );
                    self.board.plugin_state(&plugin, "retrying", Some(chain(&error)));
                    tokio::time::sleep(OUTPUT_PAUSE * attempt).await;
                    attempt += 1;
                }
                outcome => {
                    if attempt > 1 && outcome.is_ok() {
                        self.board.recovered(&plugin);
                    }
                    break outcome;
                }
            }
        };
        if let Some(position) = self.positions.get_mut(lane) {
            position.outputs.insert(name.to_owned(), output);
        }
        outcome
            .map_err(|error| Halt::of_plugin(error.halt_name(), &plugin, format!("output {name:?}: {}", chain(&error))))
    }
}

/// Takes what else is delivered until the next commit is due or enough is gathered.
async fn gather_until(due: Instant, waiting: &mut Vec<Delivered>, delivered: &mut mpsc::Receiver<Delivered>) {
    let staged = |waiting: &[Delivered]| waiting.iter().map(Delivered::staged_bytes).sum::<usize>();
    while Instant::now() < due && waiting.len() < MAX_TOGETHER && staged(waiting) < MAX_STAGED_BYTES {
        let room = MAX_TOGETHER - waiting.len();
        tokio::select! {
            more = delivered.recv_many(waiting, room) => if more == 0 { return },
            () = tokio::time::sleep_until(due) => return,
        }
    }
}

fn cursor_of(position: &Position) -> PluginCursor {
    PluginCursor { plugin: position.plugin.clone(), cursor: position.stored, generation: position.generation }
}
