//! A sign of life in the log, for a quiet database in a busy cluster.
//!
//! The slot of a database without changes moves only with what is committed there, and keeps the log of all others
//! meanwhile. A transactional message is committed there, and needs no table.
//! Holds: the writing. Refuses to know what becomes of it: nobody waits for it, and it is never told by its position,
//! which on some servers is far from where it is read.

use std::time::Duration;

use walgate_wire::{Backoff, SourceOptions};

use crate::exit::chain;
use crate::status::{Board, HeartbeatStatus};
use crate::telemetry::events;

use super::session::{MonitorError, Session, column};

/// A standby answers null instead of an error that could mean many things.
const SQL: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN NULL \
     ELSE pg_logical_emit_message(true, 'walgate:heartbeat', '') END IS NOT NULL";

/// Writes one every `interval` for ever. A failure is counted, logged once until one is written again, and tried again
/// with growing pauses that never exceed the interval.
pub(super) async fn write(options: &SourceOptions, interval: Duration, board: &Board) {
    board.write(|status| status.source.heartbeat = Some(HeartbeatStatus::default()));
    let mut session = Session::new(options);
    let mut backoff = Backoff::new();
    loop {
        let outcome = write_one(&mut session).await;
        let pause = match &outcome {
            Ok(()) => {
                backoff.reset();
                interval
            }
            Err(_) => backoff.next_delay().min(interval),
        };
        note(board, outcome);
        tokio::time::sleep(pause).await;
    }
}

async fn write_one(session: &mut Session<'_>) -> Result<(), MonitorError> {
    let doing = "writing a heartbeat";
    let row = session.query_one(doing, SQL, &[]).await?;
    if column::<bool>(doing, &row, 0)? { Ok(()) } else { Err(MonitorError::NotPrimary) }
}

fn note(board: &Board, outcome: Result<(), MonitorError>) {
    let why = outcome.as_ref().err().map(|error| chain(error));
    let mut before = None;
    board.write(|status| {
        let heartbeat = status.source.heartbeat.get_or_insert_default();
        *(if why.is_none() { &mut heartbeat.written } else { &mut heartbeat.failed }) += 1;
        before = std::mem::replace(&mut heartbeat.last_error, why.clone());
    });
    match outcome {
        Ok(()) => {
            events::heartbeat_written();
            if before.is_some() {
                tracing::info!("heartbeats are written again");
            }
        }
        Err(error) => {
            events::heartbeat_failed();
            if before.is_none() {
                super::log("no heartbeat is written, it is tried again", &error, &why.unwrap_or_default());
            }
        }
    }
}
