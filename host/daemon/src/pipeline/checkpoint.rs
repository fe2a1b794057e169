//! From delivered to durable: outputs are written, then everything moves in one commit.
//!
//! Holds: the cursors of all plugins, the rule of what may be acknowledged, and the bounded retries. Never knows: the
//! socket, the plugins. Invariant: output bytes are safe before the commit that counts them; the acknowledged position
//! is the smallest cursor of the required plugins, and it is stored before it is told.
//! Read next: [`super::ack`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use walgate_core::{Cursor, Lineage, Lsn};
use walgate_store::{Checkpoint as Write, Durable, PluginCursor, Retries, RetryPolicy, StateWrite, Store};

use super::columns;
use super::deliver::{Delivered, Letters, place};
use super::delivered_to;
use super::outputs::Outputs;
use super::witness::Witness;
use crate::connect::state_halt;
use crate::exit::chain;
use crate::halt::{Halt, HaltClass};
use crate::status::Board;
use crate::telemetry::events;

/// Deliveries that may be committed together. Whatever has piled up during the last commit goes into the next.
const MAX_TOGETHER: usize = 1_024;
/// Bytes for outputs above which a commit waits for nothing more.
const MAX_STAGED_BYTES: usize = 8 << 20;
/// Commits come at most ten times a second. No plugin waits for them, and each costs the state database, which is often
/// the source itself, as much as some hundred rows cost to decode: a hundred a second tripled the slowest percent of
/// deliveries at a thousand transactions a second. The first one after a quiet time comes at once, and so does one with
/// much to write.
pub(crate) const PACE: Duration = Duration::from_millis(100);
/// How long the wire may take to end a stream it was asked to end.
const HANG_UP: Duration = Duration::from_secs(5);

/// One plugin as the checkpoint sees it.
pub(crate) struct Position {
    pub(crate) plugin: String,
    pub(crate) required: bool,
    pub(crate) generation: u64,
    pub(crate) cursor: Cursor,
    /// What is stored: never moves back. A running plugin's is stored no later than an acknowledgement that counts on it.
    pub(crate) stored: Cursor,
    /// Where a sink that keeps its own position stands, and what of that is stored. See [`super::delivered_to`].
    pub(crate) delivered_to: (Option<Cursor>, Option<Cursor>),
    pub(crate) outputs: Outputs,
    /// Its cursor commits with its rows, in the transaction of [`super::apply`]. Storing it here, too, would have the two
    /// wait for each other.
    pub(crate) together: bool,
    /// How long a commit may wait for more of this plugin.
    pub(crate) pace: Duration,
}

/// The stage.
pub(crate) struct Checkpoint {
    pub(crate) store: Store,
    pub(crate) pipeline: String,
    pub(crate) lineage: Lineage,
    pub(crate) retries: RetryPolicy,
    pub(crate) positions: Vec<Position>,
    pub(crate) acked: Lsn,
    /// The last transaction that was delivered to anybody, as it is stored.
    pub(crate) witness: Option<Witness>,
    /// The last transaction that the stream had, delivered or not.
    pub(crate) seen: watch::Receiver<Option<Witness>>,
    /// Told by a lane that waits for a commit.
    pub(crate) hurry: Arc<Notify>,
    pub(crate) letters: LetterRoom,
    /// Proofs for the ack stage, one a commit.
    pub(crate) durable: mpsc::UnboundedSender<Durable>,
    /// When the state lives on the source's own server: whether the stream is connected, and how to end it.
    pub(crate) shared: Option<(watch::Receiver<bool>, Arc<Notify>)>,
    pub(crate) board: Board,
}

/// How much room there is for dead letters.
#[derive(Clone)]
pub(crate) struct LetterRoom {
    pub(crate) max_bytes: u64,
    /// What is kept, as far as this process knows: others may drop letters, and the keeper counts anew.
    pub(crate) bytes: Arc<AtomicU64>,
    /// Told when letters went or came back, so that they are counted anew.
    pub(crate) changed: Arc<Notify>,
}

impl LetterRoom {
    /// Whether that many bytes fit.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(more) <= self.max_bytes
    }

    /// What is said when they do not.
    pub(crate) fn full(&self, more: u64) -> String {
        let kept = self.bytes.load(Ordering::Relaxed);
        // Where nothing is kept there is nothing to make room with.
        let advice = if more > self.max_bytes {
            format!("raise the limit to more than {more}, or bound what a batch holds, with delivery.max_batch_bytes")
        } else {
            "look at them with: walgate dead-letter list; then redrive or drop them, or raise the limit".to_owned()
        };
        format!(
            "{kept} bytes of dead letters are kept, and {more} more would pass dead_letters.max_bytes = {}: {advice}",
            self.max_bytes
        )
    }
}

