//! What leaves the host beside the data: log lines, metrics, and the page of a halt.
//!
//! Holds: a run with everything logged that goes through start, delivery, retry, trap, park, a lost connection and a
//! restart. The lists that lines and metrics are held against are read from the sources of the daemon; the shapes are
//! checked here in the test's own words. Never knows: how a line is made.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use walgate_harness::{Walgate, wait_until};

use super::scene::{SOON, Scene, expect_end, shop_manifest};

super::scenarios! {
    every_line_and_metric_is_on_its_list,
    a_halt_names_its_page,
    a_start_that_halts_is_an_event,
}

const KEYS: &str = include_str!("../../../host/daemon/src/telemetry/allow.rs");
const METRICS: &str = include_str!("../../../host/daemon/src/telemetry/catalog.rs");
const VIOLATIONS: &str = "walgate_telemetry_violations_total";

async fn every_line_and_metric_is_on_its_list(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[log]\nformat = \"json\"\nlevel = \"debug\"")?;
    scene.lines_plugin("lines")?;
    scene.plugin("trap", "trap-in-deliver", &shop_manifest("park", 2))?;
    let granted =
        |capabilities: &str| format!("{}[grant]\ncapabilities = [{capabilities}]\n", shop_manifest("halt", 5));
    scene.plugin("retry", "retry-then-ok", &granted("\"state\", \"metrics\""))?;
    scene.plugin("curious", "call-ungranted", &granted("\"metrics\""))?;
    scene.plugin_bytes("Bad Name\u{1b}[31m", b"no component", &shop_manifest("halt", 5))?;
    scene.create_slot()?;

    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'secret-canary')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.wait_plugin(&walgate, "trap", "parked").await?;
    wait_until(SOON, "the third attempt", async || Ok(scene.status(&walgate).await?["plugins"]["retry"]["rows"] == 1))
        .await?;
    // A column that the grant withholds, under a name that would end a line.
    scene.execute("ALTER TABLE orders ADD COLUMN \"later\nERROR forged\" text").await?;
    scene.execute("INSERT INTO orders VALUES (2, 2, 'secret-canary', 'secret-canary')").await?;
    scene.wait_lines("lines.txt", 2).await?;
    scene.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active").await?;
    wait_until(SOON, "another connection", async || {
        Ok(scene.status(&walgate).await?["source"]["connections"].as_u64() > Some(1))
    })
    .await?;
    only_known_metrics(&walgate).await?;
    let first = stop(&mut walgate).await?;

    // Not ready: what trapped before traps again.
    let mut walgate = scene.start()?;
    scene.execute("INSERT INTO orders VALUES (3, 3, 'secret-canary', NULL)").await?;
    scene.wait_lines("lines.txt", 3).await?;
    scene.wait_plugin(&walgate, "trap", "parked").await?;
    only_known_metrics(&walgate).await?;
    let second = stop(&mut walgate).await?;

    let mut seen = BTreeSet::new();
    let keys = listed_keys();
    for line in first.lines().chain(second.lines()) {
        ensure!(!line.contains("secret-canary"), "a value of a row: {line}");
        seen.extend(check_line(line, &keys).with_context(|| line.to_owned())?);
    }
    // Otherwise this has looked at less than it says.
    for key in
        ["allow", "attempt", "cause", "class", "code", "columns", "entry", "from", "listen", "plugin", "rows", "slot"]
    {
        ensure!(seen.contains(key), "no line had {key}: {seen:?}\n{first}");
    }
    Ok(())
}

async fn a_halt_names_its_page(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("trap", "trap-in-deliver", &shop_manifest("halt", 1))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    expect_end(&mut walgate, 3, &["plugin_failed", "(walgate explain plugin_failed)\n"]).await?;
    // The page is there when nothing else is, the configuration included.
    std::fs::remove_file(scene.config())?;
    scene.cli(&["explain", "plugin_failed"])?.expect(0, "## What to do")?;
    scene.cli(&["explain"])?.expect(0, "output(locked)")?;
    scene.cli(&["explain", "plugin_faild"])?.expect(2, "did you mean plugin_failed")?;
    let page: Value = serde_json::from_str(&scene.cli(&["--json", "explain", "output(full)"])?.stdout())?;
    ensure!(page["names"].as_array().is_some_and(|names| names.len() == 8), "{page}");
    ensure!(page["what_is_safe"].is_string(), "{page}");
    let list: Value = serde_json::from_str(&scene.cli(&["--json", "explain"])?.stdout())?;
    ensure!(list.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "fenced")), "{list}");
    Ok(())
}

