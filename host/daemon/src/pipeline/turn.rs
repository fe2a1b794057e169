//! A change of plugins that only a start can make: the pipeline ends in order, begins again with it, and goes back when it
//! fails.
//!
//! Holds: what to go back to, and who waits for the answer. Refuses to know why a change needs a turn (see `swaps.rs`).
//! Invariant: a plugin that cannot start with the change, or fails on probation, stands as it did before, and no other one
//! is touched by that.

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};
use walgate_store::{Store, StoreError};

use super::swaps::Candidates;
use crate::exit::{Exit, Failure, chain};
use crate::halt::{Halt, HaltClass};
use crate::plugins::{Candidate, Change, Loader, Plugins, Stood};
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
    answer: Option<oneshot::Sender<Result<(), String>>>,
    before: Stood,
}

impl Turning {
    /// Makes the change.
    pub(super) fn begin(beside: &Beside, candidate: Candidate) -> Self {
        let Candidate { change, answer } = candidate;
        let plugin = change.plugin().to_owned();
        tracing::info!(plugin, "the pipeline begins again with the change");
        let fingerprint = match &change {
            Change::Enters(loaded) => Some(loaded.fingerprint.clone()),
            Change::Leaves(_) => None,
        };
        let before = beside.plugins.read().stands(&plugin);
        beside.plugins.change(|plugins| plugins.apply(change));
        walgate_failpoint::hit("turn.begun");
        Self { plugin, fingerprint, answer: Some(answer), before }
    }

    /// Whether a start failed because of the change.
    pub(super) fn explains(&self, failure: &Failure) -> bool {
        match &failure.halt {
            Some(halt) => halt.plugin.as_ref() == Some(&self.plugin),
            None => failure.exit == Exit::Usage,
        }
    }

    /// The start has worked.
    pub(super) fn enters(&mut self) {
        self.tell(Ok(()));
    }

    /// Undoes the change.
    pub(super) fn back(mut self, beside: &Beside, outcome: Result<(), String>) {
        self.tell(outcome);
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
        let cause = cause(halt);
        let (plugin, fingerprint) = (self.plugin.clone(), self.fingerprint.clone());
        self.back(beside, Ok(()));
        walgate_failpoint::hit("turn.back");
        board.candidate(&plugin, Some(format!("rolled-back: {cause}")));
        let blocked = async {
            let known = store.generations(pipeline, &plugin).await?;
            let number = known.iter().find(|one| Some(&one.fingerprint) == fingerprint.as_ref()).map(|one| one.number);
            events::rolled_back(&plugin, number.unwrap_or_default(), &cause);
            match number {
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
    }

    fn tell(&mut self, outcome: Result<(), String>) {
        if let Some(answer) = self.answer.take() {
            // A watcher that has ended needs no answer.
            let _ = answer.send(outcome);
        }
    }
}

/// Brings the version before of the plugin that a halt is about, when there is one to go back to.
pub(super) async fn goes_back(
    turning: Option<Turning>,
    beside: &Beside,
    store: &mut Store,
    pipeline: &str,
    board: &Board,
    halt: &Halt,
) -> bool {
    match turning.filter(|turned| halt.plugin.as_ref() == Some(&turned.plugin)) {
        Some(turned) => {
            turned.roll_back(beside, store, pipeline, board, halt).await;
            true
        }
        None => gives_way(beside, store, pipeline, board, halt).await,
    }
}

/// A version that had not proven itself when the process before ended, and ends this one, gives way to the version before
/// it, as it would have there. False when it is not that, or when there is none to give way to.
pub(super) async fn gives_way(beside: &Beside, store: &mut Store, pipeline: &str, board: &Board, halt: &Halt) -> bool {
    // A plugin that stands where the source has no log any more does so in every version.
    let gap = matches!(halt.class, HaltClass::DataGapPlugin | HaltClass::DataGapCursor);
    let Some(plugin) = halt.plugin.as_ref().filter(|_| !gap) else { return false };
    let Some(now) = beside.plugins.running(plugin) else { return false };
    let cause = cause(halt);
    let outcome = async {
        let known = store.generations(pipeline, plugin).await?;
        let unproven = known.iter().find(|one| one.fingerprint == now.fingerprint && !one.proven);
        let Some(number) = unproven.map(|one| one.number) else { return Ok(None) };
        let Some(before) = beside.loader.earlier(&now, known).await else { return Ok(None) };
        // First, so that no two versions give way to each other for ever.
        store.block_generation(pipeline, plugin, number, &cause).await?;
        Ok::<_, StoreError>(Some((number, before)))
    };
    match outcome.await {
        Ok(Some((number, before))) => {
            events::rolled_back(plugin, number, &cause);
            beside.plugins.change(|plugins| plugins.apply(Change::Enters(Box::new(before))));
            board.candidate(plugin, Some(format!("rolled-back: {cause}")));
            true
        }
        Ok(None) => false,
        Err(error) => {
            tracing::warn!(plugin, "whether a version before could run instead is not known: {}", chain(&error));
            false
        }
    }
}

fn cause(halt: &Halt) -> String {
    format!("{}: {}", halt.class, halt.detail)
}
