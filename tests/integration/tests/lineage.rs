//! Where a start begins: intent, slots that are gone or dead, sources that are another history.
//!
//! Holds: the cells of the decision table that one server can show. Standbys and promotions are in `standby.rs`, a slot
//! that someone moved in `bad_start.rs`. Never knows: the table itself.

use anyhow::{Context as _, Result, bail, ensure};
use tokio_postgres::Client;
use walgate_core::Lsn;
use walgate_harness::{Cluster, Walgate, wait_until};
use walgate_wire::{Connection, SourceOptions, StartOptions};

use super::scene::{SOON, Scene, expect_end, lines_manifest};

super::scenarios! {
    go_forward_is_said_or_required,
    go_forward_makes_the_slot_and_resumes,
    no_slot_is_made_while_the_state_is_unknown,
    kf_029_a_slot_dropped_while_it_is_read,
    kf_030_a_slot_that_lost_its_log,
    kf_032_a_slot_that_is_still_being_created,
    kf_033_a_slot_that_waits_names_who_holds_it,
    kf_036_a_leftover_of_ours_is_ended,
    kf_039_a_publication_younger_than_the_slot,
    a_slot_behind_another_one_is_not_warned_of,
    kf_042_a_role_that_lost_its_rights,
    another_cluster_at_the_same_address,
    a_cluster_restored_from_a_cold_backup,
    a_quiet_cluster_restored_from_a_cold_backup,
    failover_needs_a_server_that_has_it,
    other_publications_inside_a_transaction,
}

/// Five thousand rows in one transaction, with ids beyond those that are there.
pub(super) const ROWS: &str =
    "INSERT INTO orders SELECT (SELECT COALESCE(max(id), 0) FROM orders) + g, g, 'x' FROM generate_series(1, 5000) g";

/// A source section for that cluster, with more lines in it.
pub(super) fn source(cluster: &Cluster, more: &str) -> String {
    format!("[source]\nurl = \"{}\"\nslot = \"walgate\"\npublications = [\"shop\"]\n{more}\n", cluster.url("postgres"))
}

/// A scene with its checkpoints on a cluster of their own.
pub(super) async fn with_state(cluster: Cluster) -> Result<(Scene, Cluster)> {
    let state = Cluster::start(cluster.major())?;
    let mut scene = Scene::with(cluster).await?;
    scene.configure(&format!("[state]\nurl = \"{}\"", state.url("postgres")))?;
    scene.lines_plugin("lines")?;
    Ok((scene, state))
}

/// Stops a walgate in the orderly way.
pub(super) async fn stop(mut walgate: Walgate) -> Result<()> {
    walgate.sigterm()?;
    let status = walgate.wait_exit(SOON).await?;
    ensure!(status.success(), "the stop ended with {status}: {}", walgate.stderr());
    Ok(())
}

async fn slots(scene: &Scene) -> Result<String> {
    scene.ask("SELECT count(*) FROM pg_replication_slots").await
}

/// A client with an open transaction that has an id, under a name of its own.
async fn open_transaction(cluster: &Cluster) -> Result<Client> {
    let client = cluster.client("postgres").await?;
    client.batch_execute("SET application_name = 'the-blocker'; BEGIN; SELECT pg_current_xact_id()").await?;
    Ok(client)
}

async fn go_forward_is_said_or_required(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let words = ["go_forward_required", "start = \"go-forward\"", "walgate slot create"];
    expect_end(&mut scene.start()?, 3, &words).await?;
    scene.cli(&["check"])?.expect(3, "go_forward_required")?;
    ensure!(slots(&scene).await? == "0", "nothing is made without being asked for");
    // A slot that someone made is not begun on either.
    scene.execute("SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    expect_end(&mut scene.start()?, 3, &["go_forward_required", "the slot stands at"]).await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'since the slot')").await?;
    let section = source(&scene.cluster, "start = \"go-forward\"");
    scene.source(&section)?;
    scene.cli(&["check"])?.expect(0, "where the stream would begin")?;
    let _walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 1).await.map(drop)
}

