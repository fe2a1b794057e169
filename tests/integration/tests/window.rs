//! The window of what is in flight: reading pauses, feedback goes on, and a plugin that takes nothing is not waited for
//! for ever.
//!
//! Never knows: where the window is counted.

use anyhow::{Result, ensure};
use walgate_harness::{Cluster, wait_until};

use super::scene::{SOON, Scene, expect_end, shop_manifest};

super::scenarios! {
    a_stuck_required_plugin_becomes_sink_too_slow,
    a_stuck_plugin_that_parks_lets_the_others_go_on,
    feedback_goes_on_while_reading_pauses,
    a_parked_plugin_pins_no_more_than_allowed,
    a_process_whose_plugins_are_all_parked_does_not_end,
}

const WINDOW: &str = "[delivery]\nmax_batch_rows = 100\nmax_batch_bytes = 10000\nmax_inflight_bytes = 20000\n";

fn stuck(on_failure: &str) -> String {
    shop_manifest(on_failure, 1000)
}

const LOAD: &str = "INSERT INTO orders SELECT g, 1, repeat('x', 100) FROM generate_series(1, 5000) g";

async fn a_stuck_required_plugin_becomes_sink_too_slow(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure(&format!("{WINDOW}max_stalled_ms = 1000"))?;
    scene.plugin("stuck", "stuck", &stuck("halt"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(LOAD).await?;
    expect_end(&mut walgate, 3, &["sink_too_slow", "max_stalled_ms"]).await
}

async fn a_stuck_plugin_that_parks_lets_the_others_go_on(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure(&format!("{WINDOW}max_stalled_ms = 1000"))?;
    scene.plugin("stuck", "stuck", &stuck("park"))?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute(LOAD).await?;
    scene.wait_lines("lines.txt", 5000).await?;
    scene.wait_plugin(&walgate, "stuck", "parked").await?;
    let status = scene.status(&walgate).await?;
    ensure!(status["plugins"]["stuck"]["cause"].as_str().is_some_and(|why| why.contains("sink_too_slow")), "{status}");
    // It keeps its place, and with it the acknowledgement; what that costs is told.
    let pinned = async || {
        let pinned = scene.status(&walgate).await?["plugins"]["stuck"]["pinned_wal_bytes"].as_u64();
        Ok(pinned.is_some_and(|pinned| pinned > 0))
    };
    wait_until(SOON, "the pinned log in status", pinned).await
}

async fn feedback_goes_on_while_reading_pauses(major: u32) -> Result<()> {
    let cluster = Cluster::builder(major).setting("wal_sender_timeout", "2s").start()?;
    let mut scene = Scene::with(cluster).await?;
    scene.configure(&format!("{WINDOW}max_stalled_ms = 6000"))?;
    scene.plugin("stuck", "stuck", &stuck("halt"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(LOAD).await?;
    wait_until(SOON, "the pause", async || {
        Ok(walgate.get("/metrics").await?.body.contains("walgate_reading_paused 1"))
    })
    .await?;
    let connections = scene.status(&walgate).await?["source"]["connections"].clone();
    // Three times the server's patience passes before the plugin is given up.
    let mut last = connections.clone();
    let ended = wait_until(SOON, "the halt", async || {
        if let Ok(status) = scene.status(&walgate).await {
            last = status["source"]["connections"].clone();
        }
        Ok(walgate.ended()?.is_some())
    });
    ended.await?;
    ensure!(last == connections, "the server gave the connection up while reading paused");
    expect_end(&mut walgate, 3, &["sink_too_slow"]).await
}

async fn a_parked_plugin_pins_no_more_than_allowed(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[delivery]\nmax_parked_bytes = 1048576")?;
    scene.plugin("bad", "trap-in-deliver", &shop_manifest("park", 1))?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (0, 1, 'x')").await?;
    scene.wait_plugin(&walgate, "bad", "parked").await?;
    scene.execute("INSERT INTO orders SELECT g, 1, repeat('x', 500) FROM generate_series(1, 5000) g").await?;
    expect_end(&mut walgate, 3, &["parked_too_long", "max_parked_bytes"]).await
}

async fn a_process_whose_plugins_are_all_parked_does_not_end(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("bad", "trap-in-deliver", &shop_manifest("park", 1))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (0, 1, 'x')").await?;
    scene.wait_plugin(&walgate, "bad", "parked").await?;
    // Long enough for every stage to have ended, if one took it for a stop.
    wait_until(SOON, "the log it pins", async || {
        ensure!(walgate.ended()?.is_none(), "it ended in silence: {}", walgate.stderr());
        scene.execute("INSERT INTO orders SELECT max(id) + 1, 1, 'x' FROM orders").await?;
        Ok(scene.status(&walgate).await?["plugins"]["bad"]["pinned_wal_bytes"].as_u64() > Some(5000))
    })
    .await?;
    walgate.sigterm()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(0), "a stop is still heard");
    Ok(())
}
