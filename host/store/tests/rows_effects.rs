//! What a work leaves in a table: rows folded, columns left alone, keys changed, orders kept.
//!
//! Read next: [`crate::rows_property`].

use walgate_core::batch::Operation;

use crate::on_both;
use crate::rows::{Named, V, done, made, rows, set, text, work};

on_both! { a_work_is_folded_to_its_net_effect unlisted_and_unchanged_columns_keep_their_values
a_key_change_takes_unchanged_columns_along a_truncate_makes_earlier_rows_void two_spellings_of_a_key_are_one_row
rows_that_cannot_be_folded_go_one_by_one many_masks_share_a_few_temporary_tables
a_view_of_many_sets_keeps_the_order_of_ordinals forms_of_a_column_may_change_between_calls
rows_that_go_along_with_others_go_in_the_order_of_the_source }

async fn a_work_is_folded_to_its_net_effect(major: u32) {
    let (place, mut sink) = made(major, "CREATE TABLE t (id int PRIMARY KEY, a text, b int)").await;
    let first = vec![
        set(
            "t",
            Operation::Insert,
            &[0, 1, 5],
            &[],
            &[
                ("id", vec![V::I4(1), V::I4(2), V::I4(3)]),
                ("a", vec![text("x"), text("y"), text("z")]),
                ("b", vec![V::I4(10), V::Null, V::I4(30)]),
            ],
        ),
        set(
            "t",
            Operation::Update,
            &[2, 6],
            &[("id", vec![V::Out, V::I4(3)])],
            &[
                ("id", vec![V::I4(1), V::I4(4)]),
                ("a", vec![text("x2"), text("moved")]),
                ("b", vec![V::I4(11), V::I4(31)]),
            ],
        ),
        set("t", Operation::Delete, &[3], &[("id", vec![V::I4(2)])], &[]),
    ];
    done(sink.commit(&work(0x200, vec![first])).await.unwrap(), 2, 0, 0, 0);
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(1,x2,11)", "(4,moved,31)"]);
    let second = vec![
        set("t", Operation::Delete, &[0], &[("id", vec![V::I4(1)])], &[]),
        set(
            "t",
            Operation::Update,
            &[1],
            &[("id", vec![V::I4(9)])],
            &[("id", vec![V::I4(9)]), ("a", vec![V::Keep]), ("b", vec![V::I4(1)])],
        ),
    ];
    done(sink.commit(&work(0x300, vec![second])).await.unwrap(), 0, 1, 0, 1);
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(4,moved,31)"]);
}

async fn unlisted_and_unchanged_columns_keep_their_values(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text DEFAULT 'default', c text);
         INSERT INTO t VALUES (1, 'a', 'b', 'c'), (2, 'a', 'b', 'c')",
    )
    .await;
    let calls = vec![vec![
        set(
            "t",
            Operation::Update,
            &[0, 1],
            &[],
            &[("id", vec![V::I4(1), V::I4(2)]), ("a", vec![text("A"), V::Keep]), ("c", vec![V::Keep, V::Null])],
        ),
        // An insert over a row that is there writes what it has; over none, the rest is the default.
        set(
            "t",
            Operation::Insert,
            &[2, 3],
            &[],
            &[("id", vec![V::I4(1), V::I4(3)]), ("c", vec![text("C"), text("C")])],
        ),
    ]];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(1,A,b,C)", "(2,a,b,)", "(3,,default,C)"]);
    // An insert after a delete is a new row: what it does not list is the default, not what was there.
    let anew = vec![
        set("t", Operation::Delete, &[0], &[("id", vec![V::I4(1)])], &[]),
        set("t", Operation::Insert, &[1], &[], &[("id", vec![V::I4(1)]), ("a", vec![text("new")])]),
    ];
    sink.commit(&work(0x300, vec![anew])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t WHERE id = 1").await, ["(1,new,default,)"]);
}

