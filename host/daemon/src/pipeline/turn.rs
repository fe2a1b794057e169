//! A change of plugins that only a start can make: the pipeline ends in order, begins again with it, and goes back when it
//! fails.
//!
//! Holds: what to go back to, and who waits for the answer. Refuses to know why a change needs a turn (see `swaps.rs`).
//! Invariant: a plugin that cannot start with the change, or fails on probation, stands as it did before, and no other one
//! is touched by that.

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};
use walgate_store::Store;

use super::swaps::Candidates;
use crate::exit::{Exit, Failure, chain};
use crate::halt::Halt;
use crate::plugins::{Candidate, Change, Loader, NotRunning, Plugins, Stood};
use crate::status::Board;
use crate::telemetry::events;

/// What outlives one run of the stages.
#[derive(Clone)]
pub(crate) struct Beside {
    /// Told when somebody asked for dead letters to be tried.
    pub(crate) redrive: Arc<Notify>,
    pub(crate) candidates: Candidates,
    /// What runs, or is to run next. Swaps inside a lane are entered here, too.
    pub(crate) plugins: Plugins,
    /// Loads the version that ran before another one.
    pub(crate) loader: Loader,
}

/// A turn under way, or on probation.
pub(super) struct Turning {
    pub(super) plugin: String,
    fingerprint: Option<String>,
    required: bool,
    answer: Option<oneshot::Sender<Result<(), String>>>,
    before: Stood,
    /// It did not run before, and is not to be opened again when it comes back.
    was_parked: bool,
}

impl Turning {
    /// Makes the change.
    pub(super) fn begin(beside: &Beside, board: &Board, candidate: Candidate) -> Self {
        let Candidate { change, answer } = candidate;
        let plugin = change.plugin().to_owned();
        tracing::info!(plugin, "the pipeline begins again with the change");
        let (fingerprint, required) = match &change {
            Change::Enters(loaded) => (Some(loaded.fingerprint.clone()), loaded.manifest.required),
            Change::Leaves(_) => (None, false),
        };
        let before = beside.plugins.read().stands(&plugin);
        let was_parked = board.read().plugins.get(&plugin).is_some_and(|plugin| plugin.state == "parked");
        beside.plugins.change(|plugins| plugins.apply(change));
        walgate_failpoint::hit("turn.begun");
        Self { plugin, fingerprint, required, answer: Some(answer), before, was_parked }
    }

    /// Whether a start failed because of the change.
    pub(super) fn explains(&self, failure: &Failure) -> bool {
        match &failure.halt {
            Some(halt) => halt.plugin.as_ref() == Some(&self.plugin),
            None => failure.exit == Exit::Usage,
        }
    }

    /// Whether a failure goes back. What was parked and is tried once more in the same version goes by its policy.
    pub(super) fn is_trial(&self) -> bool {
        !(self.was_parked && self.is_same())
    }

    /// The same version, with other secrets or after something was mended: no mark of it can tell the two apart.
    fn is_same(&self) -> bool {
        self.fingerprint.as_ref().is_some_and(|fingerprint| self.before.has(fingerprint))
    }

    /// The start has worked.
    pub(super) fn enters(&mut self) {
        self.tell(Ok(()));
    }

    /// Undoes the change.
    pub(super) fn back(mut self, beside: &Beside, board: &Board, outcome: Result<(), String>) {
        self.tell(outcome);
        if self.before.runs() && !self.was_parked {
            board.plugin_state(&self.plugin, "opening", None);
        }
        beside.plugins.change(|plugins| plugins.restore(self.before));
    }

    /// Undoes the change after it has run, and keeps it from being started again.
    pub(super) async fn roll_back(
        self,
        beside: &Beside,
        store: &mut Store,
        pipeline: &str,
        board: &Board,
        halt: &Halt,
    ) {
        let cause = format!("{}: {}", halt.class, halt.detail);
        let (plugin, fingerprint, required) = (self.plugin.clone(), self.fingerprint.clone(), self.required);
        let (ran_before, is_same) = (self.before.runs(), self.is_same());
        self.back(beside, board, Ok(()));
        walgate_failpoint::hit("turn.back");
        if !ran_before {
            // It has a place since it was opened, which is kept for it if it is required.
            board.plugin_state(&plugin, "quarantined", Some(cause.clone()));
            board.plugin(&plugin, |plugin| plugin.required = false);
            let quarantined = NotRunning { name: plugin.clone(), state: "quarantined", cause: cause.clone(), required };
            beside.plugins.change(|plugins| plugins.quarantine(quarantined));
        }
        let blocked = async {
            let known = store.generations(pipeline, &plugin).await?;
            let number = known.iter().find(|one| Some(&one.fingerprint) == fingerprint.as_ref()).map(|one| one.number);
            events::rolled_back(&plugin, number.unwrap_or_default(), &cause);
            match number.filter(|_| !is_same) {
                Some(number) => store.block_generation(pipeline, &plugin, number, &cause).await,
                None => Ok(()),
            }
        };
        if let Err(error) = blocked.await {
            tracing::warn!(
                plugin,
                "that the version failed cannot be kept, so a restart would try it again: {}",
                chain(&error)
            );
        }
        // Last: whoever sees it and wants it tried again takes the mark off.
        board.candidate(&plugin, Some(format!("rolled-back: {cause}")));
    }

    fn tell(&mut self, outcome: Result<(), String>) {
        if let Some(answer) = self.answer.take() {
            // A watcher that has ended needs no answer.
            let _ = answer.send(outcome);
        }
    }
}
