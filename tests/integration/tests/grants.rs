//! What a `*` grant lets through over time, and what is said about a grant that cannot work.
//!
//! Holds: withheld columns, misspelled exceptions, unpublished tables. Never knows: how columns are kept.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walgate_harness::{Cluster, wait_until};

use super::scene::{SOON, Scene, expect_end, shop_manifest};

super::scenarios! {
    a_column_that_appears_later_stays_withheld,
    a_misspelled_exception_halts,
    an_exception_that_is_misspelled_later_lets_nothing_through,
    values_are_treated_and_rows_filtered,
    what_is_sent_beyond_all_grants_is_shown,
    a_check_names_what_would_never_come,
    checkpoints_of_another_source_are_not_forgotten,
}

fn everything_but(scene: &Scene, except: &str) -> Result<()> {
    let file = scene.path("changes.ndjson");
    scene.plugin(
        "ndjson",
        "ndjson-rust",
        &format!(
            "[[grant.table]]\nschema = \"public\"\nname = \"customers\"\ncolumns = \"*\"\nexcept = [\"{except}\", \"phone\"]\n\
             [grant.output.changes]\nkind = \"file\"\npath = \"{}\"\n",
            file.display()
        ),
    )
}

/// Through a rename, an added column, a SIGKILL, and another table that takes the place of the first under its name.
async fn a_column_that_appears_later_stays_withheld(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    everything_but(&scene, "email")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO customers VALUES (1, 'n1', 'canary', 'canary')").await?;
    scene.wait_lines("changes.ndjson", 1).await?;
    scene.execute("ALTER TABLE customers RENAME email TO mail; ALTER TABLE customers ADD ssn text").await?;
    scene.execute("INSERT INTO customers VALUES (2, 'n2', 'canary', 'canary', 'canary')").await?;
    scene.wait_lines("changes.ndjson", 2).await?;
    walgate.wait_line("withheld", SOON).await?;
    walgate.sigkill()?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO customers VALUES (3, 'n3', 'canary', 'canary', 'canary')").await?;
    scene.wait_lines("changes.ndjson", 3).await?;
    scene
        .execute(
            "CREATE TABLE next (id int PRIMARY KEY, name text, phone text, pin text); DROP TABLE customers;
             ALTER TABLE next RENAME TO customers; ALTER PUBLICATION shop ADD TABLE customers",
        )
        .await?;
    scene.execute("INSERT INTO customers VALUES (4, 'n4', 'canary', 'canary')").await?;
    let lines = scene.wait_lines("changes.ndjson", 4).await?;
    for (at, line) in lines.iter().enumerate() {
        let change: Value = serde_json::from_str(line).context("not JSON")?;
        ensure!(change["after"]["name"] == format!("n{}", at + 1), "{line}");
        ensure!(!line.contains("canary"), "a column that appeared later was handed over: {line}");
    }
    Ok(())
}

async fn a_misspelled_exception_halts(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    everything_but(&scene, "emial")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO customers VALUES (1, 'n', 'canary', 'canary')").await?;
    expect_end(&mut walgate, 3, &["excepted_column_missing", "\"emial\"", "customers"]).await?;
    ensure!(scene.lines("changes.ndjson").is_empty(), "nothing may leave under a grant that is not what it means");
    Ok(())
}

/// A table that was met before has no first time any more at which the exception is looked at.
async fn an_exception_that_is_misspelled_later_lets_nothing_through(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    everything_but(&scene, "email")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO customers VALUES (1, 'n', 'canary', 'canary')").await?;
    scene.wait_lines("changes.ndjson", 1).await?;
    everything_but(&scene, "emial")?;
    let ndjson = async || Ok::<_, anyhow::Error>(scene.status(&walgate).await?["plugins"]["ndjson"].clone());
    wait_until(SOON, "it to be turned back", async || {
        Ok(ndjson().await?["candidate"].as_str().is_some_and(|cause| cause.contains("emial")))
    })
    .await?;
    scene.execute("INSERT INTO customers VALUES (2, 'n', 'canary', 'canary')").await?;
    let lines = scene.wait_lines("changes.ndjson", 2).await?;
    ensure!(ndjson().await?["state"] == "running" && ndjson().await?["generation"] == 1);
    ensure!(lines.iter().all(|line| !line.contains("canary")), "{lines:?}");
    Ok(())
}

async fn values_are_treated_and_rows_filtered(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    std::fs::write(scene.path("key"), "a key of at least 32 bytes for the hashes\n")?;
    let manifest = format!(
        "[plugin]\nrequired = true\n[grant]\nhash_key = \"pii\"\n[[grant.table]]\nschema = \"public\"\nname = \"customers\"\n\
         columns = [\"id\", \"name\", \"email\", \"phone\"]\nrow_filter = \"id < 10\"\n\
         treatments = {{ name = \"truncated(2)\", email = \"hashed\", phone = \"masked\" }}\n\
         [grant.output.changes]\nkind = \"file\"\npath = \"{}\"\n",
        scene.path("changes.ndjson").display()
    );
    scene.plugin("ndjson", "ndjson-rust", &manifest)?;
    scene.create_slot()?;
    // Without the secret nothing starts, and the line to add is named.
    expect_end(&mut scene.start()?, 2, &["[secrets.pii]"]).await?;
    scene.configure("[secrets.pii]\nfile = \"key\"")?;
    let walgate = scene.run().await?;
    let insert = |id: u32| format!("INSERT INTO customers VALUES ({id}, 'canary{id}', 'canary@x.org', '+49 canary')");
    for id in [1, 10, 2] {
        scene.execute(&insert(id)).await?;
    }
    // Out of the filter is a delete, into it an insert.
    scene.execute("UPDATE customers SET id = 20 WHERE id = 1; UPDATE customers SET id = 3 WHERE id = 10").await?;
    let lines = scene.wait_lines("changes.ndjson", 4).await?;
    let all = lines.join("\n");
    ensure!(!all.contains("canary") && !all.contains("x.org"), "{all}");
    let first: serde_json::Value = serde_json::from_str(&lines[0])?;
    let after = &first["after"];
    ensure!(after["name"] == "ca" && after["email"].as_str().is_some_and(|hash| hash.len() == 64), "{first}");
    ensure!(after["phone"].as_str().is_some_and(|phone| phone.starts_with("+00 xxx")), "{first}");
    let operations: Vec<bool> = lines.iter().map(|line| line.contains("delete")).collect();
    ensure!(operations == [false, false, true, false], "{all}");
    ensure!(!walgate.stderr().contains("canary"), "{}", walgate.stderr());
    Ok(())
}

