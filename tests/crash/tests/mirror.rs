//! The ledger of the modes that write rows: two tables that a mirror keeps.
//!
//! Holds: the tables, reading them, and what is proved of them. `entries` has no key, so a row that came twice is there
//! twice; `accounts` has one, and must be as the source is. Never knows: which database they are in.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use crate::judge::Found;
use crate::truth::Truth;

/// The tables, before anything is written.
pub(crate) const TABLES: &str = "
    CREATE SCHEMA mirror;
    CREATE TABLE mirror.entries (id bigint, tx bigint, pad text, seq bigserial);
    CREATE TABLE mirror.accounts (id int PRIMARY KEY, version bigint);";

/// What is in the tables.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// Number and transaction, in the order in which they were written.
    pub(crate) entries: Vec<(i64, i64)>,
    pub(crate) accounts: BTreeMap<i32, i64>,
}

impl Mirror {
    pub(crate) async fn read(client: &Client) -> Result<Self> {
        let mut mirror = Self::default();
        for row in client.query("SELECT id, tx FROM mirror.entries ORDER BY seq", &[]).await? {
            mirror.entries.push((row.get(0), row.get(1)));
        }
        for row in client.query("SELECT id, version FROM mirror.accounts", &[]).await? {
            mirror.accounts.insert(row.get(0), row.get(1));
        }
        Ok(mirror)
    }
}

/// Fails with the first thing that is wrong.
pub(crate) fn judge_mirror(mirror: &Mirror, truth: &Truth) -> Result<Found> {
    let mut times: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    mirror.entries.iter().for_each(|entry| *times.entry(*entry).or_default() += 1);
    let lost: Vec<_> = truth.entries.iter().filter(|(id, tx)| !times.contains_key(&(**id, **tx))).take(8).collect();
    ensure!(lost.is_empty(), "entries lost, as (number, transaction): {lost:?}");
    let invented: Vec<_> = times.keys().filter(|(id, tx)| truth.entries.get(id) != Some(tx)).take(8).collect();
    ensure!(invented.is_empty(), "entries were never committed: {invented:?}");
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(
        twice.is_empty(),
        "{} entries are there more than once: {:?}",
        twice.len(),
        twice.get(..8).unwrap_or(&twice)
    );
    let latest = |steps: &Vec<(String, Option<i64>)>| steps.last().and_then(|(_, version)| *version);
    let accounts: BTreeMap<i32, i64> =
        truth.accounts.iter().filter_map(|(id, steps)| Some((*id, latest(steps)?))).collect();
    let differ: Vec<_> = accounts
        .keys()
        .chain(mirror.accounts.keys())
        .filter(|id| accounts.get(id) != mirror.accounts.get(id))
        .map(|id| (id, accounts.get(id), mirror.accounts.get(id)))
        .take(8)
        .collect();
    ensure!(differ.is_empty(), "accounts differ, as (number, source, mirror): {differ:?}");
    Ok(Found { changes: times.len() + accounts.len(), ..Found::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> Truth {
        let gone = vec![("insert".to_owned(), Some(1)), ("delete".to_owned(), None)];
        let there = vec![("insert".to_owned(), Some(1)), ("update".to_owned(), Some(2))];
        Truth { entries: [(1, 7), (2, 7)].into(), accounts: [(1, there), (2, gone)].into(), ..Truth::default() }
    }

    #[track_caller]
    fn check(entries: &[(i64, i64)], accounts: &[(i32, i64)], expect: Result<(), &str>) {
        let mirror = Mirror { entries: entries.to_vec(), accounts: accounts.iter().copied().collect() };
        match (judge_mirror(&mirror, &truth()), expect) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn a_mirror_is_the_source_or_is_told_why_not() {
        check(&[(1, 7), (2, 7)], &[(1, 2)], Ok(()));
        check(&[(1, 7)], &[(1, 2)], Err("lost"));
        check(&[(1, 7), (2, 7), (3, 8)], &[(1, 2)], Err("never committed"));
        check(&[(1, 7), (2, 7), (2, 7)], &[(1, 2)], Err("more than once"));
        check(&[(1, 7), (2, 7)], &[(1, 1)], Err("accounts differ"));
        check(&[(1, 7), (2, 7)], &[(1, 2), (2, 1)], Err("accounts differ"));
    }
}
