//! Servers that go away, disks that fill up: what happens while a stream runs.
//!
//! Holds: faults of the surroundings. Loss and repeats are counted in the lines of `output-lines`, to which every
//! delivery appends: nothing can hide there. Never knows: failpoints inside walgate.

use anyhow::{Result, ensure};
use walgate_harness::{Cluster, Disk, wait_until};

use super::scene::{SOON, Scene, expect_end, lines_manifest};

super::scenarios! {
    postgres_restarted_in_the_middle,
    postgres_crashed_in_the_middle,
    the_connection_is_killed,
    state_database_away_in_the_middle,
    state_database_away_for_good,
    disk_full_while_writing_an_output,
    a_full_disk_parks_the_plugin_that_writes_there,
    an_output_cut_by_someone_else,
    a_publication_without_its_granted_column,
}

/// Five thousand rows in one transaction, with ids beyond those that are there.
const ROWS: &str =
    "INSERT INTO orders SELECT (SELECT COALESCE(max(id), 0) FROM orders) + g, g, 'x' FROM generate_series(1, 5000) g";

async fn postgres_restarted_in_the_middle(major: u32) -> Result<()> {
    let mut scene = Scene::with(Cluster::builder(major).durable(true).start()?).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.cluster.restart()?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 10_000).await?;
    wait_until(SOON, "a second connection", async || {
        Ok(scene.status(&walgate).await?["source"]["connections"].as_u64() >= Some(2))
    })
    .await?;
    scene.wait_confirmed().await
}

async fn postgres_crashed_in_the_middle(major: u32) -> Result<()> {
    let mut scene = Scene::with(Cluster::builder(major).durable(true).start()?).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.cluster.stop_immediate()?;
    scene.cluster.launch()?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 10_000).await.map(drop)
}

async fn the_connection_is_killed(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for round in 1..=3_u64 {
        scene.execute(ROWS).await?;
        scene.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active").await?;
        wait_until(SOON, "another connection", async || {
            Ok(scene.status(&walgate).await?["source"]["connections"].as_u64() > Some(round))
        })
        .await?;
    }
    scene.wait_lines("lines.txt", 15_000).await.map(drop)
}

async fn state_database_away_in_the_middle(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    let mut state = Cluster::builder(major).durable(true).start()?;
    scene.configure(&format!(
        "[state]\nurl = \"{}\"\nmax_retries = 30\nretry_backoff_ms = 100",
        state.url("postgres")
    ))?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 5_000).await?;
    state.stop_fast()?;
    scene.execute(ROWS).await?;
    wait_until(SOON, "the fault in the status", async || Ok(!scene.status(&walgate).await?["state_error"].is_null()))
        .await?;
    ensure!(walgate.get("/readyz").await?.status == 503, "not ready while no checkpoint can be written");
    state.launch()?;
    scene.wait_lines("lines.txt", 10_000).await?;
    scene.wait_confirmed().await?;
    ensure!(scene.status(&walgate).await?["state_error"].is_null(), "a fault that passed is no longer shown");
    Ok(())
}

async fn state_database_away_for_good(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    let mut state = Cluster::builder(major).durable(true).start()?;
    scene
        .configure(&format!("[state]\nurl = \"{}\"\nmax_retries = 2\nretry_backoff_ms = 50", state.url("postgres")))?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    state.stop_fast()?;
    scene.execute(ROWS).await?;
    expect_end(&mut walgate, 3, &["checkpoint_store(unavailable)"]).await?;
    state.launch()?;
    let _walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 5_000).await.map(drop)
}

/// A file system of 256 KiB holds about 10,000 lines; the rest fits after a file that is in the way is removed.
async fn disk_full_while_writing_an_output(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let Some(disk) = Disk::mount(&scene.path("disk"), "1m")? else { return Ok(()) };
    disk.leave(64 << 10)?;
    scene.plugin("lines", "output-lines", &lines_manifest(&scene.path("disk/lines.txt")))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    let file = "disk/lines.txt";
    expect_end(&mut walgate, 3, &["output", "lines.txt", "No space left"]).await?;
    disk.empty()?;
    let _walgate = scene.run().await?;
    scene.wait_lines(file, 5_000).await.map(drop)
}

/// One disk is the matter of one plugin, although what it stages is written for all.
async fn a_full_disk_parks_the_plugin_that_writes_there(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let Some(disk) = Disk::mount(&scene.path("disk"), "1m")? else { return Ok(()) };
    disk.leave(64 << 10)?;
    let parks = lines_manifest(&scene.path("disk/lines.txt")).replace("on_failure = \"halt\"", "on_failure = \"park\"");
    scene.plugin("small", "output-lines", &parks)?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.wait_plugin(&walgate, "small", "parked").await?;
    let cause = scene.status(&walgate).await?["plugins"]["small"]["cause"].to_string();
    ensure!(cause.contains("output(full)"), "{cause}");
    scene.wait_lines("lines.txt", 5_000).await?;
    ensure!(
        scene.status(&walgate).await?["halt"].is_null() && !walgate.stderr().contains("halted"),
        "{}",
        walgate.stderr()
    );
    disk.empty()?;
    scene.cli(&["plugin", "unblock", "small"])?.expect(0, "a running walgate tries")?;
    scene.wait_lines("disk/lines.txt", 5_000).await?;
    scene.wait_confirmed().await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await.map(drop)
}

async fn an_output_cut_by_someone_else(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(ROWS).await?;
    scene.wait_lines("lines.txt", 5_000).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    std::fs::write(scene.path("lines.txt"), "")?;
    expect_end(&mut scene.start()?, 3, &["output(short)", "lines.txt"]).await
}

async fn a_publication_without_its_granted_column(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.execute("ALTER PUBLICATION shop SET TABLE customers (id), orders").await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO customers VALUES (1, 'n', 'e', 'p')").await?;
    expect_end(&mut walgate, 3, &["granted_column_missing", "\"name\"", "customers"]).await
}
