//! A sink that says `durable` and loses what it was given: what is noticed, and what cannot be.
//!
//! The word frees log on the source, and the host takes it. A sink that only takes changes in can lose them unnoticed,
//! which is why the contract gives the word that weight. One that keeps its own position shows a loss with the next
//! position it answers, and does not go on over the gap.

use anyhow::{Result, ensure};
use walgate_harness::wait_until;

use super::beside::Hostile;
use crate::scene::{SOON, Scene, expect_end};

fn loses() -> Hostile {
    Hostile::new("durable-and-lost").with_output()
}

/// A scene with the plugin at work and one row that it says is durable.
async fn one_row(major: u32, hostile: &Hostile) -> Result<(Scene, walgate_harness::Walgate)> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("good")?;
    scene.plugin(
        "bad",
        "durable-and-lost",
        &hostile.manifest(&scene).replace("required = false", "required = true"),
    )?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'fine')").await?;
    wait_until(SOON, "the row to be taken", async || Ok(scene.status(&walgate).await?["plugins"]["bad"]["rows"] == 1))
        .await?;
    scene.wait_confirmed().await?;
    Ok((scene, walgate))
}

/// Nothing tells the host: the acknowledgement has passed the row, and only the next one is delivered.
pub(super) async fn durable_and_lost(major: u32) -> Result<()> {
    let (scene, walgate) = one_row(major, &loses()).await?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'poison')").await?;
    wait_until(SOON, "that to be taken", async || Ok(scene.status(&walgate).await?["plugins"]["bad"]["rows"] == 4))
        .await?;
    // What the host committed is there; the three changes before it were in memory.
    scene.wait_lines("bad.txt", 1).await?;
    scene.wait_lines("good.txt", 4).await?;
    let bad = scene.status(&walgate).await?["plugins"]["bad"].clone();
    ensure!(bad["state"] == "running" && bad["ended_instances"] == 1, "{bad}");
    Ok(())
}

/// The position that the next instance answers shows it: the plugin stops with what it lost, and the others go on.
pub(super) async fn durable_and_lost_with_a_position(major: u32) -> Result<()> {
    let (scene, walgate) = one_row(major, &loses().setting("position", "second")).await?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'poison')").await?;
    scene.wait_plugin(&walgate, "bad", "parked").await?;
    let bad = scene.status(&walgate).await?["plugins"]["bad"].clone();
    let cause = bad["cause"].as_str().unwrap_or_default();
    ensure!(
        cause.contains("data_gap(plugin_behind)") && cause.contains("0/1,") && cause.contains("lost data"),
        "{bad}"
    );
    scene.execute("INSERT INTO orders VALUES (3, 1, 'fine')").await?;
    scene.wait_lines("good.txt", 5).await?;
    ensure!(scene.lines("bad.txt").is_empty(), "it was given changes behind the gap");
    Ok(())
}

/// The same between two processes: what lies between is no longer on the source.
pub(super) async fn durable_and_lost_before_a_start(major: u32) -> Result<()> {
    let (scene, mut walgate) = one_row(major, &loses()).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let set_back =
        loses().setting("position", "always").manifest(&scene).replace("required = false", "required = true");
    scene.plugin("bad", "durable-and-lost", &set_back.replace("\"park\"", "\"halt\""))?;
    expect_end(&mut scene.start()?, 3, &["data_gap(plugin_behind)", "bad", "it stands at 0/1"]).await
}
