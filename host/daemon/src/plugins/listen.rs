//! Being told by the system that something changed under the plugin directory, instead of looking.
//!
//! Holds: the watch on the directory that is there now. Refuses to know what changed: whoever is told looks by itself.
//! Without the system's help the looks remain, which find everything, later.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use notify::event::ModifyKind;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// Listens to one path, whichever directory lies there.
pub(super) struct Ear {
    dir: PathBuf,
    told: Arc<Notify>,
    /// What is listened to.
    hears: Option<Hearing>,
    /// That it cannot be listened to was said.
    said: bool,
}

/// A directory that is listened to.
struct Hearing {
    which: (u64, u64),
    /// It was removed or moved. Another one may have its number by now.
    gone: Arc<AtomicBool>,
    /// Held for as long as it is to tell.
    _watcher: RecommendedWatcher,
}

impl Ear {
    /// Deaf until [`Ear::listen`].
    pub(super) fn new(dir: &Path, told: Arc<Notify>) -> Self {
        Self { dir: dir.to_owned(), told, hears: None, said: false }
    }

    /// Listens to the directory that lies there now. A watch is on a directory and not on its name, so one that is put in
    /// its place (a link that is switched, a volume that is mounted again) would not be heard. True when what happened before
    /// may not have been heard.
    pub(super) fn listen(&mut self) -> bool {
        let Ok(which) = fs::metadata(&self.dir).map(|meta| (meta.dev(), meta.ino())) else { return false };
        if self.hears.as_ref().is_some_and(|one| one.which == which && !one.gone.load(Ordering::Acquire)) {
            return false;
        }
        let was_deaf = self.hears.is_none();
        self.hears = match self.watch() {
            Ok((watcher, gone)) => Some(Hearing { which, gone, _watcher: watcher }),
            Err(error) => {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::warn!("changes of the plugin directory are found by looking only: {error}");
                }
                None
            }
        };
        self.hears.is_some() || !was_deaf
    }

    fn watch(&self) -> notify::Result<(RecommendedWatcher, Arc<AtomicBool>)> {
        let gone = Arc::new(AtomicBool::new(false));
        let (teller, is_gone, dir) = (Arc::clone(&self.told), Arc::clone(&gone), self.dir.clone());
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A look opens the directory, which is told, too, and must not be the reason for the next look.
            if event.as_ref().is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            let of_dir = |event: notify::Event| event.paths.contains(&dir) && is_end(event.kind);
            if event.map_or(true, of_dir) {
                is_gone.store(true, Ordering::Release);
            }
            teller.notify_one();
        })?;
        watcher.watch(&self.dir, RecursiveMode::Recursive)?;
        Ok((watcher, gone))
    }
}

fn is_end(kind: EventKind) -> bool {
    kind.is_remove() || matches!(kind, EventKind::Modify(ModifyKind::Name(_)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn another_directory_at_the_same_place_is_heard() {
        let root = tempfile::tempdir().unwrap();
        let (dir, away) = (root.path().join("plugins"), root.path().join("away"));
        fs::create_dir(&dir).unwrap();
        let told = Arc::new(Notify::new());
        let mut ear = Ear::new(&dir, Arc::clone(&told));
        assert!(ear.listen() && !ear.listen());
        fs::rename(&dir, &away).unwrap();
        assert!(!ear.listen());
        fs::create_dir(&dir).unwrap();
        assert!(ear.listen() && !ear.listen());
        // What is told of the old one by now is not meant.
        while tokio::time::timeout(Duration::from_millis(50), told.notified()).await.is_ok() {}
        fs::write(dir.join("any"), "").unwrap();
        tokio::time::timeout(Duration::from_secs(30), told.notified()).await.unwrap();
    }
}
