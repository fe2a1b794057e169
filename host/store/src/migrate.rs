//! Brings the schema `walgate` to this version, with a ledger of what was applied.
//!
//! Holds: the scripts, their checksums, the comparison with the ledger. Refuses to know what the tables mean.
//! Invariant: an applied script never changes; a second start leaves every ledger field as it was.
//! Read next: [`crate::pipeline`].

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tokio_postgres::{Error as PgError, Transaction};

use crate::connection::Session;
use crate::error::{Kind, StoreError};

/// The part of walgate these scripts belong to; other parts keep their rows in the same ledger.
const MODULE: &str = "store";

/// Key of the advisory lock that lets one process migrate at a time. Arbitrary ("walgate" in ASCII), fixed for good.
const LOCK: i64 = 0x0077_616C_6761_7465;

const DOING: &str = "migrating schema walgate";

struct Script {
    name: &'static str,
    sql: &'static str,
}

/// In the order they are applied. A released script is never edited: its checksum is in ledgers out there.
const SCRIPTS: &[Script] = &[
    Script { name: "001_checkpoints", sql: include_str!("../migrations/001_checkpoints.sql") },
    Script { name: "002_commit_checkpoint", sql: include_str!("../migrations/002_commit_checkpoint.sql") },
    Script { name: "003_halts", sql: include_str!("../migrations/003_halts.sql") },
    Script { name: "004_leaders_and_fencing", sql: include_str!("../migrations/004_leaders_and_fencing.sql") },
    Script { name: "005_dead_letters", sql: include_str!("../migrations/005_dead_letters.sql") },
    Script { name: "006_generations", sql: include_str!("../migrations/006_generations.sql") },
];

const CREATE_LEDGER: &str = "CREATE TABLE walgate.schema_migrations (
    module       text        NOT NULL,
    name         text        NOT NULL,
    sha256       text        NOT NULL,
    applied_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    tool_version text        NOT NULL,
    PRIMARY KEY (module, name)
)";

/// Applies what is missing, each script in a transaction of its own; answers how many.
pub(crate) async fn run(session: &mut Session) -> Result<usize, StoreError> {
    let ledger = match read_ledger(session).await? {
        Some(ledger) => ledger,
        None => {
            session.transaction(DOING, create_ledger).await?;
            read_ledger(session).await?.unwrap_or_default()
        }
    };
    let mut applied = 0;
    for script in pending(SCRIPTS, &ledger)? {
        if session.transaction(DOING, async |transaction| apply(transaction, script).await).await? {
            tracing::info!(module = MODULE, script = script.name, "migration applied");
            applied += 1;
        }
    }
    Ok(applied)
}

/// Name and checksum of what was applied, or `None` when there is no ledger.
async fn read_ledger(session: &mut Session) -> Result<Option<BTreeMap<String, String>>, StoreError> {
    let exists = session
        .query_one(DOING, "SELECT to_regclass('walgate.schema_migrations') IS NOT NULL", &[])
        .await?
        .try_get::<_, bool>(0)
        .map_err(|error| StoreError::server(DOING, &error))?;
    if !exists {
        return Ok(None);
    }
    let rows = session
        .query(DOING, "SELECT name, sha256 FROM walgate.schema_migrations WHERE module = $1", &[&MODULE])
        .await?;
    let entries = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, PgError>>();
    entries.map(Some).map_err(|error| StoreError::server(DOING, &error))
}

/// Existence is looked up and not left to `IF NOT EXISTS`, which asks for the right to create even when there is
/// nothing to do: a role without it can then use a schema that someone else prepared.
async fn create_ledger(transaction: &Transaction<'_>) -> Result<(), PgError> {
    lock(transaction).await?;
    let row = transaction
        .query_one("SELECT to_regnamespace('walgate') IS NULL, to_regclass('walgate.schema_migrations') IS NULL", &[])
        .await?;
    if row.try_get(0)? {
        transaction.batch_execute("CREATE SCHEMA walgate").await?;
    }
    if row.try_get(1)? {
        transaction.batch_execute(CREATE_LEDGER).await?;
    }
    Ok(())
}

/// False when another process applied the script between our look and our lock.
async fn apply(transaction: &Transaction<'_>, script: &Script) -> Result<bool, PgError> {
    lock(transaction).await?;
    let known = transaction
        .query_opt("SELECT FROM walgate.schema_migrations WHERE module = $1 AND name = $2", &[&MODULE, &script.name])
        .await?;
    if known.is_some() {
        return Ok(false);
    }
    transaction.batch_execute(script.sql).await?;
    transaction
        .execute(
            "INSERT INTO walgate.schema_migrations (module, name, sha256, tool_version) VALUES ($1, $2, $3, $4)",
            &[&MODULE, &script.name, &checksum(script.sql), &env!("CARGO_PKG_VERSION")],
        )
        .await?;
    Ok(true)
}

async fn lock(transaction: &Transaction<'_>) -> Result<(), PgError> {
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map(drop)
}

/// The scripts to apply, in order; an error when ledger and scripts contradict each other.
fn pending<'a>(scripts: &'a [Script], ledger: &BTreeMap<String, String>) -> Result<Vec<&'a Script>, Kind> {
    if let Some(name) = ledger.keys().find(|name| !scripts.iter().any(|script| script.name == name.as_str())) {
        return Err(Kind::MigrationUnknown { name: name.clone() });
    }
    let mut pending: Vec<&Script> = Vec::new();
    for script in scripts {
        match (ledger.get(script.name), pending.first()) {
            (None, _) => pending.push(script),
            (Some(_), Some(gap)) => return Err(Kind::MigrationGap { name: gap.name.to_owned() }),
            (Some(sha256), None) if *sha256 != checksum(script.sql) => {
                return Err(Kind::MigrationChanged { name: script.name.to_owned() });
            }
            (Some(_), None) => {}
        }
    }
    Ok(pending)
}

fn checksum(sql: &str) -> String {
    Sha256::digest(sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Script = Script { name: "001_a", sql: "a" };
    const B: Script = Script { name: "002_b", sql: "b" };

    #[track_caller]
    fn check(ledger: &[(&str, &str)], expect: Result<&[&str], &str>) {
        let ledger = ledger.iter().map(|(name, sql)| ((*name).to_owned(), checksum(sql))).collect();
        match (pending(&[A, B], &ledger), expect) {
            (Ok(got), Ok(want)) => assert_eq!(got.iter().map(|s| s.name).collect::<Vec<_>>(), want),
            (Err(kind), Err(want)) => assert_eq!(StoreError::from(kind).halt_name(), want),
            (got, want) => panic!("got {:?}, want {want:?}", got.map(|_| ())),
        }
    }

    #[test]
    fn ledger_and_scripts_are_compared() {
        check(&[], Ok(&["001_a", "002_b"]));
        check(&[("001_a", "a")], Ok(&["002_b"]));
        check(&[("001_a", "a"), ("002_b", "b")], Ok(&[]));
        check(&[("001_a", "edited")], Err("checkpoint_store(migration_changed)"));
        check(&[("002_b", "b")], Err("checkpoint_store(migration_missing)"));
        check(&[("001_a", "a"), ("002_b", "b"), ("003_c", "c")], Err("checkpoint_store(migration_unknown)"));
    }

    #[test]
    fn checksums_are_sha256_in_hex() {
        assert_eq!(checksum("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn scripts_are_in_order_and_named_once() {
        assert!(SCRIPTS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