async fn go_forward_makes_the_slot_and_resumes(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'before')").await?;
    let section = source(&scene.cluster, "start = \"go-forward\"");
    scene.source(&section)?;
    scene.cli(&["check"])?.expect(0, "run would create it")?;
    ensure!(slots(&scene).await? == "0", "a check changes nothing");
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (2, 2, 'after')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    stop(walgate).await?;
    ensure!(scene.ask("SELECT temporary FROM pg_replication_slots").await? == "f", "the slot is a durable one");
    scene.execute("INSERT INTO orders VALUES (3, 3, 'meanwhile')").await?;
    let walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 2).await?;
    stop(walgate).await?;
    // With a checkpoint, the intent makes no new slot behind its back.
    scene.execute("SELECT pg_drop_replication_slot('walgate')").await?;
    expect_end(&mut scene.start()?, 3, &["data_gap(slot_missing_with_checkpoint)"]).await?;
    ensure!(slots(&scene).await? == "0", "no slot is made over a gap");
    Ok(())
}

async fn no_slot_is_made_while_the_state_is_unknown(major: u32) -> Result<()> {
    let (mut scene, mut state) = with_state(Cluster::start(major)?).await?;
    let section = source(&scene.cluster, "start = \"go-forward\"");
    scene.source(&section)?;
    state.stop_fast()?;
    expect_end(&mut scene.start()?, 4, &["state database"]).await?;
    ensure!(slots(&scene).await? == "0", "nothing is made while the state is away");
    state.launch()?;
    stop(scene.run().await?).await?;
    scene.execute("SELECT pg_drop_replication_slot('walgate')").await?;
    let column = "ALTER TABLE walgate.pipelines ALTER COLUMN acked TYPE text USING acked::text";
    state.execute("postgres", column).await?;
    expect_end(&mut scene.start()?, 3, &["checkpoint_store(schema)"]).await?;
    ensure!(slots(&scene).await? == "0", "nothing is made while the checkpoint cannot be read");
    scene.cli(&["check"])?.expect(3, "cannot be judged without the state database")
}

async fn kf_029_a_slot_dropped_while_it_is_read(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active";
    wait_until(SOON, "the slot to be dropped", async || {
        scene.execute(sql).await?;
        Ok(scene.execute("SELECT pg_drop_replication_slot('walgate')").await.is_ok())
    })
    .await?;
    expect_end(&mut walgate, 3, &["data_gap(slot_missing_with_checkpoint)"]).await?;
    scene.cli(&["status"])?.expect(3, "data_gap")
}

/// Writes log until the slot is invalidated.
async fn lose_log(scene: &Scene) -> Result<()> {
    let client = scene.cluster.client("postgres").await?;
    let dead = if scene.cluster.major() >= 17 { "invalidation_reason IS NOT NULL" } else { "wal_status = 'lost'" };
    let sql = format!("SELECT {dead} FROM pg_replication_slots WHERE slot_name = 'walgate'");
    wait_until(SOON, "the slot is invalidated", async || {
        client.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()", &[]).await?;
        client.batch_execute("CHECKPOINT").await?;
        Ok(scene.ask(&sql).await? == "t")
    })
    .await
}

