//! Rules about direction: which crate, and which stage, may name which.
//!
//! Holds: the edges of ARCHITECTURE.md as a table. Never knows: what the crates do.
//! Read next: ARCHITECTURE.md at the top of the repository.

use super::mask::{has_word, lines_naming};
use super::tree::{Finding, Page, Tree};

/// Each crate of the host, and the crates of ours it may depend on.
const EDGES: &[(&str, &[&str])] = &[
    ("host/core", &[]),
    ("host/wire", &["walgate-core"]),
    ("host/store", &["walgate-core", "walgate-failpoint"]),
    ("host/plugin", &["walgate-core"]),
    ("host/catalog", &["walgate-core", "walgate-wire", "walgate-store", "walgate-plugin"]),
    (
        "host/daemon",
        &["walgate-core", "walgate-wire", "walgate-store", "walgate-plugin", "walgate-catalog", "walgate-failpoint"],
    ),
    ("sdk/rust", &[]),
    ("tests/failpoint", &[]),
    ("tests/harness", &[]),
    ("tests/xtask", &[]),
];

/// What the pure core must not name: anything that reads the world or waits for it.
const IMPURE: &[&str] =
    &["tokio", "std::fs", "std::net", "std::env", "std::process", "std::time::SystemTime", "wasmtime"];

/// The stages in the order in which data passes them, each by the names its module may have.
const STAGES: &[&[&str]] = &[
    &["wire", "source"],
    &["decode", "pgoutput"],
    &["assemble"],
    &["minimize"],
    &["deliver"],
    &["checkpoint"],
    &["ack"],
];

/// Crates depend on each other in one direction. Dependencies of tests are free.
pub(super) fn crate_edges(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in manifests(tree) {
        let folder = page.path.trim_end_matches("/Cargo.toml");
        let rule = EDGES.iter().find(|(name, _)| *name == folder);
        if rule.is_none() && folder.starts_with("host/") {
            found.push(page.finding(1, "a crate of the host that the table of edges (tidy/layers.rs) does not know"));
        }
        let Some((_, allowed)) = rule else { continue };
        for (line, name) in dependencies(page) {
            if name.starts_with("walgate") && !allowed.contains(&name) {
                found.push(page.finding(line, format!("{folder} must not depend on {name}")));
            }
        }
    }
    found
}

/// `host/core` names neither a runtime, nor files, sockets, clocks or the environment.
pub(super) fn pure_core(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in tree.rust_in("host/core/src/") {
        for path in IMPURE {
            let lines = lines_naming(&page.masked.code, path);
            found.extend(lines.into_iter().map(|line| page.finding(line, format!("the core must not name {path}"))));
        }
    }
    for page in manifests(tree).filter(|page| page.path.starts_with("host/core/")) {
        let impure = dependencies(page).into_iter().filter(|(_, name)| name.starts_with("tokio"));
        found.extend(impure.map(|(line, name)| page.finding(line, format!("the core must not depend on {name}"))));
    }
    found
}

/// Only `host/plugin` names wasmtime, so that a new version of it is one crate's work.
pub(super) fn wasmtime_in_one_crate(tree: &Tree) -> Vec<Finding> {
    let elsewhere = |page: &&Page| page.path.contains('/') && !page.path.starts_with("host/plugin/");
    let mut found = Vec::new();
    for page in tree.pages.iter().filter(elsewhere) {
        let message = "only host/plugin may name wasmtime";
        if page.path.ends_with(".rs") {
            let named = ["wasmtime", "wasmtime_wasi"].map(|name| lines_naming(&page.masked.code, name)).concat();
            found.extend(named.into_iter().map(|line| page.finding(line, message)));
        } else if page.path.ends_with("/Cargo.toml") {
            let named = dependencies(page).into_iter().filter(|(_, name)| name.starts_with("wasmtime"));
            found.extend(named.map(|(line, _)| page.finding(line, message)));
        }
    }
    found
}

