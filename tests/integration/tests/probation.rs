//! Versions that fail on probation, and what a restart makes of them: the one before goes on, unless an operator meant it.
//!
//! Holds: marks, copies and restarts. Never knows: how a lane exchanges its instance, or where a mark is kept.

use anyhow::{Result, ensure};
use walgate_harness::{guest, wait_until};

use super::scene::{SOON, Scene, expect_end, lines_manifest, shop_manifest};
use super::swaps::{another, insert, output_lines, wait_candidate, wait_generation};

super::scenarios! {
    a_version_that_fails_gives_way_to_the_one_before,
    a_version_that_fails_after_a_restart_gives_way,
    what_is_changed_while_nothing_runs_is_taken_as_it_is,
    what_was_taken_away_does_not_come_back_with_a_version,
    a_version_that_asked_for_less_goes_on_over_a_restart,
    a_version_that_has_proven_itself_does_not_give_way,
    a_version_that_was_rolled_back_is_tried_again_when_told,
    the_version_before_goes_on_from_the_state_of_the_next,
}

async fn a_version_that_fails_gives_way_to_the_one_before(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let patient = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &patient)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=2).await?;
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &patient)?;
    wait_generation(&scene, &walgate, 2).await?;
    insert(&scene, 3..=3).await?;
    scene.execute("INSERT INTO orders VALUES (4, 1, 'poison')").await?;
    // The one before takes what the new one could not.
    wait_generation(&scene, &walgate, 1).await?;
    wait_candidate(&scene, &walgate, "rolled-back").await?;
    insert(&scene, 5..=5).await?;
    scene.wait_lines("lines.txt", 5).await?;
    ensure!(walgate.get("/metrics").await?.body.contains("walgate_rollbacks_total{plugin=\"lines\"} 1"));
    scene.cli(&["plugin", "generations", "lines"])?.expect(0, "rolled back")?;
    // A restart does not try it again, goes on with the one before, and says why.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene.cli(&["check"])?.expect(0, "walgate plugin unblock lines")?;
    let mut walgate = scene.run().await?;
    wait_generation(&scene, &walgate, 1).await?;
    wait_candidate(&scene, &walgate, "walgate plugin unblock lines").await?;
    scene.execute("INSERT INTO orders VALUES (6, 1, 'poison')").await?;
    scene.wait_lines("lines.txt", 6).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // Without its copy nothing is left that may run.
    std::fs::remove_dir_all(scene.path("cache/generations"))?;
    let mut walgate = scene.start()?;
    walgate.wait_exit(SOON).await?;
    ensure!(walgate.stderr().contains("walgate plugin unblock lines"), "{}", walgate.stderr());
    scene.cli(&["check"])?.expect(2, "quarantined")?;
    scene.plugin_bytes("lines", &output_lines()?, &patient)?;
    let _walgate = scene.run().await?;
    insert(&scene, 7..=7).await?;
    scene.wait_lines("lines.txt", 7).await.map(drop)
}

/// A probation does not end with the process: a version that was killed on it goes back after it, too.
async fn a_version_that_fails_after_a_restart_gives_way(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    // Beside its plugin.toml, which is not where the copy of it lies.
    let manifest = lines_manifest(&scene.path("lines.txt"))
        .replace(&scene.path("lines.txt").display().to_string(), "../../lines.txt");
    let manifest = manifest.replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=2).await?;
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    walgate.sigkill()?;
    walgate.wait_exit(SOON).await?;
    scene.execute("INSERT INTO orders VALUES (3, 1, 'poison')").await?;
    let walgate = scene.run().await?;
    wait_generation(&scene, &walgate, 1).await?;
    wait_candidate(&scene, &walgate, "rolled-back").await?;
    insert(&scene, 4..=4).await?;
    scene.wait_lines("lines.txt", 4).await?;
    let status = scene.status(&walgate).await?;
    ensure!(status["phase"] == "streaming" && status["halt"].is_null(), "{status}");
    ensure!(!walgate.stderr().contains("halted"), "{}", walgate.stderr());
    scene.wait_confirmed().await
}

