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
use walgate_store::Store;
use walgate_wire::SourceOptions;

use super::deliver::{Generation, LanePolicy, RolledBack, Swap};
use super::turn::Beside;
use crate::connect;
use crate::exit::{Exit, Failure, chain};
use crate::plugins::{Candidate, Change, Loaded};
use crate::status::{Board, Phase, PluginStatus};

/// How often the stream is looked at while a turn waits for it.
const LOOK: Duration = Duration::from_millis(200);
/// How long a version that did not run at the end of its probation is watched on.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long after its window a version counts as proven.
const GRACE: Duration = Duration::from_secs(1);

/// The changes that wait, those together that came together. One pipeline after the other takes them.
pub(crate) type Candidates = Arc<Mutex<mpsc::Receiver<Vec<Candidate>>>>;

/// A lane as it can be asked.
pub(super) struct Handle {
    pub(super) swaps: mpsc::Sender<Swap>,
    pub(super) policy: LanePolicy,
    pub(super) loaded: Loaded,
}

enum Heard {
    Candidates(Vec<Candidate>),
    Back(RolledBack),
    /// The plugin whose version is through its probation.
    Through(String),
}

/// A generation that has to prove itself.
pub(super) struct Trial {
    number: u64,
    until: Instant,
    /// What runs again when it fails.
    before: Option<Loaded>,
}

impl Trial {
    /// From now on.
    pub(super) fn new(number: u64, window: Duration, before: Option<Loaded>) -> Self {
        // The lane counts the window by itself; what it says at the end of it is heard before the end here.
        Self { number, until: Instant::now() + window + GRACE, before }
    }
}

/// Works beside the stream.
pub(super) struct Swaps {
    pub(super) pipeline: String,
    pub(super) state: SourceOptions,
    pub(super) epoch: Option<u64>,
    pub(super) lanes: BTreeMap<String, Handle>,
    pub(super) trials: BTreeMap<String, Trial>,
    /// How long each is watched.
    pub(super) probation: Duration,
    pub(super) beside: Beside,
    /// Told of changes that only a start can make.
    pub(super) turn: mpsc::Sender<Vec<Candidate>>,
    pub(super) rolled_back: mpsc::UnboundedReceiver<RolledBack>,
    pub(super) board: Board,
}

