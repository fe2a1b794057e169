//! What happens to a plugin directory beside good and bad components: it vanishes, it is full of an editor's leavings, of
//! links, or of hundreds of plugins. What runs goes on, and what is right is found.
//!
//! Never knows: how the directory is looked at.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walgate_harness::{Disk, Walgate, guest, wait_until};

use super::scene::{SOON, Scene, lines_manifest};

super::scenarios! {
    a_directory_that_vanishes_changes_nothing,
    another_directory_at_the_same_place_is_taken_up,
    what_editors_leave_behind_is_no_plugin,
    a_link_out_of_the_directory_is_refused,
    what_is_not_running_and_goes_is_forgotten,
    changes_are_found_by_looking_alone,
    nothing_is_looked_for_when_told_so,
    a_full_disk_keeps_no_plugin_from_running,
    hundreds_of_plugins,
}

/// Only what the system tells is found in time.
const TOLD: &str = "watch = \"notify\"\nrescan_ms = 3600000";

async fn lines_running(plugins: &str, major: u32) -> Result<(Scene, Walgate)> {
    let mut scene = Scene::new(major).await?;
    scene.plugins(plugins)?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    Ok((scene, walgate))
}

async fn insert(scene: &Scene, id: usize) -> Result<()> {
    scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'x')")).await?;
    scene.wait_lines("lines.txt", id).await.map(drop)
}

async fn wait_generation(scene: &Scene, walgate: &Walgate, plugin: &str, number: u64) -> Result<()> {
    wait_until(SOON, &format!("generation {number} of {plugin}"), async || {
        Ok(scene.status(walgate).await?["plugins"][plugin]["generation"] == number)
    })
    .await
}

/// The manifest of `lines` in its next version.
fn next(scene: &Scene) -> String {
    lines_manifest(&scene.path("lines.txt")) + "# another content\n"
}

async fn a_directory_that_vanishes_changes_nothing(major: u32) -> Result<()> {
    let (scene, mut walgate) = lines_running(TOLD, major).await?;
    insert(&scene, 1).await?;
    fs::rename(scene.path("plugins"), scene.path("away"))?;
    walgate.wait_line("what runs goes on as it is", SOON).await?;
    insert(&scene, 2).await?;
    fs::rename(scene.path("away"), scene.path("plugins"))?;
    walgate.wait_line("the plugin directory can be read again", SOON).await?;
    insert(&scene, 3).await?;
    let lines = scene.status(&walgate).await?["plugins"]["lines"].clone();
    ensure!(lines["generation"] == 1 && lines["ended_instances"] == 0 && lines["candidate"].is_null(), "{lines}");
    ensure!(!walgate.stderr().contains("its files are gone"), "{}", walgate.stderr());
    fs::write(scene.path("plugins/lines/plugin.toml"), next(&scene))?;
    wait_generation(&scene, &walgate, "lines", 2).await?;
    insert(&scene, 4).await
}

/// As volumes do whose content is switched by one link.
async fn another_directory_at_the_same_place_is_taken_up(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    fs::rename(scene.path("plugins"), scene.path("first"))?;
    symlink("first", scene.path("plugins"))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1).await?;
    fs::create_dir_all(scene.path("second/lines"))?;
    fs::copy(scene.path("first/lines/plugin.wasm"), scene.path("second/lines/plugin.wasm"))?;
    fs::write(scene.path("second/lines/plugin.toml"), next(&scene))?;
    symlink("second", scene.path("link"))?;
    fs::rename(scene.path("link"), scene.path("plugins"))?;
    wait_generation(&scene, &walgate, "lines", 2).await?;
    insert(&scene, 2).await?;
    let lines = scene.status(&walgate).await?["plugins"]["lines"].clone();
    ensure!(lines["state"] == "probation" && lines["ended_instances"] == 0, "{lines}");
    Ok(())
}

