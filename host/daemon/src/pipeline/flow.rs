//! The middle of the pipeline: decode, assemble and minimize, and feed each plugin's lane.
//!
//! Holds: the rule when a batch is cut, and the bound of what may wait. A batch leaves the moment its plugin is free:
//! the backlog itself forms batches, no timer does. Never knows: the socket, wasmtime, SQL.
//! Invariant: reading pauses when a lane holds more than its bound; feedback goes on all the while (see `wire`).
//! Read next: [`super::deliver`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use walgate_core::assemble::{Assembler, Event};
use walgate_core::minimize::{Item, MinimizeError, MinimizeErrorKind as Refused, Minimizer};
use walgate_core::{Cursor, Lsn};
use walgate_wire::{Chunk, ChunkReceiver, Frame};

use super::deliver::{LaneEvent, Todo};
use super::source::{Incoming, NewestStream};
use super::witness::{Watch, Witness};
use crate::halt::{Halt, HaltClass};
use crate::status::{Board, Phase};
use crate::telemetry::events;

/// What a row costs beside its bytes: its ordinal and the fixed slots of its columns, roughly.
const ROW_OVERHEAD_BYTES: usize = 64;
/// A plugin without changes follows the stream in steps: a step is a commit in the state database, whose own log must
/// not cause the next one.
const COVER_BYTES: u64 = 1 << 20;
const COVER_AFTER: Duration = Duration::from_secs(1);
const COVER_QUIET_BYTES: u64 = 16 << 10;
/// How often a plugin that reading waits for is looked at.
const STALL_TICK: Duration = Duration::from_millis(100);
/// The prefix of our own heartbeats: they are written so that the slot moves.
const HEARTBEAT: &str = "walgate:heartbeat";
/// Where the state database keeps our tables. A publication of all tables carries them when it is the source itself.
const OWN_SCHEMA: &str = "walgate";

/// One plugin's end in the flow.
pub(crate) struct Feed {
    name: String,
    pub(crate) minimizer: Minimizer,
    pub(crate) todo: Option<mpsc::UnboundedSender<Todo>>,
    waiting: usize,
    /// Bytes of each item that waits, in order.
    sizes: VecDeque<usize>,
    waiting_bytes: usize,
    /// Bytes of batches that were delivered and are kept until they are durable.
    kept_bytes: usize,
    /// Since when reading waits for it without any item being done.
    stalled: Option<Instant>,
    too_slow: watch::Sender<bool>,
    covered: Lsn,
    covered_at: Instant,
    committed: bool,
    /// Its lane was told to end.
    refused: bool,
}

impl Feed {
    pub(crate) fn new(
        name: String,
        minimizer: Minimizer,
        todo: mpsc::UnboundedSender<Todo>,
        too_slow: watch::Sender<bool>,
    ) -> Self {
        let covered = minimizer.taken().end;
        Self {
            name,
            minimizer,
            todo: Some(todo),
            waiting: 0,
            sizes: VecDeque::new(),
            waiting_bytes: 0,
            kept_bytes: 0,
            stalled: None,
            too_slow,
            covered,
            covered_at: Instant::now(),
            committed: false,
            refused: false,
        }
    }

    fn idle(&self) -> bool {
        self.waiting == 0
    }

    fn send(&mut self, todo: Todo) {
        let bytes = match &todo {
            Todo::Batch(batch) => batch.bytes + batch.rows * ROW_OVERHEAD_BYTES,
            Todo::Relation { .. } | Todo::Learned(_) | Todo::Covered(_) | Todo::Redrive(_) | Todo::Refused(_) => 0,
        };
        // A lane that ended sends an event that says why; until it arrives, its items may be dropped.
        let sent = self.todo.as_ref().is_some_and(|queue| queue.send(todo).is_ok());
        if sent {
            self.waiting += 1;
            self.waiting_bytes += bytes;
            self.sizes.push_back(bytes);
        }
    }

    fn send_ready(&mut self) {
        for table in self.minimizer.learned() {
            self.send(Todo::Learned(table));
        }
        for table in self.minimizer.newly_withheld() {
            tracing::warn!(
                plugin = self.name,
                table = format!("{}.{}", table.namespace, table.name),
                columns = table.columns.join(", "),
                "columns that appeared later are withheld; name them in the grant, or set new_columns = \"allow\""
            );
        }
        while let Some(item) = self.minimizer.next_item() {
            match item {
                Item::Relation { current, previous } => self.send(Todo::Relation { current, previous }),
                Item::Batch(batch) => {
                    self.covered = batch.reaches.end;
                    self.send(Todo::Batch(batch));
                }
            }
        }
    }

