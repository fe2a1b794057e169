//! Plugins in Python and JavaScript beside and in the place of those in Rust: what an operator is promised does not depend on
//! the language of a plugin.
//!
//! Holds: one scenario a promise, for each language under its name, because a language whose tools are missing is left out
//! by that name. Never knows: how a component is made. What needs no server is in `host/plugin/tests/languages.rs`.
//! Read next: `tests/programs/counter-python`, `tests/programs/counter-javascript`.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use walgate_harness::{Walgate, cpu_time, guest, majors, wait_for, wait_until, walgate_bin};

use super::scene::{SOON, Scene, shop_manifest};
use super::swaps::another;

super::scenarios! {
    python_counts_exactly_what_is_granted,
    javascript_counts_exactly_what_is_granted,
    python_is_denied_when_it_calls,
    javascript_is_denied_when_it_calls,
    python_out_of_memory_is_parked_and_the_others_go_on,
    javascript_out_of_memory_is_parked_and_the_others_go_on,
    python_compiles_once_and_beside_the_stream,
    javascript_compiles_once_and_beside_the_stream,
    rust_python_and_javascript_take_turns_under_load,
    python_that_is_replaced_while_it_compiles_never_runs,
}

const PYTHON: &str = "counter-python";
const JAVASCRIPT: &str = "counter-javascript";

/// Enough for a guest of either language, and not for the long text beside it.
const TIGHT_MIB: u32 = 40;
/// Bytes of a text that each step over a batch copies once more.
const LONG_TEXT: u32 = 16 << 20;

/// Changes that have to be through while a component compiles: enough to see that none waits for the end of it.
const DURING: u32 = 5;
/// A loaded machine compiles a component in this time.
const COMPILED: Duration = Duration::from_secs(300);

async fn python_counts_exactly_what_is_granted(major: u32) -> Result<()> {
    counts_exactly_what_is_granted(major, PYTHON).await
}

async fn javascript_counts_exactly_what_is_granted(major: u32) -> Result<()> {
    counts_exactly_what_is_granted(major, JAVASCRIPT).await
}

async fn python_is_denied_when_it_calls(major: u32) -> Result<()> {
    if is_first(major) { is_denied_when_it_calls(major, PYTHON).await } else { Ok(()) }
}

async fn javascript_is_denied_when_it_calls(major: u32) -> Result<()> {
    if is_first(major) { is_denied_when_it_calls(major, JAVASCRIPT).await } else { Ok(()) }
}

async fn python_out_of_memory_is_parked_and_the_others_go_on(major: u32) -> Result<()> {
    if is_first(major) { out_of_memory_is_parked(major, PYTHON).await } else { Ok(()) }
}

async fn javascript_out_of_memory_is_parked_and_the_others_go_on(major: u32) -> Result<()> {
    if is_first(major) { out_of_memory_is_parked(major, JAVASCRIPT).await } else { Ok(()) }
}

async fn python_compiles_once_and_beside_the_stream(major: u32) -> Result<()> {
    if is_first(major) { compiles_once_and_beside_the_stream(major, PYTHON).await } else { Ok(()) }
}

async fn javascript_compiles_once_and_beside_the_stream(major: u32) -> Result<()> {
    if is_first(major) { compiles_once_and_beside_the_stream(major, JAVASCRIPT).await } else { Ok(()) }
}

/// Where the server has no part in a promise, one version of it is enough.
fn is_first(major: u32) -> bool {
    majors().first() == Some(&major)
}

/// The shop without private columns, and what the counters ask for.
fn manifest() -> String {
    format!("{}[grant]\ncapabilities = [\"metrics\", \"state\"]\n", shop_manifest("halt", 5))
}

