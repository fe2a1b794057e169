//! Noticing what changes in the plugin directory while the pipeline runs.
//!
//! Holds: when to look, what counts as settled, and what was judged already. A file counts once it looks the same twice, so
//! that half of one is never loaded. A bad candidate is told and disturbs nothing. Refuses to know how a change is made (see
//! [`crate::pipeline`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use walgate_plugin::{Found, FoundState, signature_of};

use super::listen::Ear;
use super::{Candidate, Change, Loaded, Loader, NotRunning, Plugins};
use crate::config::{Config, Watching};
use crate::exit::chain;
use crate::status::{Board, COMPILING};
use crate::telemetry::events;

/// How long those that come together are waited for: each turn of the pipeline is a break for the others.
const TOGETHER: Duration = Duration::from_secs(1);
/// Time between the two looks at which a file has to be the same.
const SETTLE: Duration = Duration::from_millis(200);

/// The watcher.
pub(crate) struct Watch {
    loader: Loader,
    seen: BTreeMap<Key, Seen>,
    /// Those that run without their files.
    missing: BTreeMap<String, Missing>,
    /// What runs, which the pipeline changes: also back, without being asked.
    plugins: Plugins,
    candidates: mpsc::Sender<Vec<Candidate>>,
    board: Board,
    /// The directory itself cannot be read, and it was said.
    lost: bool,
}

/// A name, and the component: two entries may have one name, and each is judged.
type Key = (String, PathBuf);

/// What is known of an entry.
struct Seen {
    stamp: Stamp,
    judged: bool,
}

/// What is known of files that ought to be there.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Missing {
    #[default]
    No,
    /// They were not there at the last look. Whoever replaces a folder by two steps leaves it away for a moment.
    Once,
    /// They are gone, and that was acted on.
    Settled,
}

impl Missing {
    fn after_a_look(self, here: bool) -> Self {
        match self {
            _ if here => Self::No,
            Self::No => Self::Once,
            Self::Once | Self::Settled => Self::Settled,
        }
    }
}

/// What became of an entry.
enum Judged {
    /// It was dealt with.
    Settled,
    /// What lies there by now is something else, or nobody had the time.
    Again,
    /// It can enter, and did not run before.
    Joins(Box<Loaded>),
}

/// What changes when a file of a plugin does, or its permissions, or a secret, as far as can be told without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp(Vec<Option<(u64, u64, i64, i64)>>);

/// How the directory looked at one moment.
pub(crate) struct Stamps(BTreeMap<Key, Stamp>);

impl Stamps {
    /// Nothing where it cannot be read, which loading says.
    pub(crate) fn of(loader: &Loader) -> Self {
        let found = loader.scan().unwrap_or_default();
        Self(found.iter().map(|entry| (key(entry), Stamp::of(loader, entry))).collect())
    }
}

fn key(entry: &Found) -> Key {
    (entry.name.clone(), entry.wasm.clone())
}

