//! Plugins that cannot run, and plugins that misbehave while they run: the pipeline and the other plugins go on.
//!
//! Holds: files in the plugin directory, and the guests of `tests/programs`. Never knows: how limits are enforced.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use walgate_harness::{Cluster, guest, wait_until};

use super::scene::{SOON, Scene, expect_end, lines_manifest, shop_manifest};

super::scenarios! {
    files_that_are_no_plugins,
    a_grant_that_does_not_fit_stops_one_plugin,
    an_ungranted_column_keeps_one_plugin_out,
    misbehaving_plugins_are_parked_and_the_others_go_on,
    a_plugin_may_halt_the_pipeline,
    a_retry_is_the_same_batch_again,
    accepted_is_flushed_before_it_counts,
    an_optional_plugin_holds_nothing_back,
    ungranted_calls_are_denied_when_made,
    a_declined_relation_halts_before_its_rows,
    a_guest_that_loops_while_a_million_rows_wait_costs_no_keepalive,
}

async fn files_that_are_no_plugins(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("good")?;
    let component = std::fs::read(guest("output-lines")?)?;
    let manifest = lines_manifest(&scene.path("other.txt"));
    scene.plugin_bytes("truncated", &component[..component.len() / 2], &manifest)?;
    scene.plugin_bytes("text", b"not a component", &manifest)?;
    scene.plugin_bytes("core-module", b"\0asm\x01\0\0\0", &manifest)?;
    scene.plugin("no-sink", "not-a-sink", &manifest)?;
    scene.plugin("new-contract", "unknown-contract", &manifest)?;
    scene.plugin("backdoor", "unknown-import", &manifest)?;
    scene.plugin("typo", "output-lines", "[plugin]\nrequird = true\n")?;
    scene.plugin("loops", "loop-in-describe", "[limits]\ncall_deadline_ms = 200\nopen_deadline_ms = 200\n")?;
    std::fs::copy(guest("output-lines")?, scene.path("plugins/bare.wasm"))?;
    let listed: Value = serde_json::from_str(&scene.cli(&["--json", "plugin", "list"])?.stdout())?;
    let of = |name: &str| {
        let entry = listed.as_array().and_then(|all| all.iter().find(|one| one["name"] == name)).cloned();
        entry.map_or_else(String::new, |one| format!("{} {}", one["state"], one["cause"]))
    };
    for (name, state, words) in [
        ("good", "ready", ""),
        ("truncated", "rejected", "plugin.wasm"),
        ("text", "rejected", "plugin.wasm"),
        ("core-module", "rejected", "walgate plugin build"),
        ("no-sink", "rejected", "walgate:cdc/sink"),
        ("new-contract", "rejected", "9.9.0"),
        ("backdoor", "rejected", "elsewhere:backdoor/door"),
        ("typo", "rejected", "requird"),
        ("loops", "rejected", "200 ms"),
        ("bare", "awaiting-grant", "walgate plugin inspect"),
    ] {
        ensure!(of(name).contains(state) && of(name).contains(words), "{name}: no {state} {words:?} in {}", of(name));
    }
    // None of them keeps the good one from running.
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("good.txt", 1).await?;
    let status = scene.status(&walgate).await?;
    ensure!(status["plugins"]["truncated"]["state"] == "rejected", "{status}");
    Ok(())
}