/// A scene whose cache has the compiled form of these guests.
async fn scene_with(major: u32, guests: &[&'static str]) -> Result<Scene> {
    let scene = Scene::new(major).await?;
    let cache = scene.path("cache");
    fs::DirBuilder::new().mode(0o700).create(&cache)?;
    for name in guests {
        fill(name, &cache)?;
    }
    Ok(scene)
}

/// Puts the compiled form of a guest into a cache. It is compiled once for all tests, because that takes seconds.
fn fill(name: &'static str, cache: &Path) -> Result<()> {
    static COMPILED: Mutex<Vec<(&str, TempDir)>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.iter().any(|(known, _)| *known == name) {
        compiled.push((name, compile(name)?));
    }
    let folder = compiled.iter().find(|(known, _)| *known == name).map(|(_, folder)| folder.path().join("cache"));
    for file in code(&folder.context("it was just compiled")?)? {
        fs::copy(&file, cache.join(file.file_name().context("a file has a name")?))?;
    }
    Ok(())
}

/// A folder with a cache in it, filled by the real binary.
fn compile(name: &str) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("wg-compiled-").tempdir()?;
    let plugin = folder.path().join("plugins/counter");
    fs::create_dir_all(&plugin)?;
    fs::copy(guest(name)?, plugin.join("plugin.wasm"))?;
    fs::write(plugin.join("plugin.toml"), manifest())?;
    // Nothing is asked of the source.
    let config = folder.path().join("walgate.toml");
    fs::write(
        &config,
        "[source]\nurl = \"postgres://nobody@127.0.0.1:1/nothing\"\nslot = \"none\"\npublications = [\"none\"]\n\
         [plugins]\ndir = \"plugins\"\ncache_dir = \"cache\"\n",
    )?;
    let output = Command::new(walgate_bin()?).arg("--config").arg(&config).args(["plugin", "list"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains(": ready"), "{name}: {said}");
    Ok(folder)
}

/// The files of compiled code in a cache.
fn code(cache: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(cache)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "cwasm") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A number that a plugin keeps in its state as text.
async fn kept(scene: &Scene, plugin: &str, key: &str) -> Result<String> {
    let sql = format!(
        "SELECT coalesce((SELECT convert_from(value, 'UTF8') FROM walgate.plugin_state \
         WHERE plugin = '{plugin}' AND key = '{key}'), '')"
    );
    scene.ask(&sql).await
}

async fn wait_kept(scene: &Scene, rows: u32) -> Result<()> {
    wait_until(SOON, &format!("{rows} rows in the state"), async || {
        Ok(kept(scene, "counter", "rows").await? == rows.to_string())
    })
    .await
}

async fn plugin(scene: &Scene, walgate: &Walgate) -> Result<Value> {
    Ok(scene.status(walgate).await?["plugins"]["counter"].clone())
}

async fn insert(scene: &Scene, id: u32) -> Result<()> {
    scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'x')")).await
}

async fn counts_exactly_what_is_granted(major: u32, language: &'static str) -> Result<()> {
    let scene = scene_with(major, &[language]).await?;
    scene.plugin("counter", language, &manifest())?;
    scene.plugin("rust", "counter-rust", &manifest())?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    // 50 orders of three values, ten without a note; of 10 customers two columns are granted and two are not.
    scene
        .execute(
            "INSERT INTO orders SELECT g, -g, CASE WHEN g > 10 THEN 'Größe ' || g END FROM generate_series(1, 50) g; \
             INSERT INTO customers SELECT g, '名 ' || g, 'secret', 'secret' FROM generate_series(1, 10) g",
        )
        .await?;
    // Five rows whole, and five keys.
    scene.execute("UPDATE orders SET note = '😀' WHERE id <= 5").await?;
    scene.execute("DELETE FROM orders WHERE id > 45").await?;
    let (rows, values) = (50 + 10 + 5 + 5, 50 * 3 - 10 + 10 * 2 + 5 * 3 + 5);
    wait_kept(&scene, rows).await?;
    let metrics = walgate.get("/metrics").await?.body;
    for line in [
        format!("walgate_plugin_rows{{plugin=\"counter\"}} {rows}\n"),
        format!("walgate_plugin_values{{plugin=\"counter\"}} {values}\n"),
    ] {
        ensure!(metrics.contains(&line), "no {line:?} in {metrics}");
    }
    // And each value is the one that Rust has read.
    let fingerprint = kept(&scene, "counter", "fingerprint").await?;
    let totals = format!("values={values} absent=10 fingerprint={fingerprint}");
    wait_until(SOON, "the same of the counter in Rust", async || {
        Ok(kept(&scene, "rust", "totals").await?.contains(&totals))
    })
    .await
}

