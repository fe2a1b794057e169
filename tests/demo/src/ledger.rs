//! The judge of the NDJSON output: replays every line, then compares with the source, row by row and value by value.
//!
//! Holds: the tables as a reader of the file would rebuild them, and the ledger of changes beside them: a mirror alone
//! would hide a change that arrived twice, or one that a later change made up for. Refuses to know walgate and SQL.
//! Read next: `tally.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use walgate_core::Lsn;

use crate::shop::{Row, TABLES, Table};
use crate::tally::{Operation, Tally};

/// One line of the output, as the README of the plugin describes it.
#[derive(Deserialize)]
struct Line {
    commit_lsn: String,
    ord: u32,
    op: String,
    schema: String,
    table: String,
    before: Option<Row>,
    after: Option<Row>,
    #[serde(default)]
    unchanged: Vec<String>,
}

/// One table as rebuilt from the lines, by primary key.
struct Mirror {
    table: &'static Table,
    rows: HashMap<String, Row>,
}

/// What the file says, line by line.
pub(crate) struct Ledger {
    mirrors: Vec<Mirror>,
    seen: HashSet<(Lsn, u32)>,
    last: (Lsn, u32),
    arrived: Tally,
    repeated: u64,
    misfits: u64,
}

/// How the rows of one table differ from the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Rows at the source.
    pub(crate) source: u64,
    /// Rows rebuilt.
    pub(crate) rebuilt: u64,
    /// Rows that are missing, superfluous, or hold another value.
    pub(crate) wrong: u64,
    /// Columns that differ in rows that both have, and in how many.
    pub(crate) columns: BTreeMap<String, u64>,
}

impl Ledger {
    /// An empty file.
    pub(crate) fn new() -> Self {
        Self {
            mirrors: TABLES.iter().map(|table| Mirror { table, rows: HashMap::new() }).collect(),
            seen: HashSet::new(),
            last: (Lsn::ZERO, 0),
            arrived: Tally::default(),
            repeated: 0,
            misfits: 0,
        }
    }

    /// Replays a file. Fails on a line that is not what the plugin writes, a torn one for example.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        let mut ledger = Self::new();
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let line = line.with_context(|| format!("cannot read {name}"))?;
            ledger.apply(&line).with_context(|| format!("{name}, line {}", index + 1))?;
        }
        Ok(ledger)
    }

    /// Takes one line. A repeated one is counted and changes nothing else.
    pub(crate) fn apply(&mut self, text: &str) -> Result<()> {
        // The cause is cut down to its place: its text could quote a value.
        let line: Line = serde_json::from_str(text).map_err(|e| anyhow!("not a change, from column {}", e.column()))?;
        let operation = Operation::parse(&line.op).context("an operation that the workload does not make")?;
        let commit: Lsn = line.commit_lsn.parse().context("commit_lsn")?;
        let place = (commit, line.ord);
        if !self.seen.insert(place) {
            self.repeated += 1;
            return Ok(());
        }
        self.arrived.add(operation, 1);
        let mirror = self.mirrors.iter_mut().find(|mirror| line.schema == "public" && line.table == mirror.table.name);
        let fits = mirror.context("a table that the shop does not have")?.apply(operation, line);
        let in_order = place > self.last || self.seen.len() == 1;
        self.last = self.last.max(place);
        self.misfits += u64::from(!fits || !in_order);
        Ok(())
    }

    /// The different changes in the file.
    pub(crate) fn arrived(&self) -> Tally {
        self.arrived
    }

    /// Lines whose change was in the file already.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Changes that are missing or wrong, given what was made and how many rows came out wrong.
    ///
    /// One lost change usually shows in several ways at once: in the counts, in the rows, and in changes that find no row
    /// to apply to. The largest of them is the answer, so that one lost insert counts as one.
    pub(crate) fn lost(&self, made: Tally, wrong_rows: u64) -> u64 {
        let missing = made.beyond(self.arrived);
        let never_made = self.arrived.beyond(made);
        missing.max(never_made).max(wrong_rows).max(self.misfits)
    }

    /// Compares a table with the rows of the source, in both directions.
    pub(crate) fn compare(&self, table: &Table, source: &[Row]) -> Comparison {
        let mut found = Comparison { source: source.len() as u64, ..Comparison::default() };
        let rebuilt = self.mirrors.iter().find(|mirror| mirror.table.name == table.name).map(|mirror| &mirror.rows);
        found.rebuilt = rebuilt.map_or(0, HashMap::len) as u64;
        let mut at_hand = 0;
        for row in source {
            let Some(ours) = table.key_of(row).and_then(|key| rebuilt?.get(&key)) else {
                found.wrong += 1;
                continue;
            };
            at_hand += 1;
            found.wrong += u64::from(ours != row);
            for column in differing(ours, row) {
                *found.columns.entry(column.to_owned()).or_default() += 1;
            }
        }
        // What is rebuilt and not at the source.
        found.wrong += found.rebuilt.saturating_sub(at_hand);
        found
    }
}

/// The names of columns that one row has and the other has not, or with another value.
fn differing<'a>(ours: &'a Row, theirs: &'a Row) -> impl Iterator<Item = &'a str> {
    let changed = theirs.iter().filter(|(column, value)| ours.get(*column) != Some(value));
    let surplus = ours.iter().filter(|(column, _)| !theirs.contains_key(*column));
    changed.chain(surplus).map(|(column, _)| column.as_str())
}

impl Mirror {
    /// Applies one change; false when it does not fit what is there.
    fn apply(&mut self, operation: Operation, line: Line) -> bool {
        match operation {
            Operation::Insert => line.after.is_some_and(|row| self.put(row)),
            Operation::Update => self.update(line),
            Operation::Delete => line.before.is_some_and(|before| self.take(&before).is_some()),
            Operation::Truncate => {
                self.rows.clear();
                true
            }
        }
    }

    fn update(&mut self, line: Line) -> bool {
        let Some(mut row) = line.after else { return false };
        // The old key comes only when it may differ: with a new key, or with the whole old row.
        let old = match &line.before {
            Some(before) => self.take(before),
            None => self.take(&row),
        };
        let Some(mut old) = old else {
            self.put(row);
            return false;
        };
        let kept = line.unchanged.iter().all(|column| match old.remove(column) {
            Some(value) => row.insert(column.clone(), value).is_none(),
            None => false,
        });
        self.put(row) && kept
    }

    /// Adds a row whose key must be free.
    fn put(&mut self, row: Row) -> bool {
        let Some(key) = self.table.key_of(&row) else { return false };
        self.rows.insert(key, row).is_none()
    }

    /// Removes the row that an old image names.
    fn take(&mut self, image: &Row) -> Option<Row> {
        self.rows.remove(&self.table.key_of(image)?)
    }
}

impl Table {
    /// The primary key of a row as one text, when all of it is there.
    fn key_of(&self, row: &Row) -> Option<String> {
        let parts: Option<Vec<String>> =
            self.key.iter().map(|column| row.get(*column).map(ToString::to_string)).collect();
        Some(parts?.join(" "))
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
