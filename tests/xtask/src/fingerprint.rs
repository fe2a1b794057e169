//! One number for the content of files, to tell whether anything must be built again.
//!
//! Holds: names and bytes in, digest out. Never knows: times; a checkout changes times and no content.
//! Read next: `guests.rs`, its user.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::Result;

/// Collects what a build depends on.
#[derive(Default)]
pub(crate) struct Fingerprint {
    // A change of std's hash with a new compiler only means building once more.
    hasher: DefaultHasher,
}

impl Fingerprint {
    /// Adds a text, such as a compiler's version.
    pub(crate) fn text(&mut self, text: &str) {
        text.hash(&mut self.hasher);
    }

    /// Adds every file under a folder, by its path below it; build output and hidden files are left out.
    pub(crate) fn folder(&mut self, folder: &Path) -> Result<()> {
        for path in files(folder)? {
            let name = path.strip_prefix(folder).unwrap_or(&path);
            name.hash(&mut self.hasher);
            fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?.hash(&mut self.hasher);
        }
        Ok(())
    }

    /// The digest.
    pub(crate) fn finish(self) -> String {
        format!("{:016x}", self.hasher.finish())
    }
}

/// All files under a folder in the order of their names, without `target`, `node_modules` and hidden entries.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        entries.push(entry.map_err(fail)?.path());
    }
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        // A link is not followed: it may lead out of the checkout or around in it.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(folder: &Path) -> String {
        let mut fingerprint = Fingerprint::default();
        fingerprint.folder(folder).unwrap();
        fingerprint.finish()
    }

    #[test]
    fn content_and_names_count_and_build_output_does_not() {
        let folder = std::env::temp_dir().join(format!("xtask-fingerprint-{}", std::process::id()));
        fs::create_dir_all(folder.join("src/target")).unwrap();
        fs::write(folder.join("src/a.rs"), "one").unwrap();
        let first = digest(&folder);
        fs::write(folder.join("src/target/output"), "x").unwrap();
        fs::write(folder.join(".hidden"), "x").unwrap();
        assert_eq!(digest(&folder), first);
        fs::write(folder.join("src/a.rs"), "two").unwrap();
        let changed = digest(&folder);
        fs::rename(folder.join("src/a.rs"), folder.join("src/b.rs")).unwrap();
        let renamed = digest(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(first != changed && changed != renamed);
    }
}
