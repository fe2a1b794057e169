//! Values at the edges of the host: what cannot be carried, shapes, the state database, outputs, signals, secrets.
//!
//! Holds: one fault a surface. Never knows: guests that misbehave and targets that refuse.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use walgate_harness::{Cluster, wait_until};

use super::evidence::Watched;
use super::hostile::{self, TABLES, VISIBLE};
use crate::scene::{SOON, Scene, expect_end};

fn manifest(output: &str, more: &str) -> String {
    format!(
        "[plugin]\nrequired = true\nbackoff_ms = 1\nmax_backoff_ms = 5\nmax_attempts = 2\n{TABLES}\
         [grant]\ncapabilities = [\"log\", \"metrics\", \"state\"]\n\
         [grant.output.{output}]\nkind = \"file\"\npath = \"granted\"\n{more}"
    )
}

/// `ndjson-rust`, which writes every value, into a file that may hold them.
fn put_ndjson(watched: &Watched) -> Result<PathBuf> {
    watched.scene.plugin("ndjson", "ndjson-rust", &manifest("changes", ""))?;
    Ok(watched.scene.path("plugins/ndjson/granted"))
}

async fn watched(major: u32) -> Result<Watched> {
    let watched = Watched::new(hostile::scene(Cluster::start(major)?).await?)?.output("granted");
    watched.scene.create_slot()?;
    Ok(watched)
}

/// The search sees every marker where it is granted; else it would find nothing anywhere.
pub(super) async fn the_search_finds_what_is_granted(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let file = put_ndjson(&watched)?;
    let mut walgate = watched.start()?;
    walgate.wait_ready(SOON).await?;
    hostile::work(&watched.scene, 0).await?;
    wait_until(SOON, "all of it", async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        Ok(VISIBLE.iter().all(|marker| text.contains(marker)) && text.contains("truncate"))
    })
    .await
    .with_context(|| {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        format!("not there: {:?}", VISIBLE.iter().filter(|marker| !text.contains(**marker)).collect::<Vec<_>>())
    })?;
    watched.stopped(&mut walgate).await?;
    watched.everything().await?;
    let planted = watched.scene.path("cache/note");
    std::fs::write(&planted, "NWVjcmU3X2E=")?;
    ensure!(watched.everything().await.is_err(), "a planted marker was not found");
    std::fs::rename(&planted, watched.scene.path("cache/x5ecre7y"))?;
    std::fs::write(watched.scene.path("cache/x5ecre7y"), "")?;
    ensure!(watched.everything().await.is_err(), "a planted name was not found");
    Ok(())
}

/// Killed and stopped while rows are under way.
pub(super) async fn ends_in_the_middle(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let file = put_ndjson(&watched)?;
    hostile::replayed(&watched.scene, 50).await?;
    for round in 0..2 {
        let mut walgate = watched.start()?;
        walgate.wait_ready(SOON).await?;
        hostile::work(&watched.scene, round * 2).await?;
        walgate.sigkill()?;
        watched.left(&walgate).await?;
        let mut walgate = watched.start()?;
        walgate.wait_ready(SOON).await?;
        hostile::work(&watched.scene, round * 2 + 1).await?;
        watched.stopped(&mut walgate).await?;
    }
    let mut walgate = watched.start()?;
    walgate.wait_ready(SOON).await?;
    wait_until(SOON, "the last row", async || {
        Ok(std::fs::read_to_string(&file).unwrap_or_default().contains("7040111222003"))
    })
    .await?;
    watched.running(&walgate).await?;
    watched.stopped(&mut walgate).await?;
    watched.everything().await
}

