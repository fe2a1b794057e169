//! The monitor on real servers, driven directly: its board and its watches are what is looked at.
//!
//! Holds: blockers, lags, heartbeats, the guard, and an outage. Never knows: the pipeline.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, SimpleQueryMessage};
use walgate_core::Lsn;
use walgate_harness::{Cluster, majors, wait_for, wait_until};
use walgate_wire::SourceOptions;

use super::pretended_standby::PretendedStandby;
use super::{Lags, Monitor, guard};
use crate::status::{Blocker, Board, SourceStatus};

/// Several looks and a reconnect; nothing waits for it when all is well.
const SOON: Duration = Duration::from_secs(60);

/// A monitor at work. Dropping it ends the monitor.
struct Watched {
    board: Board,
    lags: watch::Receiver<Option<Lags>>,
    guard: watch::Receiver<Option<Lsn>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Watched {
    fn start(cluster: &Cluster, heartbeat: Option<Duration>, guarded: bool) -> Result<Self> {
        let source = SourceOptions::from_url(&cluster.url("postgres"))?;
        let board = Board::new();
        let (lag_sender, lags) = watch::channel(None);
        let (guard_sender, guard) = watch::channel(guard::HOLD);
        let (stop, stopped) = watch::channel(false);
        let monitor = Monitor {
            heartbeat: heartbeat.map(|interval| (source.clone(), interval)),
            source,
            slot: "ours".to_owned(),
            board: board.clone(),
            guard: guarded.then_some(guard_sender),
            lags: lag_sender,
        };
        Ok(Self { board, lags, guard, stop, task: tokio::spawn(monitor.run(stopped)) })
    }

    fn source(&self) -> SourceStatus {
        self.board.read().source
    }

    async fn wait_blocker(&self, what: &str, is: impl Fn(&Blocker) -> bool) -> Result<Blocker> {
        wait_for(SOON, what, async || Ok(self.source().blockers.into_iter().find(&is))).await
    }

    async fn wait_source(&self, what: &str, is: impl Fn(&SourceStatus) -> bool) -> Result<SourceStatus> {
        wait_for(SOON, what, async || Ok(Some(self.source()).filter(&is))).await
    }
}

async fn answers(client: &Client, sql: &str) -> Result<Vec<String>> {
    let messages = client.simple_query(sql).await.with_context(|| sql.to_owned())?;
    let cell = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(cell).collect())
}

async fn answer(client: &Client, sql: &str) -> Result<String> {
    answers(client, sql).await?.into_iter().next().context("the server answered no row")
}

async fn slot(client: &Client, name: &str) -> Result<()> {
    let sql = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
    answer(client, &sql).await.map(drop)
}

/// Runs a scenario on every major.
macro_rules! on_every_major {
    ($($name:ident => $scenario:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() -> Result<()> {
                for major in majors() {
                    $scenario(major).await.with_context(|| format!("on Postgres {major}"))?;
                }
                Ok(())
            }
        )*
    };
}

on_every_major! {
    kf_026_a_transaction_that_keeps_the_slot_back_is_named => names_what_keeps_back;
    lags_move_with_the_log_and_with_the_slot => moves_lags;
    kf_027_a_heartbeat_arrives_in_the_slot => writes_heartbeats;
    a_heartbeat_that_may_not_be_written_is_counted => counts_failed_heartbeats;
    the_guard_follows_the_slowest_standby => guards;
    an_outage_of_the_source_is_shown_and_passes => survives_an_outage;
    a_role_that_may_see_little_still_sees_the_slot => needs_no_privilege;
}

