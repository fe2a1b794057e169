//! Another generation of the plugin takes over between two calls, and the one before comes back when the new one fails.
//!
//! Holds: the exchange, and the probation after it. Refuses to know where a generation comes from (see
//! [`super::super::swaps`]). Invariant: no position moves here. What the old one accepted is made durable by it; what waits
//! goes to the new one, under the same ids; one that cannot be opened leaves the old one at work.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use walgate_plugin::{CallError, Disposition, Worker};

use super::attempt::{Attempts, Trouble};
use super::work::Work;
use super::{LanePolicy, Stop};
use crate::halt::HaltClass;
use crate::telemetry::events;

/// A version of a plugin that can be opened.
pub(crate) struct Generation {
    /// Its number on record.
    pub(crate) number: u64,
    /// What it calls itself.
    pub(crate) version: String,
    pub(crate) worker: Arc<Worker>,
    pub(crate) policy: LanePolicy,
}

/// Asks a lane to exchange its generation.
pub(crate) struct Swap {
    pub(crate) next: Generation,
    /// How long nothing was delivered, or why the old one stays.
    pub(crate) outcome: oneshot::Sender<Result<Duration, String>>,
}

/// How long a new generation is watched, and how often it may fail meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probation {
    pub(crate) window: Duration,
    pub(crate) failures: u32,
}

/// A generation went back by itself.
pub(crate) struct RolledBack {
    pub(crate) plugin: String,
    /// The one that failed.
    pub(crate) number: u64,
    /// The one that runs again.
    pub(crate) to: u64,
    pub(crate) cause: String,
}

/// Where a version goes back to that fails on probation.
pub(crate) enum Back {
    /// To another generation, in the lane.
    To(Generation),
    /// To what was before the pipeline began anew, by another turn of it: the lane ends for that, whatever its policy is.
    ByTurn,
}

/// The generation before, until the new one has proven itself.
pub(super) struct Fallback {
    back: Back,
    until: Instant,
    failures: u32,
}

impl Fallback {
    /// Whether the whole pipeline goes back.
    pub(super) fn is_by_turn(&self) -> bool {
        matches!(self.back, Back::ByTurn)
    }

    /// From now on.
    pub(super) fn new(back: Back, probation: Probation) -> Self {
        Self { back, until: Instant::now() + probation.window, failures: 0 }
    }
}

impl Work {
    /// Exchanges the generation. Anything that keeps the new one from being opened is told to whoever asked, and the old one
    /// goes on.
    pub(super) async fn swap(&mut self, swap: Swap) -> Result<(), Stop> {
        let began = Instant::now();
        let Swap { next, outcome } = swap;
        self.lane.board.plugin_state(&self.lane.name, "draining", None);
        if self.is_open && !self.accepted.is_empty() && self.flush_all().await?.is_err() {
            // Then the new one is given it, as after every instance that ends.
            self.is_open = false;
        }
        walgate_failpoint::hit("swap.drained");
        let was_open = std::mem::replace(&mut self.is_open, false);
        let before = self.exchange(next);
        let refused = match self.ready().await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("it cannot be opened: {error}")),
            Err(Stop::Plugin { detail, .. } | Stop::Trial { detail, .. }) => Some(detail),
            Err(Stop::Abandoned) => return Err(Stop::Abandoned),
        };
        if let Some(cause) = refused {
            // Its epoch is no longer the newest, so it is opened again.
            let failed = self.exchange(before);
            self.is_open = false;
            tokio::spawn(async move { failed.worker.close().await });
            self.runs();
            let _ = outcome.send(Err(cause));
            return Ok(());
        }
        walgate_failpoint::hit("swap.opened");
        let pause = began.elapsed();
        events::swapped(&self.lane.name, self.lane.context.generation, pause);
        self.runs();
        if was_open {
            let old = Arc::clone(&before.worker);
            tokio::spawn(async move { old.close().await });
        }
        self.fallback = Some(Fallback::new(Back::To(before), self.channels.probation));
        self.lane.board.on_probation(&self.lane.name, self.channels.probation.window);
        let _ = outcome.send(Ok(pause));
        Ok(())
    }

    /// Whether there is a generation to go back to.
    pub(super) fn is_on_probation(&self) -> bool {
        self.fallback.as_ref().is_some_and(|fallback| Instant::now() < fallback.until)
    }

    /// Lets go of the generation before when the new one has proven itself: its code and its thread are of no more use.
    pub(super) fn end_probation(&mut self) {
        if self.fallback.is_some() && !self.is_on_probation() {
            self.fallback = None;
        }
    }

    /// A failure of the new generation: whether it goes back now.
    pub(super) fn is_last_straw(&mut self, trouble: &Trouble, is_final: bool) -> bool {
        let now = Instant::now();
        let most = self.channels.probation.failures;
        let Some(fallback) = &mut self.fallback else { return false };
        if now >= fallback.until {
            self.fallback = None;
            return false;
        }
        let blames_peer = matches!(
            trouble,
            Trouble::Call(CallError::Refused(failure)) if failure.disposition == Disposition::Retry
        );
        if !blames_peer {
            fallback.failures += 1;
        }
        is_final || fallback.failures >= most
    }

    /// The generation before comes back, and what the new one failed on is delivered to it.
    pub(super) fn roll_back(&mut self, class: HaltClass, cause: String, attempts: &mut Attempts) -> Result<(), Stop> {
        let before = match self.fallback.take().map(|fallback| fallback.back) {
            Some(Back::To(before)) => before,
            Some(Back::ByTurn) => return Err(Stop::Trial { class, detail: cause }),
            None => return Ok(()),
        };
        let failed = self.exchange(before);
        self.is_open = false;
        tokio::spawn(async move { failed.worker.close().await });
        events::rolled_back(&self.lane.name, failed.number, &cause);
        self.lane.board.plugin(&self.lane.name, |status| status.probation_until = None);
        let to = self.lane.context.generation;
        self.runs();
        *attempts = Attempts::new(&self.lane.policy.retry);
        let plugin = self.lane.name.clone();
        // Whoever listens keeps it from being started again; without one the process ends.
        let _ = self.channels.rolled_back.send(RolledBack { plugin, number: failed.number, to, cause });
        Ok(())
    }

    fn exchange(&mut self, next: Generation) -> Generation {
        let lane = &mut self.lane;
        Generation {
            number: std::mem::replace(&mut lane.context.generation, next.number),
            version: std::mem::replace(&mut lane.version, next.version),
            worker: std::mem::replace(&mut lane.worker, next.worker),
            policy: std::mem::replace(&mut lane.policy, next.policy),
        }
    }

    fn runs(&self) {
        let lane = &self.lane;
        lane.board.plugin_state(&lane.name, "running", None);
        lane.board.plugin(&lane.name, |status| {
            status.version.clone_from(&lane.version);
            status.generation = lane.context.generation;
            (status.attempt, status.next_attempt_ms) = (0, None);
        });
    }
}
