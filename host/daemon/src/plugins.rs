//! From the plugin directory to workers that can be opened.
//!
//! Holds: loading at start, one plugin at a time, so that a bad one never hides or disturbs another.
//! Refuses to know delivery. Read next: [`crate::pipeline`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use walgate_core::grant::Grant;
use walgate_plugin::{Component, Description, Engine, Found, FoundState, Manifest, Worker};

use crate::config::Config;
use crate::exit::{Failure, chain};
use crate::status::Board;

/// A plugin that passed everything up to its first call of `open`.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) manifest: Manifest,
    pub(crate) description: Description,
    pub(crate) grant: Grant,
    pub(crate) worker: Arc<Worker>,
}

/// Why an entry does not run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct NotRunning {
    pub(crate) name: String,
    /// `awaiting-grant` or `rejected`.
    pub(crate) state: &'static str,
    pub(crate) cause: String,
    /// It holds the acknowledgement where it stood when it ran last. True unless its plugin.toml can be read and says no.
    #[serde(skip)]
    pub(crate) required: bool,
}

/// What a directory holds.
pub(crate) struct Directory {
    pub(crate) loaded: Vec<Loaded>,
    pub(crate) not_running: Vec<NotRunning>,
}

/// The workers whose own metrics are shown with ours.
#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Mutex<Vec<NamedWorker>>>);

type NamedWorker = (String, Arc<Worker>);

impl Workers {
    pub(crate) fn add(&self, loaded: &[Loaded]) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.extend(loaded.iter().map(|plugin| (plugin.name.clone(), Arc::clone(&plugin.worker))));
    }

    /// Copies what plugins counted into the registry, as `walgate_plugin_<name>` with the plugin as the only label. The
    /// names are checked and capped by the worker.
    pub(crate) fn publish(&self) {
        for (plugin, worker) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
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
}

/// Loads every entry of the plugin directory.
pub(crate) async fn load(config: &Config) -> Result<Directory, Failure> {
    let found = walgate_plugin::scan(&config.plugins.dir)
        .map_err(|error| Failure::usage(format!("plugins.dir: {}", chain(&error))))?;
    let engine = Engine::new(config.plugins.cache_dir.as_deref())
        .map_err(|error| Failure::usage(format!("the plugin engine cannot be started: {}", chain(&error))))?;
    let mut directory = Directory { loaded: Vec::new(), not_running: Vec::new() };
    // At once, so that one that takes its time keeps the others waiting only once.
    let loading: Vec<_> = found
        .into_iter()
        .map(|entry| {
            let (name, manifest, engine) = (entry.name.clone(), entry.manifest.clone(), engine.clone());
            (name, manifest, tokio::spawn(async move { load_one(&engine, entry).await }))
        })
        .collect();
    for (name, manifest, loading) in loading {
        let outcome = loading.await.unwrap_or_else(|_| {
            let cause = "loading it ended unexpectedly; please report this".to_owned();
            Err(NotRunning { name: name.clone(), state: "rejected", cause, required: true })
        });
        match outcome {
            Ok(loaded) => directory.loaded.push(loaded),
            Err(mut not_running) => {
                not_running.required = Manifest::read(&manifest).map_or(true, |manifest| manifest.required);
                tracing::error!(plugin = name, cause = not_running.cause, "plugin not started: {}", not_running.state);
                directory.not_running.push(not_running);
            }
        }
    }
    Ok(directory)
}

/// Puts what is not running on the status board.
pub(crate) fn post(board: &Board, not_running: &[NotRunning]) {
    for entry in not_running {
        board.plugin_state(&entry.name, entry.state, Some(entry.cause.clone()));
    }
}

async fn load_one(engine: &Engine, entry: Found) -> Result<Loaded, NotRunning> {
    let rejected = |cause: String| NotRunning { name: entry.name.clone(), state: "rejected", cause, required: true };
    match &entry.state {
        FoundState::Ready => {}
        FoundState::AwaitingGrant => {
            let cause = format!(
                "{} is missing; print one to start from with: walgate plugin inspect {}",
                entry.manifest.display(),
                entry.wasm.display()
            );
            return Err(NotRunning { name: entry.name.clone(), state: "awaiting-grant", cause, required: true });
        }
        FoundState::Refused(refusal) => return Err(rejected(refusal.to_string())),
    }
    let manifest = Manifest::read(&entry.manifest).map_err(|error| rejected(chain(&error)))?;
    let component = load_component(engine, &entry).await.map_err(&rejected)?;
    let worker = Worker::start(component, manifest.policy(&entry.name)).map_err(|error| rejected(chain(&error)))?;
    let description = worker.describe().await.map_err(|error| rejected(format!("describe: {}", chain(&error))))?;
    let effective = manifest
        .effective(&description)
        .map_err(|error| rejected(format!("{}: {}", entry.manifest.display(), chain(&error))))?;
    Ok(Loaded { name: entry.name.clone(), manifest, description, grant: effective.grant, worker: Arc::new(worker) })
}

/// Compiling may take seconds, so it runs where it blocks nobody.
async fn load_component(engine: &Engine, entry: &Found) -> Result<Component, String> {
    let (engine, path) = (engine.clone(), entry.wasm.clone());
    match tokio::task::spawn_blocking(move || Component::load(&engine, &path)).await {
        Ok(loaded) => loaded.map_err(|error| chain(&error)),
        Err(_) => Err("the compiler ended unexpectedly".to_owned()),
    }
}