async fn is_denied_when_it_calls(major: u32, language: &'static str) -> Result<()> {
    let scene = scene_with(major, &[language]).await?;
    // What it says it needs is a matter of its start: the answer is the line to add.
    scene.plugin("counter", language, &manifest().replace(", \"state\"", ""))?;
    scene.cli(&["plugin", "list"])?.expect(0, "capabilities = [\"metrics\", \"state\"]")?;
    scene.plugin("counter", language, &format!("{}[settings]\noverreach = \"yes\"\n", manifest()))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    walgate.wait_line("[grant.output", SOON).await?;
    insert(&scene, 1).await?;
    wait_kept(&scene, 1).await?;
    let metrics = walgate.get("/metrics").await?.body;
    ensure!(metrics.contains("walgate_plugin_output_denied{plugin=\"counter\"} 1\n"), "{metrics}");
    ensure!(!metrics.contains("output_allowed") && !metrics.contains("output_failed"), "{metrics}");
    ensure!(plugin(&scene, &walgate).await?["ended_instances"] == 0);
    Ok(())
}

async fn out_of_memory_is_parked(major: u32, language: &'static str) -> Result<()> {
    let scene = scene_with(major, &[language]).await?;
    let manifest = manifest().replace("\"halt\"", "\"park\"").replace("max_attempts = 5", "max_attempts = 2");
    scene.plugin("counter", language, &format!("{manifest}[limits]\nmemory_mib = {TIGHT_MIB}\n"))?;
    scene.lines_plugin("good")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1).await?;
    wait_kept(&scene, 1).await?;
    scene.execute(&format!("INSERT INTO orders VALUES (2, 1, repeat('x', {LONG_TEXT}))")).await?;
    scene.wait_plugin(&walgate, "counter", "parked").await?;
    let cause = plugin(&scene, &walgate).await?["cause"].to_string();
    ensure!(cause.contains("memory-limit") && cause.contains("memory_mib"), "{cause}");
    insert(&scene, 3).await?;
    scene.wait_lines("good.txt", 3).await?;
    // What it could not take left no trace.
    ensure!(kept(&scene, "counter", "rows").await? == "1");
    Ok(())
}

/// Dropped over a plugin in Rust that runs, with nothing in the cache; then once more from the cache.
async fn compiles_once_and_beside_the_stream(major: u32, language: &'static str) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("counter", "state-counter", &manifest())?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    insert(&scene, 1).await?;
    wait_kept(&scene, 1).await?;
    let before = code(&scene.path("cache"))?;

    let (clock, cpu) = (Instant::now(), cpu_time(walgate.pid())?);
    scene.plugin("counter", language, &manifest())?;
    wait_until(SOON, "a candidate that compiles", async || {
        Ok(plugin(&scene, &walgate).await?["candidate"] == "compiling")
    })
    .await?;
    let (mut rows, mut during, mut slowest) = (1, 0, Duration::ZERO);
    while clock.elapsed() < COMPILED && plugin(&scene, &walgate).await?["generation"] == 1 {
        let began = Instant::now();
        rows += 1;
        // Before the insert: what is written after the last commit is confirmed with the next one.
        let end = scene.ask("SELECT pg_current_wal_lsn()").await?;
        insert(&scene, rows).await?;
        delivered_and_acknowledged(&scene, &walgate, rows, &end).await?;
        // It had begun before the change was there, and goes on after the server was told.
        let candidate = plugin(&scene, &walgate).await?["candidate"].clone();
        if candidate == "compiling" {
            during += 1;
            slowest = slowest.max(began.elapsed());
        }
        ensure!(candidate == "compiling" || candidate.is_null(), "{language} did not take over: {candidate}");
    }
    let (took, cpu_cold) = (clock.elapsed(), cpu_time(walgate.pid())?.saturating_sub(cpu));
    println!(
        "{language} took over after {took:.1?}, {cpu_cold:.1?} of CPU; {during} changes were delivered, and those before them acknowledged, \
         while it compiled, the slowest within {slowest:.0?} of its insert"
    );
    ensure!(during >= DURING, "only {during} changes were delivered and acknowledged while {language} compiled");
    let status = plugin(&scene, &walgate).await?;
    ensure!(status["generation"] == 2 && status["candidate"].is_null() && status["retries"] == 0, "{status}");
    insert(&scene, rows + 1).await?;
    wait_kept(&scene, rows + 1).await?;
    let connections = scene.status(&walgate).await?["source"]["connections"].clone();
    ensure!(connections == 1, "the stream was interrupted {connections} times");

    let kept: Vec<_> = code(&scene.path("cache"))?.into_iter().filter(|file| !before.contains(file)).collect();
    ensure!(kept.len() == 1, "one component was compiled, and these files are new: {kept:?}");
    let written = fs::metadata(&kept[0])?.modified()?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let walgate = scene.run().await?;
    let cpu_warm = cpu_time(walgate.pid())?;
    insert(&scene, rows + 2).await?;
    wait_kept(&scene, rows + 2).await?;
    ensure!(fs::metadata(&kept[0])?.modified()? == written && code(&scene.path("cache"))?.contains(&kept[0]));
    // Not a time but an amount of work: compiling is nearly all of the first, and may be nothing of the second.
    ensure!(cpu_warm * 3 < cpu_cold, "a start from the cache took {cpu_warm:?} of CPU, and compiling {cpu_cold:?}");
    Ok(())
}