    fn done(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting_bytes -= self.sizes.pop_front().unwrap_or(0);
        self.stalled = None;
    }

    fn is_full(&self, max_bytes: usize) -> bool {
        self.waiting_bytes + self.kept_bytes >= max_bytes
    }

    /// Reading waits for this plugin. One that takes nothing for too long is told to stop, by its own policy.
    fn wait_for(&mut self, max_bytes: usize, patience: Option<Duration>) {
        if !self.is_full(max_bytes) {
            self.stalled = None;
            return;
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        if patience.is_some_and(|patience| since.elapsed() >= patience) {
            self.too_slow.send_replace(true);
        }
    }

    /// Whole transactions that wait leave as a batch when the plugin has nothing else to do.
    fn cut_if_free(&mut self) {
        if self.idle() && self.minimizer.has_complete() {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.takes() {
            match self.minimizer.cut() {
                Ok(()) => self.send_ready(),
                Err(error) => self.refuse(&error),
            }
        }
    }

    /// Whether it is given anything more.
    fn takes(&self) -> bool {
        self.todo.is_some() && !self.refused
    }

    /// Its grant does not fit what comes: its lane ends by its own policy, after what it was given before, and the others go
    /// on. Nothing is lost, because its cursor stays where it is.
    fn refuse(&mut self, error: &MinimizeError) {
        self.refused = true;
        self.send(Todo::Refused(Halt::of_plugin(class_of(error), &self.name, error.to_string())));
    }

    /// A plugin with nothing to do follows the stream, so that it does not hold the acknowledgement back.
    fn cover_if_due(&mut self, now: bool) {
        let taken = self.minimizer.taken();
        let step = taken.end.bytes_since(self.covered);
        if step == 0 || !self.idle() || !self.minimizer.is_empty() || taken.ordinal > 0 {
            return;
        }
        let waited = self.covered_at.elapsed() >= COVER_AFTER;
        if now || step >= COVER_BYTES || (waited && (self.committed || step >= COVER_QUIET_BYTES)) {
            self.send(Todo::Covered(Cursor::at(taken.end)));
            self.covered = taken.end;
            self.covered_at = Instant::now();
            self.committed = false;
        }
    }
}

/// The stage.
pub(crate) struct Flow {
    pub(crate) feeds: Vec<Feed>,
    pub(crate) max_waiting_bytes: usize,
    /// How long reading waits for a plugin that takes nothing.
    pub(crate) max_stalled: Option<Duration>,
    pub(crate) events: mpsc::UnboundedReceiver<LaneEvent>,
    pub(crate) board: Board,
    pub(crate) assembler: Assembler,
    /// Where the server says that nothing more comes before.
    pub(crate) idle_at: Lsn,
    /// The open transaction has a row that is not of our own tables.
    pub(crate) others: bool,
    /// Reading waits for a plugin.
    pub(crate) paused: bool,
    /// How far any plugin's stream was taken.
    pub(crate) taken: Arc<AtomicU64>,
    /// The last transaction that is known to be of this history.
    pub(crate) witness: Option<Witness>,
    /// Told of it, for the next checkpoint.
    pub(crate) seen: watch::Sender<Option<Witness>>,
    pub(crate) watch: Watch,
}

/// How one stream ended.
enum StreamEnd {
    /// The connection is gone.
    Lost,
    /// A stop was asked for.
    Stop,
}

impl Flow {
    /// Reads stream after stream until a stop is asked for, then hands over what is whole and lets the lanes finish.
    ///
    /// A stream is one connection: its end is the end of its channel. Gives the last stream back unread, so that the
    /// wire can go on answering the server while the lanes drain.
    pub(crate) async fn run(
        mut self,
        mut streams: watch::Receiver<NewestStream>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Option<ChunkReceiver>, Halt> {
        loop {
            let Incoming { chunks: mut stream, confirmed, acked, known } = tokio::select! {
                changed = streams.changed() => {
                    if changed.is_err() {
                        return Ok(None);
                    }
                    let newest = streams.borrow_and_update().lock().unwrap_or_else(PoisonError::into_inner).take();
                    let Some(stream) = newest else { continue };
                    stream
                }
                _ = stop.wait_for(|stop| *stop) => return self.finish(None),
                Some(event) = self.events.recv() => {
                    self.on_event(event);
                    continue;
                }
            };
            self.begin_stream(confirmed, acked, known);
            match self.read(&mut stream, &mut stop).await? {
                StreamEnd::Lost => {}
                StreamEnd::Stop => return self.finish(Some(stream)),
            }
        }
    }

    /// A new connection repeats what was not acknowledged; each minimizer knows what it has.
    fn begin_stream(&mut self, confirmed: Lsn, acked: Lsn, known: oneshot::Sender<()>) {
        self.watch = Watch::new(self.witness, confirmed, acked, known);
        self.assembler = Assembler::new();
        self.idle_at = Lsn::ZERO;
        self.others = false;
        self.feeds.iter_mut().for_each(|feed| feed.minimizer.rewind());
    }

    async fn read(&mut self, stream: &mut ChunkReceiver, stop: &mut watch::Receiver<bool>) -> Result<StreamEnd, Halt> {
        let mut tick = tokio::time::interval(COVER_AFTER);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let room = self.has_room();
            let mut received = None;
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Ok(StreamEnd::Stop),
                Some(event) = self.events.recv() => {
                    self.on_event(event);
                    while let Ok(event) = self.events.try_recv() {
                        self.on_event(event);
                    }
                }
                chunk = stream.recv(), if room => match chunk {
                    None => return Ok(StreamEnd::Lost),
                    Some(chunk) => received = Some(chunk),
                },
                _ = tick.tick() => self.look_for_stalls(),
            }
            if let Some(chunk) = received
                && let Some(end) = self.chunk(&chunk, stop).await?
            {
                return Ok(end);
            }
            for feed in &mut self.feeds {
                feed.cut_if_free();
            }
            self.follow(false);
        }
    }

    /// Takes one chunk whole. Pauses inside it when a lane is full; gives up only when a stop is asked for.
    async fn chunk(&mut self, chunk: &Chunk, stop: &mut watch::Receiver<bool>) -> Result<Option<StreamEnd>, Halt> {
        walgate_failpoint::hit("receive.chunk");
        events::received(chunk.len() as u64);
        for frame in chunk.frames() {
            match frame
                .map_err(|error| Halt::new(HaltClass::Protocol, format!("the stream cannot be framed: {error}")))?
            {
                Frame::Data { start, payload, .. } => self.message(start, payload)?,
                Frame::Keepalive { wal_end, .. } => {
                    if !self.assembler.in_transaction() {
                        self.watch.reaches(wal_end)?;
                        self.idle_at.advance(wal_end);
                        if let Some(witness) = &mut self.witness {
                            witness.covered.advance(wal_end);
                        }
                    }
                }
            }
            if !self.has_room() && !self.wait_for_room(stop).await {
                return Ok(Some(StreamEnd::Stop));
            }
        }
        // Before what is covered is told to the lanes, so that no checkpoint knows of one without the other.
        self.seen.send_replace(self.witness);
        self.follow(false);
        Ok(None)
    }

    /// False when a stop is asked for meanwhile.
    async fn wait_for_room(&mut self, stop: &mut watch::Receiver<bool>) -> bool {
        self.pause(true);
        let mut tick = tokio::time::interval(STALL_TICK);
        while !self.has_room() {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return false,
                Some(event) = self.events.recv() => self.on_event(event),
                _ = tick.tick() => self.look_for_stalls(),
            }
        }
        self.pause(false);
        true
    }