/// What a grant gets wrong about a table shows when its rows come, and is the matter of that plugin alone.
async fn a_grant_that_does_not_fit_stops_one_plugin(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("good")?;
    let wrong = lines_manifest(&scene.path("wrong.txt"))
        .replace("[\"id\", \"name\"]", "[\"id\", \"nmae\"]")
        .replace("required = true", "required = false")
        .replace("on_failure = \"halt\"", "on_failure = \"park\"");
    scene.plugin("wrong", "output-lines", &wrong)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let customer = async |id: u32| scene.execute(&format!("INSERT INTO customers VALUES ({id}, 'a', 'b', 'c')")).await;
    customer(1).await?;
    scene.wait_plugin(&walgate, "wrong", "parked").await?;
    let cause = scene.status(&walgate).await?["plugins"]["wrong"]["cause"].to_string();
    ensure!(cause.contains("granted_column_missing") && cause.contains("nmae"), "{cause}");
    customer(2).await?;
    scene.wait_lines("good.txt", 2).await?;
    // One that comes while the others run is turned away again, whatever its policy is.
    let wrong = wrong.replace("wrong.txt", "late.txt").replace("\"park\"", "\"halt\"");
    scene.plugin("late", "output-lines", &wrong)?;
    scene.wait_plugin(&walgate, "late", "probation").await?;
    customer(3).await?;
    wait_until(SOON, "it to be turned away", async || {
        let late = scene.status(&walgate).await?["plugins"]["late"].clone();
        Ok(late["state"] == "quarantined" && late["candidate"].to_string().contains("granted_column_missing"))
    })
    .await?;
    scene.wait_lines("good.txt", 3).await?;
    scene.wait_confirmed().await?;
    // The others went on without it, so that nothing is kept for it, also if it is to be required from now on.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene.plugin_bytes("late", b"garbage", &wrong.replace("required = false", "required = true"))?;
    let mut walgate = scene.run().await?;
    scene.wait_plugin(&walgate, "late", "rejected").await?;
    scene.wait_confirmed().await?;
    // By its own policy it halts the pipeline, and says which plugin it is.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    std::fs::remove_dir_all(scene.path("plugins/late"))?;
    let required = wrong.replace("late.txt", "wrong.txt").replace("required = false", "required = true");
    scene.plugin("wrong", "output-lines", &required)?;
    let mut walgate = scene.start()?;
    customer(4).await?;
    expect_end(&mut walgate, 3, &["granted_column_missing (plugin wrong)"]).await
}

async fn an_ungranted_column_keeps_one_plugin_out(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("greedy", "ask-for-everything", &shop_manifest("halt", 5))?;
    scene.cli(&["check"])?.expect(2, "email")?;
    scene.cli(&["plugin", "list"])?.expect(0, "greedy: rejected")?;
    scene.create_slot()?;
    expect_end(&mut scene.start()?, 2, &["no plugin", "email"]).await
}

async fn misbehaving_plugins_are_parked_and_the_others_go_on(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("good")?;
    let park = |capabilities: &str| {
        format!(
            "{}[grant]\ncapabilities = [{capabilities}]\n[limits]\ncall_deadline_ms = 300\nmemory_mib = 32\n",
            shop_manifest("park", 2)
        )
    };
    let bad = [
        ("loop-in-deliver", "300 ms"),
        ("sleep-in-deliver", "300 ms"),
        ("trap-in-deliver", "unreachable"),
        ("eat-memory", "memory-limit"),
        ("recurse", "stack-overflow"),
        ("garbage-receipt", "contract"),
        ("retry-forever", "attempts"),
        ("halt-in-deliver", "refused"),
        ("invalid-code", "invalid-code"),
    ];
    for (name, _) in bad {
        scene.plugin(name, name, &park(""))?;
    }
    scene.plugin("panic-with-value", "panic-with-value", &park("\"log\""))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders SELECT g, g, 'secret-canary-' || g FROM generate_series(1, 100) g").await?;
    scene.wait_lines("good.txt", 100).await?;
    for (name, _) in bad {
        scene.wait_plugin(&walgate, name, "parked").await?;
    }
    scene.wait_plugin(&walgate, "panic-with-value", "parked").await?;
    scene.execute("INSERT INTO orders VALUES (0, 0, 'after')").await?;
    scene.wait_lines("good.txt", 101).await?;
    let status = scene.status(&walgate).await?;
    for (name, words) in bad {
        let cause = status["plugins"][name]["cause"].to_string();
        ensure!(cause.contains(words), "{name}: no {words:?} in {cause}");
    }
    let metrics = walgate.get("/metrics").await?.body;
    ensure!(metrics.contains("walgate_parked{plugin=\"eat-memory\"} 1"), "{metrics}");
    walgate.sigterm()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(0), "parked plugins do not keep a stop from being clean");
    let said = walgate.stdout() + &walgate.stderr() + &status.to_string() + &metrics;
    ensure!(!said.contains("secret-canary"), "a value of a row left through a guest");
    Ok(())
}

async fn a_plugin_may_halt_the_pipeline(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("trap-in-deliver", "trap-in-deliver", &shop_manifest("halt", 2))?;
    scene.lines_plugin("good")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    expect_end(&mut walgate, 3, &["plugin_failed", "trap-in-deliver", "2 attempts"]).await?;
    scene.cli(&["status"])?.expect(3, "plugin_failed")?;
    // Nothing was acknowledged past it: with the plugin gone, the rest goes on where it was.
    scene.plugin("trap-in-deliver", "output-lines", &lines_manifest(&scene.path("mended.txt")))?;
    let _walgate = scene.run().await?;
    scene.wait_lines("mended.txt", 1).await?;
    scene.wait_lines("good.txt", 1).await.map(drop)
}

