//! Values on their whole way: from the server's own output to a line of JSON, exact, and nothing that was not granted.
//!
//! Holds: types, presence, identities, and a search for what must not be anywhere. Never knows: the decoder.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::scene::{SOON, Scene};

super::scenarios! {
    values_arrive_as_the_server_has_them,
    toast_keys_and_nulls_are_told_apart,
    hidden_columns_are_nowhere,
}

fn ndjson(scene: &Scene, tables: &[(&str, &str)]) -> Result<()> {
    let tables: String = tables
        .iter()
        .map(|(name, columns)| {
            format!("[[grant.table]]\nschema = \"public\"\nname = \"{name}\"\ncolumns = {columns}\n")
        })
        .collect();
    let file = scene.path("changes.ndjson");
    scene.plugin(
        "ndjson",
        "ndjson-rust",
        &format!("{tables}[grant.output.changes]\nkind = \"file\"\npath = \"{}\"\n", file.display()),
    )
}

async fn changes(scene: &Scene, count: usize) -> Result<Vec<Value>> {
    let lines = scene.wait_lines("changes.ndjson", count).await?;
    lines.iter().map(|line| serde_json::from_str(line).context("a line is not JSON")).collect()
}

/// Every expectation is what the server itself prints or computes; infinities, eras and ranges to both ends.
async fn values_arrive_as_the_server_has_them(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene
        .execute(
            "CREATE DOMAIN positive AS int CHECK (value > 0); CREATE TYPE mood AS ENUM ('so', 'la');
             CREATE TABLE t (id int PRIMARY KEY, b bool, s smallint, l bigint, o oid, f real, d double precision, n numeric, day date,
                 t time, ts timestamp, tz timestamptz, u uuid, raw bytea, txt text, j jsonb, a int[], m mood, p positive, i interval);
             ALTER PUBLICATION shop ADD TABLE t",
        )
        .await?;
    ndjson(&scene, &[("t", "\"*\"")])?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene
        .execute(
            "INSERT INTO t VALUES
             (1, true, -32768, 9223372036854775807, 4294967295, 'Infinity', '-0', 'NaN', 'infinity', '24:00', '-infinity', 'infinity',
              '00112233-4455-6677-8899-aabbccddeeff', '\\xdeadbeef', 'ü\"\\ ' || chr(10), '{\"k\": 1.500}', '{{1,NULL},{3,4}}', 'la', 7, '1 mon -3 days'),
             (2, false, 32767, -9223372036854775808, 0, '-Infinity', 'NaN', 1.500, '4713-01-01 BC', '00:00', '4713-01-01 00:00 BC',
              '294276-12-31 23:59:59.999999+00', NULL, '', '', NULL, '{}', NULL, NULL, NULL),
             (3, NULL, 0, 0, 1, 1.5, 0.1, 1e-20, '5874897-12-31', '12:34:56.789', '1991-02-10 00:00 BC', '2000-01-01 00:00+05:30',
              NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        )
        .await?;
    let rows = changes(&scene, 3).await?;
    let at = |row: usize, column: &str| rows[row]["after"][column].clone();
    for (row, column, expect) in [
        (0, "b", json!(true)),
        (0, "s", json!(-32768)),
        (0, "l", json!(9_223_372_036_854_775_807_i64)),
        (0, "o", json!(4_294_967_295_i64)),
        (0, "f", json!("Infinity")),
        (0, "n", json!("NaN")),
        (0, "day", json!("infinity")),
        (0, "t", json!("24:00:00")),
        (0, "ts", json!("-infinity")),
        (0, "tz", json!("infinity")),
        (0, "u", json!("00112233-4455-6677-8899-aabbccddeeff")),
        (0, "txt", json!("ü\"\\ \n")),
        (0, "j", json!("{\"k\": 1.500}")),
        (0, "a", json!("{{1,NULL},{3,4}}")),
        (0, "m", json!("la")),
        (0, "p", json!(7)),
        (0, "i", json!("1 mon -3 days")),
        (1, "l", json!(-9_223_372_036_854_775_808_i64)),
        (1, "d", json!("NaN")),
        (1, "n", json!("1.500")),
        (1, "day", json!("4713-01-01 BC")),
        (1, "u", Value::Null),
        (1, "txt", json!("")),
        (2, "b", Value::Null),
        (2, "f", json!(1.5)),
        (2, "day", json!("5874897-12-31")),
        (2, "t", json!("12:34:56.789")),
    ] {
        ensure!(at(row, column) == expect, "row {row} column {column}: {} instead of {expect}", at(row, column));
    }
    // Timestamps are spelled by the plugin; what counts is the instant.
    for (row, column, parts) in [
        (1, "tz", &["294276-12-31", "23:59:59.999999"][..]),
        (1, "ts", &["4713-01-01", "00:00:00", "BC"]),
        (2, "ts", &["1991-02-10", "BC"]),
        (2, "tz", &["1999-12-31", "18:30:00"]),
    ] {
        let text = at(row, column).to_string();
        ensure!(parts.iter().all(|part| text.contains(part)), "row {row} column {column}: {text}");
    }
    Ok(())
}

async fn toast_keys_and_nulls_are_told_apart(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene
        .execute(
            "CREATE TABLE d (id int PRIMARY KEY, big text, n int); ALTER TABLE d ALTER big SET STORAGE EXTERNAL;
             CREATE TABLE f (id int PRIMARY KEY, big text, n int); ALTER TABLE f ALTER big SET STORAGE EXTERNAL; ALTER TABLE f REPLICA IDENTITY FULL;
             ALTER PUBLICATION shop ADD TABLE d, f",
        )
        .await?;
    ndjson(&scene, &[("d", "\"*\""), ("f", "\"*\"")])?;
    scene.create_slot()?;
    let _walgate = scene.run().await?;
    scene.execute("INSERT INTO d VALUES (1, repeat('t', 10000), NULL); UPDATE d SET n = 1; UPDATE d SET id = 2; DELETE FROM d").await?;
    scene.execute("INSERT INTO f VALUES (1, repeat('t', 10000), NULL); UPDATE f SET n = 1; DELETE FROM f").await?;
    let rows = changes(&scene, 7).await?;
    ensure!(rows[0]["after"]["n"] == Value::Null && rows[0]["after"]["big"].as_str().map(str::len) == Some(10_000));
    // kf_064: unchanged is a state of its own, not NULL and not a value.
    ensure!(rows[1]["after"].get("big").is_none() && rows[1]["unchanged"] == json!(["big"]), "{}", rows[1]);
    // kf_065: a key change names the old key, and (kf_063) what is not part of it is not NULL.
    ensure!(rows[2]["after"]["id"] == 2 && rows[2]["key"]["id"] == 1, "{}", rows[2]);
    ensure!(rows[2]["before"].get("n").is_none(), "{}", rows[2]);
    ensure!(rows[3]["op"] == "delete" && rows[3]["key"]["id"] == 2, "{}", rows[3]);
    // kf_062: under identity full the old row has what the new one left out.
    ensure!(rows[5]["after"]["big"].as_str().map(str::len) == Some(10_000), "{}", rows[5]);
    ensure!(rows[5]["before"]["n"] == Value::Null && rows[6]["before"]["n"] == 1, "{} {}", rows[5], rows[6]);
    Ok(())
}

/// Canaries in every hidden column, under identity full, in old rows and new ones, then a search of everything.
async fn hidden_columns_are_nowhere(major: u32) -> Result<()> {
    let scene = Scene::new(major).await?;
    scene.execute("ALTER TABLE customers REPLICA IDENTITY FULL").await?;
    ndjson(&scene, &[("customers", "[\"id\", \"name\"]"), ("orders", "[\"id\"]")])?;
    scene.create_slot()?;
    let mut walgate = scene.run().await?;
    scene
        .execute(
            "INSERT INTO customers SELECT g, 'n' || g, 'canary-mail-' || g, 'canary-phone-' || g FROM generate_series(1, 50) g;
             UPDATE customers SET email = 'canary-new-mail'; UPDATE customers SET id = id + 1000; DELETE FROM customers;
             INSERT INTO orders VALUES (1, 1, 'canary-note')",
        )
        .await?;
    // The update of hidden columns only is not among them.
    changes(&scene, 151).await?;
    let mut all = walgate.get("/status").await?.body + &walgate.get("/metrics").await?.body;
    all += &scene.cli(&["--json", "status"])?.all();
    all += &scene.cli(&["plugin", "list"])?.all();
    all += &scene
        .ask("SELECT concat((SELECT json_agg(p) FROM walgate.pipelines p), (SELECT json_agg(c) FROM walgate.checkpoints c), (SELECT json_agg(s) FROM walgate.plugin_state s))")
        .await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    all += &walgate.stderr();
    all += &walgate.stdout();
    for entry in walk(scene.dir.path())? {
        all += &String::from_utf8_lossy(&std::fs::read(entry)?);
    }
    ensure!(all.contains("n50"), "the search must see what was granted");
    ensure!(!all.contains("canary"), "a hidden value left the host");
    Ok(())
}

fn walk(dir: &std::path::Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { files.extend(walk(&path)?) } else { files.push(path) }
    }
    Ok(files)
}
