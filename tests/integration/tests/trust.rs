//! What an operator trusts: a digest, a signature, a secret, settings that fit; and what can be asked before anything runs.
//!
//! Holds: what is refused, the line that allows it, and that what runs goes on meanwhile. Never knows: how any of it is checked.

use anyhow::{Context as _, Result, ensure};
use minisign::KeyPair;
use serde_json::Value;
use walgate_harness::{guest, wait_until};

use super::scene::{SOON, Scene, expect_end, lines_manifest};

super::scenarios! {
    a_pinned_component_is_the_only_one_that_runs,
    an_unsigned_component_does_not_run,
    a_secret_is_rotated_without_a_restart,
    a_rotated_secret_that_is_turned_back_blocks_no_version,
    settings_are_held_against_the_schema,
    a_directory_is_checked_without_a_database,
    state_is_told_by_its_keys,
}

async fn wait_candidate(scene: &Scene, walgate: &walgate_harness::Walgate, words: &str) -> Result<()> {
    wait_until(SOON, &format!("a candidate {words}"), async || {
        let candidate = scene.status(walgate).await?["plugins"]["lines"]["candidate"].clone();
        Ok(candidate.as_str().is_some_and(|candidate| candidate.contains(words)))
    })
    .await
}

async fn a_pinned_component_is_the_only_one_that_runs(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = lines_manifest(&scene.path("lines.txt"));
    let pinned = |digest: &str| manifest.replace("[plugin]", &format!("[plugin]\nsha256 = \"{digest}\""));
    scene.plugin("lines", "output-lines", &pinned(&"0".repeat(64)))?;
    scene.create_slot()?;
    let checked = scene.cli(&["check"])?;
    checked.expect(2, "pins; if this is the version that is meant")?;
    let said = checked.all();
    let line = said.lines().find(|line| line.trim().starts_with("sha256 = ")).context(said.clone())?;
    let digest = line.split('"').nth(1).context("no digest")?.to_owned();
    scene.plugin("lines", "output-lines", &pinned(&digest.to_ascii_uppercase()))?;
    let walgate = scene.run().await?;
    // Another component under the same pin stays outside.
    scene.plugin("lines", "trap-in-deliver", &pinned(&digest))?;
    wait_candidate(&scene, &walgate, "another digest than plugin.sha256").await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await.map(drop)
}

async fn an_unsigned_component_does_not_run(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    let (ours, theirs) = (KeyPair::generate_unencrypted_keypair()?, KeyPair::generate_unencrypted_keypair()?);
    std::fs::write(
        scene.config(),
        std::fs::read_to_string(scene.config())?
            .replace("[plugins]", &format!("[plugins]\ntrusted_keys = [\"{}\"]", ours.pk.to_base64())),
    )?;
    let bytes = std::fs::read(guest("output-lines")?)?;
    let sign = |pair: &KeyPair| -> Result<()> {
        let signature = minisign::sign(Some(&pair.pk), &pair.sk, bytes.as_slice(), None, None)?;
        let half = scene.path("plugins/lines/plugin.wasm.minisig.tmp");
        std::fs::write(&half, signature.into_string())?;
        Ok(std::fs::rename(half, scene.path("plugins/lines/plugin.wasm.minisig"))?)
    };
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    expect_end(&mut scene.start()?, 2, &["is not signed", "minisign -S -m"]).await?;
    sign(&theirs)?;
    expect_end(&mut scene.start()?, 2, &["is by none of plugins.trusted_keys"]).await?;
    sign(&ours)?;
    let walgate = scene.run().await?;
    // What is dropped in later needs one of its own, and is taken as soon as that is there.
    let old = std::fs::read(scene.path("plugins/lines/plugin.wasm.minisig"))?;
    scene.plugin("lines", "trap-in-deliver", &lines_manifest(&scene.path("lines.txt")))?;
    wait_candidate(&scene, &walgate, "is by none of plugins.trusted_keys").await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    scene.lines_plugin("lines")?;
    wait_until(SOON, "no candidate", async || {
        Ok(scene.status(&walgate).await?["plugins"]["lines"]["candidate"].is_null())
    })
    .await?;
    ensure!(old == std::fs::read(scene.path("plugins/lines/plugin.wasm.minisig"))?);
    drop(walgate);
    scene.configure("")?;
    std::fs::write(
        scene.config(),
        std::fs::read_to_string(scene.config())?.replace("[plugins]", "[plugins]\ntrusted_keys = [\"s3cret\"]"),
    )?;
    let refused = scene.cli(&["check"])?;
    refused.expect(2, "plugins.trusted_keys[0]")?;
    ensure!(!refused.all().contains("s3cret"), "{}", refused.all());
    Ok(())
}

