//! Guests that put values wherever a guest can put a text, and guests that fail over a row, under every failure policy.
//!
//! Holds: who misbehaves how. Never knows: how each is handled, but for the one word that shows it was met at all.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use walgate_harness::{Cluster, Walgate, wait_until};

use super::evidence::Watched;
use super::hostile::{self, TABLES};
use crate::scene::SOON;

/// Places of `leak-everything`, and whether the call fails there, which is when the failure policy decides.
const PLACES: [(&str, bool); 20] = [
    ("log-code", false),
    ("log-message", false),
    ("metric-count", false),
    ("metric-observe", false),
    ("failure-code", true),
    ("failure-message", true),
    ("reject-code", false),
    ("reject-batch", false),
    ("retry", true),
    ("output-name", true),
    ("output", false),
    ("state-key", false),
    ("state-value", false),
    ("rows-target", true),
    ("rows-column", true),
    ("secret", true),
    ("replica", false),
    ("panic", true),
    ("stdout", false),
    ("stderr", false),
];

/// Guests that fail over these rows, or over any.
const FAILING: [&str; 9] = [
    "panic-with-value",
    "invalid-code",
    "reject-poison-rows",
    "reject-poison-batch",
    "trap-on-poison",
    "halt-on-poison",
    "retry-forever",
    "garbage-receipt",
    "rows-liar",
];

/// The lies of `rows-liar` that carry texts.
const LIES: [&str; 6] = ["target", "column", "column-twice", "ends-beyond", "end-in-character", "presence-code"];

fn manifest(on_failure: &str, settings: &str) -> String {
    format!(
        "[plugin]\nrequired = true\non_failure = \"{on_failure}\"\nmax_attempts = 2\nbackoff_ms = 1\nmax_backoff_ms = 5\n{TABLES}\
         [grant]\ncapabilities = [\"log\", \"metrics\", \"state\"]\n[grant.output.lines]\nkind = \"file\"\npath = \"granted\"\n\
         [grant.rows.orders]\nschema = \"mirror\"\ncolumns = [\"id\", \"note\"]\noperations = [\"insert\", \"delete\"]\n\
         [settings]\n{settings}token = \"5ecre7_setting\"\n"
    )
}

async fn watched(major: u32) -> Result<Watched> {
    let scene = hostile::scene(Cluster::start(major)?).await?;
    scene.execute("CREATE SCHEMA mirror; CREATE TABLE mirror.orders (id bigint PRIMARY KEY, note text)").await?;
    scene.create_slot()?;
    Ok(Watched::new(scene)?.output("granted"))
}

/// Each place as a plugin of its own.
fn put_leaks(watched: &Watched, on_failure: &str) -> Result<Vec<String>> {
    for (place, _) in PLACES {
        watched.scene.plugin(place, "leak-everything", &manifest(on_failure, &format!("where = \"{place}\"\n")))?;
    }
    Ok(PLACES.iter().map(|(place, _)| (*place).to_owned()).collect())
}

fn put_failing(watched: &Watched, on_failure: &str) -> Result<Vec<String>> {
    for name in FAILING.into_iter().filter(|name| *name != "rows-liar") {
        watched.scene.plugin(name, name, &manifest(on_failure, ""))?;
    }
    for lie in LIES {
        watched.scene.plugin(
            &format!("liar-{lie}"),
            "rows-liar",
            &manifest(on_failure, &format!("lie = \"{lie}\"\n")),
        )?;
    }
    let liars = LIES.iter().map(|lie| format!("liar-{lie}"));
    Ok(FAILING.iter().filter(|name| **name != "rows-liar").map(|name| (*name).to_owned()).chain(liars).collect())
}

/// Waits until each plugin took the rows, laid them aside, or was parked.
async fn settled(watched: &Watched, walgate: &mut Walgate, plugins: &[String]) -> Result<()> {
    let mut waiting = Vec::new();
    let outcome = wait_until(SOON, "every plugin to meet the rows", async || {
        if let Some(status) = walgate.ended()? {
            bail!("it ended with {status}: {}", walgate.stderr());
        }
        let page = watched.scene.status(walgate).await?;
        let open = |name: &&String| {
            let plugin = &page["plugins"][name.as_str()];
            let counted = |key: &str| plugin[key].as_u64() > Some(0);
            plugin["state"] != "parked" && !counted("rows") && !counted("dead_letters")
        };
        waiting =
            plugins.iter().filter(open).map(|name| format!("{name}: {}", page["plugins"][name.as_str()])).collect();
        Ok(waiting.is_empty())
    })
    .await;
    outcome.with_context(|| waiting.join("\n"))
}

