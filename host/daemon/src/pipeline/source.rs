//! The wire task: connects, checks, streams, and connects again.
//!
//! Holds: the reconnect loop and what ends it. One task owns the socket, so that feedback never waits for the flow.
//! Never knows: rows, plugins. Read next: [`super::flow`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};
use walgate_core::{Cursor, Lsn};
use walgate_store::{PipelineRow, Store};
use walgate_wire::{Backoff, ChunkReceiver, Class, Connection, PumpStats, StartOptions};

use crate::config::Config;
use crate::connect::{self, source_halt, state_failure};
use crate::exit::{Failure, chain};
use crate::halt::{Halt, HaltClass};
use crate::preflight::{self, Leftover, Refusal, RunningStandby};
use crate::status::{Board, Phase};
use crate::telemetry::events;

/// Bytes of unread stream between the socket and the flow: a few large reads.
const CHUNK_BUDGET_BYTES: usize = 4 << 20;
/// How long a slot may still be held by what is left of a process of ours: the server notices a peer that vanished after
/// its `wal_sender_timeout`, a minute by default, and this is a margin on top.
const HELD_PATIENCE: Duration = Duration::from_secs(90);
/// A stream that lived this long was a good one: the next reconnect is quick again.
const LIVED: Duration = Duration::from_secs(10);
/// How often a standby that is streamed from is asked whether it was promoted.
const PROMOTION_LOOK: Duration = Duration::from_secs(2);
/// Attempts to reach the source before a start gives up. Once a stream ran, it is tried for ever, visibly.
pub(crate) const START_ATTEMPTS: u32 = 5;

/// A connection on which everything was checked.
pub(crate) struct Ready {
    pub(crate) connection: Connection,
    pub(crate) found: preflight::Found,
    /// What was stored when it was checked.
    pub(crate) stored: Option<PipelineRow>,
}

/// Where the stored lineage and position are read from.
pub(crate) enum History<'a> {
    /// Before the pipeline runs: the state database.
    Stored(&'a mut Store),
    /// While it runs: what was loaded, and the position that moves only after it was stored.
    Live(&'a PipelineRow, &'a watch::Receiver<Lsn>, &'a AtomicU64, Option<u64>),
}

impl History<'_> {
    async fn read(&mut self, pipeline: &str) -> Result<Option<PipelineRow>, Refusal> {
        match self {
            Self::Stored(store) => store.load(pipeline).await.map_err(|error| match state_failure(error) {
                Failure { halt: Some(halt), .. } => Refusal::Halt(halt),
                failure => Refusal::Unavailable(failure),
            }),
            Self::Live(stored, position, taken, _) => {
                let mut row = PipelineRow { acked: *position.borrow(), ..(*stored).clone() };
                // What was taken since the start counts like a cursor: it must be part of the past of the source, too.
                let taken = Cursor::at(Lsn::new(taken.load(Ordering::Relaxed)));
                row.cursors.insert("what was read".to_owned(), taken);
                Ok(Some(row))
            }
        }
    }
}

impl History<'_> {
    /// The source goes on in another timeline. Stored before anything of it is: positions beyond the fork would halt the
    /// next start if nothing said that they are of this branch.
    async fn follow(&mut self, config: &Config, timeline: u32) -> Result<(), Refusal> {
        let refused = |error| match state_failure(error) {
            Failure { halt: Some(halt), .. } => Refusal::Halt(halt),
            failure => Refusal::Unavailable(failure),
        };
        match self {
            Self::Stored(store) => store.follow_timeline(&config.slot, timeline).await.map_err(refused),
            Self::Live(.., epoch) => {
                // The checkpoint stage has the other connection. A state database that is away is tried again together with
                // the source.
                let store = connect::state_beside(&config.state, &config.slot, *epoch).await;
                let mut store =
                    store.map_err(|failure| Refusal::Held(Halt::new(HaltClass::StoreUnavailable, failure.message)))?;
                store.follow_timeline(&config.slot, timeline).await.map_err(refused)
            }
        }
    }
}

/// A stream until the flow takes it.
pub(crate) type NewestStream = Mutex<Option<Incoming>>;

/// A stream as the flow takes it.
pub(crate) struct Incoming {
    pub(crate) chunks: ChunkReceiver,
    /// Where its slot stands.
    pub(crate) confirmed: Lsn,
    /// What was acknowledged before.
    pub(crate) acked: Lsn,
    /// To be told once the source is known to be the one read before.
    pub(crate) known: oneshot::Sender<()>,
}