async fn a_secret_is_rotated_without_a_restart(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[secrets.pii]\nfile = \"key\"")?;
    let put = |text: &str| -> Result<()> {
        std::fs::write(scene.path("key.tmp"), text)?;
        Ok(std::fs::rename(scene.path("key.tmp"), scene.path("key"))?)
    };
    put("the first key, of at least 32 bytes, for the hashes")?;
    let manifest = format!(
        "[grant]\nhash_key = \"pii\"\n[[grant.table]]\nschema = \"public\"\nname = \"customers\"\ncolumns = [\"id\", \"name\"]\n\
         treatments = {{ name = \"hashed\" }}\n[grant.output.changes]\nkind = \"file\"\npath = \"{}\"\n",
        scene.path("changes.ndjson").display()
    );
    scene.plugin("lines", "ndjson-rust", &manifest)?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    let insert = async |id: usize| -> Result<Value> {
        scene.execute(&format!("INSERT INTO customers VALUES ({id}, 'the same name')")).await?;
        let lines = scene.wait_lines("changes.ndjson", id).await?;
        let change: Value = serde_json::from_str(&lines[id - 1])?;
        Ok(change["after"]["name"].clone())
    };
    let first = insert(1).await?;
    ensure!(insert(2).await? == first);
    // One that cannot be a key leaves the one that is.
    put("short")?;
    wait_candidate(&scene, &walgate, "at least 32 bytes").await?;
    ensure!(insert(3).await? == first);
    put("the second key, of at least 32 bytes, for the hashes")?;
    walgate.wait_line("the pipeline begins again with the change", SOON).await?;
    wait_until(SOON, "the plugin to be back", async || {
        Ok(scene.status(&walgate).await?["plugins"]["lines"]["state"] == "probation")
    })
    .await?;
    let second = insert(4).await?;
    ensure!(second != first && second.as_str().is_some_and(|hash| hash.len() == 64), "{second}");
    // The same bytes again are no rotation.
    let turns = walgate.stderr().matches("begins again").count();
    put("the second key, of at least 32 bytes, for the hashes")?;
    scene.plugin("lines", "ndjson-rust", &format!("{manifest}[limits]\nmemory_mib = 0\n"))?;
    wait_candidate(&scene, &walgate, "limits.memory_mib").await?;
    scene.plugin("lines", "ndjson-rust", &manifest)?;
    wait_until(SOON, "no candidate", async || {
        Ok(scene.status(&walgate).await?["plugins"]["lines"]["candidate"].is_null())
    })
    .await?;
    ensure!(insert(5).await? == second);
    ensure!(walgate.stderr().matches("begins again").count() == turns);
    ensure!(!walgate.stderr().contains("of at least 32 bytes, for"), "a secret in the log");
    Ok(())
}