async fn what_is_sent_beyond_all_grants_is_shown(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    let manifest = shop_manifest("halt", 5);
    let orders = manifest.rfind("[[grant.table]]").map_or(manifest.as_str(), |at| &manifest[..at]);
    let output = "[grant.output.changes]\nkind = \"stdout\"\n";
    scene.plugin("ndjson", "ndjson-rust", &format!("{orders}{output}"))?;
    let shown = scene.cli(&["source"])?;
    shown.expect(0, "public.customers: columns email, phone")?;
    shown.expect(0, "public.orders: the whole table")?;
    let statement = shown.stdout().lines().last().unwrap_or_default().trim().to_owned();
    ensure!(statement.starts_with("ALTER PUBLICATION"), "{statement}");
    scene.execute(&statement).await?;
    scene.cli(&["source"])?.expect(0, "sends nothing beyond")
}

async fn a_check_names_what_would_never_come(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.create_slot()?;
    let manifest = shop_manifest("halt", 5).replace("customers", "custmers");
    scene.plugin("ndjson", "ndjson-rust", &format!("{manifest}[grant.output.changes]\nkind = \"stdout\"\n"))?;
    scene.cli(&["check"])?.expect(2, "public.custmers is granted, but no publication carries it")?;
    let mut walgate = scene.run().await?;
    walgate.wait_line("no publication carries them", SOON).await?;
    let output = "[grant.output.changes]\nkind = \"file\"\npath = \"/nowhere/at/all/changes.ndjson\"\n";
    scene.plugin("ndjson", "ndjson-rust", &format!("{}{output}", shop_manifest("halt", 5)))?;
    scene.cli(&["check"])?.expect(2, "the folder of /nowhere/at/all/changes.ndjson does not exist")?;
    // What would stop it at its first row, by the rules that are applied to the stream.
    scene.execute("CREATE DOMAIN kept AS text; ALTER TABLE customers ADD kept kept").await?;
    let grant = "schema = \"public\"\nname = \"customers\"\n";
    let customers = |keys: &str| -> Result<()> {
        let output = "[grant.output.changes]\nkind = \"stdout\"\n";
        scene.plugin("ndjson", "ndjson-rust", &format!("[[grant.table]]\n{grant}{keys}\n{output}"))
    };
    for (keys, words) in [
        ("columns = [\"id\", \"nmae\"]", "\"nmae\""),
        ("columns = \"*\"\nexcept = [\"emial\"]", "\"emial\""),
        ("columns = [\"id\"]\nrow_filter = \"email = 'x'\"", "is not part of the replica identity"),
        ("columns = [\"id\"]\nrow_filter = \"kept < 'x'\"\noperations = [\"insert\"]", "has no order here"),
        ("columns = [\"id\"]\ntreatments = { id = \"masked\" }", "part of the key"),
    ] {
        customers(keys)?;
        scene.cli(&["check"])?.expect(2, words)?;
    }
    customers("columns = [\"id\", \"kept\"]\nrow_filter = \"email = 'x'\"")?;
    scene.execute("ALTER TABLE customers REPLICA IDENTITY FULL").await?;
    scene.cli(&["check"])?.expect(0, "ok   plugin ndjson")?;
    // A list of columns in the publication counts.
    scene.execute("ALTER PUBLICATION shop SET TABLE customers (id, name, email, phone), orders").await?;
    scene.cli(&["check"])?.expect(2, "\"kept\"")
}

async fn checkpoints_of_another_source_are_not_forgotten(major: u32) -> Result<()> {
    let mut first = Scene::new(major).await?;
    let state = Cluster::start(major)?;
    let section = format!("[state]\nurl = \"{}\"", state.url("postgres"));
    first.configure(&section)?;
    first.lines_plugin("lines")?;
    first.create_slot()?;
    let mut second = Scene::new(major).await?;
    second.configure(&section)?;
    let refused = second.cli(&["slot", "create"])?;
    refused.expect(3, "checkpoint_exists")?;
    refused.expect(3, "--forget --of ")?;
    second.cli(&["slot", "drop", "--forget"])?.expect(2, "another walgate that shares the state database")?;
    let _walgate = first.run().await?;
    first.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    first.wait_lines("lines.txt", 1).await?;
    // Whoever names the other system knows what is lost.
    let system = first.ask("SELECT system_identifier FROM pg_control_system()").await?;
    second.cli(&["slot", "drop", "--forget", "--of", &system])?.expect(0, "forgotten")
}