/// Only `host/store` holds SQL on the state schema; tests may look at it.
pub(super) fn state_sql_in_one_crate(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let elsewhere = |page: &&Page| page.path.contains("/src/") && !page.path.starts_with("host/store/");
    for page in tree.rust_in("host/").filter(elsewhere) {
        for (index, line) in page.masked.strings.lines().enumerate().take(page.tests_from().saturating_sub(1)) {
            let sql = ["FROM", "INTO", "UPDATE", "TABLE", "JOIN", "SCHEMA"].iter().any(|word| {
                let schema = ["walgate.", "catalog_replica.", "eventing."];
                schema.iter().any(|name| line.contains(&format!("{word} {name}")))
            });
            if sql || ["CREATE SCHEMA walgate", "DROP SCHEMA walgate"].iter().any(|text| line.contains(text)) {
                found.push(page.finding(index + 1, "SQL on the state schema belongs in host/store"));
            }
        }
    }
    found
}

/// A stage may import what comes before it, never what comes after. Only `pipeline.rs` names every stage.
pub(super) fn stages_look_back(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (folder, parents) in
        [("host/core/src/", ["crate", "super"].as_slice()), ("host/daemon/src/pipeline/", &["super", "pipeline"])]
    {
        for page in tree.rust_in(folder) {
            let below = page.path.trim_start_matches(folder);
            // A stage is a file of its name, or every file in a folder of its name.
            let stage = below.split(['/', '.']).next().unwrap_or_default();
            let Some(position) = STAGES.iter().position(|names| names.contains(&stage)) else { continue };
            for later in STAGES.iter().skip(position + 1).copied().flatten() {
                for path in parents.iter().map(|parent| format!("{parent}::{later}")) {
                    let lines = lines_naming(&page.masked.code, &path);
                    let before_tests = lines.into_iter().filter(|line| *line < page.tests_from());
                    let message = format!("{stage} must not import {later}, a later stage");
                    found.extend(before_tests.map(|line| page.finding(line, message.clone())));
                }
            }
        }
    }
    found
}

/// Every crate has lints, and those of the host have the workspace's: without them public items go undocumented and
/// `unwrap` goes unseen.
pub(super) fn lints_are_inherited(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in manifests(tree) {
        let inherited = page.text.contains("[lints]\nworkspace = true");
        if page.path.starts_with("host/") && !inherited {
            found.push(page.finding(1, "a crate of the host inherits the workspace's lints: [lints] workspace = true"));
        }
        if page.path.starts_with("sdk/") && !inherited && !page.text.contains("missing_docs") {
            found.push(page.finding(1, "a kit documents its public items: [lints.rust] missing_docs"));
        }
    }
    found
}

fn manifests(tree: &Tree) -> impl Iterator<Item = &Page> {
    tree.pages.iter().filter(|page| page.path.ends_with("/Cargo.toml"))
}

/// Line and name of every dependency that is built into the crate, tests left out.
fn dependencies(page: &Page) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in page.text.lines().enumerate() {
        if let Some(section) = line.trim().strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = is_dependency_section(section);
            let named = section.rsplit_once("dependencies.").filter(|_| !section.contains("dev-dependencies"));
            found.extend(named.map(|(_, name)| (index + 1, name)));
        } else if inside && !line.trim_start().starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if has_word(line, name) && !name.is_empty() {
                found.push((index + 1, name));
            }
        }
    }
    found
}