/// Whoever changes a version by hand means it: it is on no probation, and what it fails on halts.
async fn what_is_changed_while_nothing_runs_is_taken_as_it_is(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=1).await?;
    scene.wait_lines("lines.txt", 1).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &manifest)?;
    scene.execute("INSERT INTO orders VALUES (2, 1, 'poison')").await?;
    expect_end(&mut scene.start()?, 3, &["plugin_failed"]).await?;
    scene.cli(&["plugin", "rollback", "lines"])?.expect(0, "generation 1")?;
    let _walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

/// One plugin.toml is one grant, whatever use of it each version makes.
async fn a_version_that_asked_for_less_goes_on_over_a_restart(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=1).await?;
    scene.wait_lines("lines.txt", 1).await?;
    // It imports no outputs.
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-in-deliver")?)?, &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    insert(&scene, 2..=2).await?;
    wait_candidate(&scene, &walgate, "rolled-back").await?;
    scene.wait_lines("lines.txt", 2).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let check = scene.cli(&["check"])?;
    check.expect(0, "from the copy of the version before")?;
    let walgate = scene.run().await?;
    wait_generation(&scene, &walgate, 1).await?;
    insert(&scene, 3..=3).await?;
    scene.wait_lines("lines.txt", 3).await.map(drop)
}

/// Over a restart nothing runs under a plugin.toml that gives more than the one in the directory.
async fn what_was_taken_away_does_not_come_back_with_a_version(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let narrow = manifest.replace("[\"id\", \"name\"]", "[\"id\"]");
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &narrow)?;
    wait_generation(&scene, &walgate, 2).await?;
    // On probation, so that the start after this would have the one before stand by.
    walgate.sigkill()?;
    walgate.wait_exit(SOON).await?;
    let mut walgate = scene.run().await?;
    wait_generation(&scene, &walgate, 2).await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'poison')").await?;
    let status = walgate.wait_exit(SOON).await?;
    ensure!(status.code() == Some(3), "{status}: {}", walgate.stderr());
    // The one before sees no less than it did; the operator says so.
    scene.cli(&["plugin", "rollback", "lines"])?.expect(0, "generation 1")?;
    let _walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 1).await.map(drop)
}

/// One that was through its probation halts like any other: what it cannot take is no matter of its version.
async fn a_version_that_has_proven_itself_does_not_give_way(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.plugins("probation_ms = 200")?;
    let manifest = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    let proven = "SELECT bool_and(proven)::text FROM walgate.generations WHERE generation = 2";
    wait_until(SOON, "it to prove itself", async || Ok(scene.ask(proven).await? == "true")).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'poison')").await?;
    expect_end(&mut scene.start()?, 3, &["plugin_failed"]).await?;
    scene.cli(&["plugin", "rollback", "lines"])?.expect(0, "generation 1")?;
    let _walgate = scene.run().await?;
    scene.wait_lines("lines.txt", 1).await.map(drop)
}

async fn a_version_that_was_rolled_back_is_tried_again_when_told(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'poison')").await?;
    wait_candidate(&scene, &walgate, "rolled-back").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.cli(&["plugin", "unblock", "lines"])?.expect(0, "a running walgate tries")?;
    wait_generation(&scene, &walgate, 2).await?;
    insert(&scene, 2..=2).await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

/// State belongs to the plugin and not to a version of it, so going back loses no count and counts nothing twice.
async fn the_version_before_goes_on_from_the_state_of_the_next(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = format!("{}[grant]\ncapabilities = [\"metrics\", \"state\"]\n", shop_manifest("halt", 5));
    let counter = std::fs::read(guest("state-counter")?)?;
    scene.plugin_bytes("lines", &counter, &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let count = async |rows: u32| {
        let kept =
            "SELECT convert_from(value, 'UTF8') FROM walgate.plugin_state WHERE plugin = 'lines' AND key = 'rows'";
        wait_until(SOON, &format!("{rows} rows in the state"), async || Ok(scene.ask(kept).await? == rows.to_string()))
            .await
    };
    insert(&scene, 1..=10).await?;
    count(10).await?;
    scene.plugin_bytes("lines", &another(&counter, "next"), &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    insert(&scene, 11..=30).await?;
    count(30).await?;
    scene.cli(&["plugin", "rollback", "lines"])?.expect(0, "generation 1")?;
    wait_generation(&scene, &walgate, 1).await?;
    insert(&scene, 31..=40).await?;
    count(40).await
}
