//! Changes of plugins while the pipeline runs: who can make one, and what is kept on record.
//!
//! Holds: the choice between a swap inside the lane and a turn of the whole pipeline, the numbers of generations, and the
//! mark of one that failed. A change that leaves all but code, settings and policies as they are is made in the lane; what
//! changes tables, outputs, targets or interfaces needs what only a start can do, so the pipeline ends in order and begins
//! again, in the same process. Refuses to know how a generation is exchanged (see [`super::deliver`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::Instant;
use walgate_plugin::Manifest;
use walgate_store::{Entered, Store};
use walgate_wire::SourceOptions;

use super::deliver::{Generation, LanePolicy, RolledBack, Swap};
use super::turn::Beside;
use crate::connect;
use crate::exit::{Failure, chain};
use crate::plugins::{Candidate, Change, Loaded};
use crate::status::{Board, Phase};

/// How often the stream is looked at while a turn waits for it.
const LOOK: Duration = Duration::from_millis(200);
/// How long a version that did not run at the end of its probation is watched on.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The changes that wait. One pipeline after the other takes them.
pub(crate) type Candidates = Arc<Mutex<mpsc::Receiver<Candidate>>>;

/// A lane as it can be asked.
pub(super) struct Handle {
    pub(super) swaps: mpsc::Sender<Swap>,
    pub(super) policy: LanePolicy,
    pub(super) loaded: Loaded,
}

enum Heard {
    Candidate(Candidate),
    Back(RolledBack),
    Proven(String),
}

/// A generation that has to prove itself.
pub(super) struct Unproven {
    number: u64,
    until: Instant,
}

impl Unproven {
    /// From now on.
    pub(super) fn new(number: u64, window: Duration) -> Self {
        Self { number, until: Instant::now() + window }
    }
}

/// Works beside the stream.
pub(super) struct Swaps {
    pub(super) pipeline: String,
    pub(super) state: SourceOptions,
    pub(super) epoch: Option<u64>,
    pub(super) lanes: BTreeMap<String, Handle>,
    pub(super) unproven: BTreeMap<String, Unproven>,
    /// How long each is watched.
    pub(super) probation: Duration,
    pub(super) beside: Beside,
    /// Told of a change that only a start can make.
    pub(super) turn: mpsc::Sender<Candidate>,
    pub(super) rolled_back: mpsc::UnboundedReceiver<RolledBack>,
    pub(super) board: Board,
}

