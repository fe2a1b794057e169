//! Rows into a Postgres target: the mirror is the source, whatever happens to rows, keys, large values and processes.
//!
//! Holds: the plugin `mirror-rust` with targets in the state database and in another one. Never knows: how rows are
//! folded and staged (see the tests of the store).

use anyhow::{Context as _, Result, ensure};
use walgate_harness::{Cluster, wait_until};

use super::scene::{SOON, Scene, expect_end};

super::scenarios! {
    a_mirror_in_the_state_database_is_the_source,
    a_mirror_in_another_database_is_the_source,
    changes_of_every_kind_arrive,
    a_refused_row_halts_and_names_no_value,
    a_refused_row_goes_to_the_dead_letters_by_policy,
    a_restored_target_is_noticed,
    a_mirror_elsewhere_that_was_away_halts,
    an_ungranted_target_is_refused_before_its_rows,
    a_target_that_is_missing_is_named,
    a_far_target_needs_its_database_named,
}

const TABLES: &str = "
    CREATE TABLE customers (id int PRIMARY KEY, name text, email text, phone text);
    CREATE TABLE orders (id bigint PRIMARY KEY, customer int, note text);";

fn manifest(database: &str, on_failure: &str) -> String {
    format!(
        "[plugin]\nrequired = true\non_failure = \"{on_failure}\"\nbackoff_ms = 10\n\
         [[grant.table]]\nschema = \"public\"\nname = \"customers\"\ncolumns = \"*\"\n\
         [[grant.table]]\nschema = \"public\"\nname = \"orders\"\ncolumns = \"*\"\n\
         [grant]\ncapabilities = [\"log\"]\n\
         [grant.rows.\"*\"]\ndatabase = \"{database}\"\nschema = \"mirror\"\n"
    )
}

/// Everything in both schemas, as text.
async fn content(cluster: &Cluster, schema: &str) -> Result<String> {
    let client = cluster.client("postgres").await?;
    let mut all = String::new();
    for table in ["customers", "orders"] {
        let sql = format!("SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t.id), '') FROM {schema}.{table} t");
        let row = client.query_one(&sql, &[]).await?;
        all.push_str(&format!("{table}:\n{}\n", row.get::<_, String>(0)));
    }
    Ok(all)
}

async fn wait_equal(scene: &Scene, target: &Cluster) -> Result<()> {
    wait_until(SOON, "the mirror to be the source", async || {
        Ok(content(&scene.cluster, "public").await? == content(target, "mirror").await?)
    })
    .await
}

async fn near(major: u32, on_failure: &str) -> Result<Scene> {
    let scene = Scene::new(major).await?;
    scene.execute(&format!("CREATE SCHEMA mirror; SET search_path = mirror; {TABLES}")).await?;
    scene.plugin("mirror", "mirror-rust", &manifest("state", on_failure))?;
    scene.create_slot()?;
    Ok(scene)
}

async fn far(major: u32) -> Result<(Scene, Cluster)> {
    let mut scene = Scene::new(major).await?;
    let target = Cluster::builder(major).durable(true).start()?;
    target.execute("postgres", &format!("CREATE SCHEMA mirror; SET search_path = mirror; {TABLES}")).await?;
    scene.configure(&format!("[databases.warehouse]\nurl = \"{}\"", target.url("postgres")))?;
    scene.plugin("mirror", "mirror-rust", &manifest("warehouse", "halt"))?;
    scene.create_slot()?;
    Ok((scene, target))
}

const WORK: &str = "
    INSERT INTO customers SELECT g, 'n' || g, NULL, 'p' FROM generate_series(1, 500) g;
    INSERT INTO orders SELECT g, g, 'o' FROM generate_series(1, 2000) g;
    UPDATE customers SET name = upper(name) WHERE id % 3 = 0;
    DELETE FROM orders WHERE id % 7 = 0;
    UPDATE orders SET id = id + 100000 WHERE id % 11 = 0;";

