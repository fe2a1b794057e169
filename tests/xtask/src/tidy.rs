//! The rules of the house that no compiler checks, as functions from a tree of files to findings.
//!
//! Holds: the list of rules and how findings are told. Never knows: how to repair anything.
//! Read next: `tidy/layers.rs` (who may import whom), `tidy/pages.rs` (what a file looks like), `tidy/waits.rs` (what tests may not do).

mod layers;
mod mask;
mod pages;
mod tree;
mod waits;

use std::process::ExitCode;

use crate::{Result, places};
use tree::{Finding, Tree};

/// Looks at all files and says what is wrong.
type Rule = fn(&Tree) -> Vec<Finding>;

/// Every rule, by the name a finding is told under.
const RULES: &[(&str, Rule)] = &[
    ("crate-edges", layers::crate_edges),
    ("pure-core", layers::pure_core),
    ("wasmtime", layers::wasmtime_in_one_crate),
    ("state-sql", layers::state_sql_in_one_crate),
    ("stages", layers::stages_look_back),
    ("lints", layers::lints_are_inherited),
    ("heads", pages::heads),
    ("names", pages::names),
    ("folders", pages::top_folders),
    ("sizes", pages::sizes),
    ("wit-prose", pages::wit_prose),
    ("unfinished", pages::unfinished),
    ("ignored", waits::ignored_with_reason),
    ("sleeps", waits::sleeps_with_reason),
];

/// Answers `cargo xtask tidy`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        return Err(format!("`{arg}` is not understood; this command takes nothing"));
    }
    check()?;
    println!("tidy: {} rules hold", RULES.len());
    Ok(ExitCode::SUCCESS)
}

/// Checks this checkout, prints every finding, and fails with their number; warnings do not fail.
pub(crate) fn check() -> Result<()> {
    let tree = Tree::load(places::checkout())?;
    let mut errors = 0;
    for (name, rule) in RULES {
        for finding in rule(&tree) {
            println!("{}", finding.told(name));
            errors += usize::from(!finding.is_warning());
        }
    }
    if errors == 0 { Ok(()) } else { Err(format!("{errors} findings, listed above")) }
}