async fn a_retry_is_the_same_batch_again(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = format!("{}[grant]\ncapabilities = [\"state\", \"metrics\"]\n", shop_manifest("halt", 5));
    scene.plugin("retry-then-ok", "retry-then-ok", &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    wait_until(SOON, "the third attempt", async || {
        Ok(scene.status(&walgate).await?["plugins"]["retry-then-ok"]["rows"] == 1)
    })
    .await?;
    let status = scene.status(&walgate).await?;
    let plugin = &status["plugins"]["retry-then-ok"];
    ensure!(plugin["retries"] == 2 && plugin["last_error_code"] == "not-yet", "{status}");
    Ok(())
}

async fn accepted_is_flushed_before_it_counts(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = format!("{}[grant]\ncapabilities = [\"metrics\"]\n", shop_manifest("halt", 5));
    scene.plugin("accepted", "accepted-not-durable", &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_confirmed().await?;
    let metrics = walgate.get("/metrics").await?.body;
    ensure!(metrics.contains("walgate_plugin_flushes{plugin=\"accepted\"}"), "{metrics}");
    Ok(())
}

async fn an_optional_plugin_holds_nothing_back(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("good")?;
    let optional = shop_manifest("park", 1).replace("required = true", "required = false");
    scene.plugin("optional", "trap-in-deliver", &optional)?;
    scene.plugin(
        "required",
        "state-counter",
        &format!("{}[grant]\ncapabilities = [\"state\", \"metrics\"]\n", shop_manifest("halt", 5)),
    )?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_plugin(&walgate, "optional", "parked").await?;
    scene.wait_confirmed().await
}

async fn ungranted_calls_are_denied_when_made(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = format!("{}[grant]\ncapabilities = [\"metrics\"]\n", shop_manifest("halt", 5));
    scene.plugin("curious", "call-ungranted", &manifest)?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    // All of them are made in one call, and the page may be asked for in the middle of it.
    wait_until(SOON, "the calls to be counted", async || {
        let page = walgate.get("/metrics").await?.body;
        Ok(["state_get", "http"]
            .iter()
            .all(|call| page.contains(&format!("walgate_plugin_{call}_denied{{plugin=\"curious\"}} 1"))))
    })
    .await?;
    let metrics = walgate.get("/metrics").await?.body;
    ensure!(!metrics.contains("_allowed{plugin=\"curious\"}"), "{metrics}");
    Ok(())
}

async fn a_declined_relation_halts_before_its_rows(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("picky", "relation-decline", &shop_manifest("halt", 5))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_confirmed().await?;
    scene.execute("ALTER TABLE orders ALTER COLUMN note TYPE varchar(100)").await?;
    scene.execute("INSERT INTO orders VALUES (2, 2, 'y')").await?;
    expect_end(&mut walgate, 3, &["relation_declined", "orders"]).await
}

/// The server would end the stream after three seconds without an answer; the guest burns six, twice.
async fn a_guest_that_loops_while_a_million_rows_wait_costs_no_keepalive(major: u32) -> Result<()> {
    let scene = Scene::with(Cluster::builder(major).setting("wal_sender_timeout", "5s").start()?).await?;
    let manifest = format!("{}[limits]\ncall_deadline_ms = 6000\n", shop_manifest("park", 2));
    scene.plugin("loops", "loop-in-deliver", &manifest)?;
    scene.lines_plugin("good")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders SELECT g, g, repeat('x', 100) FROM generate_series(1, 1000000) g").await?;
    wait_until(Duration::from_secs(120), "the looping plugin to be parked", async || {
        Ok(scene.status(&walgate).await?["plugins"]["loops"]["state"] == "parked")
    })
    .await?;
    wait_until(Duration::from_secs(120), "all rows at the other plugin", async || {
        Ok(scene.status(&walgate).await?["plugins"]["good"]["rows"] == 1_000_000)
    })
    .await?;
    let status = scene.status(&walgate).await?;
    ensure!(status["source"]["connections"] == 1, "the stream was interrupted: {status}");
    ensure!(!scene.cluster.log().contains("replication timeout"), "the server missed an answer");
    Ok(())
}
