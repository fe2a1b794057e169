//! The source: one throwaway cluster, the log it holds, and copies of slots on it.
//!
//! Holds: filling the log, copying a slot for each side, finding the walsender that serves it.
//! Never knows: who reads. The state database of walgate lies in the same cluster, as it does by default.
//! Read next: `pass.rs`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::Client;
use walgate_core::Lsn;
use walgate_harness::{Cluster, wait_until};

use crate::workload::Workload;

/// The database that is read.
const DATABASE: &str = "bench";
/// The database with walgate's checkpoints.
const STATE: &str = "state";
/// A table of every publication: its one row is the last transaction of a stretch.
pub(crate) const MARKER: &str = "marker";
/// Nothing here is meant to take longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Checkpoints and vacuum of the server would hit one side and not the other.
pub(crate) const SETTINGS: &[(&str, &str)] = &[
    ("shared_buffers", "256MB"),
    ("max_wal_size", "64GB"),
    ("checkpoint_timeout", "1d"),
    ("autovacuum", "off"),
    ("jit", "off"),
    ("max_replication_slots", "50"),
];

/// The way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// Loopback, without TLS.
    Tcp,
    /// The unix socket.
    Unix,
}

impl Transport {
    /// The word in tables and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

/// A piece of log that every side reads from start to end.
#[derive(Debug)]
pub(crate) struct Stretch {
    /// The slot at its start; nobody reads it, sides get copies.
    pub(crate) slot: String,
    /// The publication of its tables.
    pub(crate) publication: String,
    /// The published tables, the marker's last.
    pub(crate) tables: Vec<String>,
    /// Published rows, the marker's one included.
    pub(crate) rows: u64,
    /// Before the last transaction: whoever stands beyond has all of it.
    pub(crate) before_last: Lsn,
    /// At or just behind the last transaction; the log goes on after it.
    pub(crate) end: Lsn,
}

/// A walsender at work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walsender {
    /// Its process id.
    pub(crate) pid: u32,
    /// When it was first seen on its slot.
    pub(crate) seen: Instant,
}

/// For each table how many rows it holds, and a sum over hashes of them: equal where the rows are, in any order.
pub(crate) async fn contents(client: &Client, tables: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for table in tables {
        let sql = format!("SELECT concat(count(*), ' rows, ', sum(hashtextextended(t::text, 0))) FROM {table} t");
        let row = client.query_one(&sql, &[]).await.with_context(|| format!("cannot read table {table}"))?;
        all.push(row.get(0));
    }
    Ok(all)
}

/// The cluster.
#[derive(Debug)]
pub(crate) struct Source {
    cluster: Cluster,
    client: Client,
    slots: AtomicU32,
}

impl Source {
    /// Starts a cluster of that version with two databases.
    pub(crate) async fn start(major: u32) -> Result<Self> {
        let builder =
            SETTINGS.iter().fold(Cluster::builder(major), |builder, (name, value)| builder.setting(name, value));
        let cluster = builder.start()?;
        for database in [DATABASE, STATE] {
            cluster.execute("postgres", &format!("CREATE DATABASE {database}")).await?;
        }
        let client = cluster.client(DATABASE).await?;
        client
            .batch_execute(&format!("CREATE TABLE {MARKER} (id bigint PRIMARY KEY); CREATE TABLE unread (id bigint)"))
            .await
            .context("cannot make the tables of the bench")?;
        Ok(Self { cluster, client, slots: AtomicU32::new(0) })
    }

    /// The server's own word for its version.
    pub(crate) async fn version(&self) -> Result<String> {
        self.text("SHOW server_version").await
    }

    /// The major version of the server.
    pub(crate) fn major(&self) -> u32 {
        self.cluster.major()
    }

    /// A URL of the database that is read.
    pub(crate) fn url(&self, transport: Transport) -> String {
        self.url_of(transport, DATABASE)
    }

    /// A URL of the state database.
    pub(crate) fn state_url(&self, transport: Transport) -> String {
        self.url_of(transport, STATE)
    }

    fn url_of(&self, transport: Transport, database: &str) -> String {
        match transport {
            Transport::Tcp => self.cluster.url(database),
            Transport::Unix => self.cluster.unix_url(database),
        }
    }

    /// What tables hold now; see [`contents`].
    pub(crate) async fn contents(&self, tables: &[String]) -> Result<Vec<String>> {
        contents(&self.client, tables).await
    }

    /// Another connection to the database that is read.
    pub(crate) async fn connect(&self) -> Result<Client> {
        self.cluster.client(DATABASE).await
    }

