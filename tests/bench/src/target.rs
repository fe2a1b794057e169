//! The target of rows, and a state database that keeps what it commits: a cluster with fsync on.
//!
//! Holds: an empty target for each pass, and when everything has arrived there. Never knows: who writes.
//! Read next: `mirror.rs`; the source's side is `source.rs`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;
use walgate_harness::Cluster;

use crate::source::{MARKER, SETTINGS, Source, Stretch, contents};
use crate::workload::Workload;

/// The database of the rows.
const DATABASE: &str = "target";
/// A database for the state of walgate that is not that of the rows.
const STATE: &str = "state";
/// A million transactions that are flushed one by one come to their end in this time.
const DEADLINE: Duration = Duration::from_secs(900);
/// Between two looks at the marker.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The cluster.
#[derive(Debug)]
pub(crate) struct Target {
    cluster: Cluster,
    client: Client,
}

impl Target {
    /// Starts a cluster of that version.
    pub(crate) async fn start(major: u32) -> Result<Self> {
        let builder = Cluster::builder(major).durable(true);
        let builder = SETTINGS.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        let cluster = builder.start()?;
        for database in [DATABASE, STATE] {
            cluster.execute("postgres", &format!("CREATE DATABASE {database}")).await?;
        }
        let client = cluster.client(DATABASE).await?;
        Ok(Self { cluster, client })
    }

    /// A URL of the database of the rows.
    pub(crate) fn url(&self) -> String {
        self.cluster.url(DATABASE)
    }

    /// A URL of the database for state.
    pub(crate) fn state_url(&self) -> String {
        self.cluster.url(STATE)
    }

    /// Makes the tables of a workload anew, as they were at the start of the log that is read. What passes before have
    /// written is on disk afterwards, so that none pays for another.
    pub(crate) async fn reset(&self, workload: &Workload) -> Result<()> {
        self.run("DROP SCHEMA public CASCADE").await?;
        self.run("CREATE SCHEMA public").await?;
        self.run(&format!("CREATE TABLE {MARKER} (id bigint PRIMARY KEY)")).await?;
        for sql in &workload.setup {
            self.run(sql).await?;
        }
        self.run("CHECKPOINT").await
    }

    /// Waits until the last transaction of the stretch is visible; the moment at which that was seen. `alive` fails when
    /// its writer has ended.
    pub(crate) async fn until_arrived(&self, mut alive: impl FnMut() -> Result<()>) -> Result<Instant> {
        let (began, sql) = (Instant::now(), format!("SELECT EXISTS (SELECT FROM {MARKER})"));
        let look = self.client.prepare(&sql).await.context("cannot look at the marker")?;
        loop {
            if self.client.query_one(&look, &[]).await.context("cannot look at the marker")?.get(0) {
                return Ok(Instant::now());
            }
            alive()?;
            ensure!(began.elapsed() < DEADLINE, "the last row did not arrive within {DEADLINE:?}");
            // tidy: sleep ok, the time of the end is measured: a look costs the target a little, a rare one blurs the time
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Fails unless the tables of a stretch hold what they hold in the source.
    pub(crate) async fn ensure_equal(&self, source: &Source, workload: &Workload, stretch: &Stretch) -> Result<()> {
        let (theirs, ours) =
            (source.contents(&workload.tables).await?, contents(&self.client, &workload.tables).await?);
        for ((table, theirs), ours) in workload.tables.iter().zip(theirs).zip(ours) {
            ensure!(theirs == ours, "{table} of {} has {theirs} in the source and {ours} in the target", stretch.slot);
        }
        Ok(())
    }

    /// Runs one statement, outside a transaction.
    pub(crate) async fn run(&self, sql: &str) -> Result<()> {
        let head: String = sql.chars().take(80).collect();
        self.client.batch_execute(sql).await.with_context(|| format!("in the target of the bench: {head}"))
    }
}
