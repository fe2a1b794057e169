//! The kit against its own double: order, cells, keys, commits.
//!
//! Holds: tests of [`crate::Batch`] and of the double through sinks as authors write them.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::host::{self, state};
use crate::{
    Batch, Cell, Change, Context, Description, Disposition, Failure, Opened, Operation, Receipt, RowSet, Sink,
    Timestamp, Value, Verdict, cells,
};

type Look = Rc<dyn Fn(&Batch) -> Result<Receipt, Failure>>;

thread_local! {
    /// What [`Probe`] does with a batch: every test brings its own.
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

struct Probe;

impl Sink for Probe {
    fn describe() -> Description {
        Description::new("probe", "0.0.0").capability("state").capability("output:lines").capability("rows:mirror")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Probe.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let look = LOOK.with(|look| look.borrow().clone()).unwrap();
        look(batch)
    }
}

fn probe(look: impl Fn(&Batch) -> Result<Receipt, Failure> + 'static) -> Run<Probe> {
    LOOK.with(|slot| *slot.borrow_mut() = Some(Rc::new(look)));
    Host::new().grant_asked::<Probe>().open().unwrap()
}

/// Delivers to a sink that only looks.
#[track_caller]
fn see(batch: &TestBatch, look: impl Fn(&Batch) + 'static) {
    let mut run = probe(move |batch| {
        look(batch);
        Ok(Receipt::durable())
    });
    run.deliver(batch).unwrap();
}

fn customers() -> Table {
    Table::new("public", "customers").key("id", "int8").column("name", "text")
}

fn orders() -> Table {
    Table::new("public", "orders").key("id", "int4").column("at", "timestamptz")
}

#[test]
fn rows_come_in_commit_order_with_their_transaction_and_stable_key() {
    let (customers, orders) = (customers(), orders());
    let batch = BatchBuilder::new("b")
        .transaction(0x100)
        .insert(&customers, cells![1i64, "a"])
        .insert(&orders, cells![1i32, Timestamp(0)])
        .delete(&customers, cells![1i64, NOT_SENT])
        .insert(&customers, cells![1i64, "b"])
        .hidden()
        .message("p", b"m")
        .transaction(0x200)
        .part(2, 1000, true)
        .truncate(&[&orders, &customers])
        .update(&customers, cells![2i64, UNCHANGED])
        .build();
    see(&batch, |batch| {
        let seen: Vec<_> = batch
            .rows()
            .map(|change| {
                let xid = change.transaction().unwrap().xid;
                match change {
                    Change::Row(row) => (xid, row.key(), row.relation().name.clone(), row.operation().name()),
                    Change::Message(message) => (xid, message.key(), message.prefix().to_owned(), "message"),
                }
            })
            .collect();
        let want = [
            (1, (0x100, 0), "customers", "insert"),
            (1, (0x100, 1), "orders", "insert"),
            (1, (0x100, 2), "customers", "delete"),
            (1, (0x100, 3), "customers", "insert"),
            (1, (0x100, 5), "p", "message"),
            (2, (0x200, 1000), "orders", "truncate"),
            (2, (0x200, 1001), "customers", "truncate"),
            (2, (0x200, 1002), "customers", "update"),
        ];
        assert_eq!(seen, want.map(|(xid, key, name, op)| (xid, key, name.to_owned(), op)));
        assert_eq!(batch.row_count(), 7);
    });
}

#[test]
fn cells_keep_their_four_states() {
    let wide =
        Table::new("s", "wide").key("id", "int8").column("a", "text").column("b", "numeric").column("c", "bytea");
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .update_from(&wide, cells![1i64, NOT_SENT, NOT_SENT, NOT_SENT], cells![2i64, UNCHANGED, NULL, &b"\x00\xff"[..]])
        .build();
    see(&batch, |batch| {
        let Some(Change::Row(row)) = batch.rows().next() else { panic!("no row") };
        assert_eq!(row.get::<i64>("id"), Ok(2));
        assert_eq!(row.get::<Cell>("a"), Ok(Cell::Unchanged));
        assert_eq!(row.get::<Option<&str>>("b"), Ok(None));
        assert_eq!(row.get::<&[u8]>("c"), Ok(&b"\x00\xff"[..]));
        assert_eq!(row.before().get::<i64>("id"), Ok(1));
        assert_eq!(row.before().get::<Cell>("a"), Ok(Cell::NotSent));
        let error = row.get::<i64>("absent").unwrap_err();
        assert_eq!(error.to_string(), "s.wide has no column \"absent\" in this plugin's grant");
        assert_eq!(Failure::from(error).code(), "unexpected-cell");
        assert!(!row.before().is_absent());
    });
}

#[test]
fn every_type_arrives_as_its_case() {
    let all = [
        ("bool", Slot::from(true), "boolean"),
        ("int2", Slot::from(-1i16), "int16"),
        ("int4", Slot::from(-1i32), "int32"),
        ("int8", Slot::from(-1i64), "int64"),
        ("float4", Slot::from(0.5f32), "float32"),
        ("float8", Slot::from(0.5f64), "float64"),
        ("date", Slot::from(crate::Date(1)), "date"),
        ("time", Slot::from(crate::Time(1)), "time"),
        ("timestamptz", Slot::from(Timestamp(1)), "timestamp"),
        ("uuid", Slot::from(crate::Uuid([7; 16])), "uuid"),
        ("bytea", Slot::from(vec![1u8]), "bytes"),
        ("jsonb", Slot::from("{}"), "text"),
    ];
    let table = all.iter().fold(Table::new("s", "t"), |table, (name, _, _)| table.column(name, name));
    let nulls = all.iter().map(|_| NULL);
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .insert(&table, all.iter().map(|(_, slot, _)| slot.clone()))
        .insert(&table, nulls)
        .insert(&table, all.iter().map(|(_, slot, _)| slot.clone()))
        .build();
    see(&batch, move |batch| {
        let group = batch.groups().next().unwrap();
        for (column, (_, _, kind)) in group.after().zip(&all) {
            let kind_at = |row| column.cell(row).and_then(Cell::value).map(Value::kind);
            assert_eq!((kind_at(0), kind_at(1), kind_at(2)), (Some(*kind), None, Some(*kind)));
            assert_eq!(column.presence(), Some(&[0, 1, 0][..]));
            assert_eq!(column.cell(1), Some(Cell::Null));
            assert_eq!(column.cell(3), None);
        }
    });
}

#[test]
fn snapshot_rows_have_no_transaction() {
    let customers = customers();
    let batch = BatchBuilder::new("b").snapshot(&customers, 0, true, true).read(&customers, cells![1i64, "a"]).build();
    see(&batch, |batch| {
        assert!(batch.snapshot().is_some_and(|chunk| chunk.first && chunk.last));
        let row = batch.groups().next().and_then(|group| group.row(0)).unwrap();
        assert!(row.transaction().is_none());
        assert_eq!((row.key(), row.operation()), ((0, 0), Operation::Read));
    });
}

#[test]
fn debug_forms_hold_no_value() {
    let customers = customers();
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .insert(&customers, cells![1i64, "hostile-value"])
        .message("p", b"hostile-value")
        .build();
    see(&batch, |batch| {
        let rows: Vec<_> = batch.rows().collect();
        let text = format!("{batch:?} {rows:?}");
        assert!(text.contains("public.customers") && !text.contains("hostile"), "{text}");
    });
}

#[test]
fn a_failed_delivery_leaves_no_trace_and_a_restart_keeps_what_was_committed() {
    let customers = customers();
    let mut run = probe(|batch| {
        state::set("last", batch.id().as_bytes())?;
        host::output::append("lines", format!("{}\n", batch.id()).as_bytes())?;
        assert_eq!(state::get("last")?, Some(batch.id().as_bytes().to_vec()), "reads its own writes");
        if batch.attempt() == 1 { Err(Failure::retry("first-time")) } else { Ok(Receipt::durable()) }
    });
    let batch = |id: &str| BatchBuilder::new(id).transaction(1).insert(&customers, cells![1i64, "a"]).build();
    assert_eq!(run.deliver(&batch("one")).unwrap_err().disposition(), Disposition::Retry);
    assert_eq!((run.state("last"), run.output("lines")), (None, String::new()));
    run.deliver(&batch("one").redelivered()).unwrap();
    let mut run = run.restart().unwrap();
    assert!(run.deliver(&batch("two")).is_err());
    assert_eq!((run.state("last"), run.output("lines")), (Some(b"one".to_vec()), "one\n".to_owned()));
}

#[test]
fn a_group_is_passed_on_under_its_names_and_recorded_once_it_is_committed() {
    let customers = customers().identity("full");
    let batch = BatchBuilder::new("b")
        .transaction(1)
        .insert(&customers, cells![1i64, "a"])
        .hidden()
        .update_from(&customers, cells![1i64, "a"], cells![2i64, UNCHANGED])
        .delete(&customers, cells![2i64, NOT_SENT])
        .truncate(&[&customers])
        .build();
    let mut run = probe(|batch| {
        let sets: Vec<_> = batch.groups().map(|group| RowSet::of_group("mirror", group, group.relation())).collect();
        assert_eq!(host::rows::apply(&sets)?, 4);
        if batch.attempt() == 1 { Err(Failure::retry("first-time")) } else { Ok(Receipt::durable()) }
    });
    run.deliver(&batch).unwrap_err();
    assert!(run.rows().is_empty());
    run.deliver(&batch.redelivered()).unwrap();
    let [call] = &run.rows()[..] else { panic!("not one call") };
    let [insert, update, delete, truncate] = &call[..] else { panic!("not four sets") };
    let names = |cells: &[crate::Cells]| cells.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(&insert.after), names(&insert.before).len()), (vec!["id".to_owned(), "name".to_owned()], 0));
    assert_eq!(insert.after[0].values, crate::Values::Int64(vec![1]));
    assert_eq!((&*update.ordinals, names(&update.before)), (&[2][..], names(&insert.after)));
    assert_eq!(update.after[1].presence.as_deref(), Some(&[crate::UNCHANGED][..]));
    assert_eq!((names(&delete.after).len(), delete.before[0].values.clone()), (0, crate::Values::Int64(vec![2])));
    assert_eq!((&*truncate.ordinals, truncate.after.len(), truncate.before.len()), (&[4][..], 0, 0));
}