impl Swaps {
    /// Works until a stop is asked for, or a change needs a turn.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let candidates = Arc::clone(&self.beside.candidates);
        let mut candidates = candidates.lock().await;
        // What a generation was before it entered, while that is not settled.
        let mut before: BTreeMap<String, Loaded> = BTreeMap::new();
        loop {
            let due = self.due();
            let through = async {
                match due {
                    Some((plugin, at)) => {
                        tokio::time::sleep_until(at).await;
                        plugin
                    }
                    None => std::future::pending().await,
                }
            };
            let heard = tokio::select! {
                candidate = candidates.recv() => candidate.map(Heard::Candidate),
                Some(back) = self.rolled_back.recv() => Some(Heard::Back(back)),
                plugin = through => Some(Heard::Proven(plugin)),
                _ = stop.wait_for(|stop| *stop) => None,
            };
            let Candidate { change, answer } = match heard {
                None => return,
                Some(Heard::Candidate(candidate)) => candidate,
                Some(Heard::Back(back)) => {
                    if let (Some(handle), Some(loaded)) =
                        (self.lanes.get_mut(&back.plugin), before.remove(&back.plugin))
                    {
                        let back = Change::Enters(Box::new(loaded.clone()));
                        self.beside.plugins.change(|plugins| plugins.apply(back));
                        handle.loaded = loaded;
                    }
                    self.unproven.remove(&back.plugin);
                    self.block(back).await;
                    continue;
                }
                Some(Heard::Proven(plugin)) => {
                    self.prove(&plugin, &mut before).await;
                    continue;
                }
            };
            if let Err(cause) = self.allowed(&change).await {
                let _ = answer.send(Err(cause));
                continue;
            }
            let loaded = match change {
                Change::Enters(loaded) if self.fits(&loaded) => loaded,
                change => {
                    // A start gives up on a source that is away, where a stream that is lost waits for it.
                    if !self.streams(&mut stop).await {
                        return;
                    }
                    // The pipeline that begins next answers.
                    let _ = self.turn.send(Candidate { change, answer }).await;
                    return;
                }
            };
            let name = loaded.name.clone();
            let outcome = self.swap(*loaded, &mut before).await;
            if let Ok(pause) = &outcome {
                self.board.plugin(&name, |plugin| plugin.last_swap_pause_us = Some(*pause));
            }
            // A watcher that has ended needs no answer.
            let _ = answer.send(outcome.map(drop));
        }
    }

    /// Who is through its probation next, and when.
    fn due(&self) -> Option<(String, Instant)> {
        let next = self.unproven.iter().min_by_key(|(_, one)| one.until);
        next.map(|(plugin, one)| (plugin.clone(), one.until))
    }

    /// A version that runs at the end of its probation has proven itself; one that does not is watched on.
    async fn prove(&mut self, plugin: &str, before: &mut BTreeMap<String, Loaded>) {
        let Some(one) = self.unproven.get_mut(plugin) else { return };
        one.until = Instant::now() + LOOK_AGAIN;
        let number = one.number;
        if self.board.read().plugins.get(plugin).is_none_or(|status| status.state != "running") {
            return;
        }
        let proven = async {
            let mut store = self.store().await?;
            store.prove_generation(&self.pipeline, plugin, number).await.map_err(connect::state_failure)
        };
        match proven.await {
            Ok(()) => {
                self.unproven.remove(plugin);
                before.remove(plugin);
            }
            Err(failure) => {
                tracing::debug!(plugin, "that its version has proven itself is kept later: {}", failure.message)
            }
        }
    }

    /// Waits until the stream is read. False when a stop is asked for meanwhile.
    async fn streams(&self, stop: &mut watch::Receiver<bool>) -> bool {
        while self.board.read().phase != Phase::Streaming {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = stop.wait_for(|stop| *stop) => return false,
            }
        }
        true
    }

    /// Whether a running lane can take it: all that is set up outside of the lane stays as it is.
    fn fits(&self, next: &Loaded) -> bool {
        let Some(handle) = self.lanes.get(&next.name).filter(|handle| !handle.swaps.is_closed()) else { return false };
        handle.loaded.is_set_up_like(next) && handle.loaded.secrets == next.secrets
    }

    /// Fails with why a change would be for nothing.
    async fn allowed(&self, change: &Change) -> Result<(), String> {
        let Change::Enters(next) = change else { return Ok(()) };
        let mut store = self.store().await.map_err(|failure| failure.message)?;
        let known = store.generations(&self.pipeline, &next.name).await.map_err(|error| chain(&error))?;
        blocked_by(&known, next).map_or(Ok(()), Err)
    }

    async fn swap(&mut self, next: Loaded, before: &mut BTreeMap<String, Loaded>) -> Result<u64, String> {
        let mut store = self.store().await.map_err(|failure| failure.message)?;
        let version = next.description.version.clone();
        let entered = store.enter_generation(&self.pipeline, &next.name, &next.fingerprint, &version).await;
        let Entered { number, proven } = entered.map_err(|error| chain(&error))?;
        walgate_failpoint::hit("swap.entered");
        let Some(handle) = self.lanes.get_mut(&next.name) else { return Err("its lane is gone".to_owned()) };
        let Manifest { on_failure, retry, flush, .. } = next.manifest;
        let policy = LanePolicy { on_failure, retry, flush, ..handle.policy.clone() };
        let (outcome, heard) = oneshot::channel();
        let generation = Generation { number, version, worker: Arc::clone(&next.worker), policy: policy.clone() };
        if handle.swaps.send(Swap { next: generation, outcome }).await.is_err() {
            return Err("its lane has ended".to_owned());
        }
        let pause = heard.await.unwrap_or_else(|_| Err("its lane ended meanwhile".to_owned()))?;
        walgate_failpoint::hit("swap.done");
        handle.policy = policy;
        let entered = Change::Enters(Box::new(next.clone()));
        self.beside.plugins.change(|plugins| plugins.apply(entered));
        let old = std::mem::replace(&mut handle.loaded, next);
        self.unproven.remove(&old.name);
        if !proven {
            self.unproven.insert(old.name.clone(), Unproven::new(number, self.probation));
        }
        before.insert(old.name.clone(), old);
        Ok(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX))
    }

    async fn block(&self, back: RolledBack) {
        self.board.candidate(&back.plugin, Some(format!("rolled-back: {}", back.cause)));
        let blocked = async {
            let mut store = self.store().await?;
            let blocked = store.block_generation(&self.pipeline, &back.plugin, back.number, &back.cause).await;
            blocked.map_err(connect::state_failure)
        };
        if let Err(failure) = blocked.await {
            tracing::warn!(
                plugin = back.plugin,
                "that the version failed cannot be kept, so a restart would try it again: {}",
                failure.message
            );
        }
    }

    async fn store(&self) -> Result<Store, Failure> {
        connect::state_beside(&self.state, &self.pipeline, self.epoch).await
    }
}

/// Why a version is not tried again, if it is not: it was rolled back.
pub(crate) fn blocked_by(known: &[walgate_store::Generation], next: &Loaded) -> Option<String> {
    let same = known.iter().find(|one| one.fingerprint == next.fingerprint)?;
    same.blocked.as_ref().map(|cause| {
        format!(
            "this version ran before and was rolled back ({cause}); put another one there, or have it tried again with: \
             walgate plugin unblock {}",
            next.name
        )
    })
}
