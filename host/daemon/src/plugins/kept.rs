//! Copies of what ran, so that an operator can go back to it.
//!
//! Holds: both files of a plugin by their fingerprint, in the cache folder. A copy is written whole or not at all. Refuses
//! to know which of them is at work.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const FOLDER: &str = "generations";
const FILES: [&str; 2] = ["plugin.wasm", "plugin.toml"];
/// Kept as well where there is one: a version to go back to has to be as trusted as it was.
const SIGNATURE: &str = "plugin.wasm.minisig";
/// Copies of one plugin. A component of an interpreted language has tens of megabytes.
const MOST: usize = 5;

/// The copies of one plugin.
pub(crate) struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// In the cache folder of the configuration.
    pub(crate) fn of(cache: &Path, plugin: &str) -> Self {
        Self { folder: cache.join(FOLDER).join(plugin) }
    }

    /// Keeps a copy. The newest stay. A version that is known already takes the signature that it has by now.
    pub(super) fn keep(&self, fingerprint: &str, wasm: &[u8], manifest: &str, signature: &Path) -> io::Result<()> {
        let copy = self.folder.join(fingerprint);
        let half = self.folder.join(format!("{fingerprint}.tmp"));
        if copy.is_dir() {
            if signature.exists() {
                fs::copy(signature, &half)?;
                fs::rename(&half, copy.join(SIGNATURE))?;
            }
            return Ok(());
        }
        // Left by a process that ended in the middle.
        if half.is_dir() {
            fs::remove_dir_all(&half)?;
        } else if half.exists() {
            fs::remove_file(&half)?;
        }
        fs::create_dir_all(&half)?;
        for (file, bytes) in FILES.iter().zip([wasm, manifest.as_bytes()]) {
            fs::write(half.join(file), bytes)?;
        }
        if signature.exists() {
            fs::copy(signature, half.join(SIGNATURE))?;
        }
        fs::rename(&half, &copy)?;
        self.prune()
    }

    /// Counts a copy among the newest. One that is not there, or cannot be touched, is no reason to stop.
    pub(super) fn refresh(&self, fingerprint: &str) {
        let _ = fs::File::open(self.folder.join(fingerprint)).and_then(|copy| copy.set_modified(SystemTime::now()));
    }

    fn prune(&self) -> io::Result<()> {
        let mut copies: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            copies.push((entry.metadata()?.modified()?, entry.path()));
        }
        copies.sort();
        let surplus = copies.len().saturating_sub(MOST);
        copies.iter().take(surplus).try_for_each(|(_, path)| fs::remove_dir_all(path))
    }

    /// The fingerprints that there are copies of.
    pub(crate) fn fingerprints(&self) -> BTreeSet<String> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return BTreeSet::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.ends_with(".tmp")).collect()
    }

    /// Where the copy of a version lies, if there is one.
    pub(super) fn folder(&self, fingerprint: &str) -> PathBuf {
        self.folder.join(fingerprint)
    }

    /// Puts a copy into the plugin directory, each file by renaming.
    pub(crate) fn restore(&self, fingerprint: &str, plugin: &Path) -> io::Result<()> {
        fs::create_dir_all(plugin)?;
        let copy = self.folder.join(fingerprint);
        // The signature first: a component without it would be refused, one look long.
        let files: Vec<&str> = [SIGNATURE].into_iter().filter(|file| copy.join(file).exists()).chain(FILES).collect();
        let half = |file: &str| plugin.join(format!("{file}.tmp"));
        files.iter().try_for_each(|file| fs::copy(copy.join(file), half(file)).map(drop))?;
        files.iter().try_for_each(|file| fs::rename(half(file), plugin.join(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_copies_stay_and_come_back_whole() {
        let root = tempfile::tempdir().unwrap();
        let kept = Kept::of(root.path(), "mirror");
        assert!(kept.fingerprints().is_empty());
        let unsigned = root.path().join("none");
        for number in 0..MOST + 2 {
            kept.keep(&format!("f{number}"), format!("wasm {number}").as_bytes(), "toml", &unsigned).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            fs::File::open(root.path().join(format!("{FOLDER}/mirror/f{number}"))).unwrap().set_modified(time).unwrap();
        }
        // The last one was pruned by its own time, which is set after it.
        let signature = root.path().join("any.minisig");
        fs::write(&signature, "signature").unwrap();
        kept.keep("last", b"wasm", "toml", &signature).unwrap();
        let names = kept.fingerprints();
        assert!(names.len() == MOST && names.contains("last") && !names.contains("f0"), "{names:?}");
        let dir = root.path().join("plugins/mirror");
        kept.restore("last", &dir).unwrap();
        assert_eq!(fs::read(dir.join("plugin.wasm")).unwrap(), b"wasm");
        assert_eq!(fs::read(dir.join(SIGNATURE)).unwrap(), b"signature");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    }

    #[test]
    fn what_runs_outlasts_its_candidates() {
        let root = tempfile::tempdir().unwrap();
        let (kept, unsigned) = (Kept::of(root.path(), "mirror"), root.path().join("none"));
        kept.keep("runs", b"wasm", "toml", &unsigned).unwrap();
        for number in 0..3 * MOST {
            kept.refresh("runs");
            kept.keep(&format!("candidate {number}"), b"wasm", "toml", &unsigned).unwrap();
        }
        let names = kept.fingerprints();
        assert!(names.len() == MOST && names.contains("runs"), "{names:?}");
    }

    #[test]
    fn a_version_that_is_signed_later_keeps_its_signature() {
        let root = tempfile::tempdir().unwrap();
        let (kept, signature) = (Kept::of(root.path(), "mirror"), root.path().join("any.minisig"));
        kept.keep("one", b"wasm", "toml", &signature).unwrap();
        let dir = root.path().join("plugins/mirror");
        kept.restore("one", &dir).unwrap();
        assert!(!dir.join(SIGNATURE).exists());
        for words in ["signature", "another"] {
            fs::write(&signature, words).unwrap();
            kept.keep("one", b"wasm", "toml", &signature).unwrap();
            kept.restore("one", &dir).unwrap();
            assert_eq!(fs::read_to_string(dir.join(SIGNATURE)).unwrap(), words);
        }
        assert_eq!(kept.fingerprints().len(), 1);
    }
}
