//! The benchmark itself, on small loads: every side comes to its end, and every ratio is a number.
//!
//! Never knows: what a good ratio is.

#![allow(
    clippy::unwrap_used,
    reason = "tests fail loudly; clippy's own exemption does not reach the shared parts of a test binary"
)]

use std::process::Command;

use serde_json::Value;

/// The figures of one round, each with a ratio.
fn figures(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_walgate-bench"))
        .args(["--quick", "--rounds", "1"])
        .args(arguments)
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = figures.as_array().unwrap().clone();
    for figure in &figures {
        assert!(figure["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{figure}");
    }
    figures
}

#[test]
fn every_side_of_a_quick_run_gives_a_ratio() {
    // Two sides against two on three workloads; four against the counter and three against the file on two.
    assert_eq!(figures(&["--parts", "mirror,modes"]).len(), 3 * 2 * 2 + 2 * (4 + 3));
}

#[test]
fn the_counters_in_python_and_javascript_give_a_ratio() {
    let figures = figures(&["--parts", "languages", "--only", "a"]);
    let sides: Vec<_> = figures.iter().map(|figure| figure["side"].as_str().unwrap()).collect();
    assert_eq!(sides, ["counter-python", "counter-javascript"]);
}
