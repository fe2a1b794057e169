//! What a user is promised when nothing goes wrong, and when walgate itself is killed.
//!
//! Holds: order, parts, restarts, drains, several plugins. Never knows: faults of others (see `faults.rs`).

use anyhow::{Result, ensure};
use serde_json::Value;

use super::scene::{SOON, Scene, shop_manifest};

super::scenarios! {
    changes_arrive_in_commit_order,
    a_sigterm_drains_and_acknowledges,
    a_sigkill_loses_and_repeats_nothing,
    a_large_transaction_comes_in_parts,
    each_plugin_has_its_own_cursor,
    the_api_answers,
    unix_socket_and_odd_names,
}

async fn changes_arrive_in_commit_order(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene
        .execute("BEGIN; INSERT INTO orders VALUES (1, 1, 'a'); INSERT INTO customers VALUES (1, 'n', 'e', 'p'); UPDATE orders SET note = 'b'; COMMIT")
        .await?;
    scene.execute("DELETE FROM customers").await?;
    scene.execute("TRUNCATE orders, customers").await?;
    let lines = scene.wait_lines("lines.txt", 6).await?;
    ensure!(
        lines[..4]
            == [
                "public.orders insert 0",
                "public.customers insert 1",
                "public.orders update 2",
                "public.customers delete 0"
            ],
        "{lines:?}"
    );
    ensure!(lines[4].ends_with("truncate 0") && lines[5].ends_with("truncate 1"), "{lines:?}");
    Ok(())
}

async fn a_sigterm_drains_and_acknowledges(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders SELECT g, g, 'x' FROM generate_series(1, 20000) g").await?;
    let end = scene.ask("SELECT pg_current_wal_lsn()").await?;
    scene.wait_lines("lines.txt", 20_000).await?;
    walgate.sigterm()?;
    ensure!(walgate.wait_exit(SOON).await?.code() == Some(0), "a stop as asked ends with 0");
    let confirmed = scene
        .ask(&format!("SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'walgate'"))
        .await?;
    ensure!(confirmed == "t", "the last acknowledgement must reach the server before the end");
    scene.cli(&["status"])?.expect(0, "not running (stopped")?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (0, 0, 'last')").await?;
    scene.wait_lines("lines.txt", 20_001).await.map(drop)
}

async fn a_sigkill_loses_and_repeats_nothing(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[delivery]\nmax_batch_rows = 500")?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    for round in 0..4 {
        let sql = format!("INSERT INTO orders SELECT {round} * 100000 + g, g, 'x' FROM generate_series(1, 20000) g");
        let (written, killed) = tokio::join!(scene.execute(&sql), async {
            // Somewhere inside the delivery of the transaction: some of its parts are written, not all.
            let before = 20_000 * round;
            walgate_harness::wait_until(SOON, "a part of the round", async || {
                Ok(scene.lines("lines.txt").len() > before)
            })
            .await?;
            walgate.sigkill()
        });
        written?;
        killed?;
        walgate = scene.run().await?;
        scene.wait_lines("lines.txt", 20_000 * (round + 1)).await?;
    }
    // The order inside each transaction is whole: no ordinal is missing or comes twice.
    let lines = scene.lines("lines.txt");
    for (at, line) in lines.iter().enumerate() {
        let expect = format!("public.orders insert {}", at % 20_000);
        ensure!(*line == expect, "line {at} is {line:?} instead of {expect:?}");
    }
    scene.wait_confirmed().await
}

async fn a_large_transaction_comes_in_parts(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene.configure("[delivery]\nmax_batch_rows = 100")?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders SELECT g, g, 'x' FROM generate_series(1, 1050) g").await?;
    let lines = scene.wait_lines("lines.txt", 1_050).await?;
    ensure!(lines[1_049] == "public.orders insert 1049", "ordinals count through all parts");
    let batches = scene.status(&walgate).await?.pointer("/plugins/lines/batches").and_then(Value::as_u64);
    ensure!(batches.is_some_and(|batches| batches >= 11), "1,050 rows in batches of 100: {batches:?}");
    Ok(())
}

async fn each_plugin_has_its_own_cursor(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("first")?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'before the second plugin')").await?;
    scene.wait_lines("first.txt", 1).await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    // A new plugin begins at the present, and inherits nobody's cursor.
    scene.lines_plugin("second")?;
    scene.plugin(
        "counter",
        "counter-rust",
        &format!("{}[grant]\ncapabilities = [\"metrics\", \"state\"]\n", shop_manifest("halt", 5)),
    )?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (2, 2, 'after')").await?;
    scene.wait_lines("first.txt", 2).await?;
    scene.wait_lines("second.txt", 1).await?;
    let status = scene.status(&walgate).await?;
    let plugins = status["plugins"].as_object().map(|plugins| plugins.len());
    ensure!(plugins == Some(3), "{status}");
    Ok(())
}

async fn the_api_answers(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.lines_plugin("lines")?;
    scene.create_slot()?;
    let walgate = scene.run().await?;
    scene.execute("INSERT INTO orders VALUES (1, 1, 'x')").await?;
    scene.wait_lines("lines.txt", 1).await?;
    ensure!(walgate.get("/healthz").await?.status == 200);
    ensure!(walgate.get("/readyz").await?.status == 200);
    let metrics = walgate.get("/metrics").await?.body;
    for name in ["walgate_rows_delivered_total{plugin=\"lines\"} 1", "walgate_halted 0", "walgate_transactions_total"] {
        ensure!(metrics.contains(name), "no {name} in:\n{metrics}");
    }
    let status = scene.cli(&["status"])?;
    status.expect(0, "plugin    lines: running since ")?;
    status.expect(0, ", 1 rows in 1 batches, durable to ")?;
    let json: Value = serde_json::from_str(&scene.cli(&["--json", "status"])?.stdout())?;
    ensure!(json["phase"] == "streaming", "{json}");
    Ok(())
}

async fn unix_socket_and_odd_names(major: u32) -> Result<()> {
    let mut scene = Scene::new(major).await?;
    scene
        .execute("CREATE SCHEMA \"Od\"\"d.s\"; CREATE TABLE \"Od\"\"d.s\".\"T %_'é\" (id int PRIMARY KEY, \"C\"\"ol\" text); CREATE PUBLICATION \"P\"\"u,b'\" FOR TABLE \"Od\"\"d.s\".\"T %_'é\"")
        .await?;
    let url = scene.cluster.unix_url("postgres");
    scene.source(
        &format!("[source]\nurl = \"{url}\"\nslot = \"walgate\"\npublications = ['P\"u,b''']\n")
            .replace("'P\"u,b'''", "\"P\\\"u,b'\""),
    )?;
    let manifest = format!(
        "[[grant.table]]\nschema = 'Od\"d.s'\nname = \"T %_'é\"\ncolumns = [\"id\", 'C\"ol']\n[grant.output.lines]\nkind = \"file\"\npath = \"{}\"\n",
        scene.path("lines.txt").display()
    );
    scene.plugin("lines", "output-lines", &manifest)?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO \"Od\"\"d.s\".\"T %_'é\" VALUES (1, 'x')").await?;
    let lines = scene.wait_lines("lines.txt", 1).await?;
    ensure!(lines[0].contains("T %_'é") && lines[0].ends_with("insert 0"), "{lines:?}");
    Ok(())
}