impl Swaps {
    /// Works until a stop is asked for, or a change needs a turn.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let candidates = Arc::clone(&self.beside.candidates);
        let mut candidates = candidates.lock().await;
        loop {
            let due = self.trials.iter().map(|(plugin, trial)| (trial.until, plugin.clone())).min();
            let through = async {
                match due {
                    Some((at, plugin)) => {
                        tokio::time::sleep_until(at).await;
                        plugin
                    }
                    None => std::future::pending().await,
                }
            };
            let heard = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                Some(back) = self.rolled_back.recv() => Heard::Back(back),
                plugin = through => Heard::Through(plugin),
                candidates = candidates.recv() => match candidates {
                    Some(candidates) => Heard::Candidates(candidates),
                    None => return,
                },
            };
            let candidates = match heard {
                Heard::Candidates(candidates) => candidates,
                Heard::Back(back) => {
                    self.went_back(back).await;
                    continue;
                }
                Heard::Through(plugin) => {
                    self.is_through(&plugin).await;
                    continue;
                }
            };
            let mut turn = Vec::new();
            for candidate in candidates {
                turn.extend(self.change(candidate).await);
            }
            if !turn.is_empty() {
                // A start gives up on a source that is away, where a stream that is lost waits for it.
                if self.streams(&mut stop).await {
                    // The pipeline that begins next answers.
                    let _ = self.turn.send(turn).await;
                }
                return;
            }
        }
    }

    /// Makes a change, or gives back what only a start can make.
    async fn change(&mut self, candidate: Candidate) -> Option<Candidate> {
        let Candidate { change, answer } = candidate;
        if let Err(cause) = self.allowed(&change).await {
            let _ = answer.send(Err(cause));
            return None;
        }
        let loaded = match change {
            Change::Enters(loaded) if self.fits(&loaded) => loaded,
            change => return Some(Candidate { change, answer }),
        };
        let name = loaded.name.clone();
        let outcome = match self.swap(*loaded).await {
            Ok(Some(pause)) => {
                self.board.plugin(&name, |plugin| plugin.last_swap_pause_us = Some(pause));
                Ok(())
            }
            // Whoever asked asks again when there is a lane.
            Ok(None) => return None,
            Err(cause) => Err(cause),
        };
        // A watcher that has ended needs no answer.
        let _ = answer.send(outcome);
        None
    }

    /// A lane went back by itself: what is known of the plugin follows, and the version that failed is marked.
    async fn went_back(&mut self, back: RolledBack) {
        // Unless another one has taken its place already.
        let is_it = self.trials.get(&back.plugin).is_some_and(|trial| trial.number == back.number);
        if let Some(trial) = is_it.then(|| self.trials.remove(&back.plugin)).flatten() {
            self.restore(&back, trial.before);
        }
        let marked = async {
            let mut store = self.store().await?;
            let blocked = store.block_generation(&self.pipeline, &back.plugin, back.number, &back.cause).await;
            blocked.map_err(connect::state_failure)?;
            let runs = store.opened_generation(&self.pipeline, &back.plugin, back.to).await;
            runs.map_err(connect::state_failure)
        };
        if let Err(failure) = marked.await {
            tracing::warn!(
                plugin = back.plugin,
                "that the version failed cannot be kept, so a restart would try it again: {}",
                failure.message
            );
        }
        // Last: whoever sees it and wants it tried again takes the mark off.
        self.board.candidate(&back.plugin, Some(format!("rolled-back: {}", back.cause)));
    }

    fn restore(&mut self, back: &RolledBack, before: Option<Loaded>) {
        if let (Some(handle), Some(loaded)) = (self.lanes.get_mut(&back.plugin), before) {
            let change = Change::Enters(Box::new(loaded.clone()));
            self.beside.plugins.change(|plugins| plugins.apply(change));
            handle.loaded = loaded;
        }
        // It may have been on probation itself. Nothing is to go back to any more, and it is marked when it is through.
        self.trials.insert(back.plugin.clone(), Trial::new(back.to, self.probation, None));
    }

    /// A version that runs at the end of its probation has proven itself; one that does not is watched on.
    async fn is_through(&mut self, plugin: &str) {
        let Some(trial) = self.trials.get_mut(plugin) else { return };
        trial.until = Instant::now() + LOOK_AGAIN;
        let number = trial.number;
        let runs = |status: &PluginStatus| status.state == "running" && status.generation == number;
        if !self.board.read().plugins.get(plugin).is_some_and(runs) {
            return;
        }
        let proven = async {
            let mut store = self.store().await?;
            store.prove_generation(&self.pipeline, plugin, number).await.map_err(connect::state_failure)
        };
        match proven.await {
            // Away for now, which others say.
            Err(failure) if failure.exit == Exit::Unavailable => return,
            Err(failure) => tracing::warn!(
                plugin,
                "that its version has proven itself cannot be kept, so a restart has it on probation again: {}",
                failure.message
            ),
            Ok(()) => {}
        }
        self.trials.remove(plugin);
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

    /// Microseconds without a delivery, or why the old one stays. None when its lane ends meanwhile.
    async fn swap(&mut self, next: Loaded) -> Result<Option<u64>, String> {
        let mut store = self.store().await.map_err(|failure| failure.message)?;
        let version = next.description.version.clone();
        let entered = store.enter_generation(&self.pipeline, &next.name, &next.fingerprint, &version).await;
        let number = entered.map_err(|error| chain(&error))?.number;
        walgate_failpoint::hit("swap.entered");
        let Some(handle) = self.lanes.get_mut(&next.name) else { return Ok(None) };
        let generation = generation(number, &next, &handle.policy);
        let policy = generation.policy.clone();
        let (outcome, heard) = oneshot::channel();
        if handle.swaps.send(Swap { next: generation, outcome }).await.is_err() {
            return Ok(None);
        }
        let Ok(outcome) = heard.await else { return Ok(None) };
        let pause = outcome?;
        walgate_failpoint::hit("swap.done");
        handle.policy = policy;
        // What the lane went back from before it took this one.
        let mut later = Vec::new();
        while let Ok(back) = self.rolled_back.try_recv() {
            if (back.plugin.as_str(), back.number) == (next.name.as_str(), number) {
                later.push(back);
            } else {
                self.went_back(back).await;
            }
        }
        if let Err(error) = store.opened_generation(&self.pipeline, &next.name, number).await {
            tracing::warn!(plugin = next.name, "that the version runs cannot be kept: {}", chain(&error));
        }
        let entered = Change::Enters(Box::new(next.clone()));
        self.beside.plugins.change(|plugins| plugins.apply(entered));
        if let Some(handle) = self.lanes.get_mut(&next.name) {
            let name = next.name.clone();
            let old = std::mem::replace(&mut handle.loaded, next);
            self.trials.insert(name, Trial::new(number, self.probation, Some(old)));
        }
        for back in later {
            self.went_back(back).await;
        }
        Ok(Some(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)))
    }

    async fn store(&self) -> Result<Store, Failure> {
        connect::state_beside(&self.state, &self.pipeline, self.epoch).await
    }
}

/// A version as a lane runs it: what is set up around the lane stays.
pub(super) fn generation(number: u64, loaded: &Loaded, around: &LanePolicy) -> Generation {
    let Manifest { on_failure, retry, flush, .. } = loaded.manifest;
    let policy = LanePolicy { on_failure, retry, flush, ..around.clone() };
    Generation { number, version: loaded.description.version.clone(), worker: Arc::clone(&loaded.worker), policy }
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