#[test]
fn rows_are_refused_as_the_host_refuses_them() {
    let one = |target: &str, ordinals: &[u32]| {
        let ints = crate::Values::Int16(vec![0; ordinals.len()]);
        RowSet::new(target, Operation::Insert).ordinals(ordinals.iter().copied()).after(crate::Cells::new("c", ints))
    };
    let bad = move || {
        let mut removes = one("mirror", &[1]);
        removes.operation = Operation::Delete;
        vec![
            (vec![one("elsewhere", &[1])], "not-granted"),
            (vec![one("mirror", &[2, 1])], "invalid-rows"),
            (vec![one("mirror", &[1]), one("mirror", &[1])], "invalid-rows"),
            (vec![one("mirror", &[1]).ordinals([2])], "invalid-rows"),
            (vec![one("mirror", &[1]).after(crate::Cells::new("c", crate::Values::Int16(vec![1])))], "invalid-rows"),
            (vec![one("mirror", &[1]).after(crate::Cells::new("", crate::Values::Int16(vec![1])))], "invalid-rows"),
            (vec![one("mirror", &[1]).after(crate::Cells::new("b", crate::Values::Boolean(vec![2])))], "invalid-rows"),
            (vec![removes], "invalid-rows"),
        ]
    };
    let mut run = probe(move |_| {
        for (sets, code) in bad() {
            assert_eq!(host::rows::apply(&sets).unwrap_err().code, code, "{sets:?}");
        }
        host::rows::apply(&[one("mirror", &[1])])?;
        Ok(Receipt::durable())
    });
    run.fail_next("rows.apply", "over-limit", false);
    let batch = BatchBuilder::new("b").build();
    assert_eq!(run.deliver(&batch).unwrap_err().code(), "over-limit");
    run.deliver(&batch).unwrap();
    assert_eq!(run.rows().len(), 1);
    assert_eq!(host::rows::apply(&[]).unwrap_err().code, "outside-delivery");
    let relation = customers();
    assert!(host::rows::is_granted("mirror", relation.relation()));
    assert!(!host::rows::is_granted("elsewhere", relation.relation()));
}

