//! From the plugin directory to workers that can be opened.
//!
//! Holds: what a plugin is before it runs, and what plugins counted. Refuses to know delivery.
//! Read next: `load.rs`, `kept.rs`, `watch.rs`, `listen.rs`, then [`crate::pipeline`].

mod kept;
mod listen;
mod load;
mod watch;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use walgate_core::grant::Grant;
use walgate_core::minimize::HashKey;
use walgate_plugin::{Capabilities, Description, Manifest, Worker};

use crate::status::Board;
pub(crate) use kept::Kept;
pub(crate) use load::{Loader, load};
pub(crate) use watch::{Stamps, Watch};

/// A plugin that passed everything up to its first call of `open`.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) manifest: Manifest,
    pub(crate) description: Description,
    pub(crate) grant: Grant,
    /// The host interfaces it asked for and was granted.
    pub(crate) capabilities: Capabilities,
    pub(crate) worker: Arc<Worker>,
    /// The digest of its component.
    pub(crate) component: String,
    /// Equal for equal content of both files.
    pub(crate) fingerprint: String,
    /// The key of its hashes, if it has any.
    pub(crate) hash_key: Option<HashKey>,
    /// Equal for equal secrets, within this process only.
    pub(crate) secrets: u64,
}

impl Loaded {
    /// Whether the same is set up around it: what it sees, what it may do, and where it writes to. Where it sends requests
    /// to is set up inside.
    pub(crate) fn is_set_up_like(&self, other: &Self) -> bool {
        let given = |one: &Self| {
            let Manifest { required, checkpoint, outputs, rows, .. } = &one.manifest;
            (*required, *checkpoint, outputs.clone(), rows.clone())
        };
        self.grant == other.grant && self.capabilities == other.capabilities && given(self) == given(other)
    }

    /// Whether it is the same in content and secrets.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.fingerprint, self.secrets) == (&other.fingerprint, other.secrets)
    }
}

/// What is to become of a plugin while the pipeline runs.
pub(crate) enum Change {
    /// A version that was not running before.
    Enters(Box<Loaded>),
    /// Its files are gone, and its plugin.toml said that it ends then.
    Leaves(String),
}

/// A change that waits for the pipeline.
pub(crate) struct Candidate {
    pub(crate) change: Change,
    /// Why it was not made, if it was not.
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

impl Change {
    /// The plugin.
    pub(crate) fn plugin(&self) -> &str {
        match self {
            Self::Enters(loaded) => &loaded.name,
            Self::Leaves(name) => name,
        }
    }
}

/// Why an entry does not run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct NotRunning {
    pub(crate) name: String,
    /// `awaiting-grant`, `rejected` or `quarantined`.
    pub(crate) state: &'static str,
    pub(crate) cause: String,
    /// It holds the acknowledgement where it stood when it ran last. True unless its plugin.toml can be read and says no.
    #[serde(skip)]
    pub(crate) required: bool,
}

impl NotRunning {
    /// Tells people. To wait for a grant is how every plugin begins.
    fn tell(&self) {
        let Self { name, state, cause, .. } = self;
        // Not as `plugin`: what is wrong may be its name.
        if *state == "awaiting-grant" {
            tracing::warn!(entry = name, cause, "plugin not started: {state}");
        } else {
            tracing::error!(entry = name, cause, "plugin not started: {state}");
        }
    }
}

/// What a directory holds.
#[derive(Clone, Default)]
pub(crate) struct Directory {
    pub(crate) loaded: Vec<Loaded>,
    pub(crate) not_running: Vec<NotRunning>,
}

/// One plugin as it stood before a change. The others may change meanwhile.
pub(crate) struct Stood {
    name: String,
    loaded: Option<Loaded>,
    not_running: Option<NotRunning>,
}

impl Stood {
    /// Whether it stood with this content.
    pub(crate) fn has(&self, fingerprint: &str) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.fingerprint == fingerprint)
    }

    /// Whether some version of it ran.
    pub(crate) fn runs(&self) -> bool {
        self.loaded.is_some()
    }
}

