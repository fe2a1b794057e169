//! What a plugin finds when it is opened: its cursor, its fencing epoch, its state, its output lengths.
//!
//! Holds: the reads and first writes around `open`. Refuses to know a running plugin; what a batch changes goes through
//! [`crate::commit`] alone. Read next: [`crate::commit`].

use std::collections::BTreeMap;

use tokio_postgres::Error as PgError;
use walgate_core::Cursor;

use crate::columns::{from_bigint, to_bigint, to_pg};
use crate::error::{Kind, StoreError};
use crate::output::OutputMark;
use crate::pipeline::read_cursor;
use crate::store::Store;

/// How much state a plugin may have; the whole map is held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Largest number of keys.
    pub max_keys: u64,
    /// Largest sum of all keys and values, in bytes.
    pub max_bytes: u64,
}

impl Store {
    /// Gives a plugin its first cursor. A plugin that has one keeps it: the answer is the cursor that stands.
    ///
    /// # Errors
    /// Operator `checkpoint_store(lineage_changed)` when the pipeline has no row, `fenced` when another process took over.
    pub async fn start_plugin(
        &mut self,
        pipeline: &str,
        plugin: &str,
        cursor: Cursor,
        generation: u64,
    ) -> Result<Cursor, StoreError> {
        let epoch = self.epoch_column(pipeline)?;
        let session = self.connection.session().await?;
        let rows = session
            .query(
                "starting a plugin",
                "WITH held AS MATERIALIZED (SELECT walgate.hold_epoch($1, $7)), added AS (
                     INSERT INTO walgate.checkpoints (pipeline, plugin, end_lsn, commit_lsn, ordinal, generation)
                     SELECT pipeline, $2, $3, $4, $5, $6 FROM walgate.pipelines WHERE pipeline = $1
                         ON CONFLICT (pipeline, plugin) DO NOTHING
                     RETURNING end_lsn, commit_lsn, ordinal)
                 SELECT c.* FROM held, (
                     SELECT end_lsn, commit_lsn, ordinal FROM added
                      UNION ALL
                     SELECT end_lsn, commit_lsn, ordinal FROM walgate.checkpoints WHERE pipeline = $1 AND plugin = $2) c",
                &[
                    &pipeline,
                    &plugin,
                    &to_pg(cursor.end),
                    &to_pg(cursor.commit),
                    &i64::from(cursor.ordinal),
                    &to_bigint(generation, "a generation")?,
                    &epoch,
                ],
            )
            .await
            .map_err(|error| error.or_fenced(pipeline))?;
        let row = rows.first().ok_or_else(|| Kind::LineageChanged { pipeline: pipeline.to_owned() })?;
        read_cursor(row, 0)
    }

    /// A fencing epoch, larger than every one before it: of this plugin and of all others, also after
    /// [`Store::forget`]. Durable before it is answered.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn next_epoch(&mut self) -> Result<u64, StoreError> {
        const DOING: &str = "drawing a fencing epoch";
        let session = self.connection.session().await?;
        let row = session.query_one(DOING, "SELECT nextval('walgate.fencing_epoch')", &[]).await?;
        let epoch = row.try_get(0).map_err(|error| StoreError::server(DOING, &error))?;
        from_bigint(epoch, "fencing_epoch")
    }

    /// The durable map of a plugin, as its last checkpoint left it.
    ///
    /// # Errors
    /// Operator `checkpoint_store(state_too_large)` above `limits`, before anything is read into memory.
    pub async fn plugin_state(
        &mut self,
        pipeline: &str,
        plugin: &str,
        limits: StateLimits,
    ) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        const DOING: &str = "loading the state of a plugin";
        let session = self.connection.session().await?;
        let size = session
            .query_one(
                DOING,
                "SELECT count(*), coalesce(sum(octet_length(key)::bigint + octet_length(value)), 0)::bigint
                   FROM walgate.plugin_state WHERE pipeline = $1 AND plugin = $2",
                &[&pipeline, &plugin],
            )
            .await?;
        let keys = from_bigint(size.try_get(0).map_err(|error| StoreError::server(DOING, &error))?, "count")?;
        let bytes = from_bigint(size.try_get(1).map_err(|error| StoreError::server(DOING, &error))?, "sum")?;
        let StateLimits { max_keys, max_bytes } = limits;
        if keys > max_keys || bytes > max_bytes {
            let (pipeline, plugin) = (pipeline.to_owned(), plugin.to_owned());
            return Err(Kind::StateTooLarge { pipeline, plugin, keys, bytes, max_keys, max_bytes }.into());
        }
        let rows = session
            .query(
                DOING,
                "SELECT key, value FROM walgate.plugin_state WHERE pipeline = $1 AND plugin = $2",
                &[&pipeline, &plugin],
            )
            .await?;
        let mut state = BTreeMap::new();
        for row in rows {
            let (key, value) = (|| Ok((row.try_get::<_, Vec<u8>>(0)?, row.try_get(1)?)))()
                .map_err(|error: PgError| StoreError::server(DOING, &error))?;
            let key = String::from_utf8(key)
                .map_err(|_| Kind::Schema { doing: DOING, detail: "a key is not UTF-8".to_owned() })?;
            state.insert(key, value);
        }
        Ok(state)
    }

    /// Where each output of a plugin stands, by its name. A name that is not there was never opened.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn output_lengths(
        &mut self,
        pipeline: &str,
        plugin: &str,
    ) -> Result<BTreeMap<String, OutputMark>, StoreError> {
        const DOING: &str = "loading output lengths";
        let session = self.connection.session().await?;
        let rows = session
            .query(
                DOING,
                "SELECT name, sequence, length FROM walgate.outputs WHERE pipeline = $1 AND plugin = $2",
                &[&pipeline, &plugin],
            )
            .await?;
        let mut marks = BTreeMap::new();
        for row in rows {
            let (name, sequence, length) = (|| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))()
                .map_err(|error: PgError| StoreError::server(DOING, &error))?;
            let sequence = from_bigint(sequence, "sequence")?;
            let length = from_bigint(length, "length")?;
            marks.insert(name, OutputMark { sequence, length });
        }
        Ok(marks)
    }

    /// Notes that an output belongs to a plugin, empty so far. To be called after the first
    /// [`crate::OutputFile::open`], before the first append: from then on a restart may cut the file. An output that
    /// is known keeps its mark.
    ///
    /// # Errors
    /// Operator `checkpoint_store(lineage_changed)` when the pipeline has no row, `fenced` when another process took over.
    pub async fn register_output(&mut self, pipeline: &str, plugin: &str, name: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO walgate.outputs (pipeline, plugin, name, sequence, length)
                   SELECT pipeline, $3, $4, 0, 0 FROM walgate.pipelines WHERE pipeline = $1
                       ON CONFLICT (pipeline, plugin, name) DO UPDATE SET length = outputs.length";
        let added = self.write_fenced("registering an output", pipeline, sql, &[&plugin, &name]).await?;
        if added == 0 {
            return Err(Kind::LineageChanged { pipeline: pipeline.to_owned() }.into());
        }
        Ok(())
    }
}
