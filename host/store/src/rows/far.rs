//! The schema `walgate_target`, which a database of row targets has so that rows and position commit together there.
//!
//! Holds: its migrations and their ledger, the fencing epoch of a pipeline, the position of a plugin. Refuses to know
//! the targets. Invariant: an epoch and a position never fall. Both belong to a pipeline and its lineage: two installations
//! that write to one database do not fence each other. Read next: [`super::sink`].

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Error as PgError, Row, Transaction};
use walgate_core::Cursor;

use super::error::{Kind, RowsError};
use crate::columns::{from_pg, to_bigint, to_pg};

/// In the order they are applied. A released script is never edited: its checksum is in ledgers out there.
const SCRIPTS: &[(&str, &str)] = &[
    ("001_positions", include_str!("migrations/001_positions.sql")),
    ("002_redriven", include_str!("migrations/002_redriven.sql")),
];

/// Key of the advisory lock that lets one process migrate at a time: "wgtarget" in ASCII, fixed for good.
const LOCK: i64 = 0x7767_7461_7267_6574;

const CREATE_LEDGER: &str = "CREATE TABLE walgate_target.schema_migrations (
    name         text        PRIMARY KEY,
    sha256       text        NOT NULL,
    applied_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    tool_version text        NOT NULL
)";

/// Which rows of the schema are ours.
pub(super) struct Far<'a> {
    pub(super) pipeline: &'a str,
    pub(super) lineage: &'a str,
    pub(super) plugin: &'a str,
    pub(super) epoch: u64,
}

/// What the database knew when a commit began.
pub(super) struct Stored {
    /// The mark of the session, if it has one.
    pub(super) mark: Option<String>,
    /// The position.
    pub(super) cursor: Cursor,
}

const MIGRATING: &str = "making schema walgate_target";
const OPENING: &str = "taking the epoch";
const READING: &str = "reading the position";
const WRITING: &str = "writing the position";

/// Brings the schema to this version.
pub(super) async fn migrate(transaction: &Transaction<'_>) -> Result<(), RowsError> {
    let failed = |error: PgError| position(MIGRATING, &error);
    transaction.execute_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await.map_err(failed)?;
    // Looked up and not left to IF NOT EXISTS, which asks for the right to create even when there is nothing to do.
    let row = transaction
        .query_typed_one(
            "SELECT to_regnamespace('walgate_target') IS NULL, to_regclass('walgate_target.schema_migrations') IS NULL",
            &[],
        )
        .await
        .map_err(failed)?;
    if row.try_get(0).map_err(failed)? {
        transaction.batch_execute("CREATE SCHEMA walgate_target").await.map_err(failed)?;
    }
    if row.try_get(1).map_err(failed)? {
        transaction.batch_execute(CREATE_LEDGER).await.map_err(failed)?;
    }
    let rows = transaction
        .query_typed("SELECT name, sha256 FROM walgate_target.schema_migrations", &[])
        .await
        .map_err(failed)?;
    let ledger: BTreeMap<String, String> = rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_, PgError>>()
        .map_err(failed)?;
    for (name, sql) in pending(SCRIPTS, &ledger)? {
        transaction.batch_execute(sql).await.map_err(failed)?;
        let (sum, version) = (checksum(sql), env!("CARGO_PKG_VERSION"));
        transaction
            .execute_typed(
                "INSERT INTO walgate_target.schema_migrations (name, sha256, tool_version) VALUES ($1, $2, $3)",
                &[(&name, Type::TEXT), (&sum, Type::TEXT), (&version, Type::TEXT)],
            )
            .await
            .map_err(failed)?;
        tracing::info!(script = name, "migration of schema walgate_target applied");
    }
    Ok(())
}

type Script = (&'static str, &'static str);

fn pending(scripts: &[Script], ledger: &BTreeMap<String, String>) -> Result<Vec<Script>, Kind> {
    if let Some(unknown) = ledger.keys().find(|name| !scripts.iter().any(|(known, _)| known == name)) {
        return Err(Kind::Ledger { what: format!("migration {unknown:?} is unknown") });
    }
    let mut pending: Vec<Script> = Vec::new();
    for (name, sql) in scripts {
        match (ledger.get(*name), pending.first()) {
            (None, _) => pending.push((name, sql)),
            (Some(sum), None) if *sum == checksum(sql) => {}
            (Some(_), None) => return Err(Kind::Ledger { what: format!("migration {name:?} had another text") }),
            (Some(_), Some((gap, _))) => return Err(Kind::Ledger { what: format!("migration {gap:?} is missing") }),
        }
    }
    Ok(pending)
}

