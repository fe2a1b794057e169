//! What an operator sees of the source while walgate runs: lags, and who keeps the slot back.
//!
//! Holds: the figures of `/status`, of `walgate status` and of `/metrics`. Never knows: how the source is asked.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use walgate_harness::wait_until;

use super::scene::{SOON, Scene};

super::scenarios! {
    lags_and_blockers_are_told,
    the_monitor_does_not_stop_the_pipeline,
}

async fn lags_and_blockers_are_told(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("a")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let load = scene.cluster.client("postgres").await?;
    load.batch_execute("SET application_name = 'nightly'; BEGIN; INSERT INTO orders VALUES (1, 1, 'canary')").await?;
    wait_until(SOON, "the blocker to be told", async || {
        let status = scene.status(&walgate).await?;
        let blockers = status.pointer("/source/blockers").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(blockers.iter().any(|blocker| blocker.get("application_name") == Some(&Value::from("nightly"))))
    })
    .await?;
    let status = scene.status(&walgate).await?;
    for lag in ["confirmed_lag_bytes", "restart_lag_bytes"] {
        ensure!(status.pointer(&format!("/source/{lag}")).is_some_and(Value::is_u64), "{lag} in {status}");
    }
    ensure!(status.pointer("/source/wal_status") == Some(&Value::from("reserved")), "{status}");
    ensure!(status.pointer("/source/monitor_error") == Some(&Value::Null), "{status}");
    let page = scene.cli(&["status"])?;
    page.expect(0, "blocker   transaction of process")?;
    page.expect(0, "lag       confirmed")?;
    ensure!(!page.all().contains("canary") && !status.to_string().contains("canary"), "the text of a query is told");
    let metrics = walgate.get("/metrics").await?.body;
    for kind in ["read", "confirmed", "restart"] {
        ensure!(metrics.contains(&format!("walgate_lag_bytes{{kind=\"{kind}\"}} ")), "{kind} in {metrics}");
    }
    load.batch_execute("COMMIT").await?;
    scene.wait_lines("a.txt", 1).await.map(drop)
}

/// What keeps its sessions out leaves the stream alone.
async fn the_monitor_does_not_stop_the_pipeline(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("a")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let load = scene.cluster.client("postgres").await?;
    wait_until(SOON, "the monitor's first answer", async || {
        Ok(scene.status(&walgate).await?.pointer("/source/wal_status").is_some_and(Value::is_string))
    })
    .await?;
    // Its session ends, and the server lets no other one in.
    let sessions = async |allowed: bool| {
        let sql = format!("ALTER DATABASE postgres ALLOW_CONNECTIONS {allowed}");
        scene.cluster.execute("template1", &sql).await
    };
    sessions(false).await?;
    load.batch_execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walgate-monitor'",
    )
    .await?;
    wait_until(SOON, "a failure to be told", async || {
        Ok(scene.status(&walgate).await?.pointer("/source/monitor_error").is_some_and(Value::is_string))
    })
    .await?;
    load.batch_execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("a.txt", 1).await?;
    sessions(true).await?;
    wait_until(SOON, "the monitor to be back", async || {
        Ok(scene.status(&walgate).await?.pointer("/source/monitor_error") == Some(&Value::Null))
    })
    .await?;
    walgate.wait_line("the monitor can ask the source again", Duration::from_secs(10)).await?;
    walgate.sigterm()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(0));
    Ok(())
}
