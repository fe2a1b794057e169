//! Kinds of tables, and tables and sessions that change between works.
//!
//! Read next: [`crate::rows_values`].

use walgate_core::batch::Operation;
use walgate_store::{RowsSink, RowsWork};

use crate::rows::{Named, V, done, made, rest, rows, set, sink, text, work};
use crate::{Place, on_both};

on_both! { a_table_without_a_key_takes_each_insert_once generated_columns_are_left_out_and_identities_written
partitions_are_reached_by_the_root deferrable_keys_are_checked_at_the_end a_new_column_is_seen_at_once
hostile_names_are_only_names a_lost_session_is_opened_again }

async fn a_table_without_a_key_takes_each_insert_once(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE ledger (n bigint GENERATED ALWAYS AS IDENTITY, a int, amount numeric(10,2), note text)",
    )
    .await;
    let insert = |ordinals: &[u32], a: &[i32], more: &[Named<'_>]| {
        let mut columns = vec![("a", a.iter().map(|a| V::I4(*a)).collect())];
        columns.extend(more.iter().cloned());
        set("ledger", Operation::Insert, ordinals, &[], &columns)
    };
    let calls = vec![vec![
        insert(&[0, 4], &[1, 1], &[]),
        insert(&[1, 2], &[2, 2], &[("amount", vec![text("1.50"), V::Keep])]),
        insert(&[3], &[3], &[("note", vec![text("n")])]),
    ]];
    let once = work(0x200, calls);
    done(sink.commit(&once).await.unwrap(), 5, 0, 0, 0);
    done(sink.commit(&once).await.unwrap(), 0, 0, 0, 0);
    let expect = ["(1,1,,)", "(2,2,1.50,)", "(3,2,,)", "(4,3,,n)", "(5,1,,)"];
    assert_eq!(rows(&place, "SELECT * FROM ledger ORDER BY n").await, expect);
}

async fn generated_columns_are_left_out_and_identities_written(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,
                         twice int GENERATED ALWAYS AS (a * 2) STORED, n int GENERATED ALWAYS AS IDENTITY)",
    )
    .await;
    let insert = |a: i32, n: i32| {
        set(
            "t",
            Operation::Insert,
            &[0],
            &[],
            &[("id", vec![V::I4(70)]), ("a", vec![V::I4(a)]), ("twice", vec![V::I4(999)]), ("n", vec![V::I4(n)])],
        )
    };
    sink.commit(&work(0x200, vec![vec![insert(1, 40)]])).await.unwrap();
    sink.commit(&work(0x300, vec![vec![insert(2, 41)]])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t").await, ["(70,2,4,40)"]);
}

async fn partitions_are_reached_by_the_root(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text) PARTITION BY RANGE (id);
         CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (100);
         CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (100) TO (200); INSERT INTO t VALUES (5, 'five', 'b')",
    )
    .await;
    let calls = vec![vec![
        set(
            "t",
            Operation::Update,
            &[0],
            &[("id", vec![V::I4(5)])],
            &[("id", vec![V::I4(105)]), ("a", vec![V::Keep]), ("b", vec![text("B")])],
        ),
        set("t", Operation::Insert, &[1], &[], &[("id", vec![V::I4(6)]), ("a", vec![text("six")])]),
    ]];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t0").await, ["(6,six,)"]);
    assert_eq!(rows(&place, "SELECT * FROM t1").await, ["(105,five,B)"]);
}

async fn deferrable_keys_are_checked_at_the_end(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE)",
    )
    .await;
    let child = |id| set("c", Operation::Insert, &[0], &[], &[("id", vec![V::I4(id)]), ("p", vec![V::I4(id)])]);
    let parent = set("p", Operation::Insert, &[1], &[], &[("id", vec![V::I4(1)])]);
    sink.commit(&work(0x200, vec![vec![child(1), parent]])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM c").await, ["(1,1)"]);
    let error = sink.commit(&work(0x300, vec![vec![child(2)]])).await.unwrap_err();
    assert!(error.refusal() && error.to_string().contains("\"c\""), "{error}");
    assert_eq!(rows(&place, "SELECT * FROM c").await, ["(1,1)"]);
}

async fn a_new_column_is_seen_at_once(major: u32) {
    let (place, mut sink) = made(major, "CREATE TABLE t (id int PRIMARY KEY, a int)").await;
    let insert = |id, column| {
        let columns = [("id", vec![V::I4(id)]), (column, vec![V::I4(id)])];
        vec![vec![set("t", Operation::Insert, &[0], &[], &columns)]]
    };
    sink.commit(&work(0x200, insert(1, "a"))).await.unwrap();
    place.execute("ALTER TABLE t ADD COLUMN b int").await;
    sink.commit(&work(0x300, insert(2, "b"))).await.unwrap();
    place.execute("ALTER TABLE t ALTER COLUMN b TYPE text").await;
    sink.commit(&work(0x400, insert(3, "b"))).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(1,1,)", "(2,,2)", "(3,,3)"]);
}

async fn hostile_names_are_only_names(major: u32) {
    let place = Place::make(major).await;
    place
        .execute(
            r#"CREATE SCHEMA "S.""x";
               CREATE TABLE "S.""x"."T'; DROP TABLE t;--" ("Id" int, "a.b" text, "select" int, "$1" text,
                   PRIMARY KEY ("Id", "a.b"))"#,
        )
        .await;
    let name = "T'; DROP TABLE t;--";
    let mut sink = sink(&place, rest("S.\"x")).await;
    let after = |id, word: &str| {
        [("Id", vec![V::I4(id)]), ("a.b", vec![text(word)]), ("select", vec![V::I4(1)]), ("$1", vec![text("p")])]
    };
    let key = |id, word: &str| [("Id", vec![V::I4(id)]), ("a.b", vec![text(word)])];
    let calls = vec![vec![
        set(name, Operation::Insert, &[0], &[], &after(1, "w")),
        set(name, Operation::Insert, &[1], &[], &after(2, "w")),
        set(name, Operation::Update, &[2], &key(1, "w"), &after(3, "v")),
        set(name, Operation::Delete, &[3], &key(2, "w"), &[]),
    ]];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, r#"SELECT * FROM "S.""x"."T'; DROP TABLE t;--""#).await, ["(3,v,1,p)"]);
}

async fn a_lost_session_is_opened_again(major: u32) {
    let (place, mut sink) = made(major, "CREATE TABLE t (id int PRIMARY KEY, a text)").await;
    let insert = |id| {
        let columns = [("id", vec![V::I4(id)]), ("a", vec![text("a")])];
        vec![vec![set("t", Operation::Insert, &[0], &[], &columns)]]
    };
    sink.commit(&work(0x200, insert(1))).await.unwrap();
    place
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    // The loss is met by this commit or was seen before it; either way the next one is on a new session.
    if let Err(error) = sink.commit(&work(0x300, insert(2))).await {
        assert_eq!((error.class(), error.halt_name()), (walgate_store::Class::Retry, "rows_unavailable"), "{error}");
    }
    sink.commit(&work(0x300, insert(2))).await.unwrap();
    sink.commit(&work(0x400, insert(3))).await.unwrap();
    assert_eq!(rows(&place, "SELECT id FROM t ORDER BY id").await, ["(1)", "(2)", "(3)"]);
}

/// The daemon moves the sink's futures between threads.
#[test]
fn futures_can_move_between_threads() {
    fn is_send<T: Send>(_: T) {}
    let _ = |sink: &'static mut RowsSink, work: &'static RowsWork| is_send(sink.commit(work));
    let _ = |sink: &'static mut RowsSink| is_send(sink.open());
}
