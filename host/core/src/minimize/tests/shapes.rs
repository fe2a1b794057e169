//! Relations that change while their rows are on the way: what is told, what is cut, what stays hidden.

use super::*;
use crate::relation::ReplicaIdentity;

fn wider() -> Vec<u8> {
    build::relation(1, "public", "t", b'd', &[COLUMNS[0], COLUMNS[1], COLUMNS[2], column("new", TEXT, false)])
}

fn wide_insert(id: &str) -> Vec<u8> {
    build::insert(1, &[id.into(), CANARY.into(), "x".into(), "n3w".into()])
}

#[test]
fn a_new_shape_cuts_first_also_inside_a_transaction() {
    let mut feed = Feed::new(star(true), 10);
    feed.all(&transaction(100, 2)).all(&[begin(200), announce(), insert(7), wider(), wide_insert("8"), commit(200)]);
    let items = feed.items();
    let expect = ["relation 2", "2 rows of 100.0", "1 rows of 200.0+", "relation 3", "1 rows of 200.1"];
    assert_eq!(outline(&items), expect);
    let versions: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Item::Relation { current, .. } => Some(current.version),
            Item::Batch(_) => None,
        })
        .collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    batches(items).iter().for_each(assert_no_canary);
}

#[test]
fn a_new_shape_leaves_an_open_transaction_that_does_not_use_it_whole() {
    let other = build::relation(2, "public", "u", b'd', &[column("id", INT4, true)]);
    let mut grants = star(true);
    grants.tables.push(only("u", &["id"]));
    let mut feed = Feed::new(grants, 10);
    feed.all(&transaction(100, 1)).all(&[begin(200), other, build::insert(2, &["1".into()]), wider()]);
    feed.all(&[wide_insert("8"), commit(200)]);
    assert_eq!(
        outline(&feed.items()),
        ["relation 2", "relation 1", "1 rows of 100.0", "relation 3", "2 rows of 200.0"]
    );
}

#[test]
fn a_change_of_hidden_columns_only_is_not_seen() {
    let wider = build::relation(1, "public", "t", b'd', &[COLUMNS[1], COLUMNS[0], COLUMNS[1], COLUMNS[2]]);
    let row = build::insert(1, &[CANARY.into(), "9".into(), CANARY.into(), "y".into()]);
    let mut feed = Feed::new(grant(&[only("t", &["id", "t"])]), 10);
    feed.all(&transaction(100, 1)).all(&[begin(200), wider, row, commit(200)]);
    let items = feed.items();
    assert_eq!(outline(&items), ["relation 2", "2 rows of 100.0 200.0"]);
    let batch = batches(items).remove(0);
    assert_eq!(batch.groups[0].after[0].values, Values::Int32(vec![0, 9]));
    assert_no_canary(&batch);
}

#[test]
fn a_column_that_appears_later_is_withheld_unless_allowed() {
    let mut feed = Feed::new(star(false), 10);
    feed.all(&transaction(100, 1)).all(&[begin(200), wider(), wide_insert("8"), commit(200)]);
    assert_eq!(outline(&feed.items()), ["relation 2", "2 rows of 100.0 200.0"]);
    let withheld: Vec<_> = feed.minimizer.withheld().map(|(relation, names)| (relation.id, names.to_vec())).collect();
    assert_eq!(withheld, [(1, vec!["new".to_owned()])]);
    // A replay that goes through the old shape again must not withhold what was there from the start.
    feed.reconnect();
    feed.all(&transaction(100, 1)).all(&transaction(300, 1)).all(&[begin(400), wider(), wide_insert("8"), commit(400)]);
    assert_eq!(outline(&feed.items()), ["2 rows of 300.0 400.0"]);
}

#[test]
fn a_replayed_shape_that_is_covered_is_not_told_again() {
    let mut feed = Feed::new(star(true), 10);
    feed.all(&transaction(100, 1)).all(&[begin(200), wider(), wide_insert("8"), commit(200)]);
    assert_eq!(outline(&feed.items()), ["relation 2", "1 rows of 100.0", "relation 3", "1 rows of 200.0"]);
    feed.reconnect();
    feed.all(&transaction(100, 1)).all(&[begin(200), wider(), wide_insert("8"), commit(200)]);
    feed.all(&[begin(300), wide_insert("9"), commit(300)]);
    assert_eq!(outline(&feed.items()), ["1 rows of 300.0"]);
}