#[test]
fn what_is_not_granted_is_denied_and_faults_can_be_injected() {
    let mut run = probe(|_| {
        let denied = host::output::append("elsewhere", b"x").unwrap_err();
        assert_eq!((denied.code.as_str(), denied.call), ("not-granted", "output.append"));
        assert_eq!(host::secret("s").unwrap_err().code, "not-granted");
        host::metrics::count("rows", 1);
        host::log::info("a-code", "text");
        state::set("k", b"v")?;
        Ok(Receipt::durable())
    });
    let batch = BatchBuilder::new("b").build();
    run.fail_next("state.set", "over-limit", true);
    let failure = run.deliver(&batch).unwrap_err();
    assert_eq!((failure.disposition(), failure.code()), (Disposition::Retry, "over-limit"));
    run.deliver(&batch).unwrap();
    assert_eq!(run.counter("rows"), 0, "metrics were not granted");
    assert!(run.logs().is_empty(), "log was not granted");
    assert_eq!(state::set("k", b"v").unwrap_err().code, "outside-delivery");
}

#[test]
#[should_panic(expected = "rejects ordinal 7")]
fn a_receipt_that_the_host_would_refuse_fails_the_test() {
    let mut run = probe(|_| Ok(Receipt::durable().reject(7, "code")));
    let _ = run.deliver(&BatchBuilder::new("b").transaction(1).insert(&customers(), cells![1i64, "a"]).build());
}

