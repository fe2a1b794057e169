//! The wire task: connects, checks, streams, and connects again.
//!
//! Holds: the reconnect loop and what ends it. One task owns the socket, so that feedback never waits for the flow.
//! Never knows: rows, plugins. Read next: [`super::flow`].

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use walgate_core::Lsn;
use walgate_store::{PipelineRow, Store};
use walgate_wire::{Backoff, ChunkReceiver, Class, Connection, PumpStats, StartOptions};

use crate::config::Config;
use crate::connect::{source_halt, state_failure};
use crate::exit::{Exit, Failure, Halt, chain};
use crate::preflight::{self, Refusal};
use crate::status::{Board, Phase};

/// Bytes of unread stream between the socket and the flow: a few large reads.
const CHUNK_BUDGET_BYTES: usize = 4 << 20;
/// How long a slot may still be held by what is left of a process of ours: the server notices a peer that vanished after
/// its `wal_sender_timeout`, a minute by default, and this is a margin on top.
const HELD_PATIENCE: Duration = Duration::from_secs(90);
/// A stream that lived this long was a good one: the next reconnect is quick again.
const LIVED: Duration = Duration::from_secs(10);
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
    Live(&'a PipelineRow, &'a watch::Receiver<Lsn>),
}

impl History<'_> {
    async fn read(&mut self, pipeline: &str) -> Result<Option<PipelineRow>, Refusal> {
        match self {
            Self::Stored(store) => store.load(pipeline).await.map_err(|error| match state_failure(error) {
                Failure { halt: Some(halt), .. } => Refusal::Halt(halt),
                failure => Refusal::Unavailable(failure),
            }),
            Self::Live(stored, position) => Ok(Some(PipelineRow { acked: *position.borrow(), ..(*stored).clone() })),
        }
    }
}

/// A stream until the flow takes it.
pub(crate) type NewestStream = Mutex<Option<ChunkReceiver>>;

/// What the wire task needs.
pub(crate) struct Source {
    pub(crate) config: Config,
    pub(crate) stored: PipelineRow,
    pub(crate) position: watch::Receiver<Lsn>,
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
        let thread = walgate_wire::own_thread("wire", move || self.stream_on())
            .map_err(|error| Halt::new("wire_thread", format!("the thread of the wire cannot be started: {error}")))?;
        thread.join().await.unwrap_or_else(|panicked| Err(Halt::new("bug", panicked.to_string())))
    }

    /// Over as many connections as it takes. The one that was checked at the start is not among them: a socket belongs to
    /// the runtime it was opened in.
    async fn stream_on(mut self) -> Result<(), Halt> {
        let mut backoff = Backoff::new();
        loop {
            let history = History::Live(&self.stored, &self.position);
            let connected = match connect(&self.config, history, None, &self.board, &mut self.stop).await {
                Ok(Some(ready)) => ready,
                Ok(None) => return Ok(()),
                Err(failure) => return Err(halt_of(failure)),
            };
            let began = Instant::now();
            let ended = self.stream(connected).await;
            self.connected.send_replace(false);
            match ended {
                Ok(()) if *self.stop.borrow() => return Ok(()),
                Ok(()) => self.lost("the stream was ended".to_owned()),
                Err(error) if error.class() == Class::Retry => self.lost(chain(&error)),
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
        let start = *self.position.borrow();
        let options = StartOptions {
            // Always: they take ordinals, so a stream without them would count the changes of a transaction otherwise, and a
            // cursor inside of one would cover other rows after a plugin that wants messages came or went.
            messages: true,
            ..StartOptions::new(&self.config.slot, start, self.config.publications.clone())
        };
        let mut stream = ready.connection.start_replication(&options).await?;
        let (sender, receiver) = walgate_wire::channel(CHUNK_BUDGET_BYTES);
        // Never waits: a flow that is blocked must not keep this connection from being served.
        if self.streams.send(Mutex::new(Some(receiver))).is_err() {
            return Ok(());
        }
        metrics::counter!("walgate_wire_connections_total").increment(1);
        tracing::info!(slot = self.config.slot, from = %start, "streaming");
        self.board.write(|status| {
            // A stop or a halt that came while this connection was made stays visible.
            if matches!(status.phase, Phase::Starting | Phase::Reconnecting) {
                status.phase = Phase::Streaming;
            }
            status.source.connections += 1;
            (status.source.attempts, status.source.last_error) = (0, None);
        });
        self.connected.send_replace(true);
        tokio::select! {
            ended = stream.pump(&sender, &mut self.position, &mut self.stop, &self.stats) => ended.map(|_| ()),
            () = self.hang_up.notified() => Ok(()),
        }
    }

    fn lost(&self, why: String) {
        tracing::warn!("the connection to the source is lost: {why}");
        self.board.write(|status| {
            if status.phase == Phase::Streaming {
                status.phase = Phase::Reconnecting;
            }
            status.source.last_error = Some(why);
        });
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
    loop {
        let refusal = match attempt(config, &mut history).await {
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
                    return Err(Failure::unavailable(format!("source: {why}; {attempts} attempts were made")));
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

async fn attempt(config: &Config, history: &mut History<'_>) -> Result<Ready, Refusal> {
    let mut connection = Connection::connect(&config.source).await?;
    let (identity, major) = preflight::server(&mut connection, config).await?;
    let confirmed = preflight::slot(&mut connection, config).await?;
    // Read after the slot: see `preflight::history`.
    let stored = history.read(&config.slot).await?;
    let found = preflight::history(config, identity, major, confirmed, stored.as_ref())?;
    Ok(Ready { connection, found, stored })
}

fn halt_of(failure: Failure) -> Halt {
    let name = if failure.exit == Exit::Unavailable { "source_unavailable" } else { "source" };
    failure.halt.unwrap_or_else(|| Halt::new(name, failure.message))
}
