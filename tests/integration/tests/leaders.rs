//! Two processes on one pipeline: one works, the other waits, and the one that lost its place writes nothing more.
//!
//! Never knows: how the lock is held.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use walgate_harness::{Walgate, free_port, wait_until};

use super::scene::{SOON, Scene, expect_end};

super::scenarios! {
    the_second_waits_and_takes_over_when_the_first_dies,
    a_process_that_lost_its_place_writes_nothing,
    a_restart_of_the_state_database_alone_moves_nothing,
}

/// The same pipeline with an API of its own.
async fn second(scene: &Scene) -> Result<Walgate> {
    let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let text = std::fs::read_to_string(scene.config())?.replace(&scene.api.to_string(), &api.to_string());
    let config = scene.path("second.toml");
    std::fs::write(&config, text)?;
    Walgate::run(&config, api)
}

async fn phase(walgate: &Walgate) -> Result<String> {
    let status: serde_json::Value = serde_json::from_str(&walgate.get("/status").await?.body)?;
    Ok(status["phase"].as_str().unwrap_or_default().to_owned())
}

async fn the_second_waits_and_takes_over_when_the_first_dies(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut first = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    // Beside a process that runs, a check finds nothing wrong.
    scene.cli(&["check"])?.expect(0, "is read by a walgate that runs")?;
    let mut other = second(&scene).await?;
    wait_until(SOON, "the second to wait", async || Ok(phase(&other).await.is_ok_and(|phase| phase == "standby")))
        .await?;
    ensure!(other.get("/healthz").await?.status == 200 && other.get("/readyz").await?.status == 503);
    scene.execute("INSERT INTO orders VALUES (2, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 2).await?;
    first.sigkill()?;
    scene.execute("INSERT INTO orders VALUES (3, 1, 'x')").await?;
    other.wait_ready(SOON).await?;
    scene.wait_lines("lines.txt", 3).await?;
    let status: serde_json::Value = serde_json::from_str(&other.get("/status").await?.body)?;
    ensure!(status["leader"]["epoch"].as_u64() >= Some(2), "{status}");
    other.sigterm()?;
    ensure!(other.wait_exit(SOON).await?.code() == Some(0));
    Ok(())
}

/// The first is stopped in its tracks and loses its sessions, as on a machine that hangs; then it comes back.
async fn a_process_that_lost_its_place_writes_nothing(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut first = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.wait_confirmed().await?;
    let signal = |name: &str| std::process::Command::new("kill").args([name, &first.pid().to_string()]).status();
    signal("-STOP")?;
    let mut other = second(&scene).await?;
    wait_until(SOON, "the second to wait", async || Ok(phase(&other).await.is_ok_and(|phase| phase == "standby")))
        .await?;
    scene
        .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walgate%'")
        .await?;
    wait_until(SOON, "the second to lead", async || {
        if other.ended()?.is_some() {
            anyhow::bail!("the second ended: {}", other.stderr());
        }
        let leads = scene.ask("SELECT count(*) FROM walgate.leaders WHERE epoch >= 2").await?;
        Ok(leads == "1")
    })
    .await?;
    let before = scene.ask("SELECT acked FROM walgate.pipelines").await?;
    signal("-CONT")?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'x')").await?;
    expect_end(&mut first, 3, &["fenced"]).await?;
    ensure!(scene.ask("SELECT acked FROM walgate.pipelines").await? >= before);
    // With the first gone, the second goes on from what is stored.
    other.wait_ready(SOON).await?;
    scene.wait_confirmed().await?;
    // Two rows, and twice the two changes of the sentinel.
    scene.wait_lines("lines.txt", 6).await?;
    Ok(())
}

async fn a_restart_of_the_state_database_alone_moves_nothing(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    let mut state = walgate_harness::Cluster::builder(major).durable(true).start()?;
    scene.configure(&format!(
        "[state]\nurl = \"{}\"\nmax_retries = 30\nretry_backoff_ms = 100",
        state.url("postgres")
    ))?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let first = scene.run().await?;
    let other = second(&scene).await?;
    wait_until(SOON, "the second to wait", async || Ok(phase(&other).await.is_ok_and(|phase| phase == "standby")))
        .await?;
    for round in 1..=2_usize {
        state.restart()?;
        scene.execute(&format!("INSERT INTO orders VALUES ({round}, 1, 'x')")).await?;
        scene.wait_lines("lines.txt", round).await?;
    }
    ensure!(phase(&first).await? == "streaming" && phase(&other).await? == "standby");
    Ok(())
}
