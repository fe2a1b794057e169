//! Rules about single files and where they lie: heads, names, sizes, prose.
//!
//! Holds: the house numbers. Never knows: imports; those are in `layers.rs`.
//! Read next: CONTRIBUTING.md at the top of the repository.

use super::tree::{Finding, Page, Tree};

/// Where the rules about Rust files hold.
const RUST: &[&str] = &["host/", "sdk/", "plugins/", "tests/"];

/// Names that say nothing about what a file holds.
const BANNED: &[&str] = &["utils", "util", "common", "helpers", "helper", "types", "misc"];

/// The folders at the top; `target` is cargo's, and git does not see it.
const TOP: &[&str] = &["host", "wit", "plugins", "sdk", "tests", ".ci", ".cargo", ".git", "target"];

/// Lines above which a file is too long to read in one go.
const MAX_LINES: usize = 600;

/// Percent of the non-blank lines of a WIT file that must be prose: the contract is read more than it is parsed.
const MIN_WIT_PROSE: usize = 40;

/// Every Rust file says first what it holds.
pub(super) fn heads(tree: &Tree) -> Vec<Finding> {
    let headless = rust(tree).filter(|page| !page.text.starts_with("//!"));
    headless.map(|page| page.finding(1, "a file opens with `//!`: what it holds, what it never knows")).collect()
}

/// A file or folder is named by a verb or noun of the domain.
pub(super) fn names(tree: &Tree) -> Vec<Finding> {
    let banned = |page: &&Page| {
        let folders = page.path.rsplit_once('/').map_or("", |(folders, _)| folders);
        folders.split('/').chain([page.stem()]).any(|part| BANNED.contains(&part))
    };
    rust(tree).filter(banned).map(|page| Finding::at(&page.path, "this name says nothing; name the domain")).collect()
}

/// No folder at the top but the known ones.
pub(super) fn top_folders(tree: &Tree) -> Vec<Finding> {
    let unknown = tree.top.iter().filter(|name| !TOP.contains(&name.as_str()));
    unknown.map(|name| Finding::at(name, format!("a folder at the top that is none of {}", TOP.join(" ")))).collect()
}

/// Files stay short enough to read; a warning, because cutting a file takes thought.
pub(super) fn sizes(tree: &Tree) -> Vec<Finding> {
    let lines = |page: &Page| page.text.lines().count();
    let long = rust(tree).filter(|page| lines(page) > MAX_LINES);
    long.map(|page| page.finding(lines(page), format!("longer than {MAX_LINES} lines")).softened()).collect()
}

/// The contract is mostly prose.
pub(super) fn wit_prose(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in tree.pages.iter().filter(|page| page.path.starts_with("wit/") && page.path.ends_with(".wit")) {
        // Copies of other people's interfaces are not ours to document.
        if page.path.contains("/deps/wasi") {
            continue;
        }
        let lines: Vec<&str> = page.text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let prose = lines.iter().filter(|line| line.starts_with("//")).count();
        let share = prose * 100 / lines.len().max(1);
        if share < MIN_WIT_PROSE {
            let message = format!("{share} % of the lines are prose; the contract needs {MIN_WIT_PROSE} %");
            found.push(Finding::at(&page.path, message));
        }
    }
    found
}

/// Nothing is left to do in what is committed.
pub(super) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in rust(tree) {
        for (index, line) in page.masked.code.lines().enumerate() {
            if line.contains("todo!") || line.contains("unimplemented!") {
                found.push(page.finding(index + 1, "unfinished code"));
            }
        }
    }
    found
}

fn rust(tree: &Tree) -> impl Iterator<Item = &Page> {
    tree.pages.iter().filter(|page| RUST.iter().any(|folder| page.is_rust_in(folder)))
}

#[cfg(test)]
mod tests {
    use super::super::tree::places_of;
    use super::*;

    #[track_caller]
    fn check(rule: fn(&Tree) -> Vec<Finding>, pages: &[(&str, &str)], expected: &[&str]) {
        assert_eq!(places_of(&rule(&Tree::of(pages))), expected);
    }

    #[test]
    fn a_file_without_head_is_caught() {
        check(heads, &[("host/a.rs", "use a;\n//! late"), ("sdk/b.rs", "//! ok"), ("wit/c.rs", "")], &["host/a.rs:1"]);
    }

    #[test]
    fn an_empty_name_is_caught() {
        let pages = [("host/x/utils.rs", ""), ("tests/common/mod.rs", ""), ("host/commons.rs", "")];
        check(names, &pages, &["host/x/utils.rs", "tests/common/mod.rs"]);
    }

    #[test]
    fn a_new_folder_at_the_top_is_caught() {
        check(top_folders, &[("docs/a.md", ""), ("host/a.rs", "")], &["docs"]);
    }

    #[test]
    fn a_long_file_is_a_warning() {
        let (long, short) = ("x\n".repeat(601), "x\n".repeat(600));
        let findings = sizes(&Tree::of(&[("host/a.rs", &long), ("host/b.rs", &short)]));
        assert_eq!(places_of(&findings), ["host/a.rs:601"]);
        assert!(findings.iter().all(Finding::is_warning));
    }

    #[test]
    fn a_contract_without_prose_is_caught() {
        let thin = "/// one\n\nrecord a {\n  b: u8,\n}\n";
        let thick = "/// one\n/// two\nrecord a {}\n";
        let pages = [("wit/v1/a.wit", thin), ("wit/v1/b.wit", thick), ("wit/v1/deps/wasi/c.wit", thin)];
        check(wit_prose, &pages, &["wit/v1/a.wit"]);
    }

    #[test]
    fn unfinished_code_is_caught_and_prose_about_it_is_not() {
        let source = "//! todo!\nfn a() { todo!() }\nfn b() { unimplemented!(\"x\") }\nconst C: &str = \"todo!\";\n";
        check(unfinished, &[("host/a.rs", source)], &["host/a.rs:2", "host/a.rs:3"]);
    }
}
