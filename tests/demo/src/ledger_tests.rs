//! The ledger against small files: each kind of damage is told, and none is told where there is none.
//!
//! Holds: one good file, and what happens to the verdict when lines are dropped, doubled, swapped or altered.

use serde_json::json;

use super::*;

/// Every kind of change once; ends with one order, one item and two customers.
const GOOD: &[&str] = &[
    r#"{"commit_lsn":"0/10","xid":1,"ord":0,"op":"insert","schema":"public","table":"customers","after":{"id":1,"name":"a","visits":0}}"#,
    r#"{"commit_lsn":"0/10","xid":1,"ord":1,"op":"insert","schema":"public","table":"customers","after":{"id":2,"name":null,"visits":0}}"#,
    r#"{"commit_lsn":"0/20","xid":2,"ord":0,"op":"insert","schema":"public","table":"orders","after":{"id":7}}"#,
    r#"{"commit_lsn":"0/20","xid":2,"ord":1,"op":"truncate","schema":"public","table":"orders"}"#,
    r#"{"commit_lsn":"0/30","xid":3,"ord":0,"op":"insert","schema":"public","table":"orders","after":{"id":8}}"#,
    r#"{"commit_lsn":"0/30","xid":3,"ord":1,"op":"insert","schema":"public","table":"order_items","after":{"order_id":8,"line":1,"quantity":1,"document":"long"}}"#,
    r#"{"commit_lsn":"0/40","xid":4,"ord":0,"op":"update","schema":"public","table":"order_items","after":{"order_id":8,"line":1,"quantity":2},"unchanged":["document"]}"#,
    r#"{"commit_lsn":"0/50","xid":5,"ord":0,"op":"update","schema":"public","table":"order_items","key":{"order_id":8,"line":1},"before":{"order_id":8,"line":1},"after":{"order_id":9,"line":1,"quantity":2},"unchanged":["document"]}"#,
    r#"{"commit_lsn":"0/60","xid":6,"ord":0,"op":"update","schema":"public","table":"customers","before":{"id":2,"name":null,"visits":0},"after":{"id":3,"name":"b","visits":1}}"#,
    r#"{"commit_lsn":"0/70","xid":7,"ord":0,"op":"insert","schema":"public","table":"customers","after":{"id":4,"name":"c","visits":0}}"#,
    r#"{"commit_lsn":"0/70","xid":7,"ord":1,"op":"delete","schema":"public","table":"customers","before":{"id":1,"name":"a","visits":0}}"#,
];

fn source() -> [Vec<Row>; 3] {
    let rows = |values: &[serde_json::Value]| values.iter().map(|value| value.as_object().unwrap().clone()).collect();
    [
        rows(&[json!({"id": 3, "name": "b", "visits": 1}), json!({"id": 4, "name": "c", "visits": 0})]),
        rows(&[json!({"id": 8})]),
        rows(&[json!({"order_id": 9, "line": 1, "quantity": 2, "document": "long"})]),
    ]
}

fn replay<'a>(lines: impl IntoIterator<Item = &'a str>) -> Ledger {
    let mut ledger = Ledger::new();
    lines.into_iter().for_each(|line| ledger.apply(line).unwrap());
    ledger
}

/// Lost and repeated, as the demo computes them.
#[track_caller]
fn check<'a>(lines: impl IntoIterator<Item = &'a str>, lost: u64, repeated: u64) {
    let ledger = replay(lines);
    let wrong = TABLES.iter().zip(source()).map(|(table, rows)| ledger.compare(table, &rows).wrong).sum();
    let made = replay(GOOD.iter().copied()).arrived();
    assert_eq!((ledger.lost(made, wrong), ledger.repeated()), (lost, repeated));
}

#[test]
fn a_good_file_is_good() {
    check(GOOD.iter().copied(), 0, 0);
    let ledger = replay(GOOD.iter().copied());
    assert_eq!(ledger.arrived().total(), GOOD.len() as u64);
    assert_eq!(ledger.compare(&TABLES[0], &source()[0]), Comparison { source: 2, rebuilt: 2, ..Comparison::default() });
}

#[test]
fn every_dropped_line_is_one_lost_change_or_more() {
    for dropped in 0..GOOD.len() {
        let rest = || GOOD.iter().enumerate().filter(|(at, _)| *at != dropped).map(|(_, line)| *line);
        let ledger = replay(rest());
        let made = replay(GOOD.iter().copied()).arrived();
        assert!(ledger.lost(made, 0) >= 1, "line {dropped}");
    }
    // Also where nothing of it shows in the rows: order 7 is truncated anyway.
    check(GOOD.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, line)| *line), 1, 0);
    check(GOOD.iter().enumerate().filter(|(at, _)| *at != 9).map(|(_, line)| *line), 1, 0);
}

#[test]
fn every_doubled_line_is_one_repeat_and_loses_nothing() {
    for doubled in 0..GOOD.len() {
        let lines =
            GOOD.iter().enumerate().flat_map(|(at, line)| std::iter::repeat_n(*line, 1 + usize::from(at == doubled)));
        check(lines, 0, 1);
    }
    check(GOOD.iter().chain(&GOOD[3..6]).copied(), 0, 3);
}

#[test]
fn a_wrong_value_a_surplus_row_and_a_missing_value_are_each_lost() {
    let with = |at: usize, from: &str, to: &str| -> Vec<String> {
        let mut lines: Vec<String> = GOOD.iter().map(|line| (*line).to_owned()).collect();
        assert!(lines[at].contains(from));
        lines[at] = lines[at].replace(from, to);
        lines
    };
    check(with(8, r#""name":"b""#, r#""name":"x""#).iter().map(String::as_str), 1, 0);
    check(with(6, r#","unchanged":["document"]"#, "").iter().map(String::as_str), 1, 0);
    check(with(5, "long", "short").iter().map(String::as_str), 1, 0);
    check(with(9, r#""id":4"#, r#""id":5"#).iter().map(String::as_str), 2, 0);
    // A change nobody made: the counts tell, although it undoes itself in the rows.
    let surplus = r#"{"commit_lsn":"0/80","xid":8,"ord":0,"op":"truncate","schema":"public","table":"orders"}"#;
    let again =
        r#"{"commit_lsn":"0/80","xid":8,"ord":1,"op":"insert","schema":"public","table":"orders","after":{"id":8}}"#;
    check(GOOD.iter().copied().chain([surplus, again]), 2, 0);
}

#[test]
fn the_columns_that_differ_are_named() {
    let ledger = replay(GOOD.iter().copied());
    let source: Vec<Row> = [json!({"id": 3, "name": "x", "visits": 1}), json!({"id": 4, "name": "y"})]
        .iter()
        .map(|row| row.as_object().unwrap().clone())
        .collect();
    let found = ledger.compare(&TABLES[0], &source);
    assert_eq!(found.wrong, 2);
    assert_eq!(found.columns, BTreeMap::from([("name".to_owned(), 2), ("visits".to_owned(), 1)]));
}

#[test]
fn lines_out_of_commit_order_are_told() {
    let mut lines = GOOD.to_vec();
    lines.swap(9, 10);
    check(lines, 1, 0);
}

#[test]
fn a_torn_or_foreign_line_fails_and_quotes_nothing() {
    let mut ledger = Ledger::new();
    for line in
        [&GOOD[0][..60], r#"{"secret":"x"}"#, &GOOD[0].replace("insert", "secret"), &GOOD[0].replace("0/10", "secret")]
    {
        let error = format!("{:#}", ledger.apply(line).unwrap_err());
        assert!(!error.contains("secret"), "{error}");
    }
}