/// All of them in one process; twice, so that both forms of the log are looked at.
async fn together(watched: &mut Watched, plugins: &[String]) -> Result<Value> {
    let mut page = Value::Null;
    for round in 0..2 {
        let mut walgate = watched.start()?;
        // Not ready: what was parked in the first round is parked again at once.
        walgate.wait_line("streaming", SOON).await?;
        hostile::work(&watched.scene, round).await?;
        settled(watched, &mut walgate, plugins).await?;
        page = watched.scene.status(&walgate).await?;
        watched.running(&walgate).await?;
        watched.stopped(&mut walgate).await?;
    }
    watched.everything().await?;
    Ok(page)
}

fn count(page: &Value, is: impl Fn(&Value) -> bool) -> usize {
    page["plugins"].as_object().map_or(0, |plugins| plugins.values().filter(|plugin| is(plugin)).count())
}

pub(super) async fn texts_of_parked_guests(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let plugins = put_leaks(&watched, "park")?;
    let page = together(&mut watched, &plugins).await?;
    let parked = count(&page, |plugin| plugin["state"] == "parked");
    ensure!(parked == PLACES.iter().filter(|(_, fails)| *fails).count(), "{parked} are parked: {page}");
    Ok(())
}

pub(super) async fn texts_of_guests_with_dead_letters(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let plugins = put_leaks(&watched, "dead-letter")?;
    // A peer that is away makes no letter, but a halt.
    std::fs::remove_dir_all(watched.scene.path("plugins/retry"))?;
    let plugins: Vec<String> = plugins.into_iter().filter(|name| name != "retry").collect();
    let page = together(&mut watched, &plugins).await?;
    ensure!(count(&page, |plugin| plugin["dead_letters"].as_u64() > Some(0)) > 6, "{page}");
    Ok(())
}

/// One place at a time, because the first that fails ends the process.
pub(super) async fn texts_of_guests_that_halt(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    hostile::work(&watched.scene, 0).await?;
    for (place, _) in PLACES.into_iter().filter(|(_, fails)| *fails) {
        watched.scene.plugin("leak", "leak-everything", &manifest("halt", &format!("where = \"{place}\"\n")))?;
        let mut walgate = watched.start()?;
        watched.halted(&mut walgate, "plugin_").await?;
    }
    watched.everything().await
}

pub(super) async fn failures_of_parked_guests(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let plugins = put_failing(&watched, "park")?;
    let page = together(&mut watched, &plugins).await?;
    ensure!(count(&page, |plugin| plugin["state"] == "parked") > 10, "{page}");
    Ok(())
}

/// With what an operator does to letters.
pub(super) async fn failures_of_guests_with_dead_letters(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let plugins = put_failing(&watched, "dead-letter")?;
    // A peer that is away makes no letter, but a halt.
    std::fs::remove_dir_all(watched.scene.path("plugins/retry-forever"))?;
    let plugins: Vec<String> = plugins.into_iter().filter(|name| name != "retry-forever").collect();
    let page = together(&mut watched, &plugins).await?;
    ensure!(count(&page, |plugin| plugin["dead_letters"].as_u64() > Some(0)) > 10, "{page}");
    let letters = watched.letters()?;
    let [first, second, ..] = letters[..] else { bail!("two letters: {letters:?}") };
    for command in [
        &["dead-letter", "redrive", &first.to_string()][..],
        &["--json", "dead-letter", "redrive", "--all"],
        &["dead-letter", "drop", &first.to_string()],
        &["--json", "dead-letter", "drop", &second.to_string()],
    ] {
        watched.clean("a command on letters", watched.scene.cli(command)?.all())?;
    }
    let mut walgate = watched.start()?;
    walgate.wait_ready(SOON).await?;
    // Those that were asked for fail again and wait for the operator.
    let requested = "SELECT count(*) FROM walgate.dead_letters WHERE requested_at IS NOT NULL";
    wait_until(SOON, "the redrives", async || Ok(watched.scene.ask(requested).await? == "0")).await?;
    watched.running(&walgate).await?;
    watched.stopped(&mut walgate).await?;
    watched.everything().await
}

pub(super) async fn failures_of_guests_that_halt(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    hostile::work(&watched.scene, 0).await?;
    for name in FAILING.into_iter().filter(|name| !name.starts_with("reject")) {
        watched.scene.plugin("guest", name, &manifest("halt", "lie = \"column\"\n"))?;
        let mut walgate = watched.start()?;
        watched.halted(&mut walgate, "plugin_").await?;
    }
    watched.everything().await
}
