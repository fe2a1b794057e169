//! Loading: from an entry of the plugin directory to a worker that has described itself.
//!
//! Holds: the steps, one plugin apart from the other, so that a bad one never hides or disturbs another. Refuses to know
//! when it is done.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::ExposeSecret as _;
use sha2::{Digest, Sha256};
use walgate_core::minimize::HashKey;
use walgate_plugin::{
    Component, Engine, Found, FoundState, HttpAccess, Manifest, Policy, ScanError, TrustedKeys, Worker, check_pin,
    signature_of,
};
use walgate_store::{Generation, ran_before};

use super::{Directory, Kept, Loaded, NotRunning};
use crate::config::Config;
use crate::exit::{Failure, chain};
use crate::secrets::Secrets;

/// The engine, and the directory it loads from. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Loader {
    engine: Engine,
    dir: PathBuf,
    /// Where copies are kept of what is loaded, if anywhere.
    cache: Option<PathBuf>,
    /// None: nobody said which there are, and nothing is going to run.
    secrets: Option<Secrets>,
    trusted: TrustedKeys,
    /// What tells secrets apart without keeping them.
    tells: RandomState,
}

/// Loads every entry of the plugin directory.
pub(crate) async fn load(config: &Config) -> Result<Directory, Failure> {
    Loader::new(config)?.all().await
}

impl Loader {
    /// Starts the engine.
    pub(crate) fn new(config: &Config) -> Result<Self, Failure> {
        let engine = Engine::new(config.plugins.cache_dir.as_deref())
            .map_err(|error| Failure::usage(format!("the plugin engine cannot be started: {}", chain(&error))))?;
        Ok(Self {
            engine,
            dir: config.plugins.dir.clone(),
            cache: config.plugins.cache_dir.clone(),
            secrets: Some(config.secrets.clone()),
            trusted: config.plugins.trusted_keys.clone(),
            tells: RandomState::new(),
        })
    }

    /// For another directory, to look and not to run: nothing is compiled into a cache, and no copy is kept.
    pub(crate) fn offline(dir: &Path, config: Option<&Config>) -> Result<Self, Failure> {
        let engine = Engine::new(None)
            .map_err(|error| Failure::usage(format!("the plugin engine cannot be started: {}", chain(&error))))?;
        Ok(Self {
            engine,
            dir: dir.to_owned(),
            cache: None,
            secrets: config.map(|config| config.secrets.clone()),
            trusted: config.map(|config| config.plugins.trusted_keys.clone()).unwrap_or_default(),
            tells: RandomState::new(),
        })
    }