async fn a_mirror_in_the_state_database_is_the_source(major: u32) -> Result<()> {
    let scene = near(major, "halt").await?;
    let mut walgate = scene.run().await?;
    let status = scene.status(&walgate).await?;
    ensure!(status["plugins"]["mirror"]["mode"] == "host-transactional", "{status}");
    for round in 0..3 {
        scene
            .execute(
                &WORK
                    .replace("generate_series(1,", &format!("generate_series({} + 1,", round * 10_000))
                    .replace(" 500)", &format!(" {} + 500)", round * 10_000))
                    .replace(" 2000)", &format!(" {} + 2000)", round * 10_000)),
            )
            .await?;
        // Killed in the middle of it, as often as not.
        walgate.sigkill()?;
        walgate = scene.run().await?;
    }
    wait_equal(&scene, &scene.cluster).await?;
    scene.wait_confirmed().await
}

async fn a_mirror_in_another_database_is_the_source(major: u32) -> Result<()> {
    let (scene, mut target) = far(major).await?;
    let mut walgate = scene.run().await?;
    let status = scene.status(&walgate).await?;
    ensure!(status["plugins"]["mirror"]["mode"] == "host-transactional-far", "{status}");
    scene.execute(WORK).await?;
    walgate.sigkill()?;
    walgate = scene.run().await?;
    wait_equal(&scene, &target).await?;
    // The target away for a moment.
    target.restart()?;
    scene.execute("UPDATE customers SET name = 'later'").await?;
    wait_equal(&scene, &target).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await.map(drop)
}

async fn changes_of_every_kind_arrive(major: u32) -> Result<()> {
    let scene = near(major, "halt").await?;
    let _walgate = scene.run().await?;
    let large = "repeat(md5(random()::text) || md5(random()::text), 2000)";
    for sql in [
        &format!("INSERT INTO customers VALUES (1, {large}, NULL, '')"),
        // The large value stays unsent, and the key changes under it.
        "UPDATE customers SET phone = 'x' WHERE id = 1",
        "UPDATE customers SET id = 2 WHERE id = 1",
        "BEGIN; INSERT INTO customers VALUES (3, 'a', 'b', 'c'); DELETE FROM customers WHERE id = 3;
         INSERT INTO customers VALUES (3, 'd', NULL, NULL); COMMIT",
        "UPDATE customers SET name = NULL WHERE id = 3",
        "INSERT INTO orders SELECT g, 1, 'x' FROM generate_series(1, 100) g",
        "BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (1, 1, 'after'); COMMIT",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "UPDATE orders SET id = 5, note = NULL",
    ] {
        scene.execute(sql).await.with_context(|| sql.chars().take(60).collect::<String>())?;
        wait_equal(&scene, &scene.cluster).await.with_context(|| sql.chars().take(60).collect::<String>())?;
    }
    Ok(())
}

/// What the target refuses and nothing may show.
const MARKER: &str = "5ecre7-marker";

async fn a_refused_row_halts_and_names_no_value(major: u32) -> Result<()> {
    let scene = near(major, "halt").await?;
    scene.execute(&format!("ALTER TABLE mirror.orders ADD CHECK (note <> '{MARKER}')")).await?;
    let mut walgate = scene.run().await?;
    scene.execute(&format!("INSERT INTO orders VALUES (1, 1, '{MARKER}')")).await?;
    expect_end(&mut walgate, 3, &["rows_refused", "mirror", "orders", "23514"]).await?;
    let status = scene.cli(&["status"])?.all();
    ensure!(!walgate.stderr().contains(MARKER) && !status.contains(MARKER), "{status}");
    scene.execute("ALTER TABLE mirror.orders DROP CONSTRAINT orders_note_check").await?;
    let _walgate = scene.run().await?;
    wait_equal(&scene, &scene.cluster).await
}

