//! What a plugin cannot take: it is found, laid aside, shown without a value, tried again, or given up.
//!
//! Holds: poison in every form, the failure policies, and the life of a dead letter. Never knows: how the search works.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walgate_harness::wait_until;

use super::scene::{SOON, Scene, expect_end, lines_manifest, shop_manifest};

super::scenarios! {
    rejected_rows_are_laid_aside_and_the_rest_counts,
    rejected_rows_are_laid_aside_although_the_sink_has_their_batch,
    a_rejected_batch_is_bisected_to_its_transaction,
    a_trap_on_poison_follows_its_policy,
    a_plugin_that_halts_on_poison_follows_its_policy,
    a_letter_is_redriven_under_its_own_id,
    redrives_keep_their_order,
    a_letter_given_up_stays_on_record,
    a_letter_that_is_to_be_redriven_is_not_given_up,
    no_room_for_letters_halts_and_throws_nothing_away,
    a_peer_that_is_away_makes_no_letter,
}

/// A value that must be seen nowhere.
const MARKER: &str = "poison-5ecre7";

fn manifest(scene: &Scene, on_failure: &str) -> String {
    let policy = format!("on_failure = \"{on_failure}\"\nbackoff_ms = 10\nmax_backoff_ms = 20");
    lines_manifest(&scene.path("lines.txt")).replace("on_failure = \"halt\"", &policy)
}

fn order(id: u32, note: &str) -> String {
    format!("INSERT INTO orders VALUES ({id}, 1, '{note}');")
}

/// A backlog of one-row transactions, every `nth` of them with poison, so that they come in few batches.
async fn backlog(scene: &Scene, count: u32, poison: impl Fn(u32) -> bool) -> Result<()> {
    for id in 1..=count {
        scene.execute(&order(id, if poison(id) { MARKER } else { "fine" })).await?;
    }
    Ok(())
}

fn letters(scene: &Scene) -> Result<Value> {
    let answer = scene.cli(&["--json", "dead-letter", "list"])?;
    serde_json::from_str(&answer.stdout()).with_context(|| answer.all())
}

fn ids(list: &Value) -> Vec<i64> {
    list["letters"].as_array().into_iter().flatten().filter_map(|letter| letter["id"].as_i64()).collect()
}

async fn wait_letters(scene: &Scene, count: usize) -> Result<Value> {
    wait_until(SOON, &format!("{count} letters"), async || Ok(ids(&letters(scene)?).len() == count)).await?;
    letters(scene)
}

async fn rejected_rows_are_laid_aside_and_the_rest_counts(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "reject-poison-rows", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute(&format!("BEGIN; {} {} {} COMMIT", order(1, "a"), order(2, MARKER), order(3, "c"))).await?;
    let list = wait_letters(&scene, 1).await?;
    let letter = &list["letters"][0];
    ensure!(letter["code"] == "poison-row" && letter["rows"] == 1 && letter["source_ordinal"] == 1, "{letter}");
    ensure!(letter["tables"][0] == "public.orders", "{letter}");
    scene.wait_lines("lines.txt", 2).await?;
    scene.wait_confirmed().await?;
    let shown = scene.cli(&["dead-letter", "show", &letter["id"].to_string()])?;
    shown.expect(0, "poison-row")?;
    for (what, text) in [("list", list.to_string()), ("show", shown.all()), ("log", walgate.stderr())] {
        ensure!(!text.contains(MARKER), "a value in {what}: {text}");
    }
    // It is kept for those who may read it.
    let kept = scene.ask(
        "SELECT count(*) FROM walgate.dead_letters WHERE convert_from(image::text::bytea, 'UTF8') LIKE '%5ecre7%'",
    );
    ensure!(kept.await.is_ok_and(|kept| kept == "1") || image_holds(&scene).await?, "the row itself is kept");
    Ok(())
}