/// What the wire task needs.
pub(crate) struct Source {
    pub(crate) config: Config,
    pub(crate) stored: PipelineRow,
    /// What its writes carry.
    pub(crate) epoch: Option<u64>,
    pub(crate) position: watch::Receiver<Lsn>,
    /// How far the flow has taken the stream for any plugin.
    pub(crate) taken: Arc<AtomicU64>,
    /// The newest stream. One that was not looked at yet is replaced: the next connection repeats it.
    pub(crate) streams: watch::Sender<NewestStream>,
    pub(crate) stop: watch::Receiver<bool>,
    /// Told when a stream begins and ends.
    pub(crate) connected: watch::Sender<bool>,
    /// Asked to end the stream and begin another: the server may be waiting for that to stop.
    pub(crate) hang_up: Arc<Notify>,
    pub(crate) stats: PumpStats,
    pub(crate) board: Board,
}

impl Source {
    /// Streams on a thread of its own until a stop is asked for; see [`walgate_wire::own_thread`].
    pub(crate) async fn run(self) -> Result<(), Halt> {
        let thread = walgate_wire::own_thread("wire", move || self.stream_on()).map_err(|error| {
            Halt::new(HaltClass::WireThread, format!("the thread of the wire cannot be started: {error}"))
        })?;
        thread.join().await.unwrap_or_else(|panicked| Err(Halt::new(HaltClass::Bug, panicked.to_string())))
    }

    /// Over as many connections as it takes. The one that was checked at the start is not among them: a socket belongs to
    /// the runtime it was opened in.
    async fn stream_on(mut self) -> Result<(), Halt> {
        let mut backoff = Backoff::new();
        loop {
            let history = History::Live(&self.stored, &self.position, &self.taken, self.epoch);
            let connected = match connect(&self.config, history, None, &self.board, &mut self.stop).await {
                Ok(Some(ready)) => ready,
                Ok(None) => return Ok(()),
                Err(failure) => {
                    let halt = halt_of(failure);
                    if halt.class == HaltClass::SlotInvalidated {
                        events::slot_invalidated(&self.config.slot);
                    }
                    return Err(halt);
                }
            };
            if let Some(timeline) = connected.found.follow {
                self.stored.timeline = timeline;
            }
            let began = Instant::now();
            let ended = self.stream(connected).await;
            self.connected.send_replace(false);
            match ended {
                Ok(()) if *self.stop.borrow() => return Ok(()),
                Ok(()) => self.lost("hang_up", "the stream was ended".to_owned()),
                Err(error) if error.class() == Class::Retry => self.lost(error.halt_name(), chain(&error)),
                Err(error) => return Err(source_halt(&error)),
            }
            if self.streams.is_closed() {
                // The flow has ended, so nobody reads another stream. A checkpoint that waits for one must not: the loss of
                // this sender tells it.
                drop(self.connected);
                let _ = self.stop.wait_for(|stop| *stop).await;
                return Ok(());
            }
            if began.elapsed() >= LIVED {
                backoff.reset();
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                _ = self.stop.wait_for(|stop| *stop) => return Ok(()),
            }
        }
    }

    async fn stream(&mut self, ready: Ready) -> Result<(), walgate_wire::WireError> {
        let confirmed = ready.found.confirmed;
        // What the slot has not seen acknowledged comes again, so that the source can be known by it: see `witness.rs`.
        let acked = *self.position.borrow();
        let start = confirmed.min(acked);
        let options = StartOptions {
            // Always: they take ordinals, so a stream without them would count the changes of a transaction otherwise, and a
            // cursor inside of one would cover other rows after a plugin that wants messages came or went.
            messages: true,
            ..StartOptions::new(&self.config.slot, start, self.config.publications.clone())
        };
        let mut stream = ready.connection.start_replication(&options).await?;
        let (sender, receiver) = walgate_wire::channel(CHUNK_BUDGET_BYTES);
        let (known, is_known) = oneshot::channel();
        let (tell, mut told) = watch::channel(start);
        // Never waits: a flow that is blocked must not keep this connection from being served.
        if self.streams.send(Mutex::new(Some(Incoming { chunks: receiver, confirmed, acked, known }))).is_err() {
            return Ok(());
        }
        events::connected(&self.config.slot, start);
        self.board.write(|status| {
            // A stop or a halt that came while this connection was made stays visible.
            if matches!(status.phase, Phase::Starting | Phase::Reconnecting) {
                status.phase = Phase::Streaming;
            }
            status.source.connections += 1;
            (status.source.attempts, status.source.last_error) = (0, None);
        });
        self.connected.send_replace(true);
        let promoted = promotion(self.config.clone(), self.epoch, self.stored.timeline, ready.found.standby);
        tokio::select! {
            // Stored by now. The next connection finds the timeline that it expects.
            timeline = promoted => {
                self.stored.timeline = timeline;
                Ok(())
            }
            ended = stream.pump(&sender, &mut told, &mut self.stop, &self.stats) => ended.map(|_| ()),
            () = pass_on(is_known, &mut self.position, &tell) => Ok(()),
            () = self.hang_up.notified() => Ok(()),
        }
    }