#[test]
#[should_panic(expected = "column \"id\"")]
fn a_cell_of_another_type_fails_the_test() {
    let _ = BatchBuilder::new("b").transaction(1).insert(&customers(), cells!["1", "a"]);
}

#[test]
fn a_batch_of_a_relation_nobody_announced_is_refused() {
    let mut batch = BatchBuilder::new("b").transaction(1).insert(&customers(), cells![1i64, "a"]).build();
    batch.relations.clear();
    let failure = probe(|_| panic!("must not be delivered")).deliver(&batch).unwrap_err();
    assert_eq!((failure.disposition(), failure.code()), (Disposition::Halt, "malformed-batch"));
}

#[test]
fn a_new_shape_is_announced_once() {
    let mut run = probe(|_| Ok(Receipt::durable()));
    let old = customers();
    let new = old.clone().column("email", "text").version(9);
    assert_eq!(run.relation_changed(old.relation()).unwrap(), Verdict::Accept);
    let batch = BatchBuilder::new("b").transaction(1).insert(&new, cells![1i64, "a", NULL]).build();
    run.deliver(&batch).unwrap();
    run.deliver(&batch.redelivered()).unwrap();
}

proptest! {
    /// Whatever the mixture, merging restores the order in which the changes were made.
    #[test]
    fn merging_restores_order(kinds in prop::collection::vec(0u8..6, 0..60)) {
        let (customers, orders) = (customers(), orders());
        let mut builder = BatchBuilder::new("b").transaction(0x10);
        let mut commit = 0x10;
        let mut want = Vec::new();
        for (ordinal, kind) in (0u32..).zip(&kinds) {
            builder = match kind {
                0 => builder.insert(&customers, cells![i64::from(ordinal), "x"]),
                1 => builder.update(&customers, cells![i64::from(ordinal), UNCHANGED]),
                2 => builder.delete(&orders, cells![ordinal as i32, NOT_SENT]),
                3 => builder.message("p", b""),
                4 => builder.hidden(),
                _ => {
                    commit += 0x10;
                    builder.transaction(commit).insert(&orders, cells![ordinal as i32, NULL])
                }
            };
            if *kind != 4 {
                want.push((ordinal, commit));
            }
        }
        see(&builder.build(), move |batch| {
            let got: Vec<_> =
                batch.rows().map(|change| (change.ordinal(), change.transaction().unwrap().commit_lsn)).collect();
            assert_eq!(got, want);
            for group in batch.groups() {
                for row in group.rows() {
                    assert_eq!(row.transaction().map(|t| t.commit_lsn), want.iter().find(|w| w.0 == row.ordinal()).map(|w| w.1));
                }
            }
        });
    }
}

#[test]
fn requests_are_granted_answered_and_kept() {
    use crate::host::http::{Method, Request, Response, send};

    let request = || Request::new(Method::Post, "https://a.example/in").header("x-id", "7").body("content");
    let mut denied = probe(move |_| {
        let fault = send(&request()).unwrap_err();
        assert_eq!((fault.call, fault.code.as_str(), fault.retryable), ("http.send", "not-granted", false));
        Ok(Receipt::durable())
    });
    let batch = BatchBuilder::new("b").transaction(1).build();
    denied.deliver(&batch).unwrap();
    assert!(denied.requests().is_empty());
    drop(denied);

    let host = Host::new().grant("http").http(|request| {
        Ok(Response::new(if request.body_bytes() == b"content" { 200 } else { 400 })
            .header("Retry-After", "1")
            .body("ok"))
    });
    LOOK.with(|slot| {
        *slot.borrow_mut() = Some(Rc::new(move |_| {
            assert_eq!(send(&request())?.header_value("retry-after"), Some("1"));
            assert_eq!(send(&Request::new(Method::Get, "a.example/in")).unwrap_err().code, "invalid-request");
            Err(Failure::retry("after-all"))
        }));
    });
    let mut run = host.open::<Probe>().unwrap();
    run.deliver(&batch).unwrap_err();
    // What has left cannot be taken back.
    assert_eq!(run.requests(), [request()]);
    run.fail_next("http.send", "http-timeout", true);
    assert_eq!(run.deliver(&batch).unwrap_err().code(), "http-timeout");
    assert_eq!(run.requests().len(), 1);
}
