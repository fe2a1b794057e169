//! Why a pipeline stopped for good, kept so that `status` can tell it after the process is gone.
//!
//! Holds: write, clear, read. Refuses to know the classes of halts: the caller names them, without any value.

use tokio_postgres::types::ToSql;

use crate::error::StoreError;
use crate::store::{Store, StoreReader};

/// A halt as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHalt {
    /// A stable word.
    pub name: String,
    /// The plugin it is about, if it is about one.
    pub plugin: Option<String>,
    /// What happened and what to do.
    pub detail: String,
}

impl Store {
    /// Keeps a halt, in place of the one before.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn set_halt(&mut self, pipeline: &str, halt: &StoredHalt) -> Result<(), StoreError> {
        let sql = "INSERT INTO walgate.halts (pipeline, name, plugin, detail) VALUES ($1, $3, $4, $5)
                   ON CONFLICT (pipeline) DO UPDATE
                   SET (name, plugin, detail, halted_at) = (excluded.name, excluded.plugin, excluded.detail, now())";
        let further: [&(dyn ToSql + Sync); 3] = [&halt.name, &halt.plugin, &halt.detail];
        self.write_fenced("keeping a halt", pipeline, sql, &further).await?;
        Ok(())
    }

    /// Forgets a halt: the pipeline streams again.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn clear_halt(&mut self, pipeline: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM walgate.halts WHERE pipeline = $1";
        self.write_fenced("clearing a halt", pipeline, sql, &[]).await?;
        Ok(())
    }
}

impl StoreReader {
    /// The halt that is kept, if any; none also where walgate never ran.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn halt(&mut self, pipeline: &str) -> Result<Option<StoredHalt>, StoreError> {
        const DOING: &str = "reading a halt";
        if !self.has_table("walgate.halts").await? {
            return Ok(None);
        }
        let read = |error| StoreError::server(DOING, &error);
        let session = self.connection.session().await?;
        let sql = "SELECT name, plugin, detail FROM walgate.halts WHERE pipeline = $1";
        let rows = session.query(DOING, sql, &[&pipeline]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(StoredHalt {
            name: row.try_get(0).map_err(read)?,
            plugin: row.try_get(1).map_err(read)?,
            detail: row.try_get(2).map_err(read)?,
        }))
    }
}
