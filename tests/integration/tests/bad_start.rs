//! What a start says when something is missing: the name, the place, and the line that mends it.
//!
//! Holds: configuration and source. Plugins are in `bad_plugins.rs`. Never knows: a running stream.

use anyhow::Result;
use walgate_core::Lsn;
use walgate_harness::Cluster;
use walgate_wire::{Connection, SourceOptions, StartOptions};

use super::scene::{Scene, expect_end};

super::scenarios! {
    missing_publication,
    wal_level_too_low,
    no_replication_privilege,
    slot_missing,
    slot_of_another_plugin,
    slot_of_another_database,
    slot_active_elsewhere,
    slot_recreated_by_hand,
    slot_advanced_by_hand,
    another_cluster_behind_the_address,
    state_database_away,
    source_away,
}

#[test]
fn unknown_configuration_key() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("walgate.toml");
    std::fs::write(
        &config,
        "[source]\nurl = \"postgres://x@127.0.0.1/x\"\nslot = \"s\"\npublications = [\"p\"]\nslto = 1\n[plugins]\ndir = \"p\"\n",
    )?;
    for command in [&["run"][..], &["check"], &["status"], &["slot", "list"], &["plugin", "list"]] {
        let output = std::process::Command::new(walgate_harness::walgate_bin()?)
            .arg("--config")
            .arg(&config)
            .args(command)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("walgate.toml: line 5: unknown field `slto`"), "{said}");
    }
    Ok(())
}

async fn missing_publication(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("DROP PUBLICATION shop").await?;
    scene.cli(&["slot", "create"])?.expect(3, "CREATE PUBLICATION \"shop\"")?;
    scene.cli(&["check"])?.expect(3, "publication_missing")?;
    let mut walgate = scene.start()?;
    expect_end(&mut walgate, 3, &["publication_missing", "CREATE PUBLICATION \"shop\" FOR TABLE"]).await?;
    // The halt can be told after the process is gone.
    scene.cli(&["status"])?.expect(3, "publication_missing")
}

async fn wal_level_too_low(major: u32) -> Result<()> {
    let scene = Scene::with(Cluster::builder(major).setting("wal_level", "replica").start()?).await?;
    scene.lines_plugin("lines")?;
    scene.cli(&["slot", "create"])?.expect(3, "ALTER SYSTEM SET wal_level = logical")?;
    expect_end(&mut scene.start()?, 3, &["wal_level", "ALTER SYSTEM SET wal_level = logical"]).await
}

async fn no_replication_privilege(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("CREATE ROLE plain LOGIN; GRANT CREATE ON DATABASE postgres TO plain").await?;
    let url = scene.cluster.url("postgres").replace("postgres@", "plain@");
    scene.source(&format!("[source]\nurl = \"{url}\"\nslot = \"walgate\"\npublications = [\"shop\"]\n"))?;
    scene.cli(&["slot", "create"])?.expect(3, "REPLICATION")?;
    expect_end(&mut scene.start()?, 3, &["REPLICATION"]).await
}

async fn slot_missing(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    expect_end(&mut scene.start()?, 3, &["go_forward_required", "walgate slot create"]).await?;
    // With checkpoints the same is a gap, and a new slot is not made behind its back.
    scene.create_slot()?;
    scene.execute("SELECT pg_drop_replication_slot('walgate')").await?;
    expect_end(&mut scene.start()?, 3, &["data_gap", "walgate slot drop --forget"]).await?;
    scene.cli(&["slot", "create"])?.expect(3, "checkpoint_exists")?;
    scene.cli(&["slot", "drop", "--forget"])?.expect(0, "")?;
    scene.create_slot()?;
    scene.run().await.map(drop)
}

async fn slot_of_another_plugin(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("SELECT pg_create_logical_replication_slot('walgate', 'test_decoding')").await?;
    expect_end(&mut scene.start()?, 3, &["slot_plugin", "test_decoding", "source.slot"]).await?;
    // A slot of that name is there, and it is none that could be read.
    scene.execute("SELECT pg_drop_replication_slot('walgate')").await?;
    scene.execute("SELECT pg_create_physical_replication_slot('walgate')").await?;
    expect_end(&mut scene.start()?, 3, &["slot_plugin", "physical", "source.slot"]).await?;
    scene.execute("SELECT pg_drop_replication_slot('walgate')").await
}

async fn slot_of_another_database(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.execute("CREATE DATABASE other").await?;
    scene.cluster.execute("other", "SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    expect_end(&mut scene.start()?, 3, &["slot_database", "other", "source.url"]).await
}

async fn slot_active_elsewhere(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut options = SourceOptions::from_url(&scene.cluster.url("postgres"))?;
    "some-other-reader".clone_into(&mut options.application_name);
    let connection = Connection::connect(&options).await?;
    let _reader = connection.start_replication(&StartOptions::new("walgate", Lsn::ZERO, vec!["shop".into()])).await?;
    let pid = scene.ask("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'walgate'").await?;
    let words = ["slot_active", "some-other-reader", pid.as_str(), "pg_terminate_backend"];
    expect_end(&mut scene.start()?, 3, &words).await?;
    scene.cli(&["slot", "list"])?.expect(0, "some-other-reader")
}

async fn slot_recreated_by_hand(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    scene.execute("SELECT pg_drop_replication_slot('walgate'); INSERT INTO orders VALUES (1, 1, 'lost')").await?;
    scene.execute("SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    expect_end(&mut scene.start()?, 3, &["slot_moved", "recreated or advanced"]).await?;
    assert_eq!(scene.lines("lines.txt").len(), 0, "nothing may be delivered across a gap");
    Ok(())
}

async fn slot_advanced_by_hand(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'skipped')").await?;
    scene.execute("SELECT pg_replication_slot_advance('walgate', pg_current_wal_lsn())").await?;
    expect_end(&mut scene.start()?, 3, &["slot_moved"]).await
}

async fn another_cluster_behind_the_address(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let state = Cluster::start(major)?;
    scene.configure(&format!("[state]\nurl = \"{}\"", state.url("postgres")))?;
    scene.create_slot()?;
    let other = Scene::new(major).await?;
    other.execute("SELECT pg_create_logical_replication_slot('walgate', 'pgoutput')").await?;
    let url = other.cluster.url("postgres");
    scene.source(&format!("[source]\nurl = \"{url}\"\nslot = \"walgate\"\npublications = [\"shop\"]\n"))?;
    expect_end(&mut scene.start()?, 3, &["lineage_changed", "system identifier"]).await
}

async fn state_database_away(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let port = walgate_harness::free_port()?;
    scene.configure(&format!("[state]\nurl = \"postgres://postgres@127.0.0.1:{port}/postgres\""))?;
    expect_end(&mut scene.start()?, 4, &["state database"]).await?;
    scene.cli(&["check"])?.expect(4, "FAIL state")
}

async fn source_away(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let state = scene.cluster.url("postgres");
    scene.configure(&format!("[state]\nurl = \"{state}\""))?;
    let port = walgate_harness::free_port()?;
    scene.source(&format!(
        "[source]\nurl = \"postgres://postgres@127.0.0.1:{port}/postgres\"\nslot = \"walgate\"\npublications = [\"shop\"]\n"
    ))?;
    expect_end(&mut scene.start()?, 4, &["source", "attempts were made"]).await
}
