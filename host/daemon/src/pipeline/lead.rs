//! Who runs the pipeline: one process at a time, and the others wait.
//!
//! Holds: the wait for the lock in the state database, and the fencing epoch that is raised once it is held. Refuses to
//! know what is done as the leader. Invariant: nothing is read for a start before the epoch is raised, so that nobody can
//! move what was read.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use walgate_store::{LeaseGuard, Store};
use walgate_wire::Connection;

use crate::config::Config;
use crate::connect::{self, state_failure};
use crate::exit::Failure;
use crate::status::Board;
use crate::telemetry::events;

/// How often a waiting process looks.
const LOOK: Duration = Duration::from_secs(1);
/// The lock of a process that goes on reading is free only for as long as that process takes to lock it again. Beyond this
/// it hangs, and the epoch keeps it from doing harm.
const LIVING_PATIENCE: Duration = Duration::from_secs(90);

/// Waits until this process may run the pipeline. None when a stop is asked for meanwhile.
pub(super) async fn lead(
    store: &mut Store,
    config: &Config,
    board: &Board,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<LeaseGuard>, Failure> {
    let pipeline = config.slot.as_str();
    let mut told = false;
    let mut patient = false;
    let mut free_since: Option<Instant> = None;
    let lease = loop {
        match store.try_lead(pipeline).await {
            Ok(Some(lease)) => {
                let since = *free_since.get_or_insert_with(Instant::now);
                if !told || since.elapsed() >= LIVING_PATIENCE || !another_reads(config).await {
                    break lease;
                }
                // Given back, so that the process that lost only its session can take it again.
                drop(lease);
                if !std::mem::replace(&mut patient, true) {
                    tracing::warn!(
                        wait_ms = LIVING_PATIENCE.as_millis() as u64,
                        "the process that leads has lost the lock and still reads the slot; it is given time to take it again"
                    );
                }
            }
            Ok(None) => free_since = None,
            // A process that waits outlives the faults that it waits for.
            Err(error) if told && error.class() == walgate_store::Class::Retry => {
                board.write(|status| status.state_error = Some(error.to_string()));
            }
            Err(error) => return Err(state_failure(error)),
        }
        if !std::mem::replace(&mut told, true) {
            events::standing_by();
            let leader = match connect::state_reader(&config.state).await {
                Ok(mut reader) => reader.leader(pipeline).await.ok().flatten(),
                Err(_) => None,
            };
            board.standing_by(leader.map(|leader| (leader.epoch, leader.holder)));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        }
    };
    walgate_failpoint::hit("takeover.locked");
    let guard = lease.keep();
    let epoch = loop {
        match store.take_over(pipeline, &holder()).await {
            Ok(epoch) => break epoch,
            // A transaction of a dead process may hold its epoch for as long as the server takes to notice.
            Err(error) if told && error.class() == walgate_store::Class::Retry => {
                board.write(|status| status.state_error = Some(error.to_string()));
            }
            Err(error) => return Err(state_failure(error)),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        }
    };
    walgate_failpoint::hit("takeover.fenced");
    events::took_over(epoch);
    board.write(|status| status.state_error = None);
    board.leads(epoch, &holder());
    Ok(Some(guard))
}

/// Whether a process of ours reads the slot. A source that cannot be asked cannot be read by anybody, nor by us, so that
/// waiting costs nothing.
async fn another_reads(config: &Config) -> bool {
    let asked = async { Connection::connect_sql(&config.source).await?.slot(&config.slot).await }.await;
    asked.map_or(true, |slot| slot.is_some_and(|slot| slot.active))
}

/// What people are shown: the machine and the process.
fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    format!("{host} process {}", std::process::id())
}
