//! Why a pipeline stopped for good, kept so that `status` can tell it after the process is gone.
//!
//! Holds: write, clear, read. Refuses to know the classes of halts: the caller names them, without any value.

use crate::connection::Session;
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
    /// Retry when the database does not answer.
    pub async fn set_halt(&mut self, pipeline: &str, halt: &StoredHalt) -> Result<(), StoreError> {
        let session = self.connection.session().await?;
        let sql = "INSERT INTO walgate.halts (pipeline, name, plugin, detail) VALUES ($1, $2, $3, $4)
                   ON CONFLICT (pipeline) DO UPDATE
                   SET (name, plugin, detail, halted_at) = (excluded.name, excluded.plugin, excluded.detail, now())";
        session.execute("keeping a halt", sql, &[&pipeline, &halt.name, &halt.plugin, &halt.detail]).await?;
        Ok(())
    }

    /// Forgets a halt: the pipeline streams again.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn clear_halt(&mut self, pipeline: &str) -> Result<(), StoreError> {
        let session = self.connection.session().await?;
        session.execute("clearing a halt", "DELETE FROM walgate.halts WHERE pipeline = $1", &[&pipeline]).await?;
        Ok(())
    }
}

impl StoreReader {
    /// The halt that is kept, if any; none also where walgate never ran.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn halt(&mut self, pipeline: &str) -> Result<Option<StoredHalt>, StoreError> {
        load(self.connection.session().await?, pipeline).await
    }
}

async fn load(session: &mut Session, pipeline: &str) -> Result<Option<StoredHalt>, StoreError> {
    const DOING: &str = "reading a halt";
    let read = |error| StoreError::server(DOING, &error);
    let exists = session.query_one(DOING, "SELECT to_regclass('walgate.halts') IS NOT NULL", &[]).await?;
    if !exists.try_get::<_, bool>(0).map_err(read)? {
        return Ok(None);
    }
    let sql = "SELECT name, plugin, detail FROM walgate.halts WHERE pipeline = $1";
    let rows = session.query(DOING, sql, &[&pipeline]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(StoredHalt {
        name: row.try_get(0).map_err(read)?,
        plugin: row.try_get(1).map_err(read)?,
        detail: row.try_get(2).map_err(read)?,
    }))
}