fn is_dependency_section(section: &str) -> bool {
    let last = section.rsplit('.').next().unwrap_or_default();
    last == "dependencies" || last == "build-dependencies"
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
    fn a_crate_that_looks_up_is_caught() {
        let wire = "[dependencies]\nwalgate-core.workspace = true\nwalgate-store = { path = \"x\" }\n";
        check(crate_edges, &[("host/wire/Cargo.toml", wire)], &["host/wire/Cargo.toml:3"]);
        let section = "[dependencies.walgate-wire]\nworkspace = true\n";
        check(crate_edges, &[("host/core/Cargo.toml", section)], &["host/core/Cargo.toml:1"]);
        let dev = "[dev-dependencies]\nwalgate-harness.workspace = true\n";
        check(crate_edges, &[("host/wire/Cargo.toml", dev)], &[]);
        check(crate_edges, &[("host/new/Cargo.toml", "[package]\n")], &["host/new/Cargo.toml:1"]);
    }

    #[test]
    fn a_core_that_reads_the_world_is_caught() {
        let source = "//! tokio is not used, std::fs neither\nuse std::{fmt, net::IpAddr};\nfn a() { std::fs::read(\"tokio\"); }\n";
        let expected = ["host/core/src/a.rs:3", "host/core/src/a.rs:2"];
        check(pure_core, &[("host/core/src/a.rs", source), ("host/wire/src/a.rs", source)], &expected);
        let manifest = "[dependencies]\ntokio-util = \"1\"\n";
        check(pure_core, &[("host/core/Cargo.toml", manifest)], &["host/core/Cargo.toml:2"]);
    }

    #[test]
    fn wasmtime_outside_its_crate_is_caught() {
        let source = "//! wasmtime\nuse wasmtime_wasi::p2;\n";
        let pages = [("host/daemon/src/a.rs", source), ("host/plugin/src/a.rs", source)];
        check(wasmtime_in_one_crate, &pages, &["host/daemon/src/a.rs:2"]);
        let manifest = "[dependencies]\nwasmtime.workspace = true\n";
        check(wasmtime_in_one_crate, &[("tests/bench/Cargo.toml", manifest)], &["tests/bench/Cargo.toml:2"]);
    }

    #[test]
    fn state_sql_outside_the_store_is_caught() {
        let source = "const A: &str = \"SELECT a\n FROM walgate.checkpoints\";\n#[cfg(test)]\nconst B: &str = \"FROM walgate.x\";\n";
        let pages =
            [("host/daemon/src/a.rs", source), ("host/store/src/a.rs", source), ("host/wire/tests/a.rs", source)];
        check(state_sql_in_one_crate, &pages, &["host/daemon/src/a.rs:2"]);
        check(state_sql_in_one_crate, &[("host/daemon/src/a.rs", "// FROM walgate.x\n")], &[]);
    }

    #[test]
    fn a_stage_that_looks_ahead_is_caught() {
        let source = "use super::{assemble::T, checkpoint};\nuse crate::pipeline::ack;\n";
        let expected = ["host/daemon/src/pipeline/deliver.rs:1", "host/daemon/src/pipeline/deliver.rs:2"];
        check(stages_look_back, &[("host/daemon/src/pipeline/deliver.rs", source)], &expected);
        check(stages_look_back, &[("host/daemon/src/pipeline.rs", source)], &[]);
        check(
            stages_look_back,
            &[("host/core/src/decode/a.rs", "use crate::assemble::T;\n")],
            &["host/core/src/decode/a.rs:1"],
        );
        let decode = [("host/core/src/pgoutput/mod.rs", "use crate::minimize::T;\n")];
        check(stages_look_back, &decode, &["host/core/src/pgoutput/mod.rs:1"]);
        check(stages_look_back, &[("host/core/src/assemble.rs", "use crate::decode::T;\n")], &[]);
    }

    #[test]
    fn a_crate_without_lints_is_caught() {
        let pages = [("host/core/Cargo.toml", "[package]\n"), ("host/wire/Cargo.toml", "[lints]\nworkspace = true\n")];
        check(lints_are_inherited, &pages, &["host/core/Cargo.toml:1"]);
        check(lints_are_inherited, &[("sdk/rust/Cargo.toml", "[package]\n")], &["sdk/rust/Cargo.toml:1"]);
    }
}
