//! Rows in the state database: they commit with the cursor, state and output lengths of the schema `walgate`.
//!
//! Holds: the look at the epoch and the cursor before rows are written, and the checkpoint after them. Refuses to know
//! the targets. The look holds nothing against a takeover, which must not wait for rows: the checkpoint refuses an epoch
//! that was taken away meanwhile. Read next: [`super::sink`].

use tokio_postgres::types::Type;
use tokio_postgres::{Error as PgError, Transaction};
use walgate_core::Lineage;

use super::error::{Kind, RowsError};
use super::far::{Stored, cursor};
use crate::columns::to_pg;
use crate::commit::{self, Checkpoint};
use crate::error::StoreError;

const READING: &str = "reading the cursor of a plugin";

/// The cursor of a plugin, locked until the end of the transaction; `None` when there is none of this history, which
/// the checkpoint then refuses by name.
pub(super) async fn lock(
    transaction: &Transaction<'_>,
    pipeline: &str,
    lineage: &Lineage,
    plugin: &str,
    epoch: u64,
) -> Result<Option<Stored>, RowsError> {
    let failed = |error: PgError| RowsError::from(StoreError::server(READING, &error));
    let (timeline, created) = (i64::from(lineage.timeline), to_pg(lineage.slot_created_at));
    let row = transaction
        .query_typed_opt(
            "SELECT current_setting('walgate.rows', true), c.end_lsn, c.commit_lsn, c.ordinal,
                    (SELECT l.epoch FROM walgate.leaders l WHERE l.pipeline = $1)
               FROM walgate.checkpoints c JOIN walgate.pipelines p ON p.pipeline = c.pipeline
              WHERE c.pipeline = $1 AND c.plugin = $2 AND p.system_id = $3 AND p.timeline = $4 AND p.database = $5
                AND p.slot = $6 AND p.slot_created = $7 FOR UPDATE OF c",
            &[
                (&pipeline, Type::TEXT),
                (&plugin, Type::TEXT),
                (&lineage.system_id, Type::TEXT),
                (&timeline, Type::INT8),
                (&lineage.database, Type::TEXT),
                (&lineage.slot, Type::TEXT),
                (&created, Type::PG_LSN),
            ],
        )
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let stored: Option<i64> = row.try_get(4).map_err(failed)?;
    let stored = u64::try_from(stored.unwrap_or_default()).unwrap_or_default();
    if stored != epoch {
        let (pipeline, plugin) = (pipeline.to_owned(), plugin.to_owned());
        return Err(Kind::Fenced { pipeline, plugin, ours: epoch, stored }.into());
    }
    let mark = row.try_get(0).map_err(failed)?;
    Ok(Some(Stored { mark, cursor: cursor(&row, 1).map_err(failed)? }))
}

/// Whether none of these dead letters is kept any more.
pub(super) async fn are_gone(transaction: &Transaction<'_>, letters: &[i64]) -> Result<bool, RowsError> {
    let failed = |error: PgError| RowsError::from(StoreError::server("looking for dead letters", &error));
    let sql = "SELECT NOT EXISTS (SELECT FROM walgate.dead_letters WHERE id = ANY ($1))";
    let row = transaction.query_typed_one(sql, &[(&letters, Type::INT8_ARRAY)]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Writes the checkpoint of one plugin in the transaction of its rows.
pub(super) async fn write(
    transaction: &Transaction<'_>,
    pipeline: &str,
    lineage: &Lineage,
    epoch: u64,
    checkpoint: &Checkpoint,
) -> Result<(), RowsError> {
    Ok(commit::run_in(transaction, pipeline, lineage, Some(epoch), checkpoint, None).await?)
}