    /// The files that a plugin depends on beside its own.
    pub(super) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.secrets.iter().flat_map(Secrets::files)
    }

    /// What means to be a plugin, by name.
    pub(super) fn scan(&self) -> Result<Vec<Found>, ScanError> {
        walgate_plugin::scan(&self.dir)
    }

    /// Loads one entry beside others that run: it compiles where it takes no time from them. `running` is the version of it
    /// that runs, whose copy outlasts any number of candidates.
    pub(super) async fn one(&self, entry: &Found, running: Option<&Loaded>) -> Result<Loaded, NotRunning> {
        if let (Some(cache), Some(running)) = (&self.cache, running) {
            Kept::of(cache, &entry.name).refresh(&running.fingerprint);
        }
        let beside = Self { engine: self.engine.in_the_background(), ..self.clone() };
        load_one(&beside, entry.clone(), &entry.manifest).await
    }

    /// The version of a plugin that ran last before this one, with its number: when it was not rolled back itself, has a copy
    /// that can be loaded, and is given what the plugin.toml of this one gives, or has the same one and makes other use of it.
    /// What an operator has taken away does not come back.
    pub(crate) async fn before(&self, plugin: &Loaded, known: &[Generation]) -> Option<(u64, Loaded)> {
        let last = ran_before(known, Some(&plugin.fingerprint))?;
        let cause = match self.copy_of(&plugin.name, last).await {
            Ok(loaded) if loaded.manifest == plugin.manifest => return Some((last.number, loaded)),
            Ok(loaded) if loaded.is_set_up_like(plugin) && loaded.manifest.http == plugin.manifest.http => {
                return Some((last.number, loaded));
            }
            Ok(_) => "its plugin.toml grants something else".to_owned(),
            Err(cause) => cause,
        };
        tracing::warn!(plugin = plugin.name, generation = last.number, cause, "the version before cannot stand by");
        None
    }

    /// The version of a plugin that ran last, in the place of files that cannot be loaded: they would not have stopped it
    /// while it ran, and a restart changes nothing. Only under the plugin.toml that it ran with: what an operator wrote since
    /// then counts, also when it cannot be read.
    pub(crate) async fn stand_in(&self, rejected: &NotRunning, known: &[Generation]) -> Option<Loaded> {
        if rejected.state != "rejected" {
            return None;
        }
        let last = ran_before(known, None)?;
        let cause = match self.copy_of(&rejected.name, last).await {
            Ok(loaded) => {
                let text = |path: &Path| Manifest::text(path).ok();
                let ours = Kept::of(self.cache.as_deref()?, &rejected.name).folder(&last.fingerprint);
                if text(&self.place_of(&rejected.name)) == text(&ours.join("plugin.toml")) {
                    return Some(loaded);
                }
                "its plugin.toml was another one".to_owned()
            }
            Err(cause) => cause,
        };
        tracing::warn!(
            entry = rejected.name,
            generation = last.number,
            cause,
            "the version that ran last cannot go on"
        );
        None
    }

    /// A version from its copy. What plugin.toml says of files counts from where it lay.
    async fn copy_of(&self, name: &str, generation: &Generation) -> Result<Loaded, String> {
        let cache = self.cache.as_deref().ok_or("no copies are kept: plugins.cache_dir is not set")?;
        let copy = Kept::of(cache, name).folder(&generation.fingerprint);
        let (wasm, manifest) = (copy.join("plugin.wasm"), copy.join("plugin.toml"));
        let entry = Found { name: name.to_owned(), wasm, manifest, state: FoundState::Ready };
        match load_one(self, entry, &self.place_of(name)).await {
            Ok(loaded) if loaded.fingerprint != generation.fingerprint => Err("its copy is damaged".to_owned()),
            Ok(loaded) => Ok(loaded),
            Err(NotRunning { cause, .. }) => Err(cause),
        }
    }

    fn place_of(&self, name: &str) -> PathBuf {
        self.dir.join(name).join("plugin.toml")
    }

    /// Loads every entry.
    pub(crate) async fn all(&self) -> Result<Directory, Failure> {
        self.only(None).await
    }

    /// Loads every entry, or the one of that name.
    pub(crate) async fn only(&self, name: Option<&str>) -> Result<Directory, Failure> {
        let found = self.scan().map_err(|error| Failure::usage(format!("plugins.dir: {}", chain(&error))))?;
        let mut directory = Directory { loaded: Vec::new(), not_running: Vec::new() };
        // At once, so that one that takes its time keeps the others waiting only once.
        let loading: Vec<_> = found
            .into_iter()
            .filter(|entry| name.is_none_or(|name| entry.name == name))
            .map(|entry| {
                let (name, manifest, loader) = (entry.name.clone(), entry.manifest.clone(), self.clone());
                (name, manifest, tokio::spawn(async move { load_one(&loader, entry.clone(), &entry.manifest).await }))
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
                    not_running.tell();
                    directory.not_running.push(not_running);
                }
            }
        }
        Ok(directory)
    }
}