async fn a_key_change_takes_unchanged_columns_along(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE t (id int PRIMARY KEY, a text, big text);
         INSERT INTO t VALUES (1, 'a', 'big one'), (3, 'c', 'big three'), (4, 'd', 'over'), (6, 'f', 'big six')",
    )
    .await;
    let changes = |ordinals: &[u32], old: &[i32], new: &[i32]| {
        let ids = |list: &[i32]| list.iter().map(|id| V::I4(*id)).collect::<Vec<_>>();
        set(
            "t",
            Operation::Update,
            ordinals,
            &[("id", ids(old))],
            &[
                ("id", ids(new)),
                ("a", new.iter().map(|id| V::Text(format!("now {id}"))).collect()),
                ("big", vec![V::Keep; new.len()]),
            ],
        )
    };
    // To a new key, over a row that is there, from a row that is not, and twice in a row.
    let calls = vec![vec![changes(&[0, 1, 2, 3, 4], &[1, 3, 99, 6, 7], &[2, 4, 98, 7, 8])]];
    let got = sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(got.missed, 1);
    assert_eq!(
        rows(&place, "SELECT * FROM t ORDER BY id").await,
        ["(2,\"now 2\",\"big one\")", "(4,\"now 4\",\"big three\")", "(8,\"now 8\",\"big six\")"]
    );
    // From a row that the same work writes: what is unchanged is in the work, not in the table.
    let written = set(
        "t",
        Operation::Insert,
        &[0],
        &[],
        &[("id", vec![V::I4(20)]), ("a", vec![text("first")]), ("big", vec![text("big twenty")])],
    );
    sink.commit(&work(0x300, vec![vec![written, changes(&[1], &[20], &[21])]])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t WHERE id >= 20").await, ["(21,\"now 21\",\"big twenty\")"]);
}

async fn a_truncate_makes_earlier_rows_void(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p);
         INSERT INTO p VALUES (1); INSERT INTO c VALUES (1, 1)",
    )
    .await;
    let insert = |target: &str, ordinal: u32, id: i32, more: &[Named<'_>]| {
        let columns: Vec<Named<'_>> = std::iter::once(("id", vec![V::I4(id)])).chain(more.iter().cloned()).collect();
        set(target, Operation::Insert, &[ordinal], &[], &columns)
    };
    let calls = vec![
        // This row could not even be written: a NULL key.
        vec![set("p", Operation::Insert, &[0], &[], &[("id", vec![V::Null])])],
        vec![
            insert("p", 0, 5, &[]),
            set("p", Operation::Truncate, &[1], &[], &[]),
            set("c", Operation::Truncate, &[2], &[], &[]),
            insert("p", 3, 7, &[]),
            insert("c", 4, 8, &[("p", vec![V::I4(7)])]),
        ],
    ];
    done(sink.commit(&work(0x200, calls)).await.unwrap(), 2, 0, 2, 0);
    assert_eq!(rows(&place, "SELECT * FROM p").await, ["(7)"]);
    assert_eq!(rows(&place, "SELECT * FROM c").await, ["(8,7)"]);
}

/// A child leaves its parent before that goes: only the order keeps it.
async fn rows_that_go_along_with_others_go_in_the_order_of_the_source(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE p (id int PRIMARY KEY);
         CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE, note text);
         INSERT INTO p VALUES (1), (2); INSERT INTO c VALUES (1, 1, 'stays'), (2, 1, 'goes')",
    )
    .await;
    let leave = [("id", vec![V::I4(1)]), ("p", vec![V::I4(2)]), ("note", vec![V::Keep])];
    let calls = vec![vec![
        set("c", Operation::Update, &[0], &[], &leave),
        set("p", Operation::Delete, &[1], &[("id", vec![V::I4(1)])], &[]),
    ]];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM p").await, ["(2)"]);
    assert_eq!(rows(&place, "SELECT * FROM c").await, ["(1,2,stays)"]);
}

async fn two_spellings_of_a_key_are_one_row(major: u32) {
    let (place, mut sink) = made(major, "CREATE TABLE t (id numeric PRIMARY KEY, a int)").await;
    let calls = vec![vec![
        set(
            "t",
            Operation::Insert,
            &[0, 1, 3],
            &[],
            &[("id", vec![text("1.0"), text("1.00"), text("2")]), ("a", vec![V::I4(1), V::I4(2), V::I4(3)])],
        ),
        set("t", Operation::Delete, &[2, 4], &[("id", vec![text("1"), text("2.000")])], &[]),
        set(
            "t",
            Operation::Insert,
            &[5, 6],
            &[],
            &[("id", vec![text("3"), text("3.0")]), ("a", vec![V::I4(4), V::I4(5)])],
        ),
    ]];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t").await, ["(3.0,5)"]);
}

