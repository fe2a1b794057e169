//! What the demo says: progress on stderr while it works, the result on stdout at the end.
//!
//! Holds: the only places that print. Refuses to know how a number came about.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::leak::Place;
use crate::workload::IMPORT_ROWS;

/// Lines for the person who waits, each with the time since the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    start: Instant,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Prints a line. A closed stderr is no error of ours.
    pub(crate) fn say(self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{:6.1} s  {text}", self.start.elapsed().as_secs_f64());
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.start.elapsed()
    }
}

/// Prints what went wrong, with its causes.
pub(crate) fn problem(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr().lock(), "demo: {error:#}");
}

/// Rows of one table.
#[derive(Debug, Serialize)]
pub(crate) struct Rows {
    pub(crate) source: u64,
    pub(crate) rebuilt: u64,
    /// Missing, superfluous or different.
    pub(crate) wrong: u64,
    /// Columns that differ, and in how many rows.
    pub(crate) wrong_columns: BTreeMap<String, u64>,
}

/// Changes made at the source, and those that arrived at each sink.
#[derive(Debug, Serialize)]
pub(crate) struct Changes {
    pub(crate) made: u64,
    pub(crate) ndjson: u64,
    pub(crate) counter: u64,
}

/// A version of a plugin that took over while there was work.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Swap {
    /// How long nothing was delivered.
    pub(crate) pause_ms: f64,
    /// The generation before.
    pub(crate) from: u64,
    /// The generation after.
    pub(crate) to: u64,
}

/// The result of a round. Its JSON form is an interface: scripts read `lost`, `repeated` and `leaked`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Changes that are missing or wrong at a sink.
    pub(crate) lost: u64,
    /// Changes that arrived more than once at a sink.
    pub(crate) repeated: u64,
    /// Occurrences of an email or a phone.
    pub(crate) leaked: u64,
    pub(crate) tables: BTreeMap<&'static str, Rows>,
    pub(crate) changes: Changes,
    pub(crate) kills: u64,
    pub(crate) swap: Swap,
    /// Rows of the large transaction that were in the file when the process was killed.
    pub(crate) killed_after_rows: u64,
    pub(crate) import_rows: u64,
    pub(crate) checked_bytes: u64,
    pub(crate) checked_files: u64,
    /// Files in which something was found.
    pub(crate) leaks: Vec<Place>,
    pub(crate) postgres: u32,
    pub(crate) duration_ms: u64,
}

impl Report {
    /// Whether everything arrived, once, and nothing else.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost == 0 && self.repeated == 0 && self.leaked == 0
    }

    /// Prints the result to stdout.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        let text = if json { serde_json::to_string_pretty(self)? + "\n" } else { self.page() };
        std::io::stdout().lock().write_all(text.as_bytes()).context("cannot print the result")
    }

    fn page(&self) -> String {
        let mut page = format!(
            "\nPostgres {}: {} changes in {:.1} s; SIGKILL when {} of {IMPORT_ROWS} rows of one transaction were written\n\n  \
             {:<14}{:>12}{:>12}{:>9}\n",
            self.postgres,
            self.changes.made,
            Duration::from_millis(self.duration_ms).as_secs_f64(),
            self.killed_after_rows,
            "rows of",
            "source",
            "rebuilt",
            "wrong"
        );
        for (name, rows) in &self.tables {
            page += &format!("  {name:<14}{:>12}{:>12}{:>9}", rows.source, rows.rebuilt, rows.wrong);
            for (column, rows) in &rows.wrong_columns {
                page += &format!("   {column} in {rows} rows");
            }
            page += "\n";
        }
        page += &format!(
            "\n  changes made {}, in the NDJSON file {}, counted by the counter {}\n\n",
            self.changes.made, self.changes.ndjson, self.changes.counter
        );
        page += &format!(
            "  ndjson-rust was exchanged under load: generation {} by {}, {:.1} ms without a delivery\n\n",
            self.swap.from, self.swap.to, self.swap.pause_ms
        );
        page += &format!("  lost      {:>6}\n  repeated  {:>6}\n", self.lost, self.repeated);
        page += &format!(
            "  leaked    {:>6}   emails and phones in {} bytes of {} files: outputs, logs, configuration, caches, state, answers\n",
            self.leaked, self.checked_bytes, self.checked_files
        );
        for place in &self.leaks {
            page += &format!("  {:>16}   in {}\n", place.occurrences, place.file.display());
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let wrong_columns = BTreeMap::from([("due".to_owned(), 1)]);
        let rows = Rows { source: 7, rebuilt: 8, wrong: 2, wrong_columns };
        Report {
            lost: 0,
            repeated: 0,
            leaked: 2,
            tables: BTreeMap::from([("orders", rows)]),
            changes: Changes { made: 12, ndjson: 11, counter: 12 },
            kills: 1,
            swap: Swap { pause_ms: 1.5, from: 1, to: 2 },
            killed_after_rows: 34_000,
            import_rows: IMPORT_ROWS,
            checked_bytes: 99,
            checked_files: 3,
            leaks: vec![Place { file: "logs/1".into(), occurrences: 2 }],
            postgres: 18,
            duration_ms: 1500,
        }
    }

    #[test]
    fn the_json_form_has_the_keys_that_scripts_read() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!((&json["lost"], &json["repeated"], &json["leaked"]), (&0.into(), &0.into(), &2.into()));
        assert_eq!(json["tables"]["orders"]["rebuilt"], 8);
        assert_eq!((&json["swap"]["from"], &json["swap"]["to"]), (&1.into(), &2.into()));
        assert_eq!(json["swap"]["pause_ms"], 1.5);
        assert_eq!((&json["kills"], &json["checked_bytes"]), (&1.into(), &99.into()));
    }

    #[test]
    fn the_page_names_the_place_of_a_leak_and_only_zeros_are_clean() {
        let page = report().page();
        assert!(
            page.contains("in logs/1")
                && page.contains("1.5 ms without a delivery")
                && page.contains("due in 1 rows")
                && page.contains("12 changes in 1.5 s"),
            "{page}"
        );
        assert!(!report().is_clean());
        assert!(Report { leaked: 0, ..report() }.is_clean());
        assert!(!Report { leaked: 0, lost: 1, ..report() }.is_clean());
        assert!(!Report { leaked: 0, repeated: 1, ..report() }.is_clean());
    }
}