/// `place` is the path that plugin.toml speaks from.
async fn load_one(loader: &Loader, entry: Found, place: &Path) -> Result<Loaded, NotRunning> {
    let rejected = |cause: String| NotRunning { name: entry.name.clone(), state: "rejected", cause, required: true };
    match &entry.state {
        FoundState::Ready => {}
        FoundState::AwaitingGrant => {
            let bare = entry.wasm.parent() != entry.manifest.parent();
            let moved = entry.manifest.with_file_name("plugin.wasm");
            let cause = format!(
                "{} is missing; print one to start from with: walgate plugin inspect {}{}",
                entry.manifest.display(),
                entry.wasm.display(),
                if bare { format!(", and move the file to {}", moved.display()) } else { String::new() }
            );
            return Err(NotRunning { name: entry.name.clone(), state: "awaiting-grant", cause, required: true });
        }
        FoundState::Refused(refusal) => return Err(rejected(refusal.to_string())),
    }
    let text = Manifest::text(&entry.manifest).map_err(|error| rejected(chain(&error)))?;
    let manifest = Manifest::parse(place, &text).map_err(|error| rejected(chain(&error)))?;
    let (component, bytes) = load_component(loader, &entry, manifest.sha256.clone()).await.map_err(&rejected)?;
    let digest = component.digest();
    let fingerprint = fingerprint(&digest, &text);
    let Secured { hash_key, http, tells: secrets } = loader.secured(&manifest).map_err(&rejected)?;
    let policy = Policy { http, ..manifest.policy(&entry.name) };
    let worker = Worker::start(component, policy).map_err(|error| rejected(chain(&error)))?;
    let description = worker.describe().await.map_err(|error| rejected(format!("describe: {}", chain(&error))))?;
    let effective = manifest
        .effective(&description)
        .map_err(|error| rejected(format!("{}: {}", entry.manifest.display(), chain(&error))))?;
    // Only what could run is worth going back to.
    if let Some(cache) = &loader.cache
        && let Err(error) = Kept::of(cache, &entry.name).keep(&fingerprint, &bytes, &text, &signature_of(&entry.wasm))
    {
        tracing::warn!(plugin = entry.name, "no copy of it is kept to go back to: {error}");
    }
    Ok(Loaded {
        name: entry.name.clone(),
        manifest,
        description,
        grant: effective.grant,
        capabilities: effective.capabilities,
        worker: Arc::new(worker),
        component: digest,
        fingerprint,
        hash_key,
        secrets,
    })
}

/// What secrets make of a plugin.toml.
#[derive(Default)]
struct Secured {
    hash_key: Option<HashKey>,
    http: HttpAccess,
    /// What tells them from other ones.
    tells: u64,
}

impl Loader {
    /// Reads the secrets that a plugin.toml names.
    fn secured(&self, manifest: &Manifest) -> Result<Secured, String> {
        let Some(secrets) = &self.secrets else { return Ok(Secured::default()) };
        let mut tells = self.tells.build_hasher();
        let mut read = |name: &str| {
            let secret = secrets.read(name)?;
            secret.expose_secret().hash(&mut tells);
            Ok::<_, String>(secret)
        };
        let key = |name: &String| {
            let secret = read(name).map_err(|cause| format!("grant.hash_key: {cause}"))?;
            HashKey::new(secret.expose_secret()).map_err(|error| format!("secrets.{name}: {error}"))
        };
        let hash_key = manifest.hash_key.as_ref().map(key).transpose()?;
        let http = HttpAccess::new(&manifest.http, &mut read).map_err(|cause| format!("grant.http: {cause}"))?;
        Ok(Secured { hash_key, http, tells: tells.finish() })
    }
}

/// Compiling may take seconds, so it runs where it blocks nobody. Nothing that is not trusted is compiled.
async fn load_component(
    loader: &Loader,
    entry: &Found,
    pinned: Option<String>,
) -> Result<(Component, Vec<u8>), String> {
    let (engine, trusted, path) = (loader.engine.clone(), loader.trusted.clone(), entry.wasm.clone());
    let load = move || {
        let bytes = Component::read(&path).map_err(|error| chain(&error))?;
        trusted.check(&path, &bytes).map_err(|error| error.to_string())?;
        check_pin(&path, &bytes, pinned.as_deref()).map_err(|error| error.to_string())?;
        let component = Component::from_bytes(&engine, &path, &bytes).map_err(|error| chain(&error))?;
        Ok((component, bytes))
    };
    match tokio::task::spawn_blocking(load).await {
        Ok(loaded) => loaded,
        Err(_) => Err("the compiler ended unexpectedly".to_owned()),
    }
}

/// Of what was compiled and parsed, and not of what lies in the files by now.
fn fingerprint(component: &str, manifest: &str) -> String {
    let both = Sha256::new().chain_update(component).chain_update(manifest).finalize();
    both.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
