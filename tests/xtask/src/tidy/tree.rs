//! The files that rules look at, and what a rule says about one of them.
//!
//! Holds: path and text of every source file, read once. Never knows: any rule.
//! Read next: `mask.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::mask::{Masked, mask};
use crate::Result;
use crate::fingerprint::files;

/// Kinds of files that rules read.
const READ: &[&str] = &["rs", "toml", "wit", "md"];

/// One file.
pub(super) struct Page {
    /// The path inside the checkout, with `/`.
    pub(super) path: String,
    /// The whole text.
    pub(super) text: String,
    /// The text with code and strings told apart; empty for what is not Rust.
    pub(super) masked: Masked,
}

impl Page {
    /// The file name without its extension.
    pub(super) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default()
    }

    /// Whether this is a Rust file below the given folder.
    pub(super) fn is_rust_in(&self, folder: &str) -> bool {
        self.path.ends_with(".rs") && self.path.starts_with(folder)
    }

    /// The line at which `#[cfg(test)]` begins the tests of this file; by custom they are its last part.
    pub(super) fn tests_from(&self) -> usize {
        let found = self.masked.code.lines().position(|line| line.trim_start().starts_with("#[cfg(test)]"));
        found.map_or(usize::MAX, |index| index + 1)
    }

    /// A finding at a line (from 1) of this page.
    pub(super) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { place: format!("{}:{line}", self.path), message: message.into(), warning: false }
    }
}

/// All files of a checkout.
pub(super) struct Tree {
    /// The files, in the order of their paths.
    pub(super) pages: Vec<Page>,
    /// The folders at the top, hidden ones included.
    pub(super) top: BTreeSet<String>,
}

impl Tree {
    /// Reads a checkout.
    pub(super) fn load(root: &Path) -> Result<Self> {
        let mut pages = Vec::new();
        for path in files(root)? {
            let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            if READ.contains(&extension.as_str()) {
                let text = fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                pages.push(page(name, text));
            }
        }
        let mut top = BTreeSet::new();
        for entry in fs::read_dir(root).map_err(|error| format!("cannot read {}: {error}", root.display()))?.flatten() {
            if entry.path().is_dir() {
                top.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(Self { pages, top })
    }

    /// The Rust files below a folder.
    pub(super) fn rust_in<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a Page> {
        self.pages.iter().filter(move |page| page.is_rust_in(folder))
    }

    /// A tree made of texts, for the tests of rules.
    #[cfg(test)]
    pub(super) fn of(pages: &[(&str, &str)]) -> Self {
        let top = pages.iter().filter_map(|(path, _)| path.split_once('/')).map(|(folder, _)| folder.to_owned());
        let top = top.collect();
        Self { pages: pages.iter().map(|(path, text)| page((*path).to_owned(), (*text).to_owned())).collect(), top }
    }
}

fn page(path: String, text: String) -> Page {
    let masked = if path.ends_with(".rs") { mask(&text) } else { Masked::default() };
    Page { path, text, masked }
}

/// What a rule found.
pub(super) struct Finding {
    place: String,
    message: String,
    warning: bool,
}

impl Finding {
    /// A finding about a path as a whole.
    pub(super) fn at(path: &str, message: impl Into<String>) -> Self {
        Self { place: path.to_owned(), message: message.into(), warning: false }
    }

    /// The same finding, told but not failing.
    pub(super) fn softened(self) -> Self {
        Self { warning: true, ..self }
    }

    /// Whether this does not fail the check.
    pub(super) fn is_warning(&self) -> bool {
        self.warning
    }

    /// The finding as one line.
    pub(super) fn told(&self, rule: &str) -> String {
        let kind = if self.warning { "warning" } else { "error" };
        format!("{}: {kind} [{rule}]: {}", self.place, self.message)
    }
}

/// The places of findings, for the tests of rules.
#[cfg(test)]
pub(super) fn places_of(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.place.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_told_with_place_and_rule() {
        let tree = Tree::of(&[("host/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {}\n")]);
        let page = tree.pages.first().unwrap();
        assert_eq!((page.stem(), page.tests_from()), ("a", 2));
        assert_eq!(page.finding(3, "no").told("rule"), "host/a.rs:3: error [rule]: no");
        assert_eq!(page.finding(3, "no").softened().told("rule"), "host/a.rs:3: warning [rule]: no");
    }
}
