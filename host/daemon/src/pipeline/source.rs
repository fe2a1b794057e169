//! The wire task: connects, checks, streams, and connects again.
//!
//! Holds: the reconnect loop and what ends it. One task owns the socket, so that feedback never waits for the flow.
//! Never knows: rows, plugins. Read next: [`super::flow`].

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use walgate_core::Lsn;
use walgate_store::PipelineRow;
use walgate_wire::{Backoff, ChunkReceiver, Class, Connection, PumpStats, StartOptions};

use crate::config::Config;
use crate::connect::source_halt;
use crate::exit::{Exit, Failure, Halt, chain};
use crate::preflight::{self, Refusal};
use crate::status::{Board, Phase};

/// Bytes of unread stream between the socket and the flow: a few large reads.
const CHUNK_BUDGET_BYTES: usize = 4 << 20;
/// How long a slot may still be held by what is left of a process of ours that ended a moment ago.
const HELD_PATIENCE: Duration = Duration::from_secs(60);
/// Attempts to reach the source before a start gives up. Once a stream ran, it is tried for ever, visibly.
pub(crate) const START_ATTEMPTS: u32 = 5;

/// A connection on which everything was checked.
pub(crate) struct Ready {
    pub(crate) connection: Connection,
    pub(crate) found: preflight::Found,
}

/// What the wire task needs.
pub(crate) struct Source {
    pub(crate) config: Config,
    pub(crate) stored: PipelineRow,
    pub(crate) messages: bool,
    pub(crate) position: watch::Receiver<Lsn>,
    pub(crate) streams: mpsc::Sender<ChunkReceiver>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) stats: PumpStats,
    pub(crate) board: Board,
}

impl Source {
    /// Streams until a stop is asked for, over as many connections as it takes.
    pub(crate) async fn run(mut self, first: Ready) -> Result<(), Halt> {
        let mut ready = Some(first);
        loop {
            let connected = match ready.take() {
                Some(ready) => ready,
                None => {
                    let mut stored = self.stored.clone();
                    stored.acked = *self.position.borrow();
                    match connect(&self.config, Some(&stored), None, &self.board, &mut self.stop).await {
                        Ok(Some(ready)) => ready,
                        Ok(None) => return Ok(()),
                        Err(failure) => return Err(halt_of(failure)),
                    }
                }
            };
            match self.stream(connected).await {
                Ok(()) if *self.stop.borrow() => return Ok(()),
                Ok(()) => self.lost("the server ended the stream".to_owned()),
                Err(error) if error.class() == Class::Retry => self.lost(chain(&error)),
                Err(error) => return Err(source_halt(&error)),
            }
        }
    }

    async fn stream(&mut self, ready: Ready) -> Result<(), walgate_wire::WireError> {
        let start = *self.position.borrow();
        let options = StartOptions {
            messages: self.messages,
            ..StartOptions::new(&self.config.slot, start, self.config.publications.clone())
        };
        let mut stream = ready.connection.start_replication(&options).await?;
        let (sender, receiver) = walgate_wire::channel(CHUNK_BUDGET_BYTES);
        if self.streams.send(receiver).await.is_err() {
            return Ok(());
        }
        metrics::counter!("walgate_wire_connections_total").increment(1);
        tracing::info!(slot = self.config.slot, from = %start, "streaming");
        self.board.write(|status| {
            status.phase = Phase::Streaming;
            status.source.connections += 1;
            (status.source.attempts, status.source.last_error) = (0, None);
        });
        stream.pump(&sender, &mut self.position, &mut self.stop, &self.stats).await.map(|_| ())
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
    stored: Option<&PipelineRow>,
    most: Option<u32>,
    board: &Board,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<Ready>, Failure> {
    let mut backoff = Backoff::new();
    let mut attempts = 0;
    let mut held_since: Option<Instant> = None;
    loop {
        let refusal = match attempt(config, stored).await {
            Ok(ready) => return Ok(Some(ready)),
            Err(refusal) => refusal,
        };
        attempts += 1;
        let why = match refusal {
            Refusal::Halt(halt) => return Err(halt.into()),
            Refusal::Held(halt) => {
                if held_since.get_or_insert_with(Instant::now).elapsed() > HELD_PATIENCE {
                    return Err(halt.into());
                }
                halt.detail
            }
            Refusal::Later(error) => {
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

async fn attempt(config: &Config, stored: Option<&PipelineRow>) -> Result<Ready, Refusal> {
    let mut connection = Connection::connect(&config.source).await?;
    let (identity, major) = preflight::server(&mut connection, config).await?;
    let found = preflight::slot(&mut connection, config, identity, major, stored).await?;
    Ok(Ready { connection, found })
}

fn halt_of(failure: Failure) -> Halt {
    let name = if failure.exit == Exit::Unavailable { "source_unavailable" } else { "source" };
    failure.halt.unwrap_or_else(|| Halt::new(name, failure.message))
}