/// The version is the one that ran all the while; a mark would keep it from running over the next restart.
async fn a_rotated_secret_that_is_turned_back_blocks_no_version(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[secrets.pii]\nfile = \"key\"")?;
    std::fs::write(scene.path("key"), "the first key, of at least 32 bytes, for the hashes")?;
    let manifest = lines_manifest(&scene.path("lines.txt")).replace("on_failure", "backoff_ms = 10\non_failure");
    scene.plugin("lines", "trap-on-poison", &format!("{manifest}[grant]\nhash_key = \"pii\"\n"))?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    std::fs::write(scene.path("key.tmp"), "the second key, of at least 32 bytes, for the hashes")?;
    std::fs::rename(scene.path("key.tmp"), scene.path("key"))?;
    walgate.wait_line("the pipeline begins again with the change", SOON).await?;
    scene.wait_plugin(&walgate, "lines", "probation").await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'poison')").await?;
    // Turned back it is no better, and halts.
    expect_end(&mut walgate, 3, &["the one before it is back", "plugin_failed"]).await?;
    let generations = scene.cli(&["plugin", "generations", "lines"])?;
    generations.expect(0, "1 ")?;
    ensure!(!generations.all().contains("rolled back"), "{}", generations.all());
    Ok(())
}

async fn settings_are_held_against_the_schema(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = "[[grant.table]]\nschema = \"public\"\nname = \"orders\"\ncolumns = \"*\"\n[grant]\ncapabilities = [\"log\"]\n\
                    [grant.rows.\"*\"]\nschema = \"mirror\"\n\
                    [settings]\ntarget_prefx = \"s3cret\"\n";
    scene.plugin("mirror", "mirror-rust", manifest)?;
    let listed = scene.cli(&["plugin", "list"])?;
    listed.expect(0, "settings.target_prefx is not a setting of the plugin; it has target_prefix")?;
    ensure!(!listed.all().contains("s3cret"), "{}", listed.all());
    scene.plugin("mirror", "mirror-rust", &manifest.replace("prefx", "prefix"))?;
    scene.cli(&["plugin", "list"])?.expect(0, "ready")
}

async fn a_directory_is_checked_without_a_database(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    let plugins = scene.path("plugins").display().to_string();
    scene.cluster.stop_immediate()?;
    scene.cli(&["plugin", "check", &plugins])?.expect(0, "lines 0.0.0: would run, required, on failure halt")?;
    let checked = scene.cli(&["--json", "plugin", "check", &format!("{plugins}/lines")])?;
    let checked: Value = serde_json::from_str(&checked.stdout()).with_context(|| checked.all())?;
    let tables = &checked[0]["would"]["tables"];
    ensure!(tables.as_array().is_some_and(|all| !all.is_empty()) && tables[0]["columns"].is_string(), "{checked}");
    scene.plugin_bytes("bad", b"garbage", "")?;
    let refused = scene.cli(&["plugin", "check", &plugins])?;
    refused.expect(2, "bad: rejected")?;
    refused.expect(2, "lines 0.0.0: would run")?;
    scene.cli(&["plugin", "check", "/nowhere/at/all"])?.expect(2, "cannot be read")
}

async fn state_is_told_by_its_keys(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = super::scene::shop_manifest("halt", 5);
    scene.plugin(
        "counter",
        "state-counter",
        &format!("{manifest}[grant]\ncapabilities = [\"state\", \"metrics\"]\n"),
    )?;
    scene.create_slot()?;
    scene.cli(&["plugin", "state", "list", "counter"])?.expect(0, "counter keeps no state")?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x'), (2, 1, 'x')").await?;
    scene.wait_confirmed().await?;
    scene.cli(&["plugin", "state", "list", "counter"])?.expect(0, "rows (")?;
    let (file, key) = (scene.path("value").display().to_string(), "rows");
    scene.cli(&["plugin", "state", "export", "counter", key, "--to", &file])?.expect(0, "bytes")?;
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file)?);
    ensure!(mode & 0o777 == 0o600 && !std::fs::read(&file)?.is_empty(), "{mode:o}");
    scene.cli(&["plugin", "state", "export", "counter", key, "--to", &file])?.expect(2, "cannot be written")?;
    scene.cli(&["plugin", "state", "export", "counter", "other", "--to", &file])?.expect(2, "no such key")?;
    scene.cli(&["plugin", "state", "list", "counter/columns"])?.expect(2, "a plugin name is")
}
