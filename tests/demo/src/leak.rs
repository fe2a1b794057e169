//! The judge of secrecy: looks for canaries in every byte that walgate wrote, logged or answered.
//!
//! Holds: the needles, in the forms in which bytes end up in files, and the walk over a folder. Refuses to know what a
//! file means. Never tells what it found, only where and how often.
//! Read next: `shop.rs`, where the canaries come from.

use std::fs;
use std::path::{Path, PathBuf};

use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::{Context, Result};
use serde::Serialize;

/// What is looked for.
pub(crate) struct Needles {
    search: AhoCorasick,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Occurrences in all places.
    pub(crate) leaked: u64,
    /// Bytes that were looked at.
    pub(crate) bytes: u64,
    /// Files that were looked at.
    pub(crate) files: u64,
    /// Where something was found.
    pub(crate) places: Vec<Place>,
}

/// A file that holds what it must not hold.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Place {
    /// Its path below the folder that was searched.
    pub(crate) file: PathBuf,
    /// Occurrences in it.
    pub(crate) occurrences: u64,
}

impl Needles {
    /// Makes needles of texts: as they are, as hexadecimal digits, and as the list of numbers that a careless debug
    /// print makes of bytes.
    pub(crate) fn new(texts: impl IntoIterator<Item = String>) -> Result<Self> {
        let patterns: Vec<String> = texts.into_iter().flat_map(forms).collect();
        // Longest first, so that an address counts once although the marker in it is a needle too.
        let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns);
        Ok(Self { search: search.context("cannot prepare the search for canaries")? })
    }

    /// Occurrences in some bytes.
    pub(crate) fn count(&self, bytes: &[u8]) -> u64 {
        self.search.find_iter(bytes).count() as u64
    }

    /// Occurrences in all files below a folder. Links are not followed: what they point to is not walgate's.
    pub(crate) fn search(&self, folder: &Path) -> Result<Findings> {
        let mut findings = Findings::default();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(&next).with_context(|| format!("cannot list {}", next.display()))? {
                let entry = entry.with_context(|| format!("cannot list {}", next.display()))?;
                let kind = entry.file_type().with_context(|| format!("cannot look at {}", entry.path().display()))?;
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    self.search_file(folder, &entry.path(), &mut findings)?;
                }
            }
        }
        findings.places.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(findings)
    }

    fn search_file(&self, folder: &Path, path: &Path, findings: &mut Findings) -> Result<()> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = path.strip_prefix(folder).unwrap_or(path).to_owned();
        let name = file.as_os_str().as_encoded_bytes();
        let occurrences = self.count(&bytes) + self.count(name);
        findings.leaked += occurrences;
        findings.bytes += bytes.len() as u64;
        findings.files += 1;
        if occurrences > 0 {
            findings.places.push(Place { file, occurrences });
        }
        Ok(())
    }
}

fn forms(text: String) -> [String; 4] {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let numbers: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    [hex.to_uppercase(), hex, numbers.join(", "), text]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needles() -> Needles {
        Needles::new([".canary.invalid", "mail-7-abcdef", "mail-7-abcdef@1.canary.invalid"].map(str::to_owned)).unwrap()
    }

    #[track_caller]
    fn check(text: impl AsRef<[u8]>, expect: u64) {
        assert_eq!(needles().count(text.as_ref()), expect);
    }

    #[test]
    fn every_form_is_found_and_counted_once() {
        check("nothing to see in canary.valid", 0);
        check("a@b.canary.invalid", 1);
        check("mail-7-abcdef@1.canary.invalid", 1);
        check("cut short: mail-7-abcdef@1.can", 1);
        check("a@b.canary.invalid c@d.canary.invalid", 2);
        check(b"\x00\xff.canary.invalid\x00", 1);
        check("2e63616e6172792e696e76616c6964", 1);
        check("2E63616E6172792E696E76616C6964", 1);
        check(format!("{:?}", b"x.canary.invalid".to_vec()), 1);
    }

    #[test]
    fn all_files_below_a_folder_are_looked_at_and_their_names() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/log"), "x@y.canary.invalid, again z@y.canary.invalid").unwrap();
        fs::write(folder.path().join("clean"), "12345").unwrap();
        fs::write(folder.path().join("a/of x.canary.invalid"), "").unwrap();
        let findings = needles().search(folder.path()).unwrap();
        assert_eq!((findings.leaked, findings.files, findings.bytes), (3, 3, 49));
        let places = [("a/b/log", 2), ("a/of x.canary.invalid", 1)];
        assert_eq!(findings.places, places.map(|(file, occurrences)| Place { file: PathBuf::from(file), occurrences }));
    }
}
