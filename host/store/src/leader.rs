//! Who may write for a pipeline: the fencing epoch, raised by each takeover and carried by every write after it.
//!
//! Holds: takeover, the epoch of this store, the one form that all small writes have, and who leads. Refuses to know when
//! a process takes over: the lock of [`crate::lease`] answers whether another one runs, and is no protection by itself.
//! Invariant: once a takeover returned, every write of an earlier leader is committed or will be refused as `fenced`.
//! Read next: [`crate::lease`], `migrations/004_leaders_and_fencing.sql`.

use std::time::SystemTime;

use tokio_postgres::Error as PgError;
use tokio_postgres::types::ToSql;

use crate::columns::{from_bigint, to_bigint};
use crate::error::StoreError;
use crate::store::{Store, StoreReader};

/// The process that took over a pipeline last. It may be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its fencing epoch; writes with a smaller one are refused.
    pub epoch: u64,
    /// What it called itself: host name and process id.
    pub holder: String,
    /// When it took over, by the clock of the state database.
    pub since: SystemTime,
}

/// What a store carries in every write for one pipeline.
pub(crate) struct Fence {
    pipeline: String,
    epoch: u64,
}

impl Store {
    /// Raises the fencing epoch of a pipeline: from the return on, writes of every earlier holder are refused as `fenced`,
    /// and every write of this store for the pipeline carries the epoch, which is answered. What an earlier holder has
    /// under way ends first: a takeover waits for it, 10 s at most.
    ///
    /// `holder` is shown to people: host name and process id. A store leads one pipeline, the last one it took over.
    ///
    /// # Errors
    /// Retry when the database does not answer, or a transaction of the earlier holder does not end. It may be repeated;
    /// each time raises the epoch.
    pub async fn take_over(&mut self, pipeline: &str, holder: &str) -> Result<u64, StoreError> {
        const DOING: &str = "taking over a pipeline";
        // The epoch is drawn anew once the row is locked: of two takeovers at once, the later one has the larger epoch.
        let sql = "INSERT INTO walgate.leaders (pipeline, epoch, holder)
                   VALUES ($1, nextval('walgate.fencing_epoch'), $2)
                   ON CONFLICT (pipeline) DO UPDATE
                   SET (epoch, holder, since) = (nextval('walgate.fencing_epoch'), excluded.holder, clock_timestamp())
                   RETURNING epoch";
        let row = self.connection.session().await?.query_one(DOING, sql, &[&pipeline, &holder]).await?;
        let epoch = row.try_get(0).map_err(|error| StoreError::server(DOING, &error))?;
        let epoch = from_bigint(epoch, "epoch")?;
        self.fence = Some(Fence { pipeline: pipeline.to_owned(), epoch });
        Ok(epoch)
    }

    /// Makes every write for the pipeline carry an epoch that another store of this process took over with.
    pub fn carry(&mut self, pipeline: &str, epoch: u64) {
        self.fence = Some(Fence { pipeline: pipeline.to_owned(), epoch });
    }

    /// The epoch of the last [`Store::take_over`] or [`Store::carry`]; none before the first.
    pub fn epoch(&self) -> Option<u64> {
        self.fence.as_ref().map(|fence| fence.epoch)
    }

    /// The epoch that leads the pipeline now, whoever has it.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn stored_epoch(&mut self, pipeline: &str) -> Result<Option<u64>, StoreError> {
        const DOING: &str = "reading who leads a pipeline";
        let session = self.connection.session().await?;
        let rows = session.query(DOING, "SELECT epoch FROM walgate.leaders WHERE pipeline = $1", &[&pipeline]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let epoch = row.try_get(0).map_err(|error| StoreError::server(DOING, &error))?;
        from_bigint(epoch, "epoch").map(Some)
    }

    /// The epoch that writes for this pipeline carry.
    pub(crate) fn epoch_for(&self, pipeline: &str) -> Option<u64> {
        self.fence.as_ref().filter(|fence| fence.pipeline == pipeline).map(|fence| fence.epoch)
    }

    /// The same as the column has it.
    pub(crate) fn epoch_column(&self, pipeline: &str) -> Result<Option<i64>, StoreError> {
        self.epoch_for(pipeline).map(|epoch| to_bigint(epoch, "an epoch")).transpose()
    }

    /// Runs a write that carries the epoch, and answers how many rows it wrote. In `write`, which has no `RETURNING`, $1 is
    /// the pipeline, $2 the epoch, and `further` begin at $3.
    ///
    /// One statement: the epoch is held until it commits. That the main query reads from `held` makes sure that a write
    /// which meets no row is refused, too.
    pub(crate) async fn write_fenced(
        &mut self,
        doing: &'static str,
        pipeline: &str,
        write: &str,
        further: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, StoreError> {
        let epoch = self.epoch_column(pipeline)?;
        let sql = format!(
            "WITH held AS MATERIALIZED (SELECT walgate.hold_epoch($1, $2)), written AS ({write} RETURNING 1)
             SELECT (SELECT count(*) FROM written) FROM held"
        );
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&pipeline, &epoch];
        parameters.extend_from_slice(further);
        let row = self.connection.session().await?.query_one(doing, &sql, &parameters).await;
        let row = row.map_err(|error| error.or_fenced(pipeline))?;
        from_bigint(row.try_get(0).map_err(|error| StoreError::server(doing, &error))?, "count")
    }
}

impl StoreReader {
    /// Who took over the pipeline last; none also where walgate never ran.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn leader(&mut self, pipeline: &str) -> Result<Option<Leader>, StoreError> {
        const DOING: &str = "reading who leads a pipeline";
        if !self.has_table("walgate.leaders").await? {
            return Ok(None);
        }
        let session = self.connection.session().await?;
        let sql = "SELECT epoch, holder, since FROM walgate.leaders WHERE pipeline = $1";
        let rows = session.query(DOING, sql, &[&pipeline]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (epoch, holder, since) = (|| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))()
            .map_err(|error: PgError| StoreError::server(DOING, &error))?;
        Ok(Some(Leader { epoch: from_bigint(epoch, "epoch")?, holder, since }))
    }
}