/// Bytes that are no text, and a character that the server itself cannot convert and quotes by its bytes.
pub(super) async fn values_that_cannot_be_carried(major: u32) -> Result<()> {
    for (encoding, value, words, quoted) in [
        ("SQL_ASCII", "'5ecre7_text' || convert_from('\\xfffe', 'SQL_ASCII') || '5ecre7_end'", "22021", "fffe"),
        ("WIN1252", "'5ecre7_text' || convert_from('\\x81', 'WIN1252') || '5ecre7_end'", "22P05", "0x81"),
    ] {
        let cluster = Cluster::start(major)?;
        let database =
            format!("CREATE DATABASE other ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
        cluster.execute("postgres", &database).await?;
        let tables = "CREATE TABLE hostile (id int PRIMARY KEY, txt text); CREATE TABLE whole (id int, txt text);
                      CREATE PUBLICATION shop FOR TABLE hostile, whole";
        cluster.execute("other", tables).await?;
        let mut scene = Scene::bare(cluster)?;
        scene.source(&format!(
            "[source]\nurl = \"{}\"\nslot = \"walgate\"\npublications = [\"shop\"]\n[state]\nurl = \"{}\"\n",
            scene.cluster.url("other"),
            scene.cluster.url("postgres")
        ))?;
        let mut watched = Watched::new(scene)?.output("granted");
        put_ndjson(&watched)?;
        watched.scene.create_slot()?;
        watched.scene.cluster.execute("other", &format!("INSERT INTO hostile VALUES (1, {value})")).await?;
        for _ in 0..2 {
            let mut walgate = watched.start()?;
            watched.halted(&mut walgate, words).await.context(encoding)?;
            let said = walgate.stderr() + &watched.scene.cli(&["--json", "status"])?.all();
            ensure!(!said.to_lowercase().contains(quoted), "{encoding}: the bytes are quoted: {said}");
        }
        watched.everything().await?;
    }
    Ok(())
}

/// Columns that come and go, whose defaults and filters are values, too, and sessions that hold the slot back.
pub(super) async fn shapes_and_sessions(major: u32) -> Result<()> {
    let cluster = Cluster::builder(major).setting("max_prepared_transactions", "5").start()?;
    let mut watched = Watched::new(hostile::scene(cluster).await?)?.output("granted");
    watched.scene.create_slot()?;
    put_ndjson(&watched)?;
    let mut walgate = watched.start()?;
    walgate.wait_ready(SOON).await?;
    hostile::work(&watched.scene, 0).await?;
    let session = watched.scene.cluster.client("postgres").await?;
    session.batch_execute("BEGIN; SELECT pg_current_xact_id(), '5ecre7_query'").await?;
    let prepared = "BEGIN; UPDATE hostile SET v = '5ecre7_prepared'; PREPARE TRANSACTION '5ecre7_prepared'";
    watched.scene.execute(prepared).await?;
    watched.running(&walgate).await?;
    watched.scene.execute("ROLLBACK PREPARED '5ecre7_prepared'").await?;
    session.batch_execute("COMMIT").await?;
    watched
        .scene
        .execute(
            "ALTER TABLE hostile ADD later text DEFAULT '5ecre7_default';
             COMMENT ON COLUMN hostile.later IS '5ecre7_comment'",
        )
        .await?;
    watched.scene.execute("UPDATE hostile SET v = '5ecre7_with_later'").await?;
    watched.running(&walgate).await?;
    watched.stopped(&mut walgate).await?;

    watched.scene.plugin(
        "decline",
        "relation-decline",
        &manifest("lines", "").replace("columns = \"*\"\n", "columns = \"*\"\nnew_columns = \"allow\"\n"),
    )?;
    let mut walgate = watched.start()?;
    walgate.wait_ready(SOON).await?;
    watched.scene.execute("UPDATE hostile SET v = '5ecre7_before'").await?;
    watched.scene.execute("ALTER TABLE hostile ADD latest text DEFAULT '5ecre7_default'").await?;
    watched.scene.execute("UPDATE hostile SET v = '5ecre7_after'").await?;
    watched.halted(&mut walgate, "relation_declined").await?;
    std::fs::remove_dir_all(watched.scene.path("plugins/decline"))?;

    let filtered = "ALTER PUBLICATION shop SET TABLE hostile (id, k) WHERE (k <> '5ecre7_filter'), whole";
    watched.scene.execute(filtered).await?;
    watched.scene.execute("DELETE FROM hostile").await?;
    let named = manifest("changes", "").replacen("columns = \"*\"", "columns = [\"id\", \"k\", \"txt\"]", 1);
    watched.scene.plugin("ndjson", "ndjson-rust", &named)?;
    let mut walgate = watched.start()?;
    watched.scene.execute("INSERT INTO hostile (id, k, txt) VALUES (1, '5ecre7_k', '5ecre7_txt')").await?;
    watched.halted(&mut walgate, "granted_column_missing").await?;
    watched.everything().await
}

/// Faults of the tables of ours, raised by constraints and triggers that quote what is written.
pub(super) async fn faults_of_the_state_database(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    watched.configure("[state]\nmax_retries = 1\nretry_backoff_ms = 10");
    let raise = "CREATE FUNCTION public.raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION '% %', NEW, encode(to_jsonb(NEW)::text::bytea, 'escape') USING ERRCODE = 'check_violation',
                 DETAIL = NEW::text, HINT = '5ecre7_hint', COLUMN = '5ecre7_column'; END $$";
    watched.scene.execute(raise).await?;
    watched.scene.execute("CREATE SCHEMA mirror; CREATE TABLE mirror.orders (id text PRIMARY KEY)").await?;
    for (guest, setting, table, constraint) in [
        ("leak-everything", "state-key", "plugin_state", "length(key) < 2"),
        ("leak-everything", "state-value", "plugin_state", "length(value) < 2"),
        ("reject-poison-rows", "", "dead_letters", "length(image) < 2"),
        ("reject-poison-rows", "", "checkpoints", "end_lsn < '0/1'"),
    ] {
        // A round that is taken makes the tables.
        watched.scene.plugin("guest", "output-lines", &manifest("lines", ""))?;
        let mut walgate = watched.start()?;
        walgate.wait_ready(SOON).await?;
        watched.stopped(&mut walgate).await?;
        let settings = format!(
            "[grant.rows.orders]\nschema = \"mirror\"\ncolumns = [\"id\"]\n[settings]\nwhere = \"{setting}\"\n"
        );
        watched.scene.plugin("guest", guest, &manifest("lines", &settings))?;
        hostile::work(&watched.scene, 1).await?;
        watched
            .scene
            .execute(&format!("ALTER TABLE walgate.{table} ADD CONSTRAINT bad CHECK ({constraint}) NOT VALID"))
            .await?;
        let mut walgate = watched.start()?;
        watched.halted(&mut walgate, "checkpoint_store").await.with_context(|| format!("constraint on {table}"))?;
        watched
            .scene
            .execute(&format!(
                "ALTER TABLE walgate.{table} DROP CONSTRAINT bad;
                 CREATE TRIGGER raise BEFORE INSERT OR UPDATE ON walgate.{table} FOR EACH ROW EXECUTE FUNCTION public.raise()"
            ))
            .await?;
        let mut walgate = watched.start()?;
        watched.halted(&mut walgate, "checkpoint_store").await.with_context(|| format!("trigger on {table}"))?;
        watched.scene.execute(&format!("DROP TRIGGER raise ON walgate.{table}; DELETE FROM hostile")).await?;
    }
    watched.everything().await
}

/// An output that is in the way, and one without room.
pub(super) async fn faults_of_outputs(major: u32) -> Result<()> {
    let mut watched = watched(major).await?;
    let file = put_ndjson(&watched)?;
    std::fs::create_dir(&file)?;
    hostile::work(&watched.scene, 0).await?;
    let mut walgate = watched.start()?;
    watched.halted(&mut walgate, "output").await?;
    std::fs::remove_dir(&file)?;
    // A file that takes nothing: every write to it is refused for want of room.
    std::os::unix::fs::symlink("/dev/full", &file)?;
    let mut walgate = watched.start()?;
    watched.halted(&mut walgate, "output").await?;
    std::fs::remove_file(&file)?;
    watched.everything().await
}

/// A password in a file, right and wrong and in the wrong place, and settings in files that are broken around them.
pub(super) async fn passwords_and_settings(major: u32) -> Result<()> {
    let cluster = Cluster::builder(major).hba("host all all 127.0.0.1/32 scram-sha-256").start()?;
    cluster.execute("postgres", "CREATE ROLE loader SUPERUSER LOGIN PASSWORD '5ecre7_password'").await?;
    let port = cluster.port();
    let mut scene = hostile::scene(cluster).await?;
    let section = |url: &str| {
        format!(
            "[source]\nurl = \"{url}\"\npassword_file = \"password\"\nslot = \"walgate\"\npublications = [\"shop\"]\n"
        )
    };
    let url = format!("postgres://loader@127.0.0.1:{port}/postgres");
    scene.source(&section(&url))?;
    std::fs::write(scene.path("password"), "5ecre7_password\n")?;
    let mut watched = Watched::new(scene)?.output("granted");
    watched.scene.create_slot()?;
    let settings = "[settings]\ntarget_prefix = \"5ecre7_prefix\"\ntoken = \"5ecre7_setting\"\n";
    watched.scene.plugin("lines", "output-lines", &manifest("lines", settings))?;
    let broken = [
        "[settings]\ntoken = 5ecre7_setting\n",
        "[settings]\ntoken = 5ecre7\n",
        "[settings]\ntoken = \"5ecre7_setting\n",
        "[settings]\ntoken = \"5ecre7_setting\" 5ecre7_more\n",
        "[settings]\ntoken = \"\\5ecre7_setting\"\n",
        "[settings]\ntoken = [\"5ecre7_setting\"]\n",
        "[settings]\ntoken = { part = \"5ecre7_setting\" }\n",
        "[settings]\ntoken = \"5ecre7_setting\"\ntoken = \"5ecre7_setting\"\n",
        "settings = \"5ecre7_setting\"\n",
        "[plugin]\nrequired = \"5ecre7_setting\"\n",
        "[plugin]\nmax_attempts = \"5ecre7_setting\"\n",
        "[limits]\nmemory_mib = \"5ecre7_setting\"\n",
        "[grant]\ncapabilities = \"5ecre7_setting\"\n",
    ];
    for (number, manifest) in broken.iter().enumerate() {
        watched.scene.plugin(&format!("broken-{number}"), "output-lines", manifest)?;
    }
    watched.scene.plugin(
        "strict",
        "mirror-rust",
        &format!("{TABLES}[grant.rows.\"*\"]\nschema = \"mirror\"\n{settings}"),
    )?;
    for _ in 0..2 {
        let mut walgate = watched.start()?;
        walgate.wait_ready(SOON).await?;
        hostile::work(&watched.scene, watched.starts()).await?;
        watched.running(&walgate).await?;
        watched.stopped(&mut walgate).await?;
    }
    watched.everything().await?;
    let listed = watched.scene.cli(&["plugin", "list"])?.all();
    ensure!(listed.matches("rejected").count() >= broken.len(), "{listed}");

    std::fs::write(watched.scene.path("password"), "5ecre7_wrong\n")?;
    let mut walgate = watched.start()?;
    expect_end(&mut walgate, 3, &["password"]).await?;
    watched.clean("the end over a wrong password", walgate.stderr())?;
    watched.clean("check with a wrong password", watched.scene.cli(&["check"])?.all())?;
    for url in [
        format!("postgres://loader:5ecre7_password@127.0.0.1:{port}/postgres"),
        format!("postgres://loader:5ecre7_password@127.0.0.1:{port}x/postgres"),
        format!("postgres://loader:5ecre7%password@127.0.0.1:{port}/postgres"),
        "5ecre7_password".to_owned(),
        format!("{url}?sslmode=5ecre7_password"),
        format!("{url}?password=5ecre7_password"),
    ] {
        watched.scene.source(&section(&url))?;
        for command in [&["run"][..], &["check"], &["--json", "status"], &["dead-letter", "list"], &["plugin", "list"]]
        {
            let answer = watched.scene.cli(command)?;
            answer.expect(2, "source")?;
            watched.clean("an answer about a bad url", answer.all())?;
        }
    }
    Ok(())
}