#[test]
fn a_granted_column_that_is_not_sent_is_named() {
    // kf_076: the relation message decides, and a column list of the publication may leave columns out.
    let narrow = build::relation(1, "public", "t", b'd', &COLUMNS[..2]);
    let mut feed = Feed::new(grant(&[only("t", &["id", "t"])]), 10);
    feed.all(&[begin(100), narrow.clone()]);
    let error = feed.refuses(&build::insert(1, &["1".into(), CANARY.into()]));
    let MinimizeErrorKind::GrantedColumnMissing { namespace, table, column } = error else { panic!("{error}") };
    assert_eq!((namespace.as_str(), table.as_str(), column.as_str()), ("public", "t", "t"));
    // Nothing is missing while no row needs it, and a grant that does not ask for it goes on.
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 10);
    feed.all(&[begin(100), narrow, build::insert(1, &["1".into(), CANARY.into()]), commit(100)]);
    assert_eq!(group(&feed.batch(), Operation::Insert).after[0].values, Values::Int32(vec![1]));
}

#[test]
fn a_table_renamed_away_is_no_longer_granted() {
    let renamed = build::relation(1, "public", "elsewhere", b'd', &COLUMNS);
    let taken = build::relation(2, "public", "t", b'd', &COLUMNS);
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 10);
    feed.all(&[begin(100), announce(), insert(1), renamed.clone(), insert(2), taken]);
    feed.all(&[build::insert(2, &["3".into(), CANARY.into(), "x".into()]), announce(), insert(4), commit(100)]);
    let batch = feed.batch();
    let seen: Vec<_> = batch.groups.iter().map(|group| (group.relation, group.ordinals.clone())).collect();
    assert_eq!(seen, [(1, vec![0, 3]), (2, vec![2])]);
    assert_no_canary(&batch);
}

#[test]
fn a_change_of_identity_is_a_new_shape() {
    let full = build::relation(1, "public", "t", b'f', &COLUMNS);
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 10);
    feed.all(&transaction(100, 1)).all(&[begin(200), full, insert(2), commit(200)]);
    let items = feed.items();
    let Item::Relation { current, previous: Some(previous) } = &items[2] else { panic!("{:?}", outline(&items)) };
    assert_eq!((previous.identity, current.identity), (ReplicaIdentity::Default, ReplicaIdentity::Full));
}

#[test]
fn a_shape_whose_rows_were_all_forgotten_leaves_no_group_behind() {
    let mut feed = Feed::new(star(true), 10);
    feed.all(&[begin(100), announce(), insert(1)]);
    feed.reconnect();
    feed.all(&[begin(100), wider(), wide_insert("8"), commit(100)]);
    let items = feed.items();
    assert_eq!(outline(&items), ["relation 2", "relation 3", "1 rows of 100.0"]);
    let batch = batches(items).remove(0);
    assert_eq!((batch.groups.len(), batch.groups[0].after.len()), (1, 3));
}

/// A table that takes another's place under its name, and a restart that was told what was learned.
#[test]
fn what_is_known_of_a_table_outlives_its_id_and_the_process() {
    let mut feed = Feed::new(star(false), 10);
    let (id, hidden, new) = (column("id", INT4, true), column("hidden", INT4, false), column("new", INT4, false));
    let met = build::relation(1, "public", "t", b'd', &[id, hidden]);
    let row = |relation| build::insert(relation, &[Value::from("1"), Value::from("2"), Value::from("3")]);
    feed.all(&[begin(100), met, build::insert(1, &[Value::from("1"), Value::from("2")]), commit(100)]);
    feed.batch();
    let learned = feed.minimizer.learned();
    assert_eq!(learned.iter().map(|table| table.columns.len()).collect::<Vec<_>>(), [2]);
    let swapped = build::relation(2, "public", "t", b'd', &[id, hidden, new]);
    feed.all(&[begin(200), swapped.clone(), row(2), commit(200)]);
    assert_eq!(feed.batch().groups[0].after.len(), 1, "only id");
    assert_eq!(feed.minimizer.newly_withheld()[0].columns, ["new"]);
    let mut restarted = Feed::new(star(false), 10);
    restarted.minimizer =
        Minimizer::new(star(false), "l1", Bounds { max_rows: 10, max_bytes: 1 << 20 }, Cursor::default())
            .knowing(learned);
    restarted.all(&[begin(300), swapped, row(2), commit(300)]);
    assert_eq!(restarted.batch().groups[0].after.len(), 1, "only id after a restart, too");
}

#[test]
fn a_misspelled_exception_is_an_error_at_first_sight() {
    let mut feed = Feed::new(star(false), 10);
    let columns = [column("id", INT4, true), column("hiden", INT4, false)];
    feed.all(&[begin(100), build::relation(1, "public", "t", b'd', &columns)]);
    let error = feed.push(&build::insert(1, &[Value::from("1"), Value::from("2")])).unwrap_err();
    assert!(error.to_string().contains("\"hidden\""), "{error}");
}
