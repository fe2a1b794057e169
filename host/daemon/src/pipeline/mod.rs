//! One pipeline, from socket to acknowledgement. The only folder that knows every stage.
//!
//! ```text
//! source ─ chunks ─ flow ─ items ─ deliver (one lane a plugin) ─┬─────────┬─ checkpoint ─ durable ─ ack ─┐
//!   ▲                                                           └─ apply ─┘                              │
//!   └──────────────────────────── position, as a value on a watch ───────────────────────────────────────┘
//! ```
//!
//! Holds: the life of a pipeline as a whole: lead, start, run, and what is kept of a halt.
//! Read next: `lead.rs`, `start.rs`, `running.rs`, then the stages: `source.rs`, `flow.rs`, `deliver/`, `apply.rs`,
//! `checkpoint.rs`, `ack.rs`; beside the stream `letters.rs`, `bounds.rs` and `swaps.rs`; `turn.rs` for what begins it anew.

mod absent;
mod ack;
mod apply;
mod bounds;
mod checkpoint;
mod columns;
mod deliver;
mod delivered_to;
mod flow;
mod granted;
mod lead;
mod letters;
mod outputs;
mod running;
mod source;
mod start;
mod swaps;
mod target;
mod turn;
mod witness;

use tokio::sync::watch;
use walgate_store::{Store, StoredHalt};

use crate::config::Config;
use crate::connect::{self, state_failure};
use crate::exit::{Failure, chain};
use crate::halt::{Halt, HaltClass};
use crate::status::{Board, Phase};
use crate::telemetry::events;
pub(crate) use outputs::Files;
use running::{OnProbation, Outcome, Running};
use source::Ready;
use start::Beginning;
pub(crate) use swaps::blocked_by;
pub(crate) use target::look as look_at_targets;
pub(crate) use turn::Beside;
use turn::Turning;

/// Runs until a stop is asked for or something halts.
pub(crate) async fn run(
    config: Config,
    beside: Beside,
    mut store: Store,
    board: Board,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    // Held until the end: the next process may only begin when this one is done.
    let Some(_lease) = lead::lead(&mut store, &config, &board, &mut stop).await? else { return Ok(()) };
    let mut turning: Vec<Turning> = Vec::new();
    let mut beginning = Beginning::First;
    loop {
        let mut stopped = stop.clone();
        // A start may wait long: for a plugin that refuses to open, or for a server that hangs. Nothing in it needs to end.
        let started = tokio::select! {
            started = start::start(config.clone(), &beside, &beginning, &mut store, &board, &mut stop) => started,
            _ = stopped.wait_for(|stop| *stop) => Ok(None),
        };
        let started = match started {
            Ok(None) => return Ok(()),
            Ok(Some(started)) => started,
            Err(failure) => {
                if let Some(at) = turning.iter().position(|turned| turned.explains(&failure)) {
                    turning.swap_remove(at).back(&beside, &board, Err(failure.message));
                    beginning = Beginning::again(&turning);
                    continue;
                }
                // A slot in use belongs to a running pipeline, whose row is not ours to write to.
                if let Some(halt) = failure.halt.as_ref().filter(|halt| halt.class != HaltClass::SlotActive) {
                    keep_halt(&mut store, &config.slot, halt).await;
                }
                return Err(failure);
            }
        };
        store.clear_halt(&config.slot).await.map_err(state_failure)?;
        let bytes = store.dead_letter_bytes(&config.slot).await.map_err(state_failure)?;
        let until = tokio::time::Instant::now() + config.plugins.probation;
        turning.iter_mut().for_each(Turning::enters);
        let on_probation: Vec<OnProbation> = turning
            .iter()
            .filter(|turned| turned.is_trial())
            .map(|turned| {
                board.on_probation(&turned.plugin, config.plugins.probation);
                OnProbation { plugin: turned.plugin.clone(), until }
            })
            .collect();
        beginning = Beginning::again(&[]);
        let epoch = store.epoch();
        let running =
            Running::start(config.clone(), store, started, bytes, beside.clone(), on_probation.clone(), board.clone());
        match running.until(stop.clone()).await {
            Outcome::Stopped => return Ok(()),
            Outcome::Turn(back, candidates) => {
                // What was cut off is delivered again from the checkpoints.
                store = match back {
                    Some(back) => back,
                    None => connect::state_beside(&config.state, &config.slot, epoch).await?,
                };
                board.write(|status| status.phase = Phase::Starting);
                turning = candidates.into_iter().map(|candidate| Turning::begin(&beside, &board, candidate)).collect();
                beginning = Beginning::again(&turning);
            }
            // What it staged is delivered to it again, once it is tried again.
            Outcome::Parks(plugin, halt, back) => {
                store = match back {
                    Some(back) => back,
                    None => connect::state_beside(&config.state, &config.slot, epoch).await?,
                };
                // Those that entered before are no part of what this break is for.
                turning.clear();
                events::parked(&plugin, halt.class, &halt.detail);
                board.plugin_state(&plugin, "parked", Some(format!("{}: {}", halt.class, halt.detail)));
                board.write(|status| status.phase = Phase::Starting);
            }
            Outcome::Halted(halt, back) => {
                // The checkpoint stage had the only connection; when it was cut off, there is need of another.
                let back = match back {
                    Some(back) => Ok(back),
                    None => connect::state_beside(&config.state, &config.slot, epoch).await,
                };
                let failed = on_probation.iter().find(|one| one.explains(&halt));
                let turned = failed.and_then(|one| turning.iter().position(|turned| turned.plugin == one.plugin));
                match (back, turned.map(|at| turning.swap_remove(at))) {
                    (Ok(back), Some(turned)) => {
                        store = back;
                        board.write(|status| status.phase = Phase::Starting);
                        turned.roll_back(&beside, &mut store, &config.slot, &board, &halt).await;
                    }
                    (Ok(mut back), None) => {
                        keep_halt(&mut back, &config.slot, &halt).await;
                        return Err(halt.into());
                    }
                    (Err(_), _) => {
                        tracing::warn!("the halt cannot be kept: the state database does not answer");
                        return Err(halt.into());
                    }
                }
            }
        }
    }
}

/// Keeps a halt for `status` after the process is gone. Failing to is no reason to hide the halt itself.
async fn keep_halt(store: &mut Store, pipeline: &str, halt: &Halt) {
    let kept =
        StoredHalt { name: halt.class.name().to_owned(), plugin: halt.plugin.clone(), detail: halt.detail.clone() };
    if let Err(error) = store.set_halt(pipeline, &kept).await {
        tracing::warn!("the halt cannot be kept in the state database: {}", chain(&error));
    }
}

fn post_source(board: &Board, config: &Config, ready: &Ready) {
    board.write(|status| {
        let source = &mut status.source;
        source.database.clone_from(&config.source.database);
        source.slot.clone_from(&config.slot);
        source.publications.clone_from(&config.publications);
        source.server_major = ready.found.major;
        source.system_id.clone_from(&ready.found.identity.system_id);
        source.timeline = ready.found.identity.timeline;
    });
}