async fn names_what_keeps_back(major: u32) -> Result<()> {
    let cluster = Cluster::builder(major).setting("max_prepared_transactions", "2").start()?;
    let client = cluster.client("postgres").await?;
    slot(&client, "ours").await?;
    client.batch_execute("CREATE TABLE t (secret text)").await?;
    let writer = cluster.client("postgres").await?;
    writer
        .batch_execute("SET application_name = 'nightly load'; BEGIN; INSERT INTO t VALUES ('canary-in-query')")
        .await?;
    let pid: i32 = answer(&writer, "SELECT pg_backend_pid()").await?.parse()?;
    let reader = cluster.client("postgres").await?;
    reader
        .batch_execute(
            "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'canary-in-query' FROM t",
        )
        .await?;
    client.batch_execute("BEGIN; INSERT INTO t VALUES ('x'); PREPARE TRANSACTION 'canary-in-name'").await?;
    // The log goes on and is confirmed, but the slot would restart where the oldest transaction began.
    client.batch_execute("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 2000); CHECKPOINT").await?;
    answer(&client, "SELECT pg_replication_slot_advance('ours', pg_current_wal_lsn())").await?;
    let watched = Watched::start(&cluster, None, false)?;
    let found = watched.wait_blocker("the transaction to be named", |blocker| blocker.pid == Some(pid)).await?;
    ensure!(found.kind == "transaction" && found.has_xid, "{found:?}");
    ensure!(found.application_name.as_deref() == Some("nightly load"), "{found:?}");
    ensure!(found.state.as_deref() == Some("idle in transaction"), "{found:?}");
    ensure!(found.age_seconds.is_some_and(|age| age >= 5), "{found:?}");
    let prepared = watched.wait_blocker("the prepared transaction", |blocker| blocker.kind == "prepared").await?;
    ensure!(prepared.has_xid && prepared.pid.is_none() && prepared.age_seconds.is_some(), "{prepared:?}");
    let name = |blocker: &Blocker| blocker.application_name.as_deref() == Some("report");
    ensure!(!watched.wait_blocker("the report", name).await?.has_xid);
    let source = watched.source();
    ensure!(source.blockers.first().and_then(|first| first.pid) == Some(pid), "the oldest is the first: {source:?}");
    ensure!(source.confirmed_lag_bytes < Some(100_000), "everything is confirmed: {source:?}");
    ensure!(source.restart_lag_bytes > Some(2_000_000), "but the log is kept: {source:?}");
    let all = format!("{source:?}{}", serde_json::to_string(&source)?);
    ensure!(!all.contains("canary"), "{all}");
    writer.batch_execute("COMMIT").await?;
    reader.batch_execute("COMMIT").await?;
    client.batch_execute("ROLLBACK PREPARED 'canary-in-name'").await?;
    watched.wait_source("nothing to block any more", |source| source.blockers.is_empty()).await.map(drop)
}

async fn moves_lags(major: u32) -> Result<()> {
    let cluster = Cluster::builder(major).setting("max_slot_wal_keep_size", "1GB").start()?;
    let client = cluster.client("postgres").await?;
    slot(&client, "ours").await?;
    let watched = Watched::start(&cluster, None, false)?;
    let first = watched.wait_source("the first look", |source| source.confirmed_lag_bytes.is_some()).await?;
    ensure!(first.wal_status.as_deref() == Some("reserved") && first.monitor_error.is_none(), "{first:?}");
    ensure!(first.safe_wal_bytes.is_some_and(|safe| safe > 0), "{first:?}");
    let before = watched.lags.borrow().context("positions with the first look")?;
    client.batch_execute("CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 2000)").await?;
    let grown = |source: &SourceStatus| {
        source.confirmed_lag_bytes > Some(1_000_000)
            && source.restart_lag_bytes >= source.confirmed_lag_bytes
            && source.safe_wal_bytes < first.safe_wal_bytes
    };
    watched.wait_source("the lags to grow", grown).await?;
    let behind = watched.lags.borrow().context("positions")?;
    ensure!(behind.confirmed == before.confirmed && behind.current > before.current, "{before:?} {behind:?}");
    // A running-xacts record beyond the table is what a restart position moves to.
    client.batch_execute("CHECKPOINT").await?;
    answer(&client, "SELECT pg_replication_slot_advance('ours', pg_current_wal_lsn())").await?;
    watched.wait_source("the slot to catch up", |source| source.confirmed_lag_bytes < Some(100_000)).await?;
    let after = watched.lags.borrow().context("positions")?;
    ensure!(after.confirmed > behind.confirmed && after.restart >= behind.restart, "{behind:?} {after:?}");
    answer(&client, "SELECT pg_drop_replication_slot('ours')").await?;
    let lost = watched.wait_source("the loss of the slot", |source| source.monitor_error.is_some()).await?;
    ensure!(lost.monitor_error.is_some_and(|why| why.contains("slot ours does not exist")));
    wait_until(SOON, "no positions", async || Ok(watched.lags.borrow().is_none())).await
}