/// What one commit carries.
#[derive(Default)]
struct Gathered {
    cursors: BTreeMap<usize, Cursor>,
    own: BTreeMap<usize, Cursor>,
    state: Vec<StateWrite>,
    outputs: BTreeMap<usize, Vec<(String, Vec<u8>)>>,
    letters: Letters,
    /// To be told afterwards.
    delivered: Vec<Delivered>,
}

impl Checkpoint {
    /// Works until every sender is gone and everything sent is durable. Gives the store back.
    pub(crate) async fn run(mut self, mut delivered: mpsc::Receiver<Delivered>) -> Result<Store, (Store, Halt)> {
        let mut waiting = Vec::with_capacity(MAX_TOGETHER);
        let mut last = None;
        while delivered.recv_many(&mut waiting, MAX_TOGETHER).await > 0 {
            self.gather_until(last, &mut waiting, &mut delivered).await;
            let gathered = self.gather(waiting.drain(..));
            if let Err(halt) = self.settle(gathered).await {
                return Err((self.store, halt));
            }
            last = Some(Instant::now());
        }
        Ok(self.store)
    }

    /// Takes what else is delivered until a commit is due or enough is gathered.
    async fn gather_until(
        // An output cannot be shared between threads, only moved.
        &mut self,
        last: Option<Instant>,
        waiting: &mut Vec<Delivered>,
        delivered: &mut mpsc::Receiver<Delivered>,
    ) {
        let staged = |waiting: &[Delivered]| waiting.iter().map(Delivered::staged_bytes).sum::<usize>();
        let Some(last) = last else { return };
        while waiting.len() < MAX_TOGETHER && staged(waiting) < MAX_STAGED_BYTES {
            if waiting.iter().any(|one| one.urgent) {
                return;
            }
            let pace = waiting.iter().filter_map(|one| self.positions.get(one.lane())).map(|position| position.pace);
            let due = last + pace.min().unwrap_or(PACE);
            if Instant::now() >= due {
                return;
            }
            let room = MAX_TOGETHER - waiting.len();
            tokio::select! {
                more = delivered.recv_many(waiting, room) => if more == 0 { return },
                () = tokio::time::sleep_until(due) => return,
                () = self.hurry.notified() => return,
            }
        }
    }

    fn gather(&self, delivered: impl Iterator<Item = Delivered>) -> Gathered {
        let mut gathered = Gathered::default();
        for mut one in delivered {
            let lane = one.lane();
            gathered.cursors.insert(lane, one.cursor());
            if let Some(own) = one.own() {
                gathered.own.insert(lane, own);
            }
            let plugin = self.positions.get(lane).map_or("", |position| &position.plugin);
            gathered.state.extend(one.take_learned().iter().map(|table| columns::write(plugin, table)));
            let staged = one.take_staged();
            gathered.outputs.entry(lane).or_default().extend(staged.outputs);
            gathered.state.extend(staged.state.into_iter().map(|(key, value)| StateWrite {
                plugin: plugin.to_owned(),
                key,
                value,
            }));
            gathered.letters.append(one.take_letters());
            gathered.delivered.push(one);
        }
        gathered
    }