    /// Writes a workload and its marker, with a slot in front.
    pub(crate) async fn fill(&self, workload: &Workload) -> Result<Stretch> {
        for sql in &workload.setup {
            self.run(sql).await?;
        }
        let mut tables = workload.tables.clone();
        tables.push(MARKER.to_owned());
        let publication = self.publish(workload.name, &tables).await?;
        let slot = self.create_slot().await?;
        self.run("SET synchronous_commit = off").await?;
        self.run(&workload.fill).await?;
        self.run("SET synchronous_commit = on").await?;
        let before_last = self.position().await?;
        self.run(&format!("INSERT INTO {MARKER} SELECT count(*) FROM {MARKER}")).await?;
        let end = self.position().await?;
        // Readers that stop at a position need the log to reach beyond it, and to be written out.
        self.run("INSERT INTO unread VALUES (1)").await?;
        Ok(Stretch { slot, publication, tables, rows: workload.rows + 1, before_last, end })
    }

    /// Drops what a workload has left, so that another part can write it again.
    pub(crate) async fn forget(&self, stretch: &Stretch) -> Result<()> {
        self.drop_slot(&stretch.slot).await?;
        self.run(&format!("DROP PUBLICATION {}", stretch.publication)).await?;
        let tables: Vec<&str> = stretch.tables.iter().map(String::as_str).filter(|table| *table != MARKER).collect();
        self.run(&format!("DROP TABLE {}", tables.join(", "))).await
    }

    /// Makes a publication of these tables; its name. It must be there before the slot that reads under it.
    pub(crate) async fn publish(&self, name: &str, tables: &[String]) -> Result<String> {
        let publication = format!("bench_{name}");
        self.run(&format!("CREATE PUBLICATION {publication} FOR TABLE {}", tables.join(", "))).await?;
        Ok(publication)
    }

    /// A slot at the present end of the log; its name.
    pub(crate) async fn create_slot(&self) -> Result<String> {
        let slot = self.new_name();
        self.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await?;
        Ok(slot)
    }

    /// A slot of its own for one side, at the very place of another.
    pub(crate) async fn copy_slot(&self, slot: &str) -> Result<String> {
        let copy = self.new_name();
        self.run(&format!("SELECT pg_copy_logical_replication_slot('{slot}', '{copy}')")).await?;
        Ok(copy)
    }

    /// Checkpoints of walgate are kept by slot name, so no name comes twice.
    fn new_name(&self) -> String {
        format!("bench_{}", self.slots.fetch_add(1, Relaxed))
    }

    /// Drops a slot once its reader is gone.
    pub(crate) async fn drop_slot(&self, slot: &str) -> Result<()> {
        wait_until(DEADLINE, "the reader of a slot is gone", async || Ok(self.active(slot).await?.is_none())).await?;
        self.run(&format!("SELECT pg_drop_replication_slot('{slot}')")).await
    }

    /// Waits for the walsender on a slot; `alive` fails when its reader has ended.
    pub(crate) async fn walsender(&self, slot: &str, mut alive: impl FnMut() -> Result<()>) -> Result<Walsender> {
        let began = Instant::now();
        loop {
            if let Some(pid) = self.active(slot).await? {
                return Ok(Walsender { pid, seen: Instant::now() });
            }
            alive()?;
            if began.elapsed() > DEADLINE {
                bail!("no walsender on slot {slot} after {DEADLINE:?}");
            }
            // tidy: sleep ok, the start of a stream is measured and a coarser poll would blur it
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn active(&self, slot: &str) -> Result<Option<u32>> {
        let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1::text::name";
        let row = self.client.query_opt(sql, &[&slot]).await.context("cannot look at a slot")?;
        let pid = row.and_then(|row| row.get::<_, Option<i32>>(0));
        pid.map(|pid| u32::try_from(pid).context("a process id below zero")).transpose()
    }

    /// Where the log ends now.
    pub(crate) async fn position(&self) -> Result<Lsn> {
        let text = self.text("SELECT pg_current_wal_insert_lsn()::text").await?;
        text.parse().context("the server answered with something else than a position")
    }

    async fn text(&self, sql: &str) -> Result<String> {
        Ok(self.client.query_one(sql, &[]).await.with_context(|| format!("in the bench: {sql}"))?.get(0))
    }

    /// Runs one statement, outside a transaction.
    pub(crate) async fn run(&self, sql: &str) -> Result<()> {
        let head: String = sql.chars().take(80).collect();
        self.client.batch_execute(sql).await.with_context(|| format!("in the bench: {head}"))
    }
}