async fn kf_030_a_slot_that_lost_its_log(major: u32) -> Result<()> {
    let cluster = Cluster::builder(major)
        .setting("max_slot_wal_keep_size", "1MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "32MB")
        .start()?;
    let scene = Scene::with(cluster).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    stop(scene.run().await?).await?;
    lose_log(&scene).await?;
    let words = ["slot_invalidated", "wal_removed", "max_slot_wal_keep_size", "walgate slot drop --forget"];
    expect_end(&mut scene.start()?, 3, &words).await?;
    scene.cli(&["check"])?.expect(3, "slot_invalidated")?;
    scene.cli(&["slot", "list"])?.expect(0, "INVALIDATED: wal_removed")
}

async fn kf_032_a_slot_that_is_still_being_created(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let blocker = open_transaction(&scene.cluster).await?;
    let maker = scene.cluster.client("postgres").await?;
    let sql = "SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')";
    let making = tokio::spawn(async move { maker.batch_execute(sql).await });
    wait_until(SOON, "the slot without a position", async || {
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NULL";
        Ok(scene.ask(sql).await? == "1")
    })
    .await?;
    let section = source(&scene.cluster, "start = \"go-forward\"");
    scene.source(&section)?;
    let mut walgate = scene.start()?;
    walgate.wait_line("is still being created", SOON).await?;
    blocker.batch_execute("ROLLBACK").await?;
    making.await??;
    walgate.wait_ready(SOON).await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await.map(drop)
}

async fn kf_033_a_slot_that_waits_names_who_holds_it(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let blocker = open_transaction(&scene.cluster).await?;
    let mut create = Walgate::command().args(["slot", "create", "--config"]).arg(scene.config()).spawn()?;
    let line = create.wait_line("is not made yet", SOON).await?;
    ensure!(line.contains("the-blocker") && line.contains("by process"), "{line}");
    blocker.batch_execute("COMMIT").await?;
    ensure!(create.wait_exit(SOON).await?.success(), "{}", create.stderr());
    Ok(())
}

/// The connection of a peer that is gone without a goodbye, on a server that never notices. The wait of half a minute is not
/// worth repeating on every version.
async fn kf_036_a_leftover_of_ours_is_ended(major: u32) -> Result<()> {
    if major < 18 {
        return Ok(());
    }
    let scene = Scene::with(Cluster::builder(major).setting("wal_sender_timeout", "0").start()?).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    // Under our name and role, never read from and never heard of again.
    let connection = Connection::connect(&SourceOptions::from_url(&scene.cluster.url("postgres"))?).await?;
    let _gone = connection.start_replication(&StartOptions::new("walgate", Lsn::ZERO, vec!["shop".into()])).await?;
    scene.execute(ROWS).await?;
    let mut walgate = scene.start()?;
    walgate.wait_line("is in use by process", SOON).await?;
    walgate.wait_line("a session of ours held the slot and said nothing", SOON).await?;
    walgate.wait_ready(SOON).await?;
    scene.wait_lines("lines.txt", 5_000).await.map(drop)
}

async fn kf_039_a_publication_younger_than_the_slot(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("DROP PUBLICATION shop").await?;
    scene.execute("SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'before the publication')").await?;
    let section = source(&scene.cluster, "start = \"go-forward\"");
    scene.source(&section)?;
    // Without the publication no slot is made, so that the wrong order cannot come from walgate.
    expect_end(&mut scene.start()?, 3, &["publication_missing", "before the slot is created"]).await?;
    scene.execute("CREATE PUBLICATION shop FOR TABLE customers, orders").await?;
    scene.cli(&["check"])?.expect(0, "may be younger than what slot walgate has yet to read")?;
    let mut walgate = scene.start()?;
    if major < 18 {
        return expect_end(&mut walgate, 3, &["publication_missing", "create it first, then the slot"]).await;
    }
    // From 18 on the server passes over it without an error; what is left is the warning.
    walgate.wait_line("may be younger than what slot walgate has yet to read", SOON).await?;
    walgate.wait_ready(SOON).await
}

/// A new slot takes the oldest catalog over from one that is behind: that says nothing about publications.
async fn a_slot_behind_another_one_is_not_warned_of(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("DROP PUBLICATION shop").await?;
    scene.execute("SELECT pg_create_logical_replication_slot('behind', 'pgoutput')").await?;
    scene.execute("CREATE TABLE later (id int); CREATE PUBLICATION shop FOR TABLE customers, orders").await?;
    scene.create_slot()?;
    let said = scene.cli(&["check"])?;
    ensure!(!said.all().contains("may be younger"), "{}", said.all());
    said.expect(0, "")
}

async fn kf_042_a_role_that_lost_its_rights(major: u32) -> Result<()> {
    let (mut scene, _state) = with_state(Cluster::start(major)?).await?;
    for (lost, name) in [("NOLOGIN", "authentication"), ("NOREPLICATION", "permission")] {
        scene.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN REPLICATION").await?;
        let section = source(&scene.cluster, "").replace("postgres@", "reader@");
        scene.source(&section)?;
        if lost == "NOLOGIN" {
            scene.create_slot()?;
        }
        let mut walgate = scene.run().await?;
        scene.execute(&format!("ALTER ROLE reader {lost}")).await?;
        scene.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active").await?;
        expect_end(&mut walgate, 3, &[name]).await?;
    }
    Ok(())
}

async fn another_cluster_at_the_same_address(major: u32) -> Result<()> {
    let (mut scene, _state) = with_state(Cluster::start(major)?).await?;
    scene.create_slot()?;
    stop(scene.run().await?).await?;
    scene.cluster.stop_fast()?;
    let other = Cluster::builder(major).port(scene.cluster.port()).start()?;
    other.execute("postgres", "CREATE PUBLICATION shop FOR ALL TABLES").await?;
    for sql in ["SELECT 1", "SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')"] {
        // Without a slot, and with one that looks like ours.
        other.execute("postgres", sql).await?;
        expect_end(&mut scene.start()?, 3, &["lineage_changed", "system identifier"]).await?;
    }
    // A slot there is not ours to drop, with or without what was kept for ours.
    for drop in [&["slot", "drop"][..], &["slot", "drop", "--forget"]] {
        scene.cli(drop)?.expect(2, "the address leads to another server now")?;
    }
    // It fails where there is none.
    other.execute("postgres", "SELECT pg_drop_replication_slot('walgate')").await.context("it was dropped")
}

async fn a_cluster_restored_from_a_cold_backup(major: u32) -> Result<()> {
    let (mut scene, _state) = with_state(Cluster::builder(major).durable(true).start()?).await?;
    scene.create_slot()?;
    stop(scene.run().await?).await?;
    scene.cluster.stop_fast()?;
    let backup = scene.path("backup");
    scene.cluster.copy_data(&backup)?;
    scene.cluster.launch()?;
    let walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 5_000).await?;
    scene.wait_confirmed().await?;
    stop(walgate).await?;
    let lines = scene.lines("lines.txt").len();
    scene.cluster.stop_fast()?;
    scene.cluster.restore_data(&backup)?;
    scene.cluster.launch()?;
    expect_end(&mut scene.start()?, 3, &["source_behind", "restored to an earlier state"]).await?;
    scene.cli(&["check"])?.expect(3, "source_behind")?;
    ensure!(scene.lines("lines.txt").len() == lines, "nothing of the other history is delivered");
    // It writes beyond everything that is stored; positions alone say nothing any more.
    for _ in 0..3 {
        scene.execute(ROWS).await?;
    }
    let walgate = &mut scene.start()?;
    expect_end(walgate, 3, &["lineage_changed", "was delivered", "restored to an earlier state and has gone on"])
        .await?;
    ensure!(scene.lines("lines.txt").len() == lines, "nothing of the other history is delivered");
    // Not the second time either.
    expect_end(&mut scene.start()?, 3, &["lineage_changed"]).await
}