async fn a_refused_row_goes_to_the_dead_letters_by_policy(major: u32) -> Result<()> {
    let scene = near(major, "dead-letter").await?;
    scene.execute(&format!("ALTER TABLE mirror.orders ADD CHECK (note <> '{MARKER}')")).await?;
    for id in 1..=30 {
        let note = if id == 13 { MARKER } else { "fine" };
        scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, '{note}')")).await?;
    }
    let _walgate = scene.run().await?;
    wait_until(SOON, "the others", async || Ok(scene.ask("SELECT count(*) FROM mirror.orders").await? == "29")).await?;
    let list = scene.cli(&["--json", "dead-letter", "list"])?.stdout();
    let list: serde_json::Value = serde_json::from_str(&list)?;
    ensure!(list["letters"].as_array().is_some_and(|all| all.len() == 1), "{list}");
    ensure!(list["letters"][0]["class"] == "rows-refused" && list["letters"][0]["code"] == "23514", "{list}");
    scene.execute("INSERT INTO orders VALUES (31, 1, 'fine')").await?;
    wait_until(SOON, "what comes later", async || Ok(scene.ask("SELECT count(*) FROM mirror.orders").await? == "30"))
        .await?;
    scene.execute("ALTER TABLE mirror.orders DROP CONSTRAINT orders_note_check").await?;
    scene.cli(&["dead-letter", "redrive", "--all"])?.expect(0, "1 letters")?;
    wait_equal(&scene, &scene.cluster).await
}

async fn a_restored_target_is_noticed(major: u32) -> Result<()> {
    let (scene, target) = far(major).await?;
    let mut walgate = scene.run().await?;
    scene.execute(WORK).await?;
    wait_equal(&scene, &target).await?;
    scene.wait_confirmed().await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // As after going back to a backup: the position in the target is older than what the source has let go.
    target
        .execute("postgres", "UPDATE walgate_target.positions SET end_lsn = '0/100', commit_lsn = '0/0', ordinal = 0")
        .await?;
    expect_end(&mut scene.start()?, 3, &["data_gap", "mirror"]).await
}

async fn a_mirror_elsewhere_that_was_away_halts(major: u32) -> Result<()> {
    let (scene, _target) = far(major).await?;
    scene.miss_a_while("mirror").await
}

async fn an_ungranted_target_is_refused_before_its_rows(major: u32) -> Result<()> {
    let scene = near(major, "halt").await?;
    let named = manifest("state", "halt").replace("[grant.rows.\"*\"]", "[grant.rows.customers]");
    scene.plugin("mirror", "mirror-rust", &named)?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    expect_end(&mut walgate, 3, &["relation_declined", "orders"]).await
}

/// A check says what keeps rows from being written, and so does the start, before any row.
async fn a_target_that_is_missing_is_named(major: u32) -> Result<()> {
    let scene = near(major, "halt").await?;
    scene.cli(&["check"])?.expect(0, "2 tables granted")?;
    let named = manifest("state", "halt").replace("[grant.rows.\"*\"]", "[grant.rows.customers]");
    scene.plugin("mirror", "mirror-rust", &named)?;
    scene.execute("ALTER TABLE mirror.customers RENAME TO clients").await?;
    scene.cli(&["check"])?.expect(3, "\"mirror\".\"customers\") does not exist")?;
    expect_end(&mut scene.start()?, 3, &["rows_target", "\"mirror\".\"customers\") does not exist"]).await?;
    scene.plugin("mirror", "mirror-rust", &manifest("state", "halt").replace("\"mirror\"\n", "\"nowhere\"\n"))?;
    scene.cli(&["check"])?.expect(3, "schema \"nowhere\", which does not exist")
}

async fn a_far_target_needs_its_database_named(major: u32) -> Result<()> {
    let scene = near(major, "halt").await?;
    scene.plugin("mirror", "mirror-rust", &manifest("warehouse", "halt"))?;
    expect_end(&mut scene.start()?, 2, &["[databases.warehouse]"]).await
}
