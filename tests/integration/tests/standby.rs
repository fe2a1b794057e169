//! Standbys: as the source, and as what becomes the source.
//!
//! Holds: promotions that are followed and promotions that are not, slots on standbys. Loss and repeats are counted in the
//! lines of `output-lines`. Never knows: the insides of walgate.

use anyhow::{Result, ensure};
use walgate_harness::{Cluster, Walgate, wait_until};

use super::lineage::{ROWS, source, stop, with_state};
use super::scene::{SOON, Scene, expect_end};

super::scenarios! {
    kf_044_a_promoted_standby_with_our_slot_goes_on,
    kf_043_a_promoted_standby_that_never_had_our_position,
    a_promoted_standby_without_our_slot,
    a_standby_as_source_and_its_promotion,
    a_standby_promoted_while_it_is_read,
    a_standby_needs_a_state_database_elsewhere,
    kf_035_a_slot_on_a_standby_does_not_hang_silently,
    kf_045_a_slot_on_a_standby_without_feedback,
}

const FAILOVER_SINCE: u32 = 17;
const STANDBY_SINCE: u32 = 16;

async fn ask(cluster: &Cluster, sql: &str) -> Result<String> {
    Ok(cluster.client("postgres").await?.query_one(sql, &[]).await?.get::<_, Option<String>>(0).unwrap_or_default())
}

/// Waits until the standby has replayed everything that the primary has written by now.
async fn caught_up(primary: &Cluster, standby: &Cluster) -> Result<()> {
    let end = ask(primary, "SELECT pg_current_wal_lsn()::text").await?;
    let sql = format!("SELECT (pg_last_wal_replay_lsn() >= '{end}')::text");
    wait_until(SOON, "the standby to catch up", async || Ok(ask(standby, &sql).await? == "true")).await
}

/// A standby source with everything that it needs.
fn standby_source(standby: &Cluster, primary: &Cluster) -> String {
    source(standby, &format!("ddl_url = \"{}\"", primary.url("postgres")))
}

async fn kf_044_a_promoted_standby_with_our_slot_goes_on(major: u32) -> Result<()> {
    if major < FAILOVER_SINCE {
        return Ok(());
    }
    let (mut scene, _state) = with_state(Cluster::start(major)?).await?;
    let section = source(&scene.cluster, "failover = true");
    scene.source(&section)?;
    let standby = scene.cluster.standby(&[("sync_replication_slots", "on"), ("hot_standby_feedback", "on")]).await?;
    let guard = format!("ALTER SYSTEM SET synchronized_standby_slots = '{}'", Cluster::slot_of(standby.port()));
    scene.execute(&guard).await?;
    scene.execute("SELECT pg_reload_conf()").await?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 5_000).await?;
    let synced =
        "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'walgate' AND synced AND NOT temporary";
    wait_until(SOON, "the copy of the slot", async || {
        // The copy becomes durable once the slot has moved past where the standby began.
        scene.wait_confirmed().await?;
        Ok(ask(&standby, synced).await? == "1")
    })
    .await?;
    stop(walgate).await?;
    let lines = scene.lines("lines.txt").len();
    caught_up(&scene.cluster, &standby).await?;

    // Too early: the copy cannot be read yet.
    let section = source(&standby, "failover = true");
    scene.source(&section)?;
    expect_end(&mut scene.start()?, 3, &["slot_synced_unpromoted", "promoted"]).await?;
    scene.cli(&["slot", "list"])?.expect(0, "synchronized copy")?;

    scene.cluster.stop_fast()?;
    standby.promote().await?;
    standby.execute("postgres", ROWS).await?;
    scene.cli(&["check"])?.expect(0, "promoted to timeline 2")?;
    let mut walgate = scene.run().await?;
    walgate.wait_line("the source was promoted", SOON).await?;
    scene.wait_lines("lines.txt", lines + 5_000).await.map(drop)
}