fn checksum(sql: &str) -> String {
    Sha256::digest(sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Far<'_> {
    /// Raises the stored epoch to ours, and answers the position of the plugin if it ever wrote.
    pub(super) async fn open(&self, transaction: &Transaction<'_>) -> Result<Option<Cursor>, RowsError> {
        let failed = |error: PgError| position(OPENING, &error);
        let epoch = to_bigint(self.epoch, "an epoch").map_err(|_| Kind::Range { what: "an epoch" })?;
        let raised = transaction
            .execute_typed(
                "INSERT INTO walgate_target.leaders AS l (pipeline, lineage, epoch) VALUES ($1, $2, $3)
                 ON CONFLICT (pipeline, lineage) DO UPDATE SET epoch = excluded.epoch,
                    since = CASE WHEN l.epoch = excluded.epoch THEN l.since ELSE now() END
                 WHERE l.epoch <= excluded.epoch",
                &[(&self.pipeline, Type::TEXT), (&self.lineage, Type::TEXT), (&epoch, Type::INT8)],
            )
            .await
            .map_err(failed)?;
        if raised == 0 {
            let row = transaction
                .query_typed_one(
                    "SELECT epoch FROM walgate_target.leaders WHERE pipeline = $1 AND lineage = $2",
                    &[(&self.pipeline, Type::TEXT), (&self.lineage, Type::TEXT)],
                )
                .await
                .map_err(failed)?;
            return Err(self.fenced(row.try_get(0).map_err(failed)?).into());
        }
        // The row is there from now on, so that a commit finds something to wait for: an earlier one of the same work,
        // whose answer was lost, may still be under way.
        transaction
            .execute_typed(
                "INSERT INTO walgate_target.positions (pipeline, lineage, plugin) VALUES ($1, $2, $3)
                 ON CONFLICT (pipeline, lineage, plugin) DO NOTHING",
                &self.names(),
            )
            .await
            .map_err(failed)?;
        let row = transaction
            .query_typed_one(
                "SELECT end_lsn, commit_lsn, ordinal FROM walgate_target.positions
                  WHERE pipeline = $1 AND lineage = $2 AND plugin = $3",
                &self.names(),
            )
            .await
            .map_err(failed)?;
        let cursor = cursor(&row, 0).map_err(|error| position(OPENING, &error))?;
        Ok(Some(cursor).filter(|cursor| *cursor != Cursor::default()))
    }

    /// The position, locked until the end of the transaction, after a look at the epoch, which cannot rise meanwhile.
    pub(super) async fn lock(&self, transaction: &Transaction<'_>) -> Result<Stored, RowsError> {
        let failed = |error: PgError| position(READING, &error);
        let row = transaction
            .query_typed_opt(
                "SELECT current_setting('walgate.rows', true), l.epoch, p.end_lsn, p.commit_lsn, p.ordinal
                   FROM walgate_target.leaders l JOIN walgate_target.positions p USING (pipeline, lineage)
                  WHERE l.pipeline = $1 AND p.lineage = $2 AND p.plugin = $3 FOR SHARE OF l FOR UPDATE OF p",
                &self.names(),
            )
            .await
            .map_err(failed)?;
        let Some(row) = row else {
            let (pipeline, plugin) = (self.pipeline.to_owned(), self.plugin.to_owned());
            return Err(Kind::PositionMissing { pipeline, plugin }.into());
        };
        let stored: i64 = row.try_get(1).map_err(failed)?;
        if u64::try_from(stored).ok() != Some(self.epoch) {
            return Err(self.fenced(stored).into());
        }
        Ok(Stored { mark: row.try_get(0).map_err(failed)?, cursor: cursor(&row, 2).map_err(failed)? })
    }

    /// Moves the position, which is locked.
    pub(super) async fn write(&self, transaction: &Transaction<'_>, to: Cursor) -> Result<(), RowsError> {
        let names = self.names();
        let [pipeline, lineage, plugin] = names;
        let (end, commit, ordinal) = (to_pg(to.end), to_pg(to.commit), i64::from(to.ordinal));
        transaction
            .execute_typed(
                "UPDATE walgate_target.positions SET end_lsn = $4, commit_lsn = $5, ordinal = $6, updated_at = now()
                  WHERE pipeline = $1 AND lineage = $2 AND plugin = $3",
                &[pipeline, lineage, plugin, (&end, Type::PG_LSN), (&commit, Type::PG_LSN), (&ordinal, Type::INT8)],
            )
            .await
            .map_err(|error| position(WRITING, &error))?;
        Ok(())
    }

    /// Whether the rows of all these letters were written here before.
    pub(super) async fn has_taken(&self, transaction: &Transaction<'_>, letters: &[i64]) -> Result<bool, RowsError> {
        let failed = |error: PgError| position(READING, &error);
        let [pipeline, lineage, plugin] = self.names();
        let sql = "SELECT NOT EXISTS (SELECT FROM unnest($4::bigint[]) AS l(letter) WHERE l.letter NOT IN (
                       SELECT r.letter FROM walgate_target.redriven r
                        WHERE r.pipeline = $1 AND r.lineage = $2 AND r.plugin = $3))";
        let row = transaction
            .query_typed_one(sql, &[pipeline, lineage, plugin, (&letters, Type::INT8_ARRAY)])
            .await
            .map_err(failed)?;
        row.try_get(0).map_err(failed)
    }

    /// Notes that they are.
    pub(super) async fn takes(&self, transaction: &Transaction<'_>, letters: &[i64]) -> Result<(), RowsError> {
        let [pipeline, lineage, plugin] = self.names();
        let sql = "INSERT INTO walgate_target.redriven (pipeline, lineage, plugin, letter)
                   SELECT $1, $2, $3, unnest($4::bigint[]) ON CONFLICT DO NOTHING";
        transaction
            .execute_typed(sql, &[pipeline, lineage, plugin, (&letters, Type::INT8_ARRAY)])
            .await
            .map_err(|error| position(WRITING, &error))?;
        Ok(())
    }

    fn names(&self) -> [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] {
        [(&self.pipeline, Type::TEXT), (&self.lineage, Type::TEXT), (&self.plugin, Type::TEXT)]
    }

    fn fenced(&self, stored: i64) -> Kind {
        Kind::Fenced {
            pipeline: self.pipeline.to_owned(),
            plugin: self.plugin.to_owned(),
            ours: self.epoch,
            stored: u64::try_from(stored).unwrap_or_default(),
        }
    }
}