    fn look_for_stalls(&mut self) {
        let (bytes, patience) = (self.max_waiting_bytes, self.max_stalled);
        for feed in self.feeds.iter_mut().filter(|feed| feed.todo.is_some()) {
            feed.wait_for(bytes, patience);
        }
        self.post_waiting();
    }

    fn pause(&mut self, paused: bool) {
        if std::mem::replace(&mut self.paused, paused) == paused {
            return;
        }
        match self.feeds.iter().find(|feed| feed.is_full(self.max_waiting_bytes)) {
            Some(feed) => {
                events::reading_paused(&feed.name);
                self.board.reading_waits(Some(&feed.name));
            }
            None => {
                events::reading_resumed();
                self.board.reading_waits(None);
            }
        }
        self.post_waiting();
    }

    fn post_waiting(&self) {
        self.board.write(|status| {
            for feed in &self.feeds {
                let bytes = (feed.waiting_bytes + feed.kept_bytes) as u64;
                events::in_flight(&feed.name, bytes);
                if let Some(plugin) = status.plugins.get_mut(&feed.name) {
                    plugin.inflight_bytes = bytes;
                }
            }
        });
    }

    #[inline]
    fn message(&mut self, lsn: Lsn, payload: &[u8]) -> Result<(), Halt> {
        let event = self
            .assembler
            .push(lsn, payload)
            .map_err(|error| Halt::new(HaltClass::DecodeFailure, error.to_string()))?;
        // Before anything of the transaction is handed to anybody.
        if let Event::Begin(head) = &event {
            self.watch.begins(&head.begin)?;
        }
        for feed in self.feeds.iter_mut().filter(|feed| feed.takes()) {
            match feed.minimizer.apply(&event) {
                Ok(()) if feed.minimizer.has_news() => feed.send_ready(),
                Ok(()) => {}
                Err(error) => feed.refuse(&error),
            }
        }
        if !self.others {
            self.others = match &event {
                Event::Row(_, relation, ..) => relation.namespace != OWN_SCHEMA,
                Event::Message(message, _) => message.transactional && message.prefix == HEARTBEAT,
                _ => false,
            };
        }
        if matches!(event, Event::Message(..)) {
            events::messages_read(1);
        }
        if let Event::Commit(head, commit, _) = event {
            let (xid, commit_time_us) = (head.begin.xid, head.begin.commit_time_us);
            if self.witness.is_none_or(|known| known.commit < commit.commit) {
                let (commit, end) = (commit.commit, commit.end);
                self.witness = Some(Witness { commit, end, xid, commit_time_us, covered: end });
            }
            walgate_failpoint::hit("assemble.commit");
            events::transactions_read(1);
            if std::mem::take(&mut self.others) {
                self.feeds.iter_mut().for_each(|feed| feed.committed = true);
            }
            self.idle_at.advance(commit.end);
            self.taken.fetch_max(commit.end.get(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Lets plugins that have nothing to do follow the stream.
    fn follow(&mut self, now: bool) {
        self.board.read_to(self.idle_at);
        let between = !self.assembler.in_transaction();
        for feed in self.feeds.iter_mut().filter(|feed| feed.todo.is_some()) {
            if between && feed.idle() && !self.idle_at.is_zero() {
                feed.minimizer.cover(self.idle_at);
                self.taken.fetch_max(self.idle_at.get(), Ordering::Relaxed);
            }
            feed.cover_if_due(now);
        }
    }

    fn has_room(&self) -> bool {
        self.feeds.iter().all(|feed| !feed.is_full(self.max_waiting_bytes))
    }

    fn on_event(&mut self, event: LaneEvent) {
        match event {
            LaneEvent::Done { lane, batch } => {
                let Some(feed) = self.feeds.get_mut(lane) else { return };
                feed.done();
                if let Some(batch) = batch {
                    feed.minimizer.recycle(batch);
                }
            }
            LaneEvent::Kept { lane, bytes, batch } => {
                let Some(feed) = self.feeds.get_mut(lane) else { return };
                if bytes < feed.kept_bytes {
                    feed.stalled = None;
                }
                feed.kept_bytes = bytes;
                if let Some(batch) = batch {
                    feed.minimizer.recycle(batch);
                }
            }
            LaneEvent::Parked { lane } => {
                let Some(feed) = self.feeds.get_mut(lane) else { return };
                feed.todo = None;
                (feed.waiting, feed.waiting_bytes, feed.kept_bytes) = (0, 0, 0);
                feed.sizes.clear();
            }
        }
    }

    /// Hands over what is whole. Dropping the queues tells the lanes that nothing more comes.
    fn finish(mut self, stream: Option<ChunkReceiver>) -> Result<Option<ChunkReceiver>, Halt> {
        self.board.write(|status| {
            // A halt drains, too, and must stay visible.
            if status.phase != Phase::Halted {
                status.phase = Phase::Draining;
            }
        });
        for feed in &mut self.feeds {
            feed.minimizer.rewind();
            feed.cut();
        }
        if !self.assembler.in_transaction() {
            self.follow(true);
        }
        Ok(stream)
    }
}

fn class_of(error: &MinimizeError) -> HaltClass {
    match error.kind() {
        Refused::GrantedColumnMissing { .. } => HaltClass::GrantedColumnMissing,
        Refused::ExceptMissing { .. } => HaltClass::ExceptedColumnMissing,
        Refused::Filter { .. } | Refused::Treatment { .. } | Refused::KeyUnknown { .. } => HaltClass::GrantDoesNotFit,
        Refused::FilterUndecided { .. } => HaltClass::RowFilterUndecided,
        Refused::Value { .. } => HaltClass::ValueNotCarried,
        Refused::Cursor { .. } => HaltClass::DataGapCursor,
        _ => HaltClass::DecodeFailure,
    }
}