    fn lost(&self, kind: &'static str, why: String) {
        events::disconnected(kind, &why);
        self.board.write(|status| {
            if status.phase == Phase::Streaming {
                status.phase = Phase::Reconnecting;
            }
            status.source.last_error = Some(why);
        });
    }
}

/// Tells the server the position, once the source is known: a slot that was told of positions of another history would look
/// like the one that belongs to them. Ends with the position's sender.
async fn pass_on(known: oneshot::Receiver<()>, position: &mut watch::Receiver<Lsn>, tell: &watch::Sender<Lsn>) {
    if known.await.is_err() {
        // The flow has let go of the stream; the server is told nothing more.
        std::future::pending::<()>().await;
    }
    loop {
        tell.send_replace(*position.borrow_and_update());
        if position.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Ends when the standby that is streamed from has been promoted and its timeline is stored: soon the positions lie beyond
/// the fork, and the next start has to know that they are of this branch.
async fn promotion(config: Config, epoch: Option<u64>, before: u32, standby: Option<RunningStandby>) -> u32 {
    let Some(standby) = standby else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PROMOTION_LOOK).await;
        let asked = async { standby.promoted(&mut Connection::connect(&config.source).await?).await };
        let Ok(Some(timeline)) = asked.await else { continue };
        let stored = async {
            let mut store = connect::state_beside(&config.state, &config.slot, epoch).await?;
            store.follow_timeline(&config.slot, timeline).await.map_err(state_failure)
        };
        match stored.await {
            Ok(()) => {
                events::promoted(before, timeline);
                return timeline;
            }
            Err(failure) => tracing::warn!("the new timeline cannot be stored yet: {}", failure.message),
        }
    }
}

/// Connects and checks, with growing pauses, until it works, an operator is needed, `most` attempts were made, or a stop
/// is asked for.
pub(crate) async fn connect(
    config: &Config,
    mut history: History<'_>,
    most: Option<u32>,
    board: &Board,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<Ready>, Failure> {
    let mut backoff = Backoff::new();
    let mut attempts = 0;
    let mut held_since: Option<Instant> = None;
    let mut leftover = Leftover::default();
    loop {
        let refusal = match attempt(config, &mut history, &mut leftover).await {
            Ok(ready) => return Ok(Some(ready)),
            Err(refusal) => refusal,
        };
        attempts += 1;
        let why = match refusal {
            Refusal::Halt(halt) => return Err(halt.into()),
            Refusal::Unavailable(failure) => return Err(failure),
            Refusal::Held(halt) => {
                if held_since.get_or_insert_with(Instant::now).elapsed() > HELD_PATIENCE {
                    return Err(halt.into());
                }
                halt.detail
            }
            Refusal::Later(error) => {
                held_since = None;
                let why = chain(&error);
                if most.is_some_and(|most| attempts >= most) {
                    return Err(Failure::unavailable(format!(
                        "source: {why}; {attempts} attempts were made, and a start makes no more: start walgate again once it \
                         can be reached (a supervisor may do so; what runs already waits for its source as long as it takes)"
                    )));
                }
                why
            }
        };
        let pause = backoff.next_delay();
        tracing::warn!(attempts, "the source cannot be read yet: {why}");
        board.write(|status| (status.source.attempts, status.source.last_error) = (attempts, Some(why)));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        }
    }
}

async fn attempt(config: &Config, history: &mut History<'_>, leftover: &mut Leftover) -> Result<Ready, Refusal> {
    let mut connection = Connection::connect(&config.source).await?;
    let observed = preflight::observe(&mut connection, config).await?;
    // Read after the slot: see `preflight::judge`.
    let stored = history.read(&config.slot).await?;
    let found = preflight::settle(&mut connection, config, observed, stored.as_ref(), leftover).await?;
    if let (Some(timeline), Some(before)) = (found.follow, &stored) {
        history.follow(config, timeline).await?;
        events::promoted(before.timeline, timeline);
    }
    Ok(Ready { connection, found, stored })
}

/// What does not keep the stream from starting.
pub(super) async fn warn_of(config: &Config, ready: &mut Ready) {
    // A failure of the question shows where the stream is started.
    for line in preflight::warnings(&mut ready.connection, config).await.unwrap_or_default() {
        tracing::warn!(slot = config.slot, "{line}");
    }
}

fn halt_of(failure: Failure) -> Halt {
    failure.halt.unwrap_or_else(|| Halt::new(HaltClass::SourceUnavailable, failure.message))
}
