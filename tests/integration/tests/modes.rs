//! The delivery modes: which one a plugin has, and what each promises while nothing fails. What each promises when
//! something does is in `tests/crash`.
//!
//! Never knows: how a lane works.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use walgate_harness::wait_until;

use super::scene::{SOON, Scene, expect_end, lines_manifest};

super::scenarios! {
    the_mode_follows_from_grants_and_the_open_answer,
    accepted_is_flushed_by_count,
    accepted_is_flushed_by_time,
    accepted_is_flushed_by_bytes,
    accepted_is_flushed_by_wal_span,
    accepted_never_acknowledges_early,
    a_full_checkpoint_does_not_wait_for_its_time,
    a_position_ahead_of_the_source_halts,
    a_version_with_a_position_of_another_history_does_not_take_over,
    a_position_of_its_own_is_skipped_to,
    a_plugin_with_its_own_position_that_was_away_halts,
}

fn flush_later(scene: &Scene, section: &str) -> Result<()> {
    let manifest = format!("{}\n[flush]\n{section}\n", lines_manifest(&scene.path("lines.txt")));
    scene.plugin("later", "flush-later", &manifest)
}

/// The lines on standard output, which no commit covers.
fn stdout_manifest(scene: &Scene) -> String {
    lines_manifest(&scene.path("x"))
        .replace("kind = \"file\"", "kind = \"stdout\"")
        .lines()
        .filter(|line| !line.starts_with("path"))
        .map(|line| format!("{line}\n"))
        .collect()
}

async fn the_mode_follows_from_grants_and_the_open_answer(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("file")?;
    scene.plugin("stdout", "output-lines", &stdout_manifest(&scene))?;
    let own = format!("{}\n[grant]\ncapabilities = [\"state\"]\n", lines_manifest(&scene.path("own.txt")));
    scene.plugin("own", "own-position", &own)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("own.txt", 1).await?;
    scene.wait_confirmed().await?;
    let status = scene.status(&walgate).await?;
    let mode = |plugin: &str| status["plugins"][plugin]["mode"].clone();
    ensure!(mode("file") == "host-transactional", "{status}");
    ensure!(mode("stdout") == "host-checkpointed", "{status}");
    drop(walgate);
    // It answers a position once it has one.
    let walgate = scene.run().await?;
    let status: Value = scene.status(&walgate).await?;
    ensure!(status["plugins"]["own"]["mode"] == "sink-owned", "{status}");
    let file = scene.path("plugins/own/plugin.wasm").display().to_string();
    scene.cli(&["plugin", "inspect", &file])?.expect(0, "host-transactional")
}

/// Nothing is due for time or size.
const NEVER: &str = "max_delay_ms = 600000\n";

async fn accepted_is_flushed_by_count(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    flush_later(&scene, &format!("{NEVER}max_transactions = 3"))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for id in 1..=2 {
        scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'x')")).await?;
    }
    let taken = async || Ok(scene.status(&walgate).await?["plugins"]["later"]["rows"] == 2);
    wait_until(SOON, "both to be taken", taken).await?;
    ensure!(scene.lines("lines.txt").is_empty(), "two are not three");
    scene.execute("INSERT INTO orders VALUES (3, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 3).await.map(drop)
}

async fn accepted_is_flushed_by_time(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    flush_later(&scene, "max_delay_ms = 300\nmax_transactions = 1000000")?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.wait_confirmed().await
}

async fn accepted_is_flushed_by_bytes(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    flush_later(&scene, &format!("{NEVER}max_bytes = 10000"))?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, repeat('x', 20000))").await?;
    scene.wait_lines("lines.txt", 1).await.map(drop)
}

async fn accepted_is_flushed_by_wal_span(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    flush_later(&scene, &format!("{NEVER}max_wal_bytes = 1000000"))?;
    scene.execute("CREATE TABLE elsewhere (x text)").await?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    wait_until(SOON, "it to be taken", async || Ok(scene.status(&walgate).await?["plugins"]["later"]["rows"] == 1))
        .await?;
    scene.execute("INSERT INTO elsewhere SELECT repeat('x', 1000) FROM generate_series(1, 3000)").await?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

async fn accepted_never_acknowledges_early(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    flush_later(&scene, &format!("{NEVER}max_transactions = 2"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    wait_until(SOON, "it to be taken", async || Ok(scene.status(&walgate).await?["plugins"]["later"]["rows"] == 1))
        .await?;
    // The end of the first transaction is before this.
    let end = scene.ask("SELECT pg_current_wal_insert_lsn()").await?;
    scene.execute("CREATE TABLE quiet (x int); INSERT INTO quiet SELECT generate_series(1, 100000)").await?;
    // tidy: sleep ok, that nothing is acknowledged can only be seen by letting time pass
    tokio::time::sleep(Duration::from_secs(3)).await;
    let early = scene.ask(&format!("SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots")).await?;
    ensure!(early == "f", "acknowledged before the flush");
    walgate.sigkill()?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

/// As much is delivered as may be repeated; more waits for a checkpoint, which must not wait for the rest of its time.
async fn a_full_checkpoint_does_not_wait_for_its_time(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let checkpoint = "[checkpoint]\nmax_transactions = 3\nmax_delay_ms = 600000\n";
    scene.plugin("stdout", "output-lines", &format!("{}\n{checkpoint}", stdout_manifest(&scene)))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for id in 1..=20 {
        scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'x')")).await?;
    }
    // The last three may wait.
    wait_until(SOON, "17 lines", async || Ok(walgate.stdout().lines().count() >= 17)).await
}

fn own(scene: &Scene, settings: &str) -> Result<()> {
    let grant = "[grant]\ncapabilities = [\"state\"]";
    let manifest = format!("{}\n{grant}\n[settings]\n{settings}\n", lines_manifest(&scene.path("own.txt")));
    scene.plugin("own", "own-position", &manifest)
}

async fn a_position_ahead_of_the_source_halts(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    own(&scene, "lie = \"ahead\"")?;
    scene.create_slot()?;
    expect_end(&mut scene.start()?, 3, &["position_ahead"]).await
}

async fn a_version_with_a_position_of_another_history_does_not_take_over(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    own(&scene, "")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for (round, lie) in [(1, ""), (2, "lie = \"ahead\"")] {
        own(&scene, lie)?;
        wait_until(SOON, "the candidate to be told", async || {
            let candidate = &scene.status(&walgate).await?["plugins"]["own"]["candidate"];
            Ok(candidate.as_str().is_some_and(|said| said.contains("another history")) != lie.is_empty())
        })
        .await?;
        scene.execute(&format!("INSERT INTO orders VALUES ({round}, 1, 'x')")).await?;
        scene.wait_lines("own.txt", round).await?;
        let own = &scene.status(&walgate).await?["plugins"]["own"];
        ensure!(own["generation"] == 1 && own["state"] == "running", "{own}");
    }
    Ok(())
}

async fn a_position_of_its_own_is_skipped_to(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    own(&scene, "")?;
    scene.create_slot()?;
    for round in 1..=3_usize {
        let mut walgate = scene.run().await?;
        scene.execute(&format!("INSERT INTO orders VALUES ({round}, 1, 'x')")).await?;
        scene.wait_lines("own.txt", round).await?;
        walgate.sigkill()?;
    }
    let _walgate = scene.run().await?;
    scene.wait_confirmed().await?;
    // The sentinel is two more changes.
    scene.wait_lines("own.txt", 5).await.map(drop)
}

async fn a_plugin_with_its_own_position_that_was_away_halts(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    own(&scene, "")?;
    scene.create_slot()?;
    scene.miss_a_while("own").await
}
