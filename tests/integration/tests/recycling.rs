//! Instances that gave way to a fresh one after a number of batches or above a mark of memory: nothing is lost, nothing
//! repeated, and nothing waits for it.
//!
//! Never knows: how a lane exchanges its instance.

use anyhow::{Result, ensure};
use walgate_harness::{Walgate, wait_until};

use super::scene::{SOON, Scene, lines_manifest, shop_manifest};

super::scenarios! {
    after_a_number_of_batches,
    with_the_state_it_had,
    what_was_accepted_is_flushed_first,
    with_a_position_of_its_own,
    above_a_mark_of_memory,
    never_when_the_limits_say_so,
}

/// One transaction each, in the order of their keys.
async fn insert(scene: &Scene, ids: std::ops::RangeInclusive<u32>) -> Result<()> {
    for id in ids {
        scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'x')")).await?;
    }
    Ok(())
}

async fn recycled(walgate: &Walgate, kind: &str) -> Result<u64> {
    let metrics = walgate.get("/metrics").await?.body;
    let is_it = |line: &&str| line.starts_with("walgate_instances_recycled_total{") && line.contains(kind);
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
    Ok(metrics.lines().filter(is_it).filter_map(value).sum())
}

/// No instance ended by itself, and no batch was delivered twice.
async fn in_good_order(scene: &Scene, walgate: &Walgate, name: &str) -> Result<()> {
    let plugin = scene.status(walgate).await?["plugins"][name].clone();
    ensure!(plugin["state"] == "running" && plugin["ended_instances"] == 0 && plugin["retries"] == 0, "{plugin}");
    Ok(())
}

fn with_limits(manifest: &str, limits: &str) -> String {
    format!("{manifest}\n[limits]\n{limits}\n")
}

async fn after_a_number_of_batches(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    scene.plugin("lines", "output-lines", &with_limits(&manifest, "recycle_calls = 2"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    for id in 1..=10_u32 {
        insert(&scene, id..=id).await?;
        // So that each is a batch of its own.
        scene.wait_lines("lines.txt", id as usize).await?;
    }
    wait_until(SOON, "five exchanges", async || Ok(recycled(&walgate, "calls").await? == 5)).await?;
    in_good_order(&scene, &walgate, "lines").await?;
    // A table in a new shape, and one that the fresh instance has not met.
    scene.execute("ALTER TABLE orders ALTER COLUMN note TYPE varchar(100)").await?;
    insert(&scene, 11..=12).await?;
    scene.execute("INSERT INTO customers VALUES (1, 'n', 'e', 'p')").await?;
    scene.wait_lines("lines.txt", 13).await?;
    scene.wait_confirmed().await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let _walgate = scene.run().await?;
    insert(&scene, 13..=13).await?;
    // With the sentinel.
    scene.wait_lines("lines.txt", 16).await.map(drop)
}

async fn with_the_state_it_had(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = format!("{}[grant]\ncapabilities = [\"state\", \"metrics\"]\n", shop_manifest("halt", 5));
    scene.plugin("counter", "state-counter", &with_limits(&manifest, "recycle_calls = 1"))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1..=200).await?;
    wait_until(SOON, "all rows", async || Ok(scene.status(&walgate).await?["plugins"]["counter"]["rows"] == 200))
        .await?;
    scene.wait_confirmed().await?;
    let kept = "SELECT convert_from(value, 'UTF8') FROM walgate.plugin_state WHERE plugin = 'counter' AND key = 'rows'";
    // With the sentinel.
    wait_until(SOON, "the count in the state", async || Ok(scene.ask(kept).await? == "202")).await?;
    ensure!(recycled(&walgate, "calls").await? > 0, "it was not exchanged");
    in_good_order(&scene, &walgate, "counter").await
}

/// The guest keeps what it took in memory until it is flushed.
async fn what_was_accepted_is_flushed_first(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    let limits = "recycle_calls = 3\n[flush]\nmax_delay_ms = 600000";
    scene.plugin("later", "flush-later", &with_limits(&manifest, limits))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for id in 1..=3_u32 {
        ensure!(scene.lines("lines.txt").is_empty(), "it was flushed before it was exchanged");
        insert(&scene, id..=id).await?;
        let taken = async || Ok(scene.status(&walgate).await?["plugins"]["later"]["rows"] == id);
        wait_until(SOON, "it to be taken", taken).await?;
    }
    scene.wait_lines("lines.txt", 3).await?;
    wait_until(SOON, "an exchange", async || Ok(recycled(&walgate, "calls").await? == 1)).await?;
    in_good_order(&scene, &walgate, "later").await
}

async fn with_a_position_of_its_own(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = format!("{}\n[grant]\ncapabilities = [\"state\"]\n", lines_manifest(&scene.path("own.txt")));
    scene.plugin("own", "own-position", &with_limits(&manifest, "recycle_calls = 1"))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1..=50).await?;
    scene.wait_lines("own.txt", 50).await?;
    wait_until(SOON, "exchanges", async || Ok(recycled(&walgate, "calls").await? > 0)).await?;
    in_good_order(&scene, &walgate, "own").await
}

/// Each batch leaves four mebibytes behind, and the instance has room for ten of them.
async fn above_a_mark_of_memory(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    scene.plugin("keeps", "keep-memory", &with_limits(&manifest, "memory_mib = 48\nrecycle_memory_mib = 24"))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for id in 1..=20_u32 {
        insert(&scene, id..=id).await?;
        scene.wait_lines("lines.txt", id as usize).await?;
    }
    wait_until(SOON, "exchanges", async || Ok(recycled(&walgate, "memory").await? >= 2)).await?;
    ensure!(recycled(&walgate, "calls").await? == 0, "nothing was said of calls");
    in_good_order(&scene, &walgate, "keeps").await
}

/// Without a mark the limit itself ends it, which costs attempts and loses nothing either.
async fn never_when_the_limits_say_so(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    let limits = "memory_mib = 48\nrecycle_memory_mib = 0\nrecycle_calls = 0";
    scene.plugin("keeps", "keep-memory", &with_limits(&manifest, limits))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    for id in 1..=20_u32 {
        insert(&scene, id..=id).await?;
        scene.wait_lines("lines.txt", id as usize).await?;
    }
    let plugin = scene.status(&walgate).await?["plugins"]["keeps"].clone();
    ensure!(plugin["ended_instances"].as_u64() > Some(0), "{plugin}");
    ensure!(recycled(&walgate, "").await? == 0, "it was exchanged");
    Ok(())
}
