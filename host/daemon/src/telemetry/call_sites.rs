//! The lists against the sources: no call of the host uses a key or a metric that is not on its list.
//!
//! Holds: a reader of macro calls that knows just enough Rust. It finds at build time what would otherwise be withheld in
//! production. Refuses to know values: their shapes are checked when a line is written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{allow, catalog};

/// Every source file of the host, tests of its crates included.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let mut take = |path: PathBuf| found.push((path.clone(), std::fs::read_to_string(path).unwrap()));
            match name.as_str() {
                // Its tests break the rules on purpose.
                "telemetry" => take(path.join("events.rs")),
                "target" => {}
                _ if path.is_dir() => folders.push(path),
                _ if name.ends_with(".rs") => take(path),
                _ => {}
            }
        }
    }
    found
}

/// The arguments of each call of one of these macros, as text.
fn calls<'a>(text: &'a str, macros: &[&str]) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    for name in macros {
        for (at, _) in text.match_indices(&format!("{name}!(")) {
            found.push(arguments(&text[at + name.len() + 2..]));
        }
    }
    found
}

/// Splits at the commas outside of brackets and string literals, up to the bracket that closes the call.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut in_string, mut escaped, mut from) = (0_u32, false, false, 0);
    let mut found = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push(text[from..at].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|argument| !argument.is_empty());
    found
}

/// The keys before the text of a log call: `key = value`, `%key` or `key`.
fn keys(arguments: &[&str]) -> Vec<String> {
    let fields = arguments.iter().take_while(|argument| !argument.starts_with('"'));
    let fields = fields.filter(|argument| !argument.starts_with("target:"));
    let key = |argument: &str| {
        let before = argument.split_once('=').map_or(argument, |(key, _)| key);
        before.trim().trim_start_matches(['%', '?']).rsplit('.').next().unwrap().to_owned()
    };
    fields.map(|argument| key(argument)).collect()
}

#[test]
fn every_key_of_a_log_call_is_on_the_list() {
    let levels = ["tracing::error", "tracing::warn", "tracing::info", "tracing::debug", "tracing::trace"];
    let mut seen = BTreeSet::new();
    for (path, text) in sources() {
        for call in calls(&text, &levels) {
            for key in keys(&call) {
                assert!(allow::shape_of(&key).is_some(), "{}: {key:?} is not in telemetry/allow.rs", path.display());
                seen.insert(key);
            }
        }
    }
    assert!(seen.len() > 20, "the reader has gone blind: {seen:?}");
}

#[test]
fn every_metric_of_a_call_is_in_the_catalog() {
    let known: BTreeSet<&str> = catalog::names().collect();
    let mut seen = BTreeSet::new();
    for (path, text) in sources() {
        for call in calls(&text, &["metrics::counter", "metrics::gauge", "metrics::histogram"]) {
            // Plugins' own metrics have names that are made; the recorder looks at those.
            let Some(name) = call[0].strip_prefix('"').and_then(|name| name.strip_suffix('"')) else { continue };
            assert!(known.contains(name), "{}: {name} is not in telemetry/catalog.rs", path.display());
            seen.insert(name.to_owned());
        }
    }
    assert!(seen.len() > 20, "the reader has gone blind: {seen:?}");
}

#[test]
fn the_reader_knows_calls() {
    let text = "tracing::warn!(target: T, plugin = %self.name(a, \"b)\"), rows, %to, self.slot, \"said, {x}\", y);";
    let found = calls(text, &["tracing::warn"]);
    assert_eq!(found.iter().map(|call| keys(call)).collect::<Vec<_>>(), [["plugin", "rows", "to", "slot"]]);
}