async fn rows_that_cannot_be_folded_go_one_by_one(major: u32) {
    let (place, mut sink) = made(
        major,
        "CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE); INSERT INTO t VALUES (1, 'a'), (2, 'b');
         CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p);
         INSERT INTO p VALUES (1); INSERT INTO c VALUES (1, 1)",
    )
    .await;
    // Two rows swap a unique value, which takes a third value on the way.
    let swap = set(
        "t",
        Operation::Update,
        &[0, 1, 2],
        &[],
        &[("id", vec![V::I4(1), V::I4(2), V::I4(1)]), ("u", vec![text("tmp"), text("a"), text("b")])],
    );
    // The same back again over two calls, of which the later one has the lower ordinals.
    let change = |ordinal: u32, id: i32, u: &str| {
        set("t", Operation::Update, &[ordinal], &[], &[("id", vec![V::I4(id)]), ("u", vec![text(u)])])
    };
    let back = vec![vec![change(5, 1, "tmp")], vec![change(1, 2, "b"), change(2, 1, "a")]];
    // A parent comes and goes between children, under a key that is checked at once.
    let family = vec![
        set("p", Operation::Insert, &[10], &[], &[("id", vec![V::I4(2)])]),
        set("c", Operation::Insert, &[11], &[], &[("id", vec![V::I4(2)]), ("p", vec![V::I4(2)])]),
        set("c", Operation::Delete, &[12], &[("id", vec![V::I4(1)])], &[]),
        set("p", Operation::Delete, &[13], &[("id", vec![V::I4(1)])], &[]),
    ];
    let calls = vec![std::iter::once(swap).chain(family).collect()];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(1,b)", "(2,a)"]);
    assert_eq!(rows(&place, "SELECT * FROM p").await, ["(2)"]);
    assert_eq!(rows(&place, "SELECT * FROM c").await, ["(2,2)"]);
    sink.commit(&work(0x300, back)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(1,a)", "(2,b)"]);
}

async fn many_masks_share_a_few_temporary_tables(major: u32) {
    let columns: Vec<String> = (0..8).map(|n| format!("c{n} text")).collect();
    let (place, mut sink) = made(major, &format!("CREATE TABLE t (id int PRIMARY KEY, {})", columns.join(", "))).await;
    place.execute("INSERT INTO t SELECT n FROM generate_series(0, 255) n").await;
    // Each row leaves another set of columns alone.
    let ordinals: Vec<u32> = (0..256).collect();
    let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let mut after = vec![("id", (0..256).map(V::I4).collect::<Vec<_>>())];
    for (bit, name) in names.iter().enumerate() {
        after.push((name, (0..256).map(|id| if id >> bit & 1 == 1 { text("x") } else { V::Keep }).collect()));
    }
    sink.commit(&work(0x200, vec![vec![set("t", Operation::Update, &ordinals, &[], &after)]])).await.unwrap();
    let right = "SELECT count(*) FROM t WHERE concat(c7, c6, c5, c4, c3, c2, c1, c0)
                    = repeat('x', length(replace((id::bit(8))::text, '0', '')))";
    assert_eq!(rows(&place, right).await, ["(256)"]);
}

async fn a_view_of_many_sets_keeps_the_order_of_ordinals(major: u32) {
    let (place, mut sink) = made(major, "CREATE TABLE t (id int PRIMARY KEY, a int)").await;
    let row = |ordinals: &[u32], a: &[i32]| {
        let columns = [("id", vec![V::I4(1); a.len()]), ("a", a.iter().map(|a| V::I4(*a)).collect())];
        set("t", Operation::Insert, ordinals, &[], &columns)
    };
    let calls = vec![vec![row(&[7, 9], &[7, 9]), row(&[3, 8], &[3, 8])], vec![row(&[2], &[2]), row(&[1], &[1])]];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t").await, ["(1,2)"]);
}

async fn forms_of_a_column_may_change_between_calls(major: u32) {
    let (place, mut sink) = made(major, "CREATE TABLE t (id bigint PRIMARY KEY, a text)").await;
    let insert = |id: V, a: V| vec![set("t", Operation::Insert, &[0], &[], &[("id", vec![id]), ("a", vec![a])])];
    let calls = vec![
        insert(V::I4(1), V::I4(10)),
        insert(V::I8(1), V::I4(11)),
        insert(V::I2(2), text("twelve")),
        insert(text("3"), text("thirteen")),
    ];
    sink.commit(&work(0x200, calls)).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM t ORDER BY id").await, ["(1,11)", "(2,twelve)", "(3,thirteen)"]);
}
