//! The counter against the double of the host.
//!
//! Holds: tests that totals are exact, survive restarts and do not depend on where batches are cut.

use walgate_sdk::testing::{BatchBuilder, Host, Run, Table, TestBatch};
use walgate_sdk::{Disposition, Operation, cells};

use crate::{Counter, STATE_KEY, Totals};

fn table() -> Table {
    Table::new("public", "t").key("id", "int8").column("name", "text").column("ratio", "float8").identity("full")
}

fn open() -> Run<Counter> {
    Host::new().grant_asked::<Counter>().open().unwrap()
}

fn totals(run: &Run<Counter>) -> Totals {
    Totals::parse(&run.state(STATE_KEY).unwrap()).unwrap()
}

fn one_of_each() -> TestBatch {
    let table = table();
    BatchBuilder::new("b")
        .transaction(16)
        .insert(&table, cells![1i64, "ab", 0.0])
        .insert(&table, cells![2i64, NULL, 0.0])
        .update_from(&table, cells![2i64, NULL, 0.0], cells![3i64, "c", 0.0])
        .delete(&table, cells![1i64, NOT_SENT, NOT_SENT])
        .truncate(&[&table])
        .build()
}

#[test]
fn every_row_and_value_is_counted() {
    let mut run = open();
    assert!(run.deliver(&one_of_each()).unwrap().is_durable());
    let totals = totals(&run);
    let rows = Operation::ALL.map(|operation| totals.rows(operation));
    assert_eq!(rows, [0, 2, 1, 1, 1]);
    assert_eq!((totals.values, totals.absent), (11, 4));
    let bytes: u64 = b"abc".iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(totals.fingerprint, 1 + 2 + 2 + 3 + 1 + bytes);
    assert_eq!((run.counter("rows_insert"), run.counter("rows_truncate"), run.counter("values")), (2, 1, 11));
}

#[test]
fn a_failed_write_counts_nothing_and_the_repeat_counts_once() {
    let mut run = open();
    run.fail_next("state.set", "over-limit", true);
    assert_eq!(run.deliver(&one_of_each()).unwrap_err().disposition(), Disposition::Retry);
    run.deliver(&one_of_each().redelivered()).unwrap();
    assert_eq!(totals(&run).rows(Operation::Insert), 2);
    assert_eq!(run.counter("rows_insert"), 2);
}

#[test]
fn a_restart_goes_on_where_the_state_stands() {
    let mut run = open();
    run.deliver(&one_of_each()).unwrap();
    let mut run = run.restart().unwrap();
    run.deliver(&one_of_each()).unwrap();
    assert_eq!(totals(&run).rows(Operation::Insert), 4);
    let broken = Host::new().grant_asked::<Counter>().state(STATE_KEY, b"nonsense").open::<Counter>();
    assert_eq!(broken.err().map(|failure| failure.code().to_owned()).as_deref(), Some("unreadable-totals"));
}

#[test]
fn the_fingerprint_does_not_depend_on_where_batches_are_cut() {
    let table = table();
    let row = |n: i64| cells![n, format!("name {n} é").as_str(), n as f64 / 3.0];
    let mut whole = BatchBuilder::new("whole").transaction(16);
    for n in 0..100 {
        whole = whole.insert(&table, row(n));
    }
    let mut run = open();
    run.deliver(&whole.build()).unwrap();
    let in_one = totals(&run);
    drop(run);
    let mut run = open();
    for n in (0..100).rev() {
        run.deliver(&BatchBuilder::new("part").transaction(16).insert(&table, row(n)).build()).unwrap();
    }
    assert_eq!(totals(&run), in_one);
}
