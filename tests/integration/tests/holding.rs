//! Who holds the acknowledgement, and what a start or a stop does when something is in the way.
//!
//! Holds: plugins that cannot run, starts that are stopped, sources that went back in time. Never knows: deliveries.

use std::time::Duration;

use anyhow::{Result, ensure};
use walgate_harness::wait_until;

use super::scene::{SOON, Scene, expect_end, lines_manifest, shop_manifest};

super::scenarios! {
    a_required_plugin_that_cannot_be_loaded_keeps_its_place,
    a_plugin_that_cannot_be_opened_is_parked_alone,
    a_stop_is_heard_during_a_start,
    a_source_restored_to_the_past_is_not_read,
    checkpoints_do_not_cause_the_next_one,
    a_stop_does_not_wait_for_a_reader_of_standard_output,
}

async fn a_required_plugin_that_cannot_be_loaded_keeps_its_place(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("a")?;
    scene.lines_plugin("b")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("b.txt", 1).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let manifest = scene.path("plugins/b/plugin.toml");
    let good = std::fs::read_to_string(&manifest)?;
    std::fs::write(&manifest, format!("tpyo = 1\n{good}"))?;
    let mut walgate = scene.start()?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'x')").await?;
    scene.wait_lines("a.txt", 2).await?;
    walgate.wait_line("holds the acknowledgement", SOON).await?;
    let ready = walgate.get("/readyz").await?.status;
    ensure!(ready == 503, "a required plugin does not run, so the pipeline is not ready");
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    std::fs::write(&manifest, good)?;
    let _walgate = scene.run().await?;
    scene.wait_lines("b.txt", 2).await?;
    scene.wait_lines("a.txt", 2).await.map(drop)
}

async fn a_plugin_that_cannot_be_opened_is_parked_alone(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("good")?;
    let optional = shop_manifest("park", 2).replace("required = true", "required = false");
    scene.plugin("bad", "trap-in-open", &optional)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("good.txt", 1).await?;
    scene.wait_plugin(&walgate, "bad", "parked").await
}

async fn a_stop_is_heard_during_a_start(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("bad", "trap-in-open", &shop_manifest("halt", 1000))?;
    scene.create_slot()?;
    let mut walgate = scene.start()?;
    walgate.wait_line("open failed", SOON).await?;
    walgate.sigterm()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(0), "nothing was begun that would have to be finished");
    Ok(())
}

/// The same timeline, but less log than was acknowledged: what a restored copy of the data folder looks like.
async fn a_source_restored_to_the_past_is_not_read(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("a")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("a.txt", 1).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene
        .execute(
            "UPDATE walgate.pipelines SET acked = 'FF/0';
             UPDATE walgate.checkpoints SET end_lsn = 'FF/0', commit_lsn = '0/0', ordinal = 0",
        )
        .await?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'x')").await?;
    expect_end(&mut scene.start()?, 3, &["source_behind", "restored to an earlier state"]).await?;
    ensure!(scene.lines("a.txt").len() == 1, "nothing is delivered from another past");
    Ok(())
}

async fn checkpoints_do_not_cause_the_next_one(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.execute("DROP PUBLICATION shop; CREATE PUBLICATION shop FOR ALL TABLES").await?;
    scene.lines_plugin("a")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("a.txt", 1).await?;
    let count = async || -> Result<u64> {
        let page = walgate.get("/metrics").await?.body;
        let of = |line: &str| {
            line.strip_prefix("walgate_checkpoints_total{")
                .and_then(|rest| rest.split_once("} "))?
                .1
                .parse::<u64>()
                .ok()
        };
        Ok(page.lines().filter_map(of).sum::<u64>())
    };
    wait_until(SOON, "the first checkpoint", async || Ok(count().await? >= 1)).await?;
    let before = count().await?;
    // tidy: sleep ok, that nothing happens can only be seen by letting time pass
    tokio::time::sleep(Duration::from_secs(6)).await;
    let more = count().await? - before;
    ensure!(more <= 2, "{more} checkpoints in six idle seconds");
    Ok(())
}

async fn a_stop_does_not_wait_for_a_reader_of_standard_output(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[delivery]\ndrain_ms = 500")?;
    let manifest = lines_manifest(&scene.path("x")).replace("kind = \"file\"", "kind = \"stdout\"");
    let manifest: String =
        manifest.lines().filter(|line| !line.starts_with("path")).map(|line| format!("{line}\n")).collect();
    scene.plugin("a", "output-lines", &manifest)?;
    scene.create_slot()?;
    scene.execute("INSERT INTO orders SELECT g, 1, 'x' FROM generate_series(1, 20000) g").await?;
    let mut child = std::process::Command::new(walgate_harness::walgate_bin()?)
        .arg("--config")
        .arg(scene.config())
        .arg("run")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    // The pipe of a child that nobody reads holds 64 KiB, the output has ten times as much.
    wait_until(SOON, "a delivery", async || {
        let answer = walgate_harness::request(scene.api, "GET", "/status", None, "").await;
        Ok(answer.is_ok_and(|answer| answer.body.contains("\"rows\":10000")))
    })
    .await?;
    std::process::Command::new("kill").arg(child.id().to_string()).status()?;
    let ended = wait_until(SOON, "the end", async || Ok(child.try_wait()?.is_some())).await;
    let _ = child.kill();
    ended
}
