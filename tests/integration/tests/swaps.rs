//! New versions of plugins under a running walgate: they take over, they are refused, or they give way again, and no change is
//! lost or repeated by any of it.
//!
//! Holds: what an operator does to the plugin directory, and what follows. Never knows: how a lane exchanges its instance.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walgate_harness::{Walgate, guest, wait_until};

use super::scene::{SOON, Scene, expect_end, lines_manifest};

super::scenarios! {
    a_new_version_takes_over_under_load,
    new_settings_are_a_new_generation,
    a_bad_candidate_changes_nothing,
    a_restart_among_bad_files_changes_nothing,
    half_a_file_changes_nothing,
    a_grant_is_changed_without_a_restart,
    a_grant_that_cannot_start_changes_nothing,
    several_change_at_once_under_load,
    a_plugin_comes_and_goes,
    a_newcomer_that_never_opens_is_turned_away,
    a_required_newcomer_that_fails_keeps_its_place,
    an_output_is_of_one_plugin,
    a_parked_plugin_is_tried_again_when_it_is_dropped_in_again,
    a_turn_goes_back_after_as_many_failures,
    an_operator_goes_back,
    a_plugin_that_cannot_go_on_is_mended_while_it_tries,
}

/// The same component under another digest: a custom section more.
pub(crate) fn another(component: &[u8], name: &str) -> Vec<u8> {
    let mut bytes = component.to_vec();
    let length = u8::try_from(name.len()).unwrap_or(100);
    bytes.extend([0, length + 1, length]);
    bytes.extend(name.as_bytes());
    bytes
}

pub(crate) fn output_lines() -> Result<Vec<u8>> {
    Ok(std::fs::read(guest("output-lines")?)?)
}

pub(crate) async fn plugin(scene: &Scene, walgate: &Walgate) -> Result<Value> {
    Ok(scene.status(walgate).await?["plugins"]["lines"].clone())
}

pub(crate) async fn wait_generation(scene: &Scene, walgate: &Walgate, number: u64) -> Result<()> {
    wait_until(SOON, &format!("generation {number}"), async || {
        let lines = plugin(scene, walgate).await?;
        Ok(lines["generation"] == number && (lines["state"] == "running" || lines["state"] == "probation"))
    })
    .await
}

pub(crate) async fn wait_candidate(scene: &Scene, walgate: &Walgate, words: &str) -> Result<()> {
    wait_until(SOON, &format!("a candidate {words}"), async || {
        Ok(plugin(scene, walgate).await?["candidate"].as_str().is_some_and(|candidate| candidate.contains(words)))
    })
    .await
}

/// Every order once, in the order of their keys.
fn check_lines(scene: &Scene, count: usize) -> Result<()> {
    let lines = scene.lines("lines.txt");
    ensure!(lines.len() == count, "{} lines instead of {count}", lines.len());
    Ok(())
}

pub(crate) async fn insert(scene: &Scene, ids: std::ops::RangeInclusive<u32>) -> Result<()> {
    for id in ids {
        scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'x')")).await?;
    }
    Ok(())
}