async fn writes_heartbeats(major: u32) -> Result<()> {
    let cluster = Cluster::start(major)?;
    let client = cluster.client("postgres").await?;
    client.batch_execute("CREATE PUBLICATION nothing").await?;
    slot(&client, "ours").await?;
    slot(&client, "second").await?;
    let watched = Watched::start(&cluster, Some(Duration::from_millis(200)), false)?;
    let written = |source: &SourceStatus| source.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.written >= 2);
    watched.wait_source("two heartbeats", written).await?;
    // By its prefix, never by the position that the call answered. A message, M, inside a begin, B, and a commit, C.
    let peek = "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_peek_binary_changes('second', NULL, NULL, \
                'proto_version', '1', 'publication_names', 'nothing', 'messages', 'true') \
                WHERE get_byte(data, 0) <> 77 OR position('walgate:heartbeat'::bytea IN data) > 0";
    wait_until(SOON, "both in the slot", async || Ok(answers(&client, peek).await?.concat().starts_with("BMCBMC")))
        .await?;
    Ok(())
}

/// A role that may not write: told, counted, and over when it may.
async fn counts_failed_heartbeats(major: u32) -> Result<()> {
    let cluster = Cluster::start(major)?;
    let client = cluster.client("postgres").await?;
    let arguments = if major >= 17 { "bool, text, text, bool" } else { "bool, text, text" };
    let function = format!("FUNCTION pg_logical_emit_message({arguments})");
    client.batch_execute(&format!("CREATE ROLE limited LOGIN; REVOKE EXECUTE ON {function} FROM PUBLIC")).await?;
    let mut options = SourceOptions::from_url(&cluster.url("postgres"))?;
    options.user = "limited".to_owned();
    let board = Board::new();
    let observing = async {
        let failed = wait_for(SOON, "failures to be counted", async || {
            Ok(board.read().source.heartbeat.filter(|heartbeat| heartbeat.failed >= 2))
        });
        let failed = failed.await?;
        ensure!(
            failed.written == 0 && failed.last_error.is_some_and(|why| why.contains("42501")),
            "the SQLSTATE is told"
        );
        client.batch_execute(&format!("GRANT EXECUTE ON {function} TO limited")).await?;
        wait_until(SOON, "heartbeats to be written", async || {
            let heartbeat = board.read().source.heartbeat.context("configured")?;
            Ok(heartbeat.written > 0 && heartbeat.last_error.is_none())
        })
        .await
    };
    tokio::select! {
        () = super::heartbeat::write(&options, Duration::from_millis(200), &board) => Ok(()),
        observed = observing => observed,
    }
}

async fn guards(major: u32) -> Result<()> {
    let cluster = Cluster::start(major)?;
    let client = cluster.client("postgres").await?;
    slot(&client, "ours").await?;
    let watched = Watched::start(&cluster, None, true)?;
    let published = async |what: &str, expect: Option<Lsn>| {
        let mut guard = watched.guard.clone();
        let seen = guard.wait_for(|position| *position == expect);
        tokio::time::timeout(SOON, seen).await.with_context(|| format!("waited in vain for {what}"))??;
        anyhow::Ok(())
    };
    published("nothing to guard", None).await?;
    let end = async || -> Result<Lsn> {
        client.batch_execute("CREATE TABLE IF NOT EXISTS t (x text); INSERT INTO t VALUES ('x')").await?;
        Ok(answer(&client, "SELECT pg_current_wal_flush_lsn()").await?.parse()?)
    };
    let first = end().await?;
    answer(&client, "SELECT pg_create_physical_replication_slot('fast')").await?;
    answer(&client, "SELECT pg_create_physical_replication_slot('slow')").await?;
    let mut fast = PretendedStandby::start(&cluster, "fast", first).await?;
    published("a standby that has confirmed nothing to hold", guard::HOLD).await?;
    fast.confirm(first).await?;
    published("what the only standby has", Some(first)).await?;
    let mut slow = PretendedStandby::start(&cluster, "slow", first).await?;
    published("the second to hold", guard::HOLD).await?;
    let second = end().await?;
    fast.confirm(second).await?;
    slow.confirm(first).await?;
    published("what the slower has", Some(first)).await?;
    slow.confirm(second).await?;
    published("what both have", Some(second)).await?;
    drop((fast, slow));
    let idle = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_type = 'physical'";
    wait_until(SOON, "both to be away", async || Ok(answer(&client, idle).await? == "0")).await?;
    // They may come back and be promoted.
    end().await?;
    let mut lags = watched.lags.clone();
    lags.mark_unchanged();
    lags.changed().await?;
    ensure!(*watched.guard.borrow() == Some(second), "a standby that is away has no more than it confirmed");
    answer(&client, "SELECT pg_drop_replication_slot('fast'), pg_drop_replication_slot('slow')").await?;
    published("nothing to guard any more", None).await
}

