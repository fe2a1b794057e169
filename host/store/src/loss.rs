//! Dead letters that are removed without being delivered, and the account of it.
//!
//! Holds: dropping, expiring, and the losses both leave behind. Refuses to know how long letters are kept: the caller
//! says. Invariant: a letter and the count of its loss change in one statement, so nothing is removed in silence.
//! Read next: [`crate::letter`].

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use crate::columns::{from_bigint, from_pg};
use crate::error::StoreError;
use crate::letter::column;
use crate::store::{Store, StoreReader};

/// Longest retention that is told from for ever: a hundred years, which an interval can hold.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Letters of one plugin that were removed for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterLoss {
    /// The plugin that had refused them.
    pub plugin: String,
    /// `dropped` or `expired`.
    pub reason: String,
    /// How many letters.
    pub letters: u64,
    /// How many rows were in them.
    pub rows: u64,
    /// The furthest end LSN among them.
    pub up_to: walgate_core::Lsn,
    /// When the last of them was removed, by the clock of the state database.
    pub at: SystemTime,
}

/// Removes the letters that the condition `gone` names, counts them under a reason, and answers what it removed. The
/// account keeps sums by plugin and reason, so it does not grow. $1 is the pipeline, $2 the reason, $3 belongs to the
/// condition, $4 is the epoch.
fn removing(gone: &str) -> String {
    format!(
        "WITH held AS MATERIALIZED (SELECT walgate.hold_epoch($1, $4)),
              gone AS (DELETE FROM walgate.dead_letters WHERE pipeline = $1 AND {gone} RETURNING plugin, rows, end_lsn),
              lost AS MATERIALIZED (
                  SELECT plugin, $2::text AS reason, count(*) AS letters, sum(rows)::bigint AS rows,
                         max(end_lsn) AS up_to_lsn, now() AS at
                    FROM gone GROUP BY plugin),
              counted AS (
                  INSERT INTO walgate.dead_letter_losses AS l (pipeline, plugin, reason, letters, rows, up_to_lsn, at)
                  SELECT $1, plugin, reason, letters, rows, up_to_lsn, at FROM lost
                      ON CONFLICT (pipeline, plugin, reason) DO UPDATE
                     SET letters = l.letters + excluded.letters, rows = l.rows + excluded.rows,
                         up_to_lsn = greatest(l.up_to_lsn, excluded.up_to_lsn), at = excluded.at)
         SELECT {COLUMNS} FROM held LEFT JOIN lost ON true ORDER BY plugin"
    )
}

const COLUMNS: &str = "plugin, reason, letters, rows, up_to_lsn, at";

impl Store {
    /// Gives letters up: they are deleted, and counted as losses of reason `dropped`. Answers how many.
    ///
    /// Runs beside the process that leads, so it carries no epoch. A letter that is being delivered at this moment may be
    /// both taken and counted.
    ///
    /// # Errors
    /// Retry when the database does not answer. A repetition after a lost answer finds nothing and answers 0.
    pub async fn drop_letters(&mut self, pipeline: &str, ids: &[i64]) -> Result<u64, StoreError> {
        let session = self.connection.session().await?;
        let sql = removing("id = ANY ($3)");
        let none: Option<i64> = None;
        let rows = session.query("dropping dead letters", &sql, &[&pipeline, &"dropped", &ids, &none]).await?;
        Ok(losses(&rows)?.iter().map(|loss| loss.letters).sum())
    }

    /// Deletes letters that were kept for longer than `older_than`, marked ones too: retention is a promise about how
    /// long values stay. They are counted as losses of reason `expired`; the answer is what this call removed, one entry a
    /// plugin.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn expire_letters(
        &mut self,
        pipeline: &str,
        older_than: Duration,
    ) -> Result<Vec<DeadLetterLoss>, StoreError> {
        let epoch = self.epoch_column(pipeline)?;
        let seconds = older_than.min(LONGEST).as_secs_f64();
        let session = self.connection.session().await?;
        let sql = removing("created_at < now() - make_interval(secs => $3)");
        let rows = session.query("expiring dead letters", &sql, &[&pipeline, &"expired", &seconds, &epoch]).await;
        losses(&rows.map_err(|error| error.or_fenced(pipeline))?)
    }
}

impl StoreReader {
    /// What was removed of a pipeline without being delivered since it first ran: sums by plugin and reason. None where
    /// walgate never ran. The account outlives [`Store::forget`].
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn dead_letter_losses(&mut self, pipeline: &str) -> Result<Vec<DeadLetterLoss>, StoreError> {
        if !self.has_table("walgate.dead_letter_losses").await? {
            return Ok(Vec::new());
        }
        let session = self.connection.session().await?;
        let sql =
            format!("SELECT {COLUMNS} FROM walgate.dead_letter_losses WHERE pipeline = $1 ORDER BY plugin, reason");
        losses(&session.query("reading losses of dead letters", &sql, &[&pipeline]).await?)
    }
}

/// Reads the losses of an answer; the row without a plugin says that there are none.
fn losses(rows: &[Row]) -> Result<Vec<DeadLetterLoss>, StoreError> {
    let mut losses = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(plugin) = column(row, 0)? else { continue };
        losses.push(DeadLetterLoss {
            plugin,
            reason: column(row, 1)?,
            letters: from_bigint(column(row, 2)?, "letters")?,
            rows: from_bigint(column(row, 3)?, "rows")?,
            up_to: from_pg(column(row, 4)?),
            at: column(row, 5)?,
        });
    }
    Ok(losses)
}
