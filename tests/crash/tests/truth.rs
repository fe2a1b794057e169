//! What the source says it has committed.
//!
//! Holds: the two histories that a ledger must agree with. Never knows: ledgers.

use std::collections::BTreeMap;

use anyhow::Result;
use walgate_harness::Cluster;

/// What happened to one row of `accounts`: the operation, and the version that an insert or update left.
pub(crate) type Step = (String, Option<i64>);

/// Everything committed so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Truth {
    /// The transaction of each row of `entries`, by its number.
    pub(crate) entries: BTreeMap<i64, i64>,
    /// The history of each row of `accounts`, by its key, in commit order.
    pub(crate) accounts: BTreeMap<i32, Vec<Step>>,
    /// The entries that a plugin may refuse: the number of each by its text.
    pub(crate) poison: BTreeMap<String, i64>,
}

impl Truth {
    /// Asks the source. The writers must have been paused.
    pub(crate) async fn read(source: &Cluster) -> Result<Self> {
        let client = source.client("postgres").await?;
        let mut truth = Self::default();
        for row in client.query("SELECT id, tx, CASE WHEN pad LIKE 'poison%' THEN pad END FROM entries", &[]).await? {
            truth.entries.insert(row.get(0), row.get(1));
            if let Some(text) = row.get(2) {
                truth.poison.insert(text, row.get(0));
            }
        }
        // A number is drawn while the row is locked, so for one row the numbers are in commit order.
        for row in client.query("SELECT id, op, version FROM journal ORDER BY seq", &[]).await? {
            truth.accounts.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
        }
        Ok(truth)
    }
}
