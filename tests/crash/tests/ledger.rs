//! The ledger: every change that reached the plugin, as the plugin wrote it down.
//!
//! Holds: the form of a line, and the lives of processes that a ledger is made of. Never knows: what ought to be there.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The key of a change that no restart alters: commit position and ordinal.
pub(crate) type Place = (u64, u64);

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) place: Place,
    pub(crate) what: What,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A row of `entries` by its number, with the transaction it says it is of, and the one it came in.
    Entry { id: i64, tx: i64, xid: i64 },
    /// A row of `accounts`.
    Account { id: i32, op: String, version: Option<i64> },
}

/// What one process wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    pub(crate) changes: Vec<Change>,
    /// Where the stored cursor stood when it was started: nothing of that may be written again.
    pub(crate) from: Cursor,
    /// The process before it did not end as asked, so that something may come twice.
    pub(crate) after_crash: bool,
}

/// A stored cursor: everything that ends at or before `end`, and of the transaction at `commit` the first changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) end: u64,
    pub(crate) commit: u64,
    pub(crate) ordinal: u64,
}

impl Cursor {
    /// Whether a change is durable according to this cursor.
    pub(crate) fn covers(self, (commit, ordinal): Place) -> bool {
        commit < self.end || (commit == self.commit && ordinal < self.ordinal)
    }
}

/// Reads whole lines. The rest after the last line break is what a killed process did not finish: an error unless
/// `torn` allows it.
pub(crate) fn read(bytes: &[u8], torn: bool) -> Result<Vec<Change>> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    ensure!(torn || whole == bytes.len(), "the last {} bytes are no whole line", bytes.len() - whole);
    let text = std::str::from_utf8(&bytes[..whole]).context("the ledger is not UTF-8")?;
    let lines = text.lines().enumerate();
    lines.map(|(at, line)| change(line).with_context(|| format!("line {}: {line}", at + 1))).collect()
}

fn change(line: &str) -> Result<Change> {
    let line: Value = serde_json::from_str(line).context("not a line of the plugin")?;
    let number = |pointer: &str| line.pointer(pointer).and_then(Value::as_i64);
    let word = |name: &str| line.get(name).and_then(Value::as_str).with_context(|| format!("no {name}"));
    let commit = lsn(word("commit_lsn")?)?;
    let ordinal = line.get("ord").and_then(Value::as_u64).context("no ord")?;
    let op = word("op")?;
    let what = match word("table")? {
        "entries" => {
            ensure!(op == "insert", "an entry is only ever inserted, this is an {op}");
            What::Entry {
                id: number("/after/id").context("no id")?,
                tx: number("/after/tx").context("no tx")?,
                xid: number("/xid").context("no xid")?,
            }
        }
        "accounts" => {
            let id = number("/after/id").or_else(|| number("/key/id")).context("no id")?;
            What::Account { id: i32::try_from(id)?, op: op.to_owned(), version: number("/after/version") }
        }
        other => anyhow::bail!("table {other} was not granted"),
    };
    Ok(Change { place: (commit, ordinal), what })
}

/// A position as Postgres prints it.
pub(crate) fn lsn(text: &str) -> Result<u64> {
    let (high, low) = text.split_once('/').with_context(|| format!("{text} is no position"))?;
    Ok(u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"{"commit_lsn":"1/A0","xid":7,"ord":3,"op":"insert","schema":"public","table":"entries","after":{"id":5,"tx":7,"pad":""}}"#;
    const GONE: &str = r#"{"commit_lsn":"1/B0","xid":8,"ord":0,"op":"delete","schema":"public","table":"accounts","key":{"id":2},"before":{"id":2}}"#;

    #[test]
    fn lines_are_read_and_a_torn_one_is_told() {
        let text = format!("{ENTRY}\n{GONE}\n{{\"commit_l");
        let changes = read(text.as_bytes(), true).unwrap();
        assert_eq!(changes[0].place, (0x1_0000_00A0, 3));
        assert_eq!(changes[0].what, What::Entry { id: 5, tx: 7, xid: 7 });
        assert_eq!(changes[1].what, What::Account { id: 2, op: "delete".to_owned(), version: None });
        assert!(read(text.as_bytes(), false).unwrap_err().to_string().contains("no whole line"));
        let glued = format!("{{\"commit_l{ENTRY}\n");
        assert!(read(glued.as_bytes(), true).is_err(), "a line that two processes wrote is none");
    }

    #[test]
    fn a_cursor_covers_what_ended_and_the_first_changes_of_one_more() {
        let cursor = Cursor { end: 100, commit: 120, ordinal: 2 };
        assert!(cursor.covers((99, 9)) && cursor.covers((120, 1)));
        assert!(!cursor.covers((100, 0)) && !cursor.covers((120, 2)) && !cursor.covers((130, 0)));
    }
}