/// The plugin has taken so many rows, and the server knows that everything until that position is safe.
async fn delivered_and_acknowledged(scene: &Scene, walgate: &Walgate, rows: u32, end: &str) -> Result<()> {
    wait_until(COMPILED, &format!("{rows} rows at the plugin"), async || {
        Ok(plugin(scene, walgate).await?["rows"].as_u64() >= Some(u64::from(rows)))
    })
    .await?;
    let sql = format!("SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'walgate'");
    wait_until(COMPILED, "the slot to be confirmed", async || Ok(scene.ask(&sql).await? == "t")).await
}

/// The state is the plugin's, whoever has written it: each goes on counting where the one before stopped.
async fn rust_python_and_javascript_take_turns_under_load(major: u32) -> Result<()> {
    let scene = scene_with(major, &[PYTHON, JAVASCRIPT]).await?;
    scene.plugin("counter", "state-counter", &manifest())?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let over = Cell::new(false);
    let load = async {
        let mut rows = 0;
        while !over.get() {
            rows += 1;
            insert(&scene, rows).await?;
        }
        Ok::<_, anyhow::Error>(rows)
    };
    let take_turns = async || {
        for (generation, language) in (2..).zip([PYTHON, JAVASCRIPT]) {
            scene.plugin("counter", language, &manifest())?;
            let seen = wait_for(SOON, &format!("{language} takes over"), async || {
                let plugin = plugin(&scene, &walgate).await?;
                let runs = plugin["generation"] == generation && plugin["state"] == "probation";
                Ok(runs.then(|| plugin["rows"].as_u64()))
            })
            .await?;
            wait_until(SOON, &format!("{language} takes rows"), async || {
                Ok(plugin(&scene, &walgate).await?["rows"].as_u64() > seen.map(|rows| rows + 10))
            })
            .await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let turns = async {
        let turned = take_turns().await;
        over.set(true);
        turned
    };
    let (rows, turned) = tokio::join!(load, turns);
    turned?;
    let rows = rows?;
    wait_kept(&scene, rows).await?;
    let status = plugin(&scene, &walgate).await?;
    ensure!(status["generation"] == 3 && status["ended_instances"] == 0 && status["retries"] == 0, "{status}");
    ensure!(walgate.get("/metrics").await?.body.contains("walgate_swaps_total{plugin=\"counter\"} 2\n"));
    // A restart runs the last one, on the same state.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let _walgate = scene.run().await?;
    insert(&scene, rows + 1).await?;
    wait_kept(&scene, rows + 1).await
}

async fn python_that_is_replaced_while_it_compiles_never_runs(major: u32) -> Result<()> {
    if !is_first(major) {
        return Ok(());
    }
    let scene = Scene::new(major).await?;
    scene.plugin("counter", "state-counter", &manifest())?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    insert(&scene, 1).await?;
    scene.plugin("counter", PYTHON, &manifest())?;
    wait_until(SOON, "a candidate that compiles", async || {
        Ok(plugin(&scene, &walgate).await?["candidate"] == "compiling")
    })
    .await?;
    scene.plugin_bytes("counter", &another(&fs::read(guest("state-counter")?)?, "sooner"), &manifest())?;
    wait_until(COMPILED, "the one that replaced it", async || Ok(plugin(&scene, &walgate).await?["generation"] == 2))
        .await?;
    let listed = scene.cli(&["--json", "plugin", "generations", "counter"])?;
    let listed: Value = serde_json::from_str(&listed.stdout()).with_context(|| listed.all())?;
    ensure!(listed.as_array().is_some_and(|all| all.len() == 2 && all[1]["present"] == true), "{listed}");
    insert(&scene, 2).await?;
    wait_kept(&scene, 2).await?;
    ensure!(walgate.get("/metrics").await?.body.contains("walgate_swaps_total{plugin=\"counter\"} 1\n"));
    Ok(())
}