/// The slot of the copy stands after the last change that was delivered: what comes next in it is of another history although
/// nothing that was known is missing.
async fn a_quiet_cluster_restored_from_a_cold_backup(major: u32) -> Result<()> {
    let (mut scene, _state) = with_state(Cluster::builder(major).durable(true).start()?).await?;
    scene.execute("CREATE TABLE unpublished (note text)").await?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.wait_confirmed().await?;
    stop(walgate).await?;
    let lines = scene.lines("lines.txt").len();
    scene.cluster.stop_fast()?;
    let backup = scene.path("backup");
    scene.cluster.copy_data(&backup)?;
    scene.cluster.launch()?;
    // Much is written, and nothing of it is for anybody.
    let mut walgate = scene.run().await?;
    let unpublished = "INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 10000)";
    scene.execute(unpublished).await?;
    let end = scene.ask("SELECT pg_current_wal_lsn()").await?;
    let confirmed =
        format!("SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'walgate'");
    wait_until(SOON, "the quiet to be acknowledged", async || Ok(scene.ask(&confirmed).await? == "t")).await?;
    walgate.sigkill()?;
    walgate.wait_exit(SOON).await?;
    scene.cluster.stop_fast()?;
    scene.cluster.restore_data(&backup)?;
    scene.cluster.launch()?;
    for id in 2..=30 {
        scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'another history')")).await?;
    }
    for _ in 0..3 {
        scene.execute(unpublished).await?;
    }
    let words = ["lineage_changed", "had none when it was read", "restored to an earlier state and has gone on"];
    expect_end(&mut scene.start()?, 3, &words).await?;
    ensure!(scene.lines("lines.txt").len() == lines, "nothing of the other history is delivered");
    expect_end(&mut scene.start()?, 3, &["lineage_changed"]).await
}