async fn survives_an_outage(major: u32) -> Result<()> {
    let mut cluster = Cluster::start(major)?;
    slot(&cluster.client("postgres").await?, "ours").await?;
    let watched = Watched::start(&cluster, Some(Duration::from_millis(200)), true)?;
    watched.wait_source("the first look", |source| source.confirmed_lag_bytes.is_some()).await?;
    let before = watched.lags.borrow().context("positions")?;
    ensure!(watched.guard.borrow().is_none(), "there is no standby");
    cluster.stop_immediate()?;
    let away = |source: &SourceStatus| {
        source.monitor_error.is_some()
            && source.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.last_error.is_some())
    };
    let shown = watched.wait_source("the outage to be shown", away).await?;
    ensure!(shown.confirmed_lag_bytes.is_some(), "the figures of the time before stay");
    ensure!(*watched.guard.borrow() == guard::HOLD, "a standby may come meanwhile");
    cluster.launch()?;
    let back = |source: &SourceStatus| {
        source.monitor_error.is_none()
            && source.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.last_error.is_none())
    };
    watched.wait_source("the source to be back", back).await?;
    wait_until(SOON, "positions after the outage", async || {
        Ok(watched.lags.borrow().is_some_and(|lags| lags.current > before.current))
    })
    .await?;
    ensure!(watched.guard.borrow().is_none(), "asked again: there is no standby");
    watched.stop.send_replace(true);
    tokio::time::timeout(SOON, watched.task).await.context("a stop is not heard")??;
    let client = cluster.client("postgres").await?;
    let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'walgate-monitor'";
    wait_until(SOON, "its sessions to end", async || Ok(answers(&client, sessions).await?.is_empty())).await
}

async fn needs_no_privilege(major: u32) -> Result<()> {
    let cluster = Cluster::start(major)?;
    let client = cluster.client("postgres").await?;
    slot(&client, "ours").await?;
    client.batch_execute("CREATE ROLE plain LOGIN REPLICATION; CREATE TABLE t (x text)").await?;
    let writer = cluster.client("postgres").await?;
    writer.batch_execute("SET application_name = 'load'; BEGIN; INSERT INTO t VALUES ('x')").await?;
    let mut source = SourceOptions::from_url(&cluster.url("postgres"))?;
    source.user = "plain".to_owned();
    let (lag_sender, lags) = watch::channel(None);
    let board = Board::new();
    let monitor = Monitor {
        source,
        heartbeat: None,
        slot: "ours".to_owned(),
        board: board.clone(),
        guard: None,
        lags: lag_sender,
    };
    let (_stop, stopped) = watch::channel(false);
    let task = tokio::spawn(monitor.run(stopped));
    let found = wait_for(SOON, "the blocker to be seen", async || {
        Ok(board.read().source.blockers.into_iter().find(|blocker| blocker.has_xid))
    })
    .await?;
    // Process and name are for everyone, the rest is for members of pg_read_all_stats.
    ensure!(found.application_name.as_deref() == Some("load") && found.age_seconds.is_none(), "{found:?}");
    ensure!(lags.borrow().is_some());
    task.abort();
    Ok(())
}