impl Directory {
    /// How a plugin stands.
    pub(crate) fn stands(&self, name: &str) -> Stood {
        Stood {
            name: name.to_owned(),
            loaded: self.loaded.iter().find(|plugin| plugin.name == name).cloned(),
            not_running: self.not_running.iter().find(|plugin| plugin.name == name).cloned(),
        }
    }

    /// Makes it stand as it did.
    pub(crate) fn restore(&mut self, stood: Stood) {
        let Stood { name, loaded, not_running } = stood;
        self.apply(Change::Leaves(name));
        self.loaded.extend(loaded);
        self.not_running.extend(not_running);
    }

    /// Takes a version out that ran before and was rolled back: it is there, and does not run.
    pub(crate) fn quarantine(&mut self, plugin: NotRunning) {
        self.apply(Change::Leaves(plugin.name.clone()));
        self.not_running.push(plugin);
    }

    /// Makes a change.
    pub(crate) fn apply(&mut self, change: Change) {
        let name = change.plugin().to_owned();
        self.loaded.retain(|plugin| plugin.name != name);
        self.not_running.retain(|plugin| plugin.name != name);
        if let Change::Enters(loaded) = change {
            self.loaded.push(*loaded);
        }
    }
}

/// The directory as it runs; nothing before it was loaded. Cheap to clone; all see the same.
#[derive(Clone, Default)]
pub(crate) struct Plugins(Arc<Mutex<Directory>>);

impl Plugins {
    /// Everything, as it is now.
    pub(crate) fn read(&self) -> Directory {
        self.lock().clone()
    }

    /// Changes it for the next start.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Directory)) {
        change(&mut self.lock());
    }

    /// What runs under a name.
    pub(crate) fn running(&self, name: &str) -> Option<Loaded> {
        self.lock().loaded.iter().find(|plugin| plugin.name == name).cloned()
    }

    /// Whether it does not run, and was there at the start.
    pub(crate) fn is_known_not_to_run(&self, name: &str) -> bool {
        self.lock().not_running.iter().any(|plugin| plugin.name == name)
    }

    /// The names of those that run, and whether each ends without its files.
    pub(crate) fn names(&self) -> Vec<(String, bool)> {
        self.lock().loaded.iter().map(|plugin| (plugin.name.clone(), plugin.manifest.ends_without_files)).collect()
    }

    /// Copies what plugins counted into the registry, as `walgate_plugin_<name>` with the plugin as the only label. The
    /// names are checked and capped by the worker.
    pub(crate) fn publish(&self) {
        for (plugin, worker) in self.lock().loaded.iter().map(|plugin| (&plugin.name, &plugin.worker)) {
            let snapshot = worker.metrics();
            let names: BTreeSet<String> = snapshot.counters.keys().cloned().collect();
            for (name, value) in snapshot.counters {
                metrics::counter!(format!("walgate_plugin_{name}"), "plugin" => plugin.clone()).absolute(value);
            }
            for (name, seen) in snapshot.observations {
                // A plugin that counts `x_sum` beside an observation `x` keeps its counter.
                let taken = |part: &&str| !names.contains(&format!("{name}_{part}"));
                let parts = [("count", seen.count as f64), ("sum", seen.sum), ("min", seen.min), ("max", seen.max)];
                for (part, value) in parts.into_iter().filter(|(part, _)| taken(part)) {
                    metrics::gauge!(format!("walgate_plugin_{name}_{part}"), "plugin" => plugin.clone()).set(value);
                }
            }
            metrics::counter!("walgate_metrics_dropped_total", "plugin" => plugin.clone()).absolute(snapshot.dropped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Directory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts what is not running on the status board.
pub(crate) fn post(board: &Board, not_running: &[NotRunning]) {
    for entry in not_running {
        board.plugin_state(&entry.name, entry.state, Some(entry.cause.clone()));
    }
}