/// The sink ends after it rejected rows, and its next instance says that it has their batch.
async fn rejected_rows_are_laid_aside_although_the_sink_has_their_batch(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    // The first transaction is a batch of its own.
    scene.configure("[delivery]\nmax_batch_rows = 2")?;
    scene.create_slot()?;
    scene.execute(&format!("BEGIN; {} {} COMMIT", order(1, MARKER), order(2, "fine"))).await?;
    scene.execute("DELETE FROM orders WHERE id = 2").await?;
    let end = scene.ask("SELECT (pg_current_wal_lsn() - '0/0')::text").await?;
    let flush = "[flush]\nmax_delay_ms = 600000\n";
    let manifest = format!("{}\n{flush}[settings]\nposition = \"{end}\"\n", shop_manifest("halt", 5));
    scene.plugin("own", "commits-by-itself", &manifest)?;
    let walgate = scene.run().await?;
    wait_until(SOON, "an instance that ended", async || {
        Ok(scene.status(&walgate).await?["plugins"]["own"]["ended_instances"] == 1)
    })
    .await?;
    // Nothing is delivered again, and it runs.
    wait_until(SOON, "it to run again", async || {
        let own = scene.status(&walgate).await?["plugins"]["own"].clone();
        Ok(own["state"] != "retrying" && own["state"] != "opening" && own["cause"].is_null())
    })
    .await?;
    // The last calls flush.
    walgate.sigterm()?;
    let list = wait_letters(&scene, 1).await?;
    ensure!(list["letters"][0]["code"] == "poison-row", "{list}");
    Ok(())
}