    async fn settle(&mut self, mut gathered: Gathered) -> Result<(), Halt> {
        walgate_failpoint::hit("checkpoint.before_outputs");
        let mut lengths = Vec::with_capacity(gathered.outputs.len());
        for (lane, staged) in std::mem::take(&mut gathered.outputs) {
            if let Some(position) = self.positions.get_mut(lane) {
                lengths.extend(position.outputs.write(staged).await?);
            }
        }
        for (lane, cursor) in &gathered.cursors {
            if let Some(position) = self.positions.get_mut(*lane) {
                position.cursor = *cursor;
                if let Some(own) = gathered.own.get(lane) {
                    position.delivered_to.0 = Some(*own);
                }
                let (last, kept) = position.delivered_to;
                // Once it is kept it is kept up to date: an older one would call a loss a quiet time.
                if let Some(last) = last.filter(|last| kept != Some(*last))
                    && (kept.is_some() || place(last) < place(*cursor))
                {
                    gathered.state.push(delivered_to::write(&position.plugin, last));
                    position.delivered_to.1 = Some(last);
                }
                position.stored = position.stored.max(*cursor);
            }
        }
        for one in &gathered.delivered {
            if let Some(position) = self.positions.get_mut(one.lane()) {
                position.generation = one.generation();
            }
        }
        let newest = gathered.delivered.iter().filter_map(Delivered::witness).max_by_key(|witness| witness.commit);
        self.acked.advance(self.covered_by_all());
        let seen = self.seen.borrow().and_then(|seen| seen.until(self.acked));
        let best = newest.into_iter().chain(seen).reduce(|best, one| if one.is_newer(&best) { one } else { best });
        if let Some(best) = best.filter(|best| self.witness.is_none_or(|known| best.is_newer(&known))) {
            gathered.state.push(best.write());
            self.witness = Some(best);
        }
        let write = Write {
            acked: self.acked,
            cursors: gathered
                .cursors
                .keys()
                .filter_map(|lane| self.positions.get(*lane))
                .filter(|position| !position.together)
                .map(cursor_of)
                .collect(),
            state: gathered.state,
            outputs: lengths,
            dead_letters: gathered.letters.new,
            redriven: gathered.letters.redriven,
            refused_again: gathered.letters.refused_again,
        };
        let idle = gathered.delivered.iter().all(|one| !one.carries());
        let has_letters = !write.dead_letters.is_empty();
        if has_letters {
            self.room_for_letters(&write).await?;
            walgate_failpoint::hit("dead_letter.before");
        }
        walgate_failpoint::hit("checkpoint.before_commit");
        self.commit(&write, idle).await?;
        walgate_failpoint::hit("checkpoint.committed");
        if has_letters {
            walgate_failpoint::hit("dead_letter.written");
        }
        self.count_letters(&write);
        gathered.delivered.into_iter().for_each(|mut one| one.tell_durable());
        for position in gathered.cursors.keys().filter_map(|lane| self.positions.get(*lane)) {
            self.board.cursor(&position.plugin, position.cursor.end);
        }
        Ok(())
    }

    /// Nothing is laid aside beyond the limit, and nothing is thrown away for it: the pipeline halts instead.
    async fn room_for_letters(&mut self, write: &Write) -> Result<(), Halt> {
        let more: u64 = write.dead_letters.iter().map(|letter| letter.image.len() as u64).sum();
        if self.letters.has_room(more) {
            return Ok(());
        }
        // Some may have been dropped or redriven meanwhile.
        let bytes = self.store.dead_letter_bytes(&self.pipeline).await.map_err(|error| state_halt(&error))?;
        self.letters.bytes.store(bytes, Ordering::Relaxed);
        if self.letters.has_room(more) {
            return Ok(());
        }
        let plugin = write.dead_letters.first().map_or("", |letter| &letter.plugin);
        Err(Halt::of_plugin(HaltClass::DeadLettersFull, plugin, self.letters.full(more)))
    }

    fn count_letters(&mut self, write: &Write) {
        for letter in &write.dead_letters {
            events::dead_lettered(&letter.plugin, &letter.class, &letter.code, u64::from(letter.rows));
            self.letters.bytes.fetch_add(letter.image.len() as u64, Ordering::Relaxed);
            self.board.plugin(&letter.plugin, |plugin| plugin.dead_letters += 1);
        }
        if !write.redriven.is_empty() || !write.refused_again.is_empty() {
            self.letters.changed.notify_one();
        }
    }

    /// What every required plugin has; with none required, what every plugin has.
    fn covered_by_all(&self) -> Lsn {
        let any_required = self.positions.iter().any(|position| position.required);
        let holding = self.positions.iter().filter(|position| position.required || !any_required);
        holding.map(|position| position.cursor.end).min().unwrap_or(self.acked)
    }

    async fn commit(&mut self, write: &Write, idle: bool) -> Result<(), Halt> {
        let mut retries = Retries::new(self.retries);
        loop {
            match self.store.commit(&self.pipeline, &self.lineage, write).await {
                Ok(durable) => {
                    events::checkpoint_advanced(durable.acked(), idle);
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
                    events::store_retrying(retries.failures() + 1, self.retries.max_retries);
                    self.let_the_server_stop(&error).await;
                    retries.after(error).await.map_err(|error| {
                        let halt = state_halt(&error);
                        match halt.class {
                            HaltClass::Fenced => events::fenced(self.store.epoch().unwrap_or_default()),
                            class => events::store_failed(class),
                        }
                        halt
                    })?;
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
}

fn cursor_of(position: &Position) -> PluginCursor {
    PluginCursor { plugin: position.plugin.clone(), cursor: position.stored, generation: position.generation }
}