async fn failover_needs_a_server_that_has_it(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let section = source(&scene.cluster, "failover = true");
    scene.source(&section)?;
    if major < 17 {
        scene.cli(&["slot", "create"])?.expect(3, "failover_unsupported")?;
        return expect_end(&mut scene.start()?, 3, &["failover_unsupported", "failover = true"]).await;
    }
    scene.create_slot()?;
    scene.cli(&["slot", "list"])?.expect(0, ", failover")?;
    scene.cli(&["check"])?.expect(0, "synchronized_standby_slots is empty")?;
    // A slot and a configuration that do not agree are told, not mended.
    let section = source(&scene.cluster, "");
    scene.source(&section)?;
    let mut walgate = scene.run().await?;
    let line = walgate.wait_line("ALTER_REPLICATION_SLOT", SOON).await?;
    if !line.contains("failover = true") {
        bail!("{line}");
    }
    Ok(())
}

/// A plugin that stands inside a transaction counts its changes, and another publication would count others.
async fn other_publications_inside_a_transaction(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[delivery]\nmax_batch_rows = 10")?;
    scene.plugin("lines", "trap-on-poison", &lines_manifest(&scene.path("lines.txt")))?;
    scene.create_slot()?;
    scene
        .execute(
            "INSERT INTO orders SELECT g, 1, CASE g WHEN 55 THEN 'poison' ELSE 'x' END FROM generate_series(1, 100) g",
        )
        .await?;
    expect_end(&mut scene.start()?, 3, &["plugin_failed"]).await?;
    ensure!(scene.ask("SELECT ordinal FROM walgate.checkpoints").await? == "50");
    scene.execute("CREATE PUBLICATION other FOR TABLE orders").await?;
    let section = |publication: &str| {
        let url = scene.cluster.url("postgres");
        format!("[source]\nurl = \"{url}\"\nslot = \"walgate\"\npublications = [\"{publication}\"]\n")
    };
    let (shop, other) = (section("shop"), section("other"));
    scene.source(&other)?;
    expect_end(&mut scene.start()?, 3, &["publications_changed", "commits at"]).await?;
    // As the message says: with the old one, until the transaction has passed.
    scene.source(&shop)?;
    scene.lines_plugin("lines")?;
    let mut walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 100).await?;
    scene.wait_confirmed().await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene.source(&other)?;
    scene.run().await.map(drop)
}
