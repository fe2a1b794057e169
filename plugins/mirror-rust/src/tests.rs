//! What reaches the targets, and what is declined before its first row.
//!
//! Holds: tests against the double of the host, which records rows. How they are applied is the host's to test.

use walgate_sdk::testing::{BatchBuilder, Host, Run, Table};
use walgate_sdk::{Cells, Disposition, Operation, RowSet, UNCHANGED, Values, Verdict, cells};

use crate::{Mirror, TARGET_PREFIX};

fn open() -> Run<Mirror> {
    Host::new().grant_asked::<Mirror>().open().unwrap()
}

fn customers() -> Table {
    Table::new("public", "customers").key("id", "int8").column("name", "text")
}

fn column<'a>(cells: &'a [Cells], name: &str) -> &'a Cells {
    cells.iter().find(|one| one.name == name).unwrap()
}

#[test]
fn every_operation_goes_to_the_target_of_its_table_in_one_call() {
    let (customers, orders) = (customers(), Table::new("public", "Order Lines").key("id", "int4"));
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .insert(&customers, cells![1i64, "Ada"])
        .insert(&orders, cells![7i32])
        .update(&customers, cells![1i64, UNCHANGED])
        .message("note", b"ignored")
        .delete(&customers, cells![1i64, NOT_SENT])
        .truncate(&[&orders, &customers])
        .build();
    let mut run = open();
    assert!(run.deliver(&batch).unwrap().is_durable());
    let calls = run.rows();
    let [call] = &calls[..] else { panic!("{} calls", calls.len()) };
    let seen: Vec<_> = call.iter().map(|set| (&*set.target, set.operation, &*set.ordinals)).collect();
    let want: [(&str, Operation, &[u32]); 6] = [
        ("customers", Operation::Insert, &[0]),
        ("Order Lines", Operation::Insert, &[1]),
        ("customers", Operation::Update, &[2]),
        ("customers", Operation::Delete, &[4]),
        ("Order Lines", Operation::Truncate, &[5]),
        ("customers", Operation::Truncate, &[6]),
    ];
    assert_eq!(seen, want);
    let update: &RowSet = &call[2];
    assert_eq!(column(&update.after, "name").presence.as_deref(), Some(&[UNCHANGED][..]));
}

#[test]
fn a_changed_key_comes_with_the_old_one() {
    let customers = customers();
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .update(&customers, cells![1i64, "a"])
        .update_from(&customers, cells![2i64, NOT_SENT], cells![3i64, "b"])
        .build();
    let mut run = open();
    run.deliver(&batch).unwrap();
    let update = &run.rows()[0][0];
    assert_eq!(column(&update.after, "id").values, Values::Int64(vec![1, 3]));
    let before = column(&update.before, "id");
    assert_eq!((before.presence.as_deref(), &before.values), (Some(&[3, 0][..]), &Values::Int64(vec![0, 2])));
}

#[test]
fn rows_of_a_snapshot_are_passed_on_as_reads() {
    let customers = customers();
    let batch = BatchBuilder::new("b").snapshot(&customers, 0, true, true).read(&customers, cells![1i64, "a"]).build();
    let mut run = open();
    run.deliver(&batch).unwrap();
    assert_eq!(run.rows()[0][0].operation, Operation::Read);
}

#[test]
fn a_prefix_names_the_targets() {
    let customers = customers();
    let host = Host::new().grant("log").grant("rows:copy_customers").setting(TARGET_PREFIX, "copy_");
    let mut run = host.open::<Mirror>().unwrap();
    run.deliver(&BatchBuilder::new("b").transaction(1).insert(&customers, cells![1i64, "a"]).build()).unwrap();
    assert_eq!(run.rows()[0][0].target, "copy_customers");
}

#[test]
fn a_table_without_a_target_is_declined_before_its_first_row() {
    let mut run = Host::new().grant("log").grant("rows:orders").open::<Mirror>().unwrap();
    assert_eq!(run.relation_changed(customers().relation()).unwrap(), Verdict::Decline);
    assert_eq!(run.log_codes(), ["no-target"]);
    let orders = Table::new("public", "orders").key("id", "int8");
    assert_eq!(run.relation_changed(orders.relation()).unwrap(), Verdict::Accept);
    assert!(run.rows().is_empty());
}

#[test]
fn two_tables_of_one_name_cannot_share_a_target() {
    let mut run = open();
    assert_eq!(run.relation_changed(customers().relation()).unwrap(), Verdict::Accept);
    let other = Table::new("sales", "customers").key("id", "int8");
    assert_eq!(run.relation_changed(other.relation()).unwrap(), Verdict::Decline);
    assert_eq!(run.log_codes(), ["two-tables-one-target"]);
    // A new shape of the first one is nothing new.
    assert_eq!(run.relation_changed(customers().version(9).relation()).unwrap(), Verdict::Accept);
}

#[test]
fn a_refused_call_fails_the_delivery_and_the_repeat_carries_all() {
    let customers = customers();
    let batch = BatchBuilder::new("b").transaction(1).insert(&customers, cells![1i64, "a"]).build();
    let mut run = open();
    run.fail_next("rows.apply", "over-limit", false);
    let failure = run.deliver(&batch).unwrap_err();
    assert_eq!((failure.disposition(), failure.code()), (Disposition::Halt, "over-limit"));
    assert!(run.rows().is_empty());
    run.deliver(&batch.redelivered()).unwrap();
    assert_eq!(run.rows().len(), 1);
}

#[test]
fn a_batch_without_rows_makes_no_call() {
    let mut run = open();
    run.deliver(&BatchBuilder::new("b").transaction(1).hidden().message("p", b"m").build()).unwrap();
    assert!(run.rows().is_empty());
}