/// A cursor in three columns from `first`.
pub(super) fn cursor(row: &Row, first: usize) -> Result<Cursor, PgError> {
    let lsn = |index| row.try_get::<_, PgLsn>(index).map(from_pg);
    let ordinal: i64 = row.try_get(first + 2)?;
    // Written from 32 bits; something larger was not written by us and is further than anything.
    let ordinal = u32::try_from(ordinal).unwrap_or(u32::MAX);
    Ok(Cursor { end: lsn(first)?, commit: lsn(first + 1)?, ordinal })
}

/// Reads a failure of a statement on the schema.
fn position(doing: &'static str, error: &PgError) -> RowsError {
    let code = error.code().map_or("none", |code| code.code()).to_owned();
    let lost = error.as_db_error().is_none() && error.is_closed();
    let passing = matches!(code.get(..2), Some("08" | "53" | "57" | "58" | "40"));
    if lost || passing || matches!(code.as_str(), "55P03" | "25006") {
        return Kind::Unavailable { doing, reason: format!("SQLSTATE {code}") }.into();
    }
    Kind::Position { doing, code }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ledger: &[(&str, &str)], expect: Result<&[&str], &str>) {
        let scripts = [("001_a", "a"), ("002_b", "b")];
        let ledger = ledger.iter().map(|(name, sql)| ((*name).to_owned(), checksum(sql))).collect();
        match (pending(&scripts, &ledger), expect) {
            (Ok(got), Ok(want)) => assert_eq!(got.iter().map(|(name, _)| *name).collect::<Vec<_>>(), want),
            (Err(kind), Err(want)) => assert!(kind.to_string().contains(want), "{kind}"),
            (got, want) => panic!("got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn ledger_and_scripts_are_compared() {
        check(&[], Ok(&["001_a", "002_b"]));
        check(&[("001_a", "a")], Ok(&["002_b"]));
        check(&[("001_a", "a"), ("002_b", "b")], Ok(&[]));
        check(&[("001_a", "edited")], Err("another text"));
        check(&[("002_b", "b")], Err("missing"));
        check(&[("001_a", "a"), ("003_c", "c")], Err("unknown"));
    }
}