impl Stamp {
    fn of(loader: &Loader, entry: &Found) -> Self {
        let of = |path: &Path| {
            let meta = fs::metadata(path).ok()?;
            // Of the change, and not of the modification: that stays where a file that could not be read is given to us, and
            // where a copy keeps the time of what it was made from.
            Some((meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
        };
        let signature = signature_of(&entry.wasm);
        let own = [entry.wasm.as_path(), &entry.manifest, &signature];
        // Which of the secrets are a plugin's is known when it is loaded, and they change too rarely to be told apart here.
        Self(own.into_iter().chain(loader.secret_files()).map(of).collect())
    }
}

impl Watch {
    /// Begins with what was loaded at the start, after `before` was seen: what changed since then is found by the first look.
    pub(crate) fn new(
        loader: Loader,
        before: Stamps,
        plugins: Plugins,
        candidates: mpsc::Sender<Vec<Candidate>>,
        board: Board,
    ) -> Self {
        let seen = before.0.into_iter().map(|(key, stamp)| (key, Seen { stamp, judged: true })).collect();
        Self { loader, seen, missing: BTreeMap::new(), plugins, candidates, board, lost: false }
    }

    /// Looks until a stop is asked for.
    pub(crate) async fn run(mut self, config: Config, mut stop: watch::Receiver<bool>) {
        if config.plugins.watch == Watching::Off {
            return;
        }
        let told = Arc::new(Notify::new());
        let mut ear =
            (config.plugins.watch == Watching::Notify).then(|| Ear::new(&config.plugins.dir, Arc::clone(&told)));
        let mut pause = Duration::ZERO;
        loop {
            if ear.as_mut().is_some_and(Ear::listen) {
                pause = Duration::ZERO;
            }
            tokio::select! {
                () = told.notified() => {}
                () = tokio::time::sleep(pause) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let settled = tokio::select! {
                settled = self.look() => settled,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            pause = if settled { config.plugins.rescan } else { Duration::ZERO };
            // What the system tells meanwhile is part of what settles, and a busy directory costs five looks a second.
            tokio::select! {
                () = tokio::time::sleep(SETTLE) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// One look at everything. False when something has to be looked at again soon.
    async fn look(&mut self) -> bool {
        let found = match self.loader.scan() {
            Ok(found) => found,
            Err(error) => {
                if !std::mem::replace(&mut self.lost, true) {
                    tracing::error!("{}; what runs goes on as it is", chain(&error));
                }
                return false;
            }
        };
        if std::mem::replace(&mut self.lost, false) {
            tracing::info!("the plugin directory can be read again");
        }
        let mut settled = true;
        let mut joining = Vec::new();
        for entry in &found {
            let stamp = Stamp::of(&self.loader, entry);
            match self.seen.get_mut(&key(entry)) {
                Some(seen) if seen.stamp == stamp && seen.judged => continue,
                Some(seen) if seen.stamp == stamp => seen.judged = true,
                _ => {
                    self.seen.insert(key(entry), Seen { stamp, judged: false });
                    settled = false;
                    continue;
                }
            }
            match self.judge(entry, &stamp).await {
                Judged::Settled => {}
                Judged::Again => settled &= self.again(&key(entry)),
                Judged::Joins(loaded) => joining.push((entry, stamp, loaded, Instant::now())),
            }
            if joining.first().is_some_and(|(.., since)| since.elapsed() >= TOGETHER) {
                settled &= self.join(std::mem::take(&mut joining)).await;
            }
        }
        settled &= self.join(joining).await;
        let gone = self.seen.extract_if(.., |known, _| !found.iter().any(|entry| key(entry) == *known));
        for ((name, _), _) in gone {
            if !found.iter().any(|entry| entry.name == name) && self.plugins.running(&name).is_none() {
                self.board.gone(&name, self.plugins.is_known_not_to_run(&name));
            }
        }
        self.look_for_missing(&found).await && settled
    }

    /// Has it judged anew by the next look, and answers that this one was not the last.
    fn again(&mut self, key: &Key) -> bool {
        if let Some(seen) = self.seen.get_mut(key) {
            seen.judged = false;
        }
        false
    }

    /// Lets those enter that did not run, together. False when something has to be looked at again soon.
    async fn join(&mut self, joining: Vec<(&Found, Stamp, Box<Loaded>, Instant)>) -> bool {
        let mut settled = true;
        let mut changes = Vec::new();
        let mut asked = Vec::new();
        for (entry, stamp, loaded, _) in joining {
            if Stamp::of(&self.loader, entry) == stamp {
                asked.push((key(entry), loaded.manifest.required));
                changes.push(Change::Enters(loaded));
            } else {
                settled = self.again(&key(entry));
            }
        }
        for ((key, required), answer) in asked.into_iter().zip(self.ask(changes).await) {
            if !self.answered(&key.0, required, false, answer) {
                settled = self.again(&key);
            }
        }
        settled
    }

    /// What lies there, once it is loaded.
    async fn judge(&mut self, entry: &Found, stamp: &Stamp) -> Judged {
        let running = self.plugins.running(&entry.name);
        let runs = running.is_some();
        if runs && entry.state == FoundState::AwaitingGrant {
            tracing::warn!(plugin = entry.name, "its plugin.toml is gone; it goes on under the one it has");
            self.board.candidate(&entry.name, None);
            return Judged::Settled;
        }
        if runs {
            self.board.candidate(&entry.name, Some(COMPILING.to_owned()));
        } else if entry.state == FoundState::Ready {
            self.board.plugin_state(&entry.name, COMPILING, None);
        }
        let loaded = self.loader.one(entry, running.as_ref()).await;
        // Compiling takes long. What was replaced meanwhile is not wanted any more, good or bad, and is not told of either.
        if Stamp::of(&self.loader, entry) != *stamp {
            self.board.candidate(&entry.name, None);
            return Judged::Again;
        }
        match loaded {
            Err(not_running) => self.reject(&not_running, runs),
            Ok(loaded) if running.is_some_and(|running| running.is_same(&loaded)) && !self.is_parked(&entry.name) => {
                self.board.candidate(&entry.name, None);
            }
            Ok(loaded) if !runs => return Judged::Joins(Box::new(loaded)),
            Ok(loaded) => {
                let required = loaded.manifest.required;
                let mut answers = self.ask(vec![Change::Enters(Box::new(loaded))]).await;
                if !self.answered(&entry.name, required, true, answers.pop().flatten()) {
                    return Judged::Again;
                }
            }
        }
        Judged::Settled
    }

    /// False when the pipeline was in the middle of something else and has to be asked again.
    fn answered(&self, name: &str, required: bool, runs: bool, answer: Option<Result<(), String>>) -> bool {
        let name = name.to_owned();
        match answer {
            Some(Ok(())) => self.board.entered(&name),
            Some(Err(cause)) => self.reject(&NotRunning { name, state: "rejected", cause, required }, runs),
            // It ends, or begins again without having taken this up.
            None => {
                self.board.candidate(&name, None);
                return false;
            }
        }
        true
    }

    /// One that is parked is tried again when it is dropped in again: what it failed on may be mended.
    fn is_parked(&self, name: &str) -> bool {
        self.board.read().plugins.get(name).is_some_and(|plugin| plugin.state == "parked")
    }

    fn reject(&self, candidate: &NotRunning, runs: bool) {
        if runs {
            events::candidate_rejected(&candidate.name, &candidate.cause);
            self.board.candidate(&candidate.name, Some(format!("{}: {}", candidate.state, candidate.cause)));
        } else {
            candidate.tell();
            super::post(&self.board, std::slice::from_ref(candidate));
        }
    }

    /// False when something has to be looked at again soon.
    async fn look_for_missing(&mut self, found: &[Found]) -> bool {
        let mut leaves = Vec::new();
        let mut settled = true;
        for (name, ends) in self.plugins.names() {
            let here = found.iter().any(|entry| entry.name == name);
            let missing = self.missing.entry(name.clone()).or_default();
            let before = *missing;
            *missing = before.after_a_look(here);
            settled &= *missing != Missing::Once;
            if *missing == before || *missing != Missing::Settled {
                continue;
            }
            if ends {
                leaves.push(name);
            } else {
                tracing::warn!(
                    plugin = name,
                    "its files are gone; it goes on until walgate stops, because its plugin.toml does not say on_missing = \"stop\""
                );
            }
        }
        for name in leaves {
            if let Some(Some(Err(cause))) = self.ask(vec![Change::Leaves(name.clone())]).await.pop() {
                tracing::warn!(
                    plugin = name,
                    cause,
                    "its files are gone, and it goes on because the pipeline cannot go on without"
                );
            }
        }
        settled
    }

    /// An answer a change, in their order; none when the pipeline has ended.
    async fn ask(&self, changes: Vec<Change>) -> Vec<Option<Result<(), String>>> {
        if changes.is_empty() {
            return Vec::new();
        }
        let (candidates, heard): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .map(|change| {
                let (answer, heard) = oneshot::channel();
                (Candidate { change, answer }, heard)
            })
            .unzip();
        // One that is not sent is dropped, and its answer with it.
        let _ = self.candidates.send(candidates).await;
        let mut answers = Vec::with_capacity(heard.len());
        for heard in heard {
            answers.push(heard.await.ok());
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_away_for_one_look_is_not_missing() {
        let looks = [false, true, false, false, false, true];
        let seen = looks.iter().scan(Missing::No, |missing, here| {
            *missing = missing.after_a_look(*here);
            Some(*missing == Missing::Settled)
        });
        assert_eq!(seen.collect::<Vec<_>>(), [false, false, false, true, true, false]);
    }
    /// A file that could not be read is given to us by a change that leaves its content and its time as they were.
    #[test]
    fn a_change_of_permissions_is_a_change() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("lines");
        fs::create_dir(&folder).unwrap();
        for file in ["plugin.wasm", "plugin.toml"] {
            fs::write(folder.join(file), "x").unwrap();
        }
        let loader = Loader::offline(root.path(), None).unwrap();
        let entry = loader.scan().unwrap().remove(0);
        let before = Stamp::of(&loader, &entry);
        assert_eq!(Stamp::of(&loader, &entry), before);
        let changed = || {
            fs::set_permissions(&entry.manifest, fs::Permissions::from_mode(0o600)).unwrap();
            Stamp::of(&loader, &entry) != before
        };
        // The clock of a file system may stand still for some milliseconds.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !changed() {
            assert!(std::time::Instant::now() < deadline, "it is not noticed");
        }
    }
}