async fn a_new_version_takes_over_under_load(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    let load = insert(&scene, 1..=400);
    let swaps = async {
        for number in 2..=4 {
            scene.plugin_bytes("lines", &another(&output_lines()?, &format!("v{number}")), &manifest)?;
            wait_generation(&scene, &walgate, number).await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let (loaded, swapped) = tokio::join!(load, swaps);
    loaded?;
    swapped?;
    scene.wait_lines("lines.txt", 400).await?;
    let lines = plugin(&scene, &walgate).await?;
    ensure!(lines["last_swap_pause_us"].is_u64() && lines["ended_instances"] == 0, "{lines}");
    let listed = scene.cli(&["--json", "plugin", "generations", "lines"])?;
    let listed: Value = serde_json::from_str(&listed.stdout()).with_context(|| listed.all())?;
    ensure!(listed.as_array().is_some_and(|all| all.len() == 4 && all[3]["present"] == true), "{listed}");
    let metrics = walgate.get("/metrics").await?.body;
    ensure!(metrics.contains("walgate_swaps_total{plugin=\"lines\"} 3"));
    ensure!(lines["state"] == "probation" && metrics.contains("walgate_plugins{kind=\"probation\"} 1"), "{metrics}");
    let plugins: Value = serde_json::from_str(&walgate.get("/plugins").await?.body)?;
    ensure!(plugins["lines"]["state"] == "probation" && plugins["lines"]["probation_until"].is_u64(), "{plugins}");
    // A restart runs the last one under its number.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let walgate = scene.run().await?;
    wait_generation(&scene, &walgate, 4).await?;
    insert(&scene, 401..=401).await?;
    scene.wait_lines("lines.txt", 401).await.map(drop)
}

async fn new_settings_are_a_new_generation(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    scene.plugin_bytes("lines", &output_lines()?, &format!("{manifest}\n[settings]\nword = \"x\"\n"))?;
    wait_generation(&scene, &walgate, 2).await?;
    // The old content again is the old generation.
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    wait_generation(&scene, &walgate, 1).await?;
    insert(&scene, 1..=3).await?;
    scene.wait_lines("lines.txt", 3).await.map(drop)
}

async fn a_bad_candidate_changes_nothing(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    let good = output_lines()?;
    let trap_in_open = std::fs::read(guest("trap-in-open")?)?;
    let not_a_sink = std::fs::read(guest("not-a-sink")?)?;
    let wrong_toml = format!("{manifest}\n[limits]\nmemory_mib = 1000000000\n");
    let cases: [(&[u8], &str, &str); 5] = [
        (b"garbage", &manifest, "rejected"),
        (&good[..good.len() / 2], &manifest, "rejected"),
        (&not_a_sink, &manifest, "rejected"),
        (&good, &wrong_toml, "limits.memory_mib"),
        (&trap_in_open, &manifest, "cannot be opened"),
    ];
    for (id, (component, manifest, words)) in (1..).zip(cases) {
        scene.plugin_bytes("lines", component, manifest)?;
        wait_candidate(&scene, &walgate, words).await?;
        insert(&scene, id..=id).await?;
        scene.wait_lines("lines.txt", id as usize).await?;
        let lines = plugin(&scene, &walgate).await?;
        ensure!(lines["state"] == "running" && lines["generation"] == 1, "{words}: {lines}");
        let listed = scene.cli(&["--json", "plugin", "list"])?;
        let listed: Value = serde_json::from_str(&listed.stdout()).with_context(|| listed.all())?;
        let now = &listed[0]["now"];
        ensure!(
            now["state"] == "running" && now["candidate"].as_str().is_some_and(|said| said.contains(words)),
            "{listed}"
        );
    }
    scene.plugin_bytes("lines", &good, &manifest)?;
    wait_until(SOON, "no candidate", async || Ok(plugin(&scene, &walgate).await?["candidate"].is_null())).await
}

/// What would not have stopped it while it ran does not do so over a restart either.
async fn a_restart_among_bad_files_changes_nothing(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=1).await?;
    scene.wait_lines("lines.txt", 1).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    scene.plugin_bytes("lines", b"garbage", &manifest)?;
    wait_candidate(&scene, &walgate, "rejected").await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let check = scene.cli(&["check"])?;
    check.expect(0, "warn plugin lines: rejected")?;
    check.expect(0, "the version that ran last would go on, from its copy")?;
    let mut walgate = scene.run().await?;
    insert(&scene, 2..=2).await?;
    scene.wait_lines("lines.txt", 2).await?;
    wait_candidate(&scene, &walgate, "rejected").await?;
    ensure!(plugin(&scene, &walgate).await?["generation"] == 1);
    // The next one is a candidate like any other.
    scene.plugin_bytes("lines", &another(&output_lines()?, "mended"), &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    insert(&scene, 3..=3).await?;
    scene.wait_lines("lines.txt", 3).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // A file beside the folder, under its name, is no second one of it.
    std::fs::write(scene.path("plugins/lines.wasm"), output_lines()?)?;
    let mut walgate = scene.run().await?;
    insert(&scene, 4..=4).await?;
    scene.wait_lines("lines.txt", 4).await?;
    scene.wait_confirmed().await?;
    std::fs::remove_file(scene.path("plugins/lines.wasm"))?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // What an operator wrote into plugin.toml since then counts, whatever it is.
    scene.plugin_bytes("lines", b"garbage", &manifest.replace("[\"id\", \"name\"]", "[\"id\"]"))?;
    scene.cli(&["check"])?.expect(2, "rejected")?;
    expect_end(&mut scene.start()?, 2, &["the version that ran last cannot go on", "no plugin in"]).await
}

async fn half_a_file_changes_nothing(major: u32) -> Result<()> {
    use std::io::Write as _;
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    // Written in place, slowly: a look finds another size, or half a component.
    let bytes = another(&output_lines()?, "slowly");
    let mut file = std::fs::File::create(scene.path("plugins/lines/plugin.wasm"))?;
    for part in bytes.chunks(bytes.len() / 20 + 1) {
        file.write_all(part)?;
        file.sync_all()?;
        tokio::time::sleep(Duration::from_millis(60)).await; // tidy: sleep ok, a writer that takes its time is the case
    }
    drop(file);
    insert(&scene, 1..=2).await?;
    wait_generation(&scene, &walgate, 2).await?;
    scene.wait_lines("lines.txt", 2).await?;
    ensure!(plugin(&scene, &walgate).await?["ended_instances"] == 0);
    Ok(())
}

/// One changes its code, one its grant, one comes and one goes: each within its own time, while rows come in.
async fn several_change_at_once_under_load(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    // Lines that tell rows apart.
    let manifest = |name: &str| lines_manifest(&scene.path(name)) + "[settings]\nvalues = \"yes\"\n";
    let goes = lines_manifest(&scene.path("goes.txt")).replace("[plugin]", "[plugin]\non_missing = \"stop\"");
    for name in ["lines", "grant"] {
        scene.plugin_bytes(name, &output_lines()?, &manifest(&format!("{name}.txt")))?;
    }
    scene.plugin_bytes("goes", &output_lines()?, &goes)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let changes = async {
        scene.plugin_bytes("lines", &another(&output_lines()?, "code"), &manifest("lines.txt"))?;
        let wider = manifest("grant.txt").replace("[\"id\", \"name\"]", "[\"id\", \"name\", \"email\"]");
        scene.plugin_bytes("grant", &output_lines()?, &wider)?;
        scene.lines_plugin("comes")?;
        std::fs::remove_dir_all(scene.path("plugins/goes"))?;
        wait_until(SOON, "all of it", async || {
            let plugins = scene.status(&walgate).await?["plugins"].clone();
            let second = |name: &str| plugins[name]["generation"] == 2;
            Ok(second("lines")
                && second("grant")
                && plugins["comes"]["generation"] == 1
                && plugins["goes"]["state"] == "stopped")
        })
        .await
    };
    let (loaded, changed) = tokio::join!(insert(&scene, 1..=300), changes);
    loaded?;
    changed?;
    for name in ["lines.txt", "grant.txt"] {
        let lines = scene.wait_lines(name, 300).await?;
        let different: std::collections::BTreeSet<&String> = lines.iter().collect();
        ensure!(different.len() == 300, "{name} has lines twice");
    }
    let came = scene.lines("comes.txt").len();
    insert(&scene, 301..=301).await?;
    wait_until(SOON, "a row of the one that came", async || Ok(scene.lines("comes.txt").len() > came)).await?;
    scene.wait_confirmed().await
}

async fn a_grant_is_changed_without_a_restart(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    // Without orders at first.
    let orders = "[[grant.table]]\nschema = \"public\"\nname = \"orders\"\ncolumns = \"*\"\n";
    ensure!(manifest.contains(orders), "{manifest}");
    scene.plugin_bytes("lines", &output_lines()?, &manifest.replace(orders, ""))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1..=3).await?;
    scene.execute("INSERT INTO customers VALUES (1, 'a', 'b', 'c')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    let load = async {
        wait_generation(&scene, &walgate, 2).await?;
        insert(&scene, 4..=20).await
    };
    let customers = async {
        for id in 2..=40 {
            scene.execute(&format!("INSERT INTO customers VALUES ({id}, 'a', 'b', 'c')")).await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let (loaded, others) = tokio::join!(load, customers);
    loaded?;
    others?;
    scene.wait_lines("lines.txt", 40 + 17).await?;
    check_lines(&scene, 57)?;
    ensure!(walgate.stderr().contains("the pipeline begins again with the change"), "{}", walgate.stderr());
    scene.wait_confirmed().await
}

async fn a_grant_that_cannot_start_changes_nothing(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    // An output that has no place, which only a start finds.
    scene.plugin_bytes("lines", &output_lines()?, &lines_manifest(&scene.path("nowhere/lines.txt")))?;
    wait_candidate(&scene, &walgate, "nowhere").await?;
    wait_generation(&scene, &walgate, 1).await?;
    insert(&scene, 1..=2).await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

async fn a_plugin_comes_and_goes(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=2).await?;
    scene.wait_lines("lines.txt", 2).await?;
    let second = lines_manifest(&scene.path("second.txt")).replace("[plugin]", "[plugin]\non_missing = \"stop\"");
    scene.plugin_bytes("second", &output_lines()?, &second)?;
    scene.wait_plugin(&walgate, "second", "probation").await?;
    insert(&scene, 3..=4).await?;
    scene.wait_lines("second.txt", 2).await?;
    scene.wait_lines("lines.txt", 4).await?;
    // One ends with its files, the other goes on.
    std::fs::remove_dir_all(scene.path("plugins/second"))?;
    wait_until(SOON, "the second to be gone", async || {
        Ok(scene.status(&walgate).await?["plugins"]["second"]["state"] == "stopped")
    })
    .await?;
    std::fs::remove_dir_all(scene.path("plugins/lines"))?;
    walgate.wait_line("its files are gone; it goes on", SOON).await?;
    insert(&scene, 5..=6).await?;
    scene.wait_lines("lines.txt", 6).await?;
    ensure!(scene.lines("second.txt").len() == 2);
    scene.wait_confirmed().await
}

/// Nobody waits long for a newcomer, and not twice.
async fn a_newcomer_that_never_opens_is_turned_away(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let manifest = lines_manifest(&scene.path("never.txt"));
    let never =
        format!("{manifest}\n[limits]\nopen_deadline_ms = 500\n").replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin("never", "loop-in-open", &never)?;
    scene.wait_plugin(&walgate, "never", "rejected").await?;
    insert(&scene, 1..=2).await?;
    scene.wait_lines("lines.txt", 2).await?;
    ensure!(walgate.stderr().matches("open failed").count() <= 1, "{}", walgate.stderr());
    // Another turn does not open it again.
    scene.lines_plugin("other")?;
    scene.wait_plugin(&walgate, "other", "probation").await?;
    insert(&scene, 3..=4).await?;
    scene.wait_lines("other.txt", 2).await?;
    ensure!(scene.status(&walgate).await?["plugins"]["never"]["state"] == "rejected");
    scene.wait_lines("lines.txt", 4).await?;
    // Nor do those that ran before end for it over a restart, whatever it is to do when it fails.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // Not ready, because a required plugin does not run.
    let mut walgate = scene.start()?;
    walgate.wait_line("streaming", SOON).await?;
    scene.wait_plugin(&walgate, "never", "parked").await?;
    insert(&scene, 5..=5).await?;
    scene.wait_lines("lines.txt", 5).await?;
    // Mended it begins where it was parked: what came before that was not for it.
    scene.plugin("never", "output-lines", &manifest)?;
    scene.wait_plugin(&walgate, "never", "probation").await?;
    insert(&scene, 6..=6).await?;
    scene.wait_lines("never.txt", 2).await.map(drop)
}

/// It was opened, so it has a place from there on: what it could not take is still there for its next version.
async fn a_required_newcomer_that_fails_keeps_its_place(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let manifest = lines_manifest(&scene.path("late.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin("late", "trap-on-poison", &manifest)?;
    scene.wait_plugin(&walgate, "late", "probation").await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'poison')").await?;
    scene.wait_plugin(&walgate, "late", "quarantined").await?;
    insert(&scene, 2..=2).await?;
    scene.wait_lines("lines.txt", 2).await?;
    let late =
        async |walgate: &Walgate| Ok::<_, anyhow::Error>(scene.status(walgate).await?["plugins"]["late"].clone());
    wait_until(SOON, "its place", async || {
        let late = late(&walgate).await?;
        Ok(late["required"] == true && late["pinned_wal_bytes"].as_u64() > Some(0))
    })
    .await?;
    ensure!(!walgate.stderr().contains("its folder is gone"), "{}", walgate.stderr());
    // Over a restart it is the same.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // Not ready, because a required plugin does not run.
    let mut walgate = scene.start()?;
    walgate.wait_line("streaming", SOON).await?;
    scene.wait_plugin(&walgate, "late", "quarantined").await?;
    insert(&scene, 3..=3).await?;
    scene.wait_lines("lines.txt", 3).await?;
    ensure!(late(&walgate).await?["required"] == true);
    scene.plugin("late", "output-lines", &manifest)?;
    scene.wait_lines("late.txt", 3).await?;
    scene.wait_confirmed().await
}

/// Two writers of one file would wait for each other: the one that comes later is refused, and the others do not stand still.
async fn an_output_is_of_one_plugin(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1..=1).await?;
    scene.wait_lines("lines.txt", 1).await?;
    // First by its name.
    scene.plugin("a-copy", "output-lines", &lines_manifest(&scene.path("lines.txt")))?;
    let refused = "is written by output \"lines\" of plugin lines";
    scene.wait_plugin(&walgate, "a-copy", "rejected").await?;
    let cause = scene.status(&walgate).await?["plugins"]["a-copy"]["cause"].to_string();
    ensure!(cause.contains(&refused.replace('"', "\\\"")), "{cause}");
    insert(&scene, 2..=2).await?;
    scene.wait_lines("lines.txt", 2).await?;
    scene.cli(&["check"])?.expect(2, "is written by output")?;
    scene.cli(&["plugin", "check", &scene.path("plugins").display().to_string()])?.expect(2, "is written by output")?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // Not ready, because a required plugin does not run.
    let mut walgate = scene.start()?;
    walgate.wait_line("streaming", SOON).await?;
    scene.wait_plugin(&walgate, "a-copy", "parked").await?;
    insert(&scene, 3..=3).await?;
    scene.wait_lines("lines.txt", 3).await.map(drop)
}

/// A parked one is left alone by changes of others, and tried again when it is dropped in again, also unchanged.
async fn a_parked_plugin_is_tried_again_when_it_is_dropped_in_again(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let manifest = lines_manifest(&scene.path("parks.txt"))
        .replace("on_failure = \"halt\"", "backoff_ms = 10\non_failure = \"park\"");
    scene.plugin("parks", "trap-on-poison", &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let parked = || walgate.stderr().matches("plugin parked").count();
    scene.execute("INSERT INTO orders VALUES (1, 1, 'poison')").await?;
    scene.wait_plugin(&walgate, "parks", "parked").await?;
    let before = parked();
    scene.lines_plugin("other")?;
    scene.wait_plugin(&walgate, "other", "probation").await?;
    ensure!(
        scene.status(&walgate).await?["plugins"]["parks"]["state"] == "parked" && parked() == before,
        "{}",
        walgate.stderr()
    );
    // Not mended, so it parks once more.
    scene.cli(&["plugin", "unblock", "parks"])?.expect(0, "a running walgate tries")?;
    wait_until(SOON, "it to be tried and parked again", async || {
        let parks = scene.status(&walgate).await?["plugins"]["parks"].clone();
        Ok(parks["state"] == "parked"
            && parks["retries"].as_u64() > Some(0)
            && parks["since"].is_u64()
            && parked() > before)
    })
    .await
    .with_context(|| walgate.stderr())?;
    // That was no version on trial, which would be told of as rolled back.
    let parks = scene.status(&walgate).await?["plugins"]["parks"].clone();
    ensure!(parks["candidate"].is_null(), "{parks}");
    insert(&scene, 2..=2).await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

/// A change that takes a turn has the same probation as one in a lane: failures count although each batch goes through in
/// the end, and whatever the policy is.
async fn a_turn_goes_back_after_as_many_failures(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"))
        .replace("on_failure = \"halt\"", "backoff_ms = 10\non_failure = \"park\"");
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let narrower = manifest.replace("[\"id\", \"name\"]", "[\"id\"]") + "[settings]\nbatches = \"1\"\n";
    scene.plugin("lines", "trap-after-batches", &narrower)?;
    wait_generation(&scene, &walgate, 2).await?;
    let load = async {
        for id in 1..=400 {
            if plugin(&scene, &walgate).await?["generation"] == 1 {
                return Ok(id - 1);
            }
            insert(&scene, id..=id).await?;
        }
        anyhow::bail!("it never went back: {}", plugin(&scene, &walgate).await?)
    };
    let rows: u32 = load.await.with_context(|| walgate.stderr())?;
    wait_candidate(&scene, &walgate, "rolled-back").await?;
    insert(&scene, rows + 1..=rows + 2).await?;
    scene.wait_lines("lines.txt", rows as usize + 2).await.map(drop)
}

async fn an_operator_goes_back(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    scene.cli(&["plugin", "rollback", "lines"])?.expect(2, "nothing to go back to")?;
    let walgate = scene.run().await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    scene.plugin_bytes("lines", &another(&output_lines()?, "next"), &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    scene.cli(&["plugin", "rollback", "lines"])?.expect(0, "generation 1")?;
    wait_generation(&scene, &walgate, 1).await?;
    scene.cli(&["plugin", "rollback", "lines", "--to", "2"])?.expect(0, "generation 2")?;
    wait_generation(&scene, &walgate, 2).await?;
    scene.cli(&["plugin", "rollback", "lines", "--to", "9"])?.expect(2, "no generation 9")?;
    insert(&scene, 1..=2).await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

/// It would halt in the end; the version that is dropped in meanwhile takes the batch.
async fn a_plugin_that_cannot_go_on_is_mended_while_it_tries(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"))
        .replace("max_attempts = 5", "max_attempts = 1000\nbackoff_ms = 60000\nmax_backoff_ms = 60000");
    scene.plugin_bytes("lines", &std::fs::read(guest("trap-on-poison")?)?, &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1..=2).await?;
    scene.execute("INSERT INTO orders VALUES (3, 1, 'poison')").await?;
    scene.wait_plugin(&walgate, "lines", "retrying").await?;
    scene.plugin_bytes("lines", &output_lines()?, &manifest)?;
    wait_generation(&scene, &walgate, 2).await?;
    scene.wait_lines("lines.txt", 3).await.map(drop)
}