async fn what_editors_leave_behind_is_no_plugin(major: u32) -> Result<()> {
    let (scene, mut walgate) = lines_running("", major).await?;
    let dir = scene.path("plugins");
    for folder in [".git", ".lines.tmp", "half.tmp"] {
        fs::create_dir(dir.join(folder))?;
    }
    for file in ["notes.txt", "next.wasm.tmp", ".next.wasm", "4913", "lines/.plugin.toml.swp", "lines/#plugin.toml#"] {
        fs::write(dir.join(file), "not for walgate")?;
    }
    // As an editor saves: the old one is set aside, the new one is written under the name, the old one is removed.
    fs::rename(dir.join("lines/plugin.toml"), dir.join("lines/plugin.toml~"))?;
    fs::write(dir.join("lines/plugin.toml"), next(&scene))?;
    fs::remove_file(dir.join("lines/plugin.toml~"))?;
    wait_generation(&scene, &walgate, "lines", 2).await?;
    insert(&scene, 1).await?;
    // A bare component and a folder without one mean something, and are told.
    fs::write(dir.join("bare.wasm"), "not yet")?;
    fs::create_dir(dir.join("empty"))?;
    scene.wait_plugin(&walgate, "bare", "awaiting-grant").await?;
    scene.wait_plugin(&walgate, "empty", "rejected").await?;
    let status = scene.status(&walgate).await?;
    let names: Vec<&String> = status["plugins"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
    ensure!(names == ["bare", "empty", "lines"], "{names:?}");
    // A restart judges the same.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let walgate = scene.run().await?;
    let again = scene.status(&walgate).await?;
    ensure!(again["plugins"].as_object().is_some_and(|plugins| plugins.len() == 3), "{again}");
    insert(&scene, 2).await
}

async fn a_link_out_of_the_directory_is_refused(major: u32) -> Result<()> {
    let (scene, walgate) = lines_running("", major).await?;
    let dir = scene.path("plugins");
    // The whole plugin elsewhere, its component alone, and its plugin.toml alone.
    fs::create_dir_all(scene.path("elsewhere/plugin"))?;
    for file in ["plugin.wasm", "plugin.toml"] {
        fs::copy(dir.join("lines").join(file), scene.path("elsewhere/plugin").join(file))?;
    }
    symlink(scene.path("elsewhere/plugin"), dir.join("whole"))?;
    for (name, here, away) in [("code", "plugin.toml", "plugin.wasm"), ("grants", "plugin.wasm", "plugin.toml")] {
        let half = dir.join(format!("{name}.tmp"));
        fs::create_dir(&half)?;
        fs::copy(dir.join("lines").join(here), half.join(here))?;
        symlink(scene.path("elsewhere/plugin").join(away), half.join(away))?;
        fs::rename(half, dir.join(name))?;
    }
    for name in ["whole", "code", "grants"] {
        scene.wait_plugin(&walgate, name, "rejected").await?;
        let plugin = scene.status(&walgate).await?["plugins"][name].clone();
        ensure!(plugin["cause"].as_str().is_some_and(|cause| cause.contains("leads out")), "{name}: {plugin}");
    }
    // One that stays inside is followed, also when it is switched.
    let versions = [
        ("..v1", lines_manifest(&scene.path("inside.txt"))),
        ("..v2", next(&scene).replace("lines.txt", "inside.txt")),
    ];
    for (folder, manifest) in &versions {
        fs::create_dir(dir.join(folder))?;
        fs::copy(dir.join("lines/plugin.wasm"), dir.join(folder).join("plugin.wasm"))?;
        fs::write(dir.join(folder).join("plugin.toml"), manifest)?;
    }
    symlink("..v1", dir.join("inside"))?;
    scene.wait_plugin(&walgate, "inside", "probation").await?;
    insert(&scene, 1).await?;
    scene.wait_lines("inside.txt", 1).await?;
    symlink("..v2", dir.join("link.tmp"))?;
    fs::rename(dir.join("link.tmp"), dir.join("inside"))?;
    wait_generation(&scene, &walgate, "inside", 2).await?;
    insert(&scene, 2).await?;
    scene.wait_lines("inside.txt", 2).await.map(drop)
}

async fn what_is_not_running_and_goes_is_forgotten(major: u32) -> Result<()> {
    let (scene, walgate) = lines_running("", major).await?;
    scene.plugin_bytes("bad", b"garbage", &lines_manifest(&scene.path("bad.txt")))?;
    scene.wait_plugin(&walgate, "bad", "rejected").await?;
    fs::remove_dir_all(scene.path("plugins/bad"))?;
    wait_until(SOON, "it to be forgotten", async || Ok(scene.status(&walgate).await?["plugins"].get("bad").is_none()))
        .await?;
    insert(&scene, 1).await
}

async fn changes_are_found_by_looking_alone(major: u32) -> Result<()> {
    let (scene, walgate) = lines_running("watch = \"poll\"\nrescan_ms = 50", major).await?;
    fs::write(scene.path("plugins/lines/plugin.toml"), next(&scene))?;
    wait_generation(&scene, &walgate, "lines", 2).await?;
    insert(&scene, 1).await
}

async fn nothing_is_looked_for_when_told_so(major: u32) -> Result<()> {
    let (scene, mut walgate) = lines_running("watch = \"off\"\nrescan_ms = 50", major).await?;
    fs::write(scene.path("plugins/lines/plugin.toml"), next(&scene))?;
    insert(&scene, 1).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    ensure!(!walgate.stderr().contains("generation 2"), "{}", walgate.stderr());
    let walgate = scene.run().await?;
    wait_generation(&scene, &walgate, "lines", 2).await?;
    insert(&scene, 2).await
}

/// Neither the compiled code nor a copy to go back to can be kept: that costs time and a warning.
async fn a_full_disk_keeps_no_plugin_from_running(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let Some(disk) = Disk::mount(&scene.path("disk"), "16m")? else { return Ok(()) };
    fs::set_permissions(scene.path("disk"), PermissionsExt::from_mode(0o700))?;
    symlink("disk", scene.path("cache"))?;
    disk.fill()?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1).await?;
    fs::write(scene.path("plugins/lines/plugin.toml"), next(&scene))?;
    wait_generation(&scene, &walgate, "lines", 2).await?;
    insert(&scene, 2).await?;
    let said = walgate.stderr();
    ensure!(said.contains("compiled plugin not kept") && said.contains("no copy of it is kept"), "{said}");
    // With room again the next version leaves a copy.
    disk.empty()?;
    fs::write(scene.path("plugins/lines/plugin.toml"), next(&scene) + "#\n")?;
    wait_generation(&scene, &walgate, "lines", 3).await?;
    let listed = scene.cli(&["--json", "plugin", "generations", "lines"])?;
    let listed: Value = serde_json::from_str(&listed.stdout())?;
    let kept = |at: usize| listed[at]["kept"] == true;
    ensure!(!kept(0) && !kept(1) && kept(2), "{listed}");
    insert(&scene, 3).await
}

