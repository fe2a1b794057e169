//! The lines, byte by byte and as JSON, and what a crash leaves.
//!
//! Holds: tests against the double of the host; a JSON library reads back what was written.

use serde_json::{Value as Json, json};
use walgate_sdk::testing::{BatchBuilder, Host, Run, Table, TestBatch};
use walgate_sdk::{Date, Disposition, Time, Timestamp, Uuid, cells};

use crate::{APPEND_BYTES, Ndjson, OUTPUT};

fn open() -> Run<Ndjson> {
    Host::new().grant_asked::<Ndjson>().open().unwrap()
}

fn customers() -> Table {
    Table::new("public", "customers").key("id", "int8").column("name", "text")
}

fn lines(batch: &TestBatch) -> Vec<Json> {
    let mut run = open();
    assert!(run.deliver(batch).unwrap().is_durable());
    run.output(OUTPUT).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_line_has_its_keys_in_order() {
    let customers = customers();
    let batch = BatchBuilder::new("b")
        .transaction(0x16_B374_D848)
        .insert(&customers, cells![7i64, "Ada"])
        .update(&customers, cells![7i64, UNCHANGED])
        .delete(&customers, cells![7i64, NOT_SENT])
        .truncate(&[&customers])
        .message("note", b"\x01\xff")
        .build();
    let mut run = open();
    run.deliver(&batch).unwrap();
    let place = |ord| format!(r#"{{"commit_lsn":"16/B374D848","xid":1,"ord":{ord}"#);
    let table = r#""schema":"public","table":"customers""#;
    let want = [
        format!(r#"{},"op":"insert",{table},"after":{{"id":7,"name":"Ada"}}}}"#, place(0)),
        format!(r#"{},"op":"update",{table},"after":{{"id":7}},"unchanged":["name"]}}"#, place(1)),
        format!(r#"{},"op":"delete",{table},"key":{{"id":7}},"before":{{"id":7}}}}"#, place(2)),
        format!(r#"{},"op":"truncate",{table}}}"#, place(3)),
        format!(r#"{},"op":"message","prefix":"note","transactional":true,"content":"\\x01ff"}}"#, place(4)),
    ];
    assert_eq!(run.output(OUTPUT).lines().collect::<Vec<_>>(), want);
}

#[test]
fn a_full_old_row_has_null_and_a_part_of_a_large_transaction_counts_on() {
    let customers = customers().identity("full");
    let batch = BatchBuilder::new("b")
        .transaction(0x1_0000_0000)
        .part(3, 5000, false)
        .update_from(&customers, cells![1i64, NULL], cells![2i64, ""])
        .build();
    let want = json!({
        "commit_lsn": "1/0", "xid": 1, "ord": 5000, "op": "update", "schema": "public", "table": "customers",
        "key": {"id": 1}, "before": {"id": 1, "name": null}, "after": {"id": 2, "name": ""},
    });
    assert_eq!(lines(&batch), [want]);
}

#[test]
fn a_snapshot_row_has_no_commit() {
    let customers = customers();
    let batch = BatchBuilder::new("b").snapshot(&customers, 0, true, true).read(&customers, cells![1i64, "a"]).build();
    let want =
        json!({"ord": 0, "op": "read", "schema": "public", "table": "customers", "after": {"id": 1, "name": "a"}});
    assert_eq!(lines(&batch), [want]);
}

/// One value in, the JSON of its column out.
#[track_caller]
fn check(type_name: &str, cell: impl Into<walgate_sdk::testing::Slot>, expect: &str) {
    let table = Table::new("s", "t").column("c", type_name);
    let batch = BatchBuilder::new("b").transaction(1).insert(&table, [cell.into()]).build();
    let mut run = open();
    run.deliver(&batch).unwrap();
    let output = run.output(OUTPUT);
    let (_, after) = output.split_once(r#""after":{"c":"#).unwrap();
    assert_eq!(after, format!("{expect}}}}}\n"));
    serde_json::from_str::<Json>(&output).unwrap();
}

#[test]
fn values_are_exact() {
    check("bool", true, "true");
    check("int8", i64::MIN, "-9223372036854775808");
    check("int2", -1i16, "-1");
    check("float8", 0.1f64, "0.1");
    check("float8", 1e300f64, "1e300");
    check("float8", -0.0f64, "-0.0");
    check("float4", 0.1f32, "0.1");
    check("float8", f64::NAN, "\"NaN\"");
    check("float4", f32::INFINITY, "\"Infinity\"");
    check("float8", f64::NEG_INFINITY, "\"-Infinity\"");
    check("numeric", "0.10", "\"0.10\"");
    check("date", Date::from_ymd(-43, 3, 15).unwrap(), "\"0044-03-15 BC\"");
    check("date", Date::INFINITY, "\"infinity\"");
    check("time", Time(86_400_000_000), "\"24:00:00\"");
    check("timestamp", Timestamp(500_000), "\"2000-01-01T00:00:00.5\"");
    check("timestamptz", Timestamp(0), "\"2000-01-01T00:00:00+00:00\"");
    check("uuid", Uuid([0xAB; 16]), "\"abababab-abab-abab-abab-abababababab\"");
    check("bytea", vec![0u8, 0xFF], r#""\\x00ff""#);
    check("bytea", Vec::new(), r#""\\x""#);
}

#[test]
fn every_character_survives_and_no_line_breaks() {
    let hostile: String = (0u32..0x300).chain([0x2028, 0x2029, 0xFFFD, 0x1F600]).filter_map(char::from_u32).collect();
    let table = Table::new("s\"", "t\n").column("c\\", "text");
    let batch = BatchBuilder::new("b").transaction(1).insert(&table, cells![hostile.as_str()]).build();
    let mut run = open();
    run.deliver(&batch).unwrap();
    assert_eq!(run.output(OUTPUT).matches('\n').count(), 1);
    let line: Json = serde_json::from_str(&run.output(OUTPUT)).unwrap();
    assert_eq!((line["after"]["c\\"].as_str(), line["schema"].as_str()), (Some(hostile.as_str()), Some("s\"")));
}

#[test]
fn a_failed_append_writes_nothing_and_the_repeat_writes_all() {
    let customers = customers();
    let large = "x".repeat(APPEND_BYTES);
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .insert(&customers, cells![1i64, large.as_str()])
        .insert(&customers, cells![2i64, "small"])
        .build();
    let mut run = open();
    run.fail_next("output.append", "over-limit", true);
    assert_eq!(run.deliver(&batch).unwrap_err().disposition(), Disposition::Retry);
    let mut run = run.restart().unwrap();
    assert_eq!(run.output(OUTPUT), "");
    run.deliver(&batch.redelivered()).unwrap();
    let output = run.output(OUTPUT);
    let ids: Vec<_> =
        output.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()["after"]["id"].clone()).collect();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn an_empty_batch_appends_nothing() {
    assert!(lines(&BatchBuilder::new("b").transaction(1).hidden().build()).is_empty());
}
