//! Treatments, row filters and the rules for old rows, by hand: what plugins are told, and what is refused with which words.

use super::*;
use crate::grant::filter::Filter;
use crate::grant::rules::{Before, Treatment, Untouched};
use crate::minimize::HashKey;

fn filtered(filter: &str, columns: &[&str]) -> TableGrant {
    let filter = Some(Filter::parse(filter).unwrap());
    TableGrant { rules: Rules { filter, ..Rules::default() }, ..only("t", columns) }
}

fn treated(column: &str, treatment: &str) -> TableGrant {
    let treatments = [(column.to_owned(), Treatment::parse(treatment).unwrap())].into();
    TableGrant { rules: Rules { treatments, ..Rules::default() }, ..only("t", &["id", "t"]) }
}

/// The error of the first row, in words.
#[track_caller]
fn refusal(table: TableGrant, identity: u8, columns: &[Column<'_>]) -> String {
    let mut feed = Feed::new(grant(&[table]), 10);
    feed.all(&[begin(100), build::relation(1, "public", "t", identity, columns)]);
    let row = vec![Value::from(CANARY); columns.len()];
    let error = feed.push(&build::insert(1, &row)).unwrap_err();
    assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
    error.to_string()
}

#[track_caller]
fn refuses(table: TableGrant, words: &[&str]) {
    let error = refusal(table, b'd', &COLUMNS);
    for word in words {
        assert!(error.contains(word), "{word} is missing in: {error}");
    }
}

#[test]
fn refusals_name_the_column_and_the_fix() {
    refuses(treated("id", "masked"), &["\"id\"", "part of the key", "plain or hashed"]);
    refuses(treated("id", "nulled"), &["\"id\"", "nulled"]);
    refuses(treated("t", "hashed"), &["\"t\"", "no key", "hash_key"]);
    refuses(filtered("hidden = 'x'", &["id"]), &["\"hidden\"", "REPLICA IDENTITY FULL", "[\"insert\"]"]);
    refuses(filtered("gone = 1", &["id"]), &["\"gone\"", "column list"]);
    refuses(filtered("id = 'c4n4ry'", &["id"]), &["\"id\"", "int4", "a whole number"]);
    let inserts =
        |filter| TableGrant { operations: Operations::NONE.with(Operation::Insert), ..filtered(filter, &["id"]) };
    refuses(inserts("hidden < 'x'"), &["\"hidden\"", "collation"]);
    refuses(inserts("id = 1"), &["\"id\"", "int4", "form Postgres prints"]);
    let json = [COLUMNS[0], column("doc", 3802, false)];
    assert!(refusal(inserts("doc = '{}'"), b'd', &json).contains("except by is null"));
    let mut key = only("t", &["id"]);
    key.rules.before = Before::Key;
    assert!(refusal(key, b'f', &COLUMNS).contains("key = [\"id\"]"));
    let number = [COLUMNS[0], column("t", INT4, false)];
    assert!(refusal(treated("t", "truncated(2)"), b'd', &number).contains("not a text"));
}

#[test]
fn a_plugin_is_told_what_really_travels() {
    let columns = [COLUMNS[0], column("n", INT4, false), column("m", 1700, false), column("v", 1043, false)];
    let mut table = only("t", &["id", "n", "m", "v"]);
    let mut told = |words: [&str; 4]| {
        let pairs = ["id", "n", "m", "v"].into_iter().zip(words);
        table.rules.treatments = pairs.map(|(c, word)| (c.to_owned(), Treatment::parse(word).unwrap())).collect();
        let mut feed = Feed::new(grant(&[table.clone()]), 10);
        feed.minimizer = feed.minimizer.hashing(HashKey::new(&[1; 32]).unwrap());
        let row = ["1", "2", "3.50", "größe"].map(Value::from);
        feed.all(&[begin(100), build::relation(1, "public", "t", b'd', &columns), build::insert(1, &row), commit(100)]);
        let items = feed.items();
        let Item::Relation { current, .. } = &items[0] else { panic!("{items:?}") };
        let types = current.columns.iter().map(|c| format!("{} {}", c.type_name, c.treatment)).collect::<Vec<_>>();
        assert_eq!(current.columns[0].key_position, Some(0), "a hashed key is a key");
        types
    };
    assert_eq!(told(["plain"; 4]), ["int4 plain", "int4 plain", "numeric plain", "varchar plain"]);
    assert_eq!(told(["hashed"; 4]), ["text hashed"; 4]);
    assert_eq!(
        told(["plain", "masked", "masked", "masked"]),
        ["int4 plain", "int4 masked", "text masked", "varchar masked"]
    );
    assert_eq!(
        told(["plain", "nulled", "truncated(2)", "truncated(2)"]),
        ["int4 plain", "int4 nulled", "text truncated(2)", "varchar truncated(2)"]
    );
}

/// Operations and keys, in order.
fn story(batch: &Batch) -> Vec<(Operation, u32)> {
    let changes = batch.groups.iter().flat_map(|g| g.ordinals.iter().map(|at| (*at, g.operation)));
    let mut changes: Vec<_> = changes.collect();
    changes.sort_unstable_by_key(|(at, _)| *at);
    changes.into_iter().map(|(at, operation)| (operation, at)).collect()
}

#[test]
fn an_update_across_the_filter_is_a_delete_or_an_insert() {
    let row = |hidden: &'static str| [Value::from("1"), Value::from(hidden), Value::from("x")];
    let update = |old, new| build::update(1, Some((b'O', &row(old)[..])), &row(new));
    let columns = COLUMNS.map(|c| Column { key: true, ..c });
    let mut feed = Feed::new(grant(&[filtered("hidden in ('in', 'inside')", &["id", "t"])]), 20);
    feed.all(&[begin(100), build::relation(1, "public", "t", b'f', &columns)]);
    feed.all(&[update("in", "inside"), update("in", "out"), update("out", "in"), update("out", "outside")]);
    feed.all(&[build::delete(1, b'O', &row("out")), build::delete(1, b'O', &row("in")), build::truncate(&[1])]);
    feed.all(&[commit(100)]);
    let batch = feed.batch();
    let expect = [
        (Operation::Update, 0),
        (Operation::Delete, 1),
        (Operation::Insert, 2),
        (Operation::Delete, 5),
        (Operation::Truncate, 6),
    ];
    assert_eq!(story(&batch), expect);
    assert_eq!(group(&batch, Operation::Insert).before, []);
    assert_eq!(group(&batch, Operation::Delete).after, []);
}

#[test]
fn a_filter_over_the_key_follows_rows_without_old_values() {
    let row = |id: &'static str| [Value::from(id), Value::Null, Value::Unchanged];
    let key = |id: &'static str| [Value::from(id), Value::Null, Value::Null];
    let mut feed = Feed::new(grant(&[filtered("id < 10", &["id", "t"])]), 20);
    feed.all(&[begin(100), announce(), build::update(1, None, &row("5")), build::update(1, None, &row("50"))]);
    feed.all(&[build::update(1, Some((b'K', &key("5"))), &row("50"))]);
    feed.all(&[build::update(1, Some((b'K', &key("50"))), &row("5")), build::delete(1, b'K', &key("50")), commit(100)]);
    let batch = feed.batch();
    assert_eq!(story(&batch), [(Operation::Update, 0), (Operation::Delete, 2), (Operation::Insert, 3)]);
    assert_eq!(group(&batch, Operation::Delete).before[0].values, Values::Int32(vec![5]));
}

#[test]
fn a_filter_value_that_was_not_sent_halts_and_is_not_guessed() {
    let columns = COLUMNS.map(|c| Column { key: true, ..c });
    let mut feed = Feed::new(grant(&[filtered("hidden = 'x' and id = 1", &["id"])]), 20);
    feed.all(&[begin(100), build::relation(1, "public", "t", b'f', &columns)]);
    // Another part of the condition may decide it all the same.
    let row = |id: &'static str| [Value::from(id), Value::Unchanged, Value::Null];
    feed.all(&[build::delete(1, b'O', &row("2"))]);
    let error = feed.push(&build::delete(1, b'O', &row("1"))).unwrap_err();
    assert!(error.to_string().contains("REPLICA IDENTITY FULL"), "{error}");
}

#[test]
fn an_update_of_hidden_columns_is_dropped_where_it_shows() {
    let mut table = only("t", &["id", "t"]);
    table.rules.empty_updates = crate::grant::rules::EmptyUpdates::Drop;
    let mut feed = Feed::new(grant(&[table]), 20);
    let update = |hidden: &'static str, t| build::update(1, None, &[Value::from("1"), Value::from(hidden), t]);
    feed.all(&[begin(100), announce(), update("a", Value::Unchanged), update("b", Value::from("new")), commit(100)]);
    assert_eq!(story(&feed.batch()), [(Operation::Update, 1)]);
}

#[test]
fn changed_only_hands_over_the_key_and_what_changed() {
    let mut table = only("t", &["id", "hidden", "t"]);
    table.rules = Rules { untouched: Untouched::Withhold, key: vec!["id".to_owned()], ..Rules::default() };
    table.rules.before = Before::None;
    let columns = COLUMNS.map(|c| Column { key: true, ..c });
    let mut feed = Feed::new(grant(&[table]), 20);
    let row = |t: &'static str| [Value::from("1"), Value::from("same"), Value::from(t)];
    feed.all(&[begin(100), build::relation(1, "public", "t", b'f', &columns)]);
    feed.all(&[build::update(1, Some((b'O', &row("old"))), &row("new")), commit(100)]);
    let batch = feed.batch();
    let update = group(&batch, Operation::Update);
    assert_eq!((update.before.len(), update.after[0].presence.clone()), (0, None));
    assert_eq!(update.after[1].presence, Some(vec![UNCHANGED]));
    assert_eq!((texts(&update.after[1].values), texts(&update.after[2].values)), (vec![""], vec!["new"]));
}
