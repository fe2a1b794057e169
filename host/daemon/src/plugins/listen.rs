//! Being told by the system that something changed under the plugin directory, instead of looking.
//!
//! Holds: the watch on the directory that is there now. Refuses to know what changed: whoever is told looks by itself.
//! Without the system's help the looks remain, which find everything, later.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// Listens to one path, whichever directory lies there.
pub(super) struct Ear {
    dir: PathBuf,
    told: Arc<Notify>,
    /// Which directory is listened to.
    hears: Option<(u64, u64)>,
    watcher: Option<RecommendedWatcher>,
}

impl Ear {
    /// Deaf until [`Ear::listen`].
    pub(super) fn new(dir: &Path, told: Arc<Notify>) -> Self {
        Self { dir: dir.to_owned(), told, hears: None, watcher: None }
    }

    /// Listens to the directory that lies there now. A watch is on a directory and not on its name, so one that is put in
    /// its place (a link that is switched, a volume that is mounted again) would not be heard.
    pub(super) fn listen(&mut self) {
        let here = fs::metadata(&self.dir).ok().map(|meta| (meta.dev(), meta.ino()));
        if here == self.hears {
            return;
        }
        self.hears = here;
        self.watcher = here.and_then(|_| self.watch());
    }

    fn watch(&self) -> Option<RecommendedWatcher> {
        let teller = Arc::clone(&self.told);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A look opens the directory, which is told, too, and must not be the reason for the next look.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                teller.notify_one();
            }
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(&self.dir, RecursiveMode::Recursive)?;
            Ok(watcher)
        });
        if let Err(error) = &watching {
            tracing::warn!("changes of the plugin directory are found by looking only: {error}");
        }
        watching.ok()
    }
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
        ear.listen();
        fs::rename(&dir, &away).unwrap();
        ear.listen();
        assert!(ear.watcher.is_none());
        fs::create_dir(&dir).unwrap();
        ear.listen();
        // What is told of the old one by now is not meant.
        while tokio::time::timeout(Duration::from_millis(50), told.notified()).await.is_ok() {}
        fs::write(dir.join("any"), "").unwrap();
        tokio::time::timeout(Duration::from_secs(30), told.notified()).await.unwrap();
    }
}
