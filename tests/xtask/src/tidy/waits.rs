//! Rules about tests: no pause without a reason, nothing ignored without one.
//!
//! Holds: what counts as a test. Never knows: what tests test.
//! Read next: `tests/harness/src/wait.rs`, which is what tests wait with.

use super::tree::{Finding, Page, Tree};

/// The comment that allows one pause, on its line or the line above, followed by the reason.
const MARKER: &str = "tidy: sleep ok, ";

/// An ignored test says why, so that the summary of a run can.
pub(super) fn ignored_with_reason(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in tree.pages.iter().filter(|page| page.path.ends_with(".rs")) {
        for (index, line) in page.masked.code.lines().enumerate() {
            if line.contains("#[ignore]") {
                found.push(page.finding(index + 1, "an ignored test says why: #[ignore = \"reason\"]"));
            }
        }
    }
    found
}

/// Tests wait for a signal with a deadline; a pause is either too short on a busy machine or too long on every other.
pub(super) fn sleeps_with_reason(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in tree.pages.iter().filter(|page| page.path.ends_with(".rs")) {
        let lines: Vec<&str> = page.text.lines().collect();
        let code = page.masked.code.lines().enumerate();
        for (index, _) in code.filter(|(index, line)| is_test(page, index + 1) && pauses(line)) {
            let above = index.checked_sub(1).and_then(|above| lines.get(above));
            if ![lines.get(index), above].into_iter().flatten().any(|line| is_allowed(line)) {
                let message = format!("a test must not pause; wait with a deadline, or say `// {MARKER}<reason>`");
                found.push(page.finding(index + 1, message));
            }
        }
    }
    found
}

/// Whether a line belongs to a test: everything below `tests/`, test folders of crates, and test modules.
fn is_test(page: &Page, line: usize) -> bool {
    page.path.starts_with("tests/") || page.path.contains("/tests/") || line >= page.tests_from()
}

/// Whether a line of code calls a function named `sleep`.
fn pauses(line: &str) -> bool {
    line.match_indices("sleep(").any(|(at, _)| {
        let head = line.get(..at).unwrap_or_default();
        let longer = head.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        !longer && !head.trim_end().ends_with("fn")
    })
}

fn is_allowed(line: &str) -> bool {
    line.split_once(MARKER).is_some_and(|(head, reason)| head.contains("//") && !reason.trim().is_empty())
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
    fn a_pause_in_a_test_is_caught() {
        let source = "fn a() {\n    std::thread::sleep(A);\n    tokio::time::sleep(B).await;\n    sleep(C);\n}\n";
        let expected = ["tests/x/a.rs:2", "tests/x/a.rs:3", "tests/x/a.rs:4"];
        check(sleeps_with_reason, &[("tests/x/a.rs", source)], &expected);
        check(sleeps_with_reason, &[("host/wire/src/a.rs", source)], &[]);
        check(
            sleeps_with_reason,
            &[("host/wire/src/a.rs", "fn a() { sleep(A) }\n#[cfg(test)]\nmod t { fn b() { sleep(B) } }\n")],
            &["host/wire/src/a.rs:3"],
        );
    }

    #[test]
    fn a_pause_with_a_reason_passes_and_one_without_does_not() {
        let same = "fn a() { sleep(A) } // tidy: sleep ok, this is the poll\n";
        let above = "// tidy: sleep ok, this is the poll\nfn a() { sleep(A) }\n";
        let empty = "fn a() { sleep(A) } // tidy: sleep ok, \n";
        let names = "fn sleep(a: A) {}\nfn b() { oversleep(A) }\n// sleep(A)\n";
        let pages = [("tests/a.rs", same), ("tests/b.rs", above), ("tests/c.rs", empty), ("tests/d.rs", names)];
        check(sleeps_with_reason, &pages, &["tests/c.rs:1"]);
    }

    #[test]
    fn an_ignored_test_without_reason_is_caught() {
        let source = "#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n// #[ignore]\n";
        check(ignored_with_reason, &[("host/a.rs", source)], &["host/a.rs:1"]);
    }
}