/// The standby is away while walgate goes on, and then becomes the primary: what walgate has seen since never happened there.
async fn kf_043_a_promoted_standby_that_never_had_our_position(major: u32) -> Result<()> {
    let (mut scene, _state) = with_state(Cluster::start(major)?).await?;
    let failover = if major >= FAILOVER_SINCE { "failover = true" } else { "" };
    let section = source(&scene.cluster, failover);
    scene.source(&section)?;
    let sync = [("sync_replication_slots", "on"), ("hot_standby_feedback", "on")];
    let mut standby = scene.cluster.standby(if failover.is_empty() { &[] } else { &sync }).await?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    if !failover.is_empty() {
        let synced = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'walgate' AND NOT temporary";
        wait_until(SOON, "the copy of the slot", async || {
            scene.wait_confirmed().await?;
            Ok(ask(&standby, synced).await? == "1")
        })
        .await?;
    }
    standby.stop_fast()?;
    let lines = scene.lines("lines.txt").len();
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", lines + 5_000).await?;
    if failover.is_empty() {
        scene.wait_confirmed().await?;
    } else {
        // The source is told nothing that the standby, which is away, does not have. What was delivered is stored all the same.
        let held = ask(&scene.cluster, "SELECT (confirmed_flush_lsn < pg_current_wal_lsn())::text FROM pg_replication_slots WHERE slot_name = 'walgate'").await?;
        ensure!(held == "true", "the acknowledgement passed a standby that is away");
        wait_until(SOON, "status to say what waits for the standby", async || {
            Ok(scene.status(&walgate).await?["positions"]["held_for_standbys"].is_string())
        })
        .await?;
    }
    stop(walgate).await?;
    let lines = scene.lines("lines.txt").len();
    scene.cluster.stop_fast()?;
    standby.launch()?;
    standby.promote().await?;
    if failover.is_empty() {
        // What a cluster manager does: the same slot, made anew where the promoted server stands.
        standby.execute("postgres", "SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    }
    let section = source(&standby, failover);
    scene.source(&section)?;
    expect_end(&mut scene.start()?, 3, &["lineage_changed", "1 then, 2 now", "which left 1 at"]).await?;
    scene.cli(&["check"])?.expect(3, "lineage_changed")?;
    ensure!(scene.lines("lines.txt").len() == lines, "nothing of the other history is delivered");
    Ok(())
}

async fn a_promoted_standby_without_our_slot(major: u32) -> Result<()> {
    let (mut scene, _state) = with_state(Cluster::start(major)?).await?;
    let standby = scene.cluster.standby(&[]).await?;
    scene.create_slot()?;
    stop(scene.run().await?).await?;
    caught_up(&scene.cluster, &standby).await?;
    scene.cluster.stop_fast()?;
    standby.promote().await?;
    let section = source(&standby, "");
    scene.source(&section)?;
    expect_end(&mut scene.start()?, 3, &["data_gap(slot_missing_with_checkpoint)", "promoted"]).await?;
    // Made anew at the present, it stands behind a gap.
    standby.execute("postgres", "SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    expect_end(&mut scene.start()?, 3, &["slot_moved"]).await
}

async fn a_standby_as_source_and_its_promotion(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let state = Cluster::start(major)?;
    scene.configure(&format!("[state]\nurl = \"{}\"", state.url("postgres")))?;
    let standby = scene.cluster.standby(&[("hot_standby_feedback", "on")]).await?;
    let section = standby_source(&standby, &scene.cluster);
    scene.source(&section)?;
    if major < STANDBY_SINCE {
        scene.cli(&["slot", "create"])?.expect(3, "standby_unsupported")?;
        return expect_end(&mut scene.start()?, 3, &["standby_unsupported", "source.url at the primary"]).await;
    }
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 5_000).await?;
    stop(walgate).await?;
    // Rows before the fork that walgate has not seen yet, and rows after it.
    scene.execute(ROWS).await?;
    caught_up(&scene.cluster, &standby).await?;
    scene.cluster.stop_fast()?;
    standby.promote().await?;
    standby.execute("postgres", ROWS).await?;
    let mut walgate = scene.run().await?;
    walgate.wait_line("the source was promoted", SOON).await?;
    scene.wait_lines("lines.txt", 15_000).await.map(drop)
}

/// The stream goes on over the fork, and a later start knows the timeline.
async fn a_standby_promoted_while_it_is_read(major: u32) -> Result<()> {
    if major < STANDBY_SINCE {
        return Ok(());
    }
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let state = Cluster::start(major)?;
    scene.configure(&format!("[state]\nurl = \"{}\"", state.url("postgres")))?;
    let standby = scene.cluster.standby(&[("hot_standby_feedback", "on")]).await?;
    let section = standby_source(&standby, &scene.cluster);
    scene.source(&section)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    caught_up(&scene.cluster, &standby).await?;
    scene.cluster.stop_fast()?;
    standby.promote().await?;
    standby.execute("postgres", ROWS).await?;
    walgate.wait_line("the source was promoted", SOON).await?;
    scene.wait_lines("lines.txt", 10_000).await?;
    stop(walgate).await?;
    standby.execute("postgres", ROWS).await?;
    let _walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 15_000).await.map(drop)
}

async fn a_standby_needs_a_state_database_elsewhere(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let standby = scene.cluster.standby(&[]).await?;
    let section = standby_source(&standby, &scene.cluster);
    scene.source(&section)?;
    scene.cli(&["slot", "create"])?.expect(3, "standby_unsupported")?;
    expect_end(&mut scene.start()?, 3, &["standby_unsupported"]).await?;
    if major < STANDBY_SINCE {
        return Ok(());
    }
    scene.cli(&["slot", "create"])?.expect(3, "[state]")?;
    scene.configure(&format!("[state]\nurl = \"{}\"", scene.cluster.url("postgres")))?;
    // A slot that standbys keep a copy of is made on a primary.
    let section = source(&standby, "failover = true");
    scene.source(&section)?;
    if major >= FAILOVER_SINCE {
        scene.cli(&["slot", "create"])?.expect(3, "failover_unsupported")?;
    }
    let section = source(&standby, "heartbeat_ms = 1000");
    scene.source(&section)?;
    expect_end(&mut scene.start()?, 3, &["standby_unsupported", "ddl_url"]).await
}

async fn kf_035_a_slot_on_a_standby_does_not_hang_silently(major: u32) -> Result<()> {
    if major < STANDBY_SINCE {
        return Ok(());
    }
    let mut scene = Scene::new(major).await?;
    let standby = scene.cluster.standby(&[("hot_standby_feedback", "on")]).await?;
    scene.configure(&format!("[state]\nurl = \"{}\"", scene.cluster.url("postgres")))?;
    let section = source(&standby, "");
    scene.source(&section)?;
    let mut create = Walgate::command().args(["slot", "create", "--config"]).arg(scene.config()).spawn()?;
    let line = create.wait_line("is not made yet", SOON).await?;
    ensure!(line.contains("pg_log_standby_snapshot()") && line.contains("ddl_url"), "{line}");
    // Done by hand as the line says.
    wait_until(SOON, "the slot", async || {
        scene.execute("SELECT pg_log_standby_snapshot()").await?;
        Ok(create.ended()?.is_some())
    })
    .await?;
    ensure!(create.wait_exit(SOON).await?.success(), "{}", create.stderr());
    scene.cli(&["check"])?.expect(2, "has no ddl_url")
}

async fn kf_045_a_slot_on_a_standby_without_feedback(major: u32) -> Result<()> {
    if major < STANDBY_SINCE {
        return Ok(());
    }
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let standby = scene.cluster.standby(&[("hot_standby_feedback", "off")]).await?;
    scene.configure(&format!("[state]\nurl = \"{}\"", scene.cluster.url("postgres")))?;
    let section = standby_source(&standby, &scene.cluster);
    scene.source(&section)?;
    scene.create_slot()?;
    scene.cli(&["check"])?.expect(0, "hot_standby_feedback = off")?;
    let mut walgate = scene.run().await?;
    walgate.wait_line("hot_standby_feedback = off", SOON).await?;
    stop(walgate).await?;
    // The catalog of the past is what the slot needs; the primary does not know that.
    scene.execute("CREATE TABLE passing (id int); DROP TABLE passing").await?;
    scene.execute("VACUUM pg_class").await?;
    scene.execute("VACUUM FULL pg_class").await?;
    let dead = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'walgate' AND conflicting";
    wait_until(SOON, "the slot is invalidated", async || {
        scene.execute("SELECT pg_switch_wal()").await?;
        Ok(ask(&standby, dead).await? == "1")
    })
    .await?;
    let reason = if major >= FAILOVER_SINCE { "rows_removed" } else { "conflicting" };
    expect_end(&mut scene.start()?, 3, &["slot_invalidated", reason, "hot_standby_feedback"]).await
}