/// Who reads JSON reads nothing else: a start that halts is one object more, with its class.
async fn a_start_that_halts_is_an_event(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.configure("[log]\nformat = \"json\"")?;
    let mut walgate = scene.start()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(3));
    let said = walgate.stderr();
    let lines =
        said.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().with_context(|| said.clone())?;
    let halts =
        lines.iter().filter(|line| line["level"] == "ERROR" && line.to_string().contains("go_forward_required"));
    ensure!(halts.count() == 1, "{said}");
    scene.configure("")?;
    expect_end(&mut scene.start()?, 3, &["ERROR", "walgate: halted: go_forward_required"]).await
}

/// Ends it as asked and gives what it logged.
async fn stop(walgate: &mut Walgate) -> Result<String> {
    walgate.sigterm()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(0));
    Ok(walgate.stderr())
}

async fn only_known_metrics(walgate: &Walgate) -> Result<()> {
    let page = walgate.get("/metrics").await?.body;
    ensure!(page.lines().any(|line| line == format!("{VIOLATIONS} 0")), "{page}\n{}", walgate.stderr());
    for line in page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let known = METRICS.contains(&format!("\"{name}\""));
        ensure!(known || name.starts_with("walgate_plugin_"), "not in the catalog: {line}");
    }
    Ok(())
}

/// The keys of the daemon's own list, with the names of their shapes.
fn listed_keys() -> BTreeMap<&'static str, &'static str> {
    let entry = |line: &'static str| {
        let (key, shape) = line.trim().strip_prefix("(\"")?.split_once("\", Shape::")?;
        Some((key, shape.trim_end_matches("),")))
    };
    KEYS.lines().filter_map(entry).collect()
}

/// Checks one line, and gives its keys.
fn check_line(line: &str, keys: &BTreeMap<&str, &str>) -> Result<Vec<String>> {
    let parsed: BTreeMap<String, Value> = serde_json::from_str(line)?;
    for key in ["timestamp", "level", "target", "message"] {
        ensure!(parsed.get(key).is_some_and(Value::is_string), "no {key}");
    }
    for (key, value) in &parsed {
        ensure!(value != "<withheld>", "{key} was withheld");
        let shape = match (key.as_str(), keys.get(key.as_str())) {
            ("timestamp" | "level" | "target" | "message", _) => "Text",
            (_, Some(shape)) => shape,
            _ => bail!("{key} is not on the list"),
        };
        let text = value.as_str();
        let of = |allowed: &str| text.is_some_and(|text| !text.is_empty() && text.chars().all(|c| allowed.contains(c)));
        const SMALL: &str = "abcdefghijklmnopqrstuvwxyz0123456789";
        let fits = match shape {
            "Integer" => value.is_u64(),
            "Plugin" | "Code" => of(&format!("{SMALL}-")),
            "Slot" => of(&format!("{SMALL}_")),
            "Lsn" => of("0123456789ABCDEF/"),
            "Class" => of(&format!("{SMALL}_()")),
            "Word" => of(&format!("{SMALL}_.:/-")),
            "SqlState" => text.is_some_and(|text| text == "none" || text.len() == 5),
            "Address" => text.is_some_and(|text| text.parse::<std::net::SocketAddr>().is_ok()),
            "Identifiers" | "Text" | "Lines" => text.is_some_and(|text| text.len() <= 2048 + '…'.len_utf8()),
            _ => bail!("{key} has a shape this test does not know: {shape}"),
        };
        ensure!(fits, "{key} is no {shape}: {value}");
    }
    Ok(parsed.into_keys().collect())
}