/// How often the stream was begun.
async fn connections(scene: &Scene, walgate: &Walgate) -> Result<u64> {
    scene.status(walgate).await?["source"]["connections"].as_u64().context("no count of connections")
}

async fn hundreds_of_plugins(major: u32) -> Result<()> {
    const MANY: usize = 200;
    const LATE: usize = 40;
    let scene = Scene::new(major).await?;
    let component = fs::read(guest("output-lines")?)?;
    let name = |number: usize| format!("p{number}");
    let out = |number: usize| format!("p{number}.txt");
    for number in 0..MANY {
        scene.plugin_bytes(&name(number), &component, &lines_manifest(&scene.path(&out(number))))?;
    }
    scene.create_slot()?;
    let walgate = scene.run().await?;
    let rows = "INSERT INTO orders SELECT g, g, 'x' FROM generate_series((SELECT count(*) FROM orders) + 1, (SELECT count(*) FROM orders) + 100) g";
    scene.execute(rows).await?;
    for number in 0..MANY {
        scene.wait_lines(&out(number), 100).await?;
    }
    // Two are changed and one comes; the others do not notice.
    for number in [7, 150] {
        let manifest = lines_manifest(&scene.path(&out(number))) + "# another content\n";
        fs::write(scene.path("plugins").join(name(number)).join("plugin.toml"), manifest)?;
    }
    for number in [7, 150] {
        wait_generation(&scene, &walgate, &name(number), 2).await?;
    }
    // Many come at once, one of them bad: that is not a break for the others each time.
    let before = connections(&scene, &walgate).await?;
    for number in 0..LATE {
        let late = format!("late{number}");
        scene.plugin_bytes(&late, &component, &lines_manifest(&scene.path(&format!("{late}.txt"))))?;
    }
    scene.plugin("late-and-bad", "trap-in-open", &lines_manifest(&scene.path("bad.txt")))?;
    for number in 0..LATE {
        let late = format!("late{number}");
        wait_until(SOON, &format!("{late} to run"), async || {
            let state = scene.status(&walgate).await?["plugins"][&late]["state"].clone();
            Ok(state == "probation" || state == "running")
        })
        .await?;
    }
    scene.wait_plugin(&walgate, "late-and-bad", "rejected").await?;
    let breaks = connections(&scene, &walgate).await? - before;
    ensure!(breaks <= 10, "{breaks} times for {LATE} plugins");
    scene.execute(rows).await?;
    for number in 0..MANY {
        scene.wait_lines(&out(number), 200).await?;
    }
    for number in 0..LATE {
        scene.wait_lines(&format!("late{number}.txt"), 100).await?;
    }
    let status = scene.status(&walgate).await?;
    let plugins = status["plugins"].as_object().into_iter().flatten();
    let odd: Vec<_> = plugins.filter(|(_, plugin)| plugin["ended_instances"] != 0 || plugin["retries"] != 0).collect();
    ensure!(odd.is_empty(), "{odd:?}");
    scene.wait_confirmed().await
}