async fn image_holds(scene: &Scene) -> Result<bool> {
    let image = scene.ask("SELECT image::text FROM walgate.dead_letters").await?;
    Ok(image.contains(MARKER) || image.contains(&hex(MARKER)))
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

async fn a_rejected_batch_is_bisected_to_its_transaction(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "reject-poison-batch", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    backlog(&scene, 40, |id| id == 7 || id == 31).await?;
    let _walgate = scene.run().await?;
    let list = wait_letters(&scene, 2).await?;
    for letter in list["letters"].as_array().context("no list")? {
        ensure!(letter["class"] == "rejected" && letter["code"] == "poison-batch" && letter["rows"] == 1, "{letter}");
    }
    scene.wait_lines("lines.txt", 38).await?;
    scene.wait_confirmed().await
}

async fn a_trap_on_poison_follows_its_policy(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "trap-on-poison", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    backlog(&scene, 20, |id| id == 11).await?;
    let mut walgate = scene.start()?;
    expect_end(&mut walgate, 3, &["plugin_failed", "5 attempts", "walgate explain"]).await?;
    ensure!(!walgate.stderr().contains(MARKER));
    scene.cli(&["check"])?.expect(0, "it halted when it ran last: plugin_failed (plugin lines)")?;
    scene.plugin("lines", "trap-on-poison", &manifest(&scene, "dead-letter"))?;
    let _walgate = scene.run().await?;
    let list = wait_letters(&scene, 1).await?;
    ensure!(list["letters"][0]["class"] == "trapped" && list["letters"][0]["rows"] == 1, "{list}");
    scene.wait_lines("lines.txt", 19).await?;
    scene.wait_confirmed().await
}

async fn a_plugin_that_halts_on_poison_follows_its_policy(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "halt-on-poison", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    backlog(&scene, 5, |id| id == 3).await?;
    expect_end(&mut scene.start()?, 3, &["plugin_halted"]).await?;
    scene.plugin("lines", "halt-on-poison", &manifest(&scene, "dead-letter"))?;
    let _walgate = scene.run().await?;
    wait_letters(&scene, 1).await?;
    scene.wait_lines("lines.txt", 4).await.map(drop)
}

async fn a_letter_is_redriven_under_its_own_id(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "reject-poison-batch", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(&order(1, MARKER)).await?;
    let before = wait_letters(&scene, 1).await?;
    // The same plugin takes it no better a second time.
    scene.cli(&["dead-letter", "redrive", "--all"])?.expect(0, "1 letters: by the running walgate")?;
    wait_until(SOON, "another attempt", async || Ok(letters(&scene)?["letters"][0]["attempts"] == 2)).await?;
    let after = letters(&scene)?;
    ensure!(after["letters"][0]["batch_id"] == before["letters"][0]["batch_id"]);
    ensure!(after["letters"][0]["requested"] == false, "it waits for the operator again: {after}");
    // A mended one does. It goes on with the stream afterwards.
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    scene.cli(&["dead-letter", "redrive", "--all"])?.expect(0, "when walgate starts")?;
    let (folder, away) = (scene.path("plugins/lines"), scene.path("away"));
    std::fs::rename(&folder, &away)?;
    scene.cli(&["dead-letter", "redrive", "--all"])?.expect(0, "plugin lines is not in")?;
    std::fs::rename(&away, &folder)?;
    scene.plugin("lines", "output-lines", &manifest(&scene, "halt"))?;
    let _walgate = scene.run().await?;
    wait_letters(&scene, 0).await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.execute(&order(2, "fine")).await?;
    scene.wait_lines("lines.txt", 2).await.map(drop)
}

async fn redrives_keep_their_order(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "reject-poison-batch", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute(&order(1, MARKER)).await?;
    wait_letters(&scene, 1).await?;
    scene.execute(&order(2, MARKER)).await?;
    let list = wait_letters(&scene, 2).await?;
    let [older, newer] = ids(&list)[..] else { anyhow::bail!("two letters: {list}") };
    let refused = scene.cli(&["dead-letter", "redrive", &newer.to_string()])?;
    ensure!(refused.all().contains(&older.to_string()), "it names the older one: {}", refused.all());
    ensure!(letters(&scene)?["letters"][1]["attempts"] == 1, "it was not tried");
    let drop = ["dead-letter", "drop", &older.to_string(), "999999"];
    scene.cli(&drop)?.expect(2, "no dead letters of this pipeline: 999999; nothing was done")?;
    scene.cli(&["dead-letter", "drop", &older.to_string()])?.expect(0, "1 letters are given up")?;
    scene.cli(&["dead-letter", "redrive", &newer.to_string()])?.expect(0, "1 letters")?;
    wait_until(SOON, "its attempt", async || Ok(letters(&scene)?["letters"][0]["attempts"] == 2)).await
}

async fn a_letter_given_up_stays_on_record(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "reject-poison-batch", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute(&order(1, MARKER)).await?;
    let id = ids(&wait_letters(&scene, 1).await?)[0];
    scene.cli(&["dead-letter", "drop", &id.to_string()])?.expect(0, "1 letters are given up")?;
    let list = letters(&scene)?;
    ensure!(list["letters"].as_array().is_some_and(Vec::is_empty), "{list}");
    ensure!(list["given_up"][0]["reason"] == "dropped" && list["given_up"][0]["rows"] == 1, "{list}");
    Ok(())
}

/// It may be on its way to the sink: then it cannot be given up any more.
async fn a_letter_that_is_to_be_redriven_is_not_given_up(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin("lines", "reject-poison-batch", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(&order(1, MARKER)).await?;
    let id = ids(&wait_letters(&scene, 1).await?)[0].to_string();
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // A sink that is busy with something else for as long as it takes.
    let busy = manifest(&scene, "halt").replace("backoff_ms = 10\nmax_backoff_ms = 20", "backoff_ms = 30000");
    scene.plugin("lines", "retry-forever", &busy)?;
    let mut walgate = scene.run().await?;
    scene.execute(&order(2, "fine")).await?;
    scene.wait_plugin(&walgate, "lines", "retrying").await?;
    scene.cli(&["dead-letter", "redrive", &id])?.expect(0, "1 letters: by the running walgate")?;
    let refused = scene.cli(&["dead-letter", "drop", &id])?;
    refused.expect(2, &format!("a running walgate is to deliver again: {id}; nothing was done"))?;
    ensure!(letters(&scene)?["given_up"].as_array().is_some_and(Vec::is_empty), "{}", letters(&scene)?);
    walgate.sigkill()?;
    walgate.wait_exit(SOON).await?;
    wait_until(SOON, "its lock to be free", async || {
        Ok(scene.cli(&["dead-letter", "drop", &id])?.all().contains("1 letters are given up"))
    })
    .await
}

async fn no_room_for_letters_halts_and_throws_nothing_away(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[dead_letters]\nmax_bytes = 1")?;
    scene.plugin("lines", "reject-poison-batch", &manifest(&scene, "halt"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(&order(1, MARKER)).await?;
    expect_end(&mut walgate, 3, &["dead_letters_full", "dead_letters.max_bytes"]).await?;
    ensure!(!walgate.stderr().contains("put aside"), "it says so of what was not kept: {}", walgate.stderr());
    ensure!(ids(&letters(&scene)?).is_empty());
    scene.configure("")?;
    let _walgate = scene.run().await?;
    wait_letters(&scene, 1).await.map(drop)
}

async fn a_peer_that_is_away_makes_no_letter(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.plugin(
        "away",
        "retry-forever",
        &shop_manifest("dead-letter", 3).replace("[plugin]", "[plugin]\nbackoff_ms = 1"),
    )?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute(&order(1, "x")).await?;
    expect_end(&mut walgate, 3, &["plugin_refused"]).await?;
    ensure!(ids(&letters(&scene)?).is_empty());
    Ok(())
}
