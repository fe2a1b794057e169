//! Batches of hand-made streams: what a plugin sees, where batches end, and what never gets into one.
//!
//! Changing relations are in [`shapes`], random streams against a naive reference in [`replay`].

mod canary;
mod model;
mod replay;
mod rules;
mod shapes;

use super::*;
use crate::assemble::Assembler;
use crate::batch::{Group, NOT_SENT, NULL, UNCHANGED, VALUE, Values};
use crate::fuzzing::check_batch;
use crate::grant::rules::Rules;
use crate::grant::{Columns, Operations, TableGrant};
use crate::pgoutput::Message;
use crate::pgoutput::build::{self, Column, Value, column};

const INT4: u32 = 23;
const TEXT: u32 = 25;
const COLUMNS: [Column<'static>; 3] =
    [column("id", INT4, true), column("hidden", TEXT, false), column("t", TEXT, false)];
/// In every hidden value.
const CANARY: &str = "c4n4ry";

fn only(name: &str, columns: &[&str]) -> TableGrant {
    TableGrant {
        namespace: "public".to_owned(),
        name: name.to_owned(),
        columns: Columns::Only(columns.iter().map(|c| (*c).to_owned()).collect()),
        required: columns.iter().map(|c| (*c).to_owned()).collect(),
        operations: Operations::ALL,
        allow_new_columns: false,
        rules: Rules::default(),
    }
}

fn grant(tables: &[TableGrant]) -> Grant {
    Grant { tables: tables.to_vec(), message_prefixes: vec!["p".to_owned()] }
}

fn star(allow_new_columns: bool) -> Grant {
    let columns = Columns::AllExcept(vec!["hidden".to_owned()]);
    grant(&[TableGrant { columns, required: Vec::new(), allow_new_columns, ..only("t", &[]) }])
}

/// A minimizer on one connection.
struct Feed {
    assembler: Assembler,
    minimizer: Minimizer,
}

impl Feed {
    fn new(grant: Grant, max_rows: usize) -> Self {
        Self::from(grant, Bounds { max_rows, max_bytes: 1 << 20 }, Cursor::default())
    }

    fn from(grant: Grant, bounds: Bounds, cursor: Cursor) -> Self {
        Self { assembler: Assembler::new(), minimizer: Minimizer::new(grant, "l1", bounds, cursor) }
    }

    fn push(&mut self, message: &[u8]) -> Result<(), MinimizeError> {
        self.minimizer.apply(&self.assembler.push(Lsn::ZERO, message).unwrap())
    }

    #[track_caller]
    fn all(&mut self, messages: &[Vec<u8>]) -> &mut Self {
        for message in messages {
            self.push(message).unwrap();
        }
        self
    }

    #[track_caller]
    fn refuses(&mut self, message: &[u8]) -> MinimizeErrorKind {
        self.push(message).unwrap_err().kind().clone()
    }

    fn reconnect(&mut self) {
        self.minimizer.rewind();
        self.assembler = Assembler::new();
    }

    fn waiting(&mut self) -> Vec<Item> {
        std::iter::from_fn(|| self.minimizer.next_item()).collect()
    }

    /// What waits, after everything complete was cut off.
    fn items(&mut self) -> Vec<Item> {
        self.minimizer.cut().unwrap();
        self.waiting()
    }

    fn batches(&mut self) -> Vec<Batch> {
        batches(self.items())
    }

    #[track_caller]
    fn batch(&mut self) -> Batch {
        let mut batches = self.batches();
        assert_eq!(batches.len(), 1, "one batch");
        batches.remove(0)
    }
}

fn batches(items: Vec<Item>) -> Vec<Batch> {
    let batches = items.into_iter().filter_map(|item| match item {
        Item::Batch(batch) => Some(batch),
        Item::Relation { .. } => None,
    });
    batches.inspect(check_batch).collect()
}

/// `relation`, or `n` rows of parts `p` for a batch: the order of items at a glance.
fn outline(items: &[Item]) -> Vec<String> {
    let word = |item: &Item| match item {
        Item::Relation { current, .. } => format!("relation {}", current.columns.len()),
        Item::Batch(batch) => {
            let part = |t: &Transaction| format!("{}.{}{}", t.commit.get(), t.part, if t.last_part { "" } else { "+" });
            let parts: Vec<String> = batch.transactions.iter().map(part).collect();
            format!("{} rows of {}", batch.rows, parts.join(" "))
        }
    };
    items.iter().map(word).collect()
}

fn begin(commit: u64) -> Vec<u8> {
    build::begin(commit, 0, commit as u32)
}

fn commit(at: u64) -> Vec<u8> {
    build::commit(at, at + 10, 0)
}

fn announce() -> Vec<u8> {
    build::relation(1, "public", "t", b'd', &COLUMNS)
}

fn insert(id: u32) -> Vec<u8> {
    build::insert(1, &[id.to_string().as_str().into(), CANARY.into(), "x".into()])
}

/// A transaction of `rows` inserts.
fn transaction(at: u64, rows: u32) -> Vec<Vec<u8>> {
    let mut messages = vec![begin(at), announce()];
    messages.extend((0..rows).map(insert));
    messages.push(commit(at));
    messages
}

fn texts(values: &Values) -> Vec<&str> {
    let Values::Text(text) = values else { panic!("not texts: {values:?}") };
    let starts = std::iter::once(0).chain(text.ends.iter().copied());
    starts.zip(&text.ends).map(|(start, end)| &text.data[start as usize..*end as usize]).collect()
}

fn group(batch: &Batch, operation: Operation) -> &Group {
    batch.groups.iter().find(|group| group.operation == operation).expect("a group of that operation")
}

#[test]
fn transactions_come_whole_and_in_commit_order() {
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 5);
    feed.all(&transaction(100, 2)).all(&transaction(200, 2)).all(&transaction(300, 2)).all(&transaction(400, 5));
    // The third transaction would fit in part: it goes whole into the next batch. So does one as large as a batch.
    assert_eq!(outline(&feed.items()), ["relation 1", "4 rows of 100.0 200.0", "2 rows of 300.0", "5 rows of 400.0"]);
    assert_eq!(feed.minimizer.taken(), Cursor::at(Lsn::new(410)));
    assert!(feed.minimizer.is_empty());
}

#[test]
fn the_byte_bound_counts_alone() {
    let bounds = Bounds { max_rows: 1_000, max_bytes: 4 };
    let mut feed = Feed::from(grant(&[only("t", &["id", "t"])]), bounds, Cursor::default());
    // Two bytes a row.
    feed.all(&transaction(100, 1)).all(&transaction(200, 2)).all(&transaction(300, 3));
    assert_eq!(
        outline(&feed.items()),
        ["relation 2", "1 rows of 100.0", "2 rows of 200.0", "2 rows of 300.0+", "1 rows of 300.1"]
    );
    // A row larger than the bound goes alone, and NULLs count as well.
    let wide = |id: &str| build::insert(1, &[id.into(), Value::Null, Value::Null]);
    feed.all(&[begin(400), announce(), wide("123456"), wide("1"), wide("1"), commit(400)]);
    assert_eq!(outline(&feed.items()), ["1 rows of 400.0+", "1 rows of 400.1+", "1 rows of 400.2"]);
}

#[test]
fn only_a_transaction_above_the_bounds_comes_in_parts() {
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 3);
    feed.all(&transaction(100, 1)).all(&transaction(200, 7));
    let items = feed.items();
    let expect = ["relation 1", "1 rows of 100.0", "3 rows of 200.0+", "3 rows of 200.1+", "1 rows of 200.2"];
    assert_eq!(outline(&items), expect);
    let parts: Vec<_> = batches(items).into_iter().skip(1).collect();
    let heads: Vec<_> = parts
        .iter()
        .map(|batch| {
            let part = &batch.transactions[0];
            (part.first_ordinal, part.change_count, part.source_ordinal, part.end.get(), batch.reaches)
        })
        .collect();
    let inside = |ordinal| Cursor { end: Lsn::new(110), commit: Lsn::new(200), ordinal };
    assert_eq!(heads, [(0, 3, 0, 0, inside(3)), (0, 3, 3, 0, inside(6)), (0, 1, 6, 210, Cursor::at(Lsn::new(210)))]);
}

#[test]
fn a_loose_message_does_not_cut_a_transaction_that_fits() {
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 3);
    feed.push(&build::message(false, 50, "p", b"m")).unwrap();
    feed.all(&transaction(100, 3));
    // The relation is told with its first row; the message is cut off when the last row needs room.
    assert_eq!(outline(&feed.items()), ["relation 1", "1 rows of ", "3 rows of 100.0"]);
}

#[test]
fn loose_messages_obey_the_bounds_and_come_once() {
    let mut feed = Feed::new(grant(&[]), 2);
    let message = |lsn| build::message(false, lsn, "p", b"m");
    feed.all(&[message(10), message(20), message(30), build::message(false, 40, "other", b"m")]);
    let batches = feed.batches();
    assert_eq!(batches.iter().map(|batch| batch.messages.len()).collect::<Vec<_>>(), [2, 1]);
    assert_ne!(batches[0].id, batches[1].id, "other content, other name");
    feed.reconnect();
    feed.all(&[message(10), message(20), message(30), message(35)]);
    assert_eq!(feed.batch().messages.len(), 1, "what was taken is not taken again");
    // A restart knows only the cursor: what lies before a covered commit came before it.
    let cursor = Cursor { end: Lsn::new(110), commit: Lsn::new(200), ordinal: 1 };
    let mut feed = Feed::from(grant(&[]), Bounds { max_rows: 9, max_bytes: 9 }, cursor);
    feed.all(&[message(90), message(150), message(205)]);
    assert_eq!(feed.batch().messages.len(), 1);
}

#[test]
fn the_name_of_a_batch_is_the_name_of_its_content() {
    let message = |lsn| build::message(false, lsn, "p", b"m");
    let mut names = Vec::new();
    let streams: [Vec<Vec<u8>>; 5] = [
        transaction(100, 1),
        [vec![message(50)], transaction(100, 1)].concat(),
        [transaction(100, 1), vec![message(150)]].concat(),
        [vec![message(50)], transaction(100, 1), vec![message(150)]].concat(),
        [transaction(100, 1), vec![message(150), message(160)]].concat(),
    ];
    for stream in &streams {
        let name = |()| Feed::new(grant(&[only("t", &["id"])]), 9).all(stream).batch().id;
        assert_eq!(name(()), name(()), "equal content");
        names.push(name(()));
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), streams.len(), "{names:?}");
}

#[test]
fn hidden_changes_keep_their_ordinals_and_nothing_else() {
    let other = build::relation(2, "public", "secret", b'd', &COLUMNS);
    let secret = build::insert(2, &["1".into(), CANARY.into(), CANARY.into()]);
    let mut granted = only("t", &["t"]);
    granted.operations = Operations::NONE.with(Operation::Insert);
    let mut feed = Feed::new(grant(&[granted]), 10);
    let delete = build::delete(1, b'K', &["1".into(), Value::Null, Value::Null]);
    feed.all(&[begin(100), other, secret.clone(), announce(), insert(1), secret.clone(), delete, insert(2), secret]);
    feed.push(&build::message(true, 1, CANARY, CANARY.as_bytes())).unwrap();
    feed.push(&commit(100)).unwrap();
    let items = feed.items();
    let Item::Relation { current, .. } = &items[0] else { panic!("not a relation") };
    assert_eq!(current.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["t"]);
    let batch = batches(items).remove(0);
    assert_eq!(batch.groups.len(), 1);
    assert_eq!(batch.groups[0].ordinals, [1, 4]);
    assert_eq!((batch.transactions[0].change_count, batch.rows), (7, 2));
    assert_no_canary(&batch);
}

/// Every byte of a batch that a plugin could see, and its `Debug` form.
#[track_caller]
fn assert_no_canary(batch: &Batch) {
    let mut bytes = format!("{batch:?}").into_bytes();
    for column in batch.groups.iter().flat_map(|group| group.after.iter().chain(&group.before)) {
        match &column.values {
            Values::Text(text) => bytes.extend(text.data.as_bytes()),
            Values::Bytes(values) => bytes.extend(&values.data),
            _ => {}
        }
    }
    for message in &batch.messages {
        bytes.extend(message.prefix.as_bytes());
        bytes.extend(&message.content);
    }
    assert!(!bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()), "a hidden value came along");
}

#[test]
fn nothing_prints_a_granted_value_either() {
    let mut feed = Feed::new(grant(&[only("t", &["id", "hidden", "t"])]), 10);
    feed.all(&[begin(100), announce(), insert(1), build::message(true, 1, "p", CANARY.as_bytes()), commit(100)]);
    for item in feed.items() {
        let printed = format!("{item:?}");
        assert!(!printed.contains(CANARY), "{printed}");
    }
    feed.all(&[begin(200), announce()]);
    let error = feed.push(&build::insert(1, &[CANARY.into(), CANARY.into(), CANARY.into()])).unwrap_err();
    let printed = format!("{error} {error:?}");
    assert!(!printed.contains(CANARY) && printed.contains("\"id\"") && printed.contains("int4"), "{printed}");
}

#[test]
fn kf_063_a_key_tuple_is_no_row_of_nulls() {
    let mut feed = Feed::new(grant(&[only("t", &["id", "t"])]), 10);
    let key = |id: &'static str| [Value::from(id), Value::Null, Value::Null];
    feed.all(&[begin(100), announce(), build::delete(1, b'K', &key("1")), build::delete(1, b'K', &key("2"))]);
    feed.push(&commit(100)).unwrap();
    let batch = feed.batch();
    let delete = group(&batch, Operation::Delete);
    assert_eq!((delete.after.len(), delete.before.len()), (0, 1), "only the key was sent");
    assert_eq!((delete.before[0].index, &delete.before[0].values), (0, &Values::Int32(vec![1, 2])));
    assert_eq!(delete.before[0].presence, None);
}

#[test]
fn kf_068_a_value_in_a_key_tuple_counts_whatever_the_key_flags_say() {
    let columns = [column("id", INT4, false), column("t", TEXT, false)];
    let mut feed = Feed::new(grant(&[only("t", &["id", "t"])]), 10);
    feed.all(&[begin(100), build::relation(1, "public", "t", b'd', &columns)]);
    feed.all(&[build::delete(1, b'K', &["7".into(), Value::Null]), commit(100)]);
    assert_eq!(group(&feed.batch(), Operation::Delete).before[0].values, Values::Int32(vec![7]));
}

#[test]
fn kf_062_identity_full_fills_what_toast_left_out() {
    let columns =
        [column("id", INT4, true), column("a", TEXT, false), column("b", TEXT, false), column("c", TEXT, false)];
    let mut feed = Feed::new(grant(&[only("t", &["id", "a", "c"])]), 10);
    let old = ["1".into(), "old a".into(), CANARY.into(), "old c".into()];
    let new = ["1".into(), Value::Unchanged, Value::Unchanged, Value::Unchanged];
    feed.all(&[begin(100), build::relation(1, "public", "t", b'f', &columns)]);
    feed.all(&[build::update(1, Some((b'O', &old)), &new), build::update(1, None, &new), commit(100)]);
    let batch = feed.batch();
    let update = group(&batch, Operation::Update);
    assert_eq!(texts(&update.after[1].values), ["old a", ""]);
    assert_eq!(texts(&update.after[2].values), ["old c", ""]);
    // Without an old row it stays what it is: not sent, and not NULL.
    assert_eq!(update.after[2].presence, Some(vec![VALUE, UNCHANGED]));
    assert_eq!(update.before[0].presence, Some(vec![VALUE, NOT_SENT]));
    assert_no_canary(&batch);
}

#[test]
fn kf_065_a_key_change_brings_the_old_key() {
    let mut feed = Feed::new(grant(&[only("t", &["id", "t"])]), 10);
    let new = ["1001".into(), CANARY.into(), Value::Unchanged];
    let same = ["5".into(), CANARY.into(), Value::Null];
    feed.all(&[begin(100), announce(), build::update(1, None, &same)]);
    feed.all(&[build::update(1, Some((b'K', &["1".into(), Value::Null, Value::Null])), &new)]);
    feed.all(&[build::update(1, None, &same), commit(100)]);
    let batch = feed.batch();
    let update = group(&batch, Operation::Update);
    assert_eq!(update.after[0].values, Values::Int32(vec![5, 1001, 5]));
    assert_eq!(update.after[1].presence, Some(vec![NULL, UNCHANGED, NULL]));
    assert_eq!(update.before.len(), 1);
    assert_eq!(update.before[0].values, Values::Int32(vec![0, 1, 0]));
    assert_eq!(update.before[0].presence, Some(vec![NOT_SENT, VALUE, NOT_SENT]));
}

#[test]
fn kf_069_the_tables_of_one_truncate_are_neighbours() {
    let relation = |id, name| build::relation(id, "public", name, b'd', &[column("id", INT4, true)]);
    let mut feed = Feed::new(grant(&[only("a", &["id"]), only("c", &["id"])]), 10);
    feed.all(&[begin(100), relation(1, "a"), relation(2, "b"), relation(3, "c")]);
    feed.all(&[build::insert(1, &["1".into()]), build::truncate(&[3, 2, 1]), commit(100)]);
    let batch = feed.batch();
    let truncates = batch.groups.iter().filter(|group| group.operation == Operation::Truncate);
    let seen: Vec<_> = truncates.map(|group| (group.relation, group.ordinals.clone(), group.after.len())).collect();
    assert_eq!(seen, [(3, vec![1], 0), (1, vec![3], 0)]);
}

#[test]
fn empty_transactions_move_the_cursor_only() {
    let mut feed = Feed::new(grant(&[only("u", &["id"])]), 10);
    feed.all(&transaction(100, 3));
    assert!(feed.items().is_empty() && feed.minimizer.is_empty() && !feed.minimizer.has_complete());
    assert_eq!(feed.minimizer.taken(), Cursor::at(Lsn::new(110)));
}

#[test]
fn a_cursor_inside_a_transaction_resumes_there() {
    let cursor = Cursor { end: Lsn::new(110), commit: Lsn::new(200), ordinal: 2 };
    let grants = || grant(&[only("t", &["id"])]);
    let mut feed = Feed::from(grants(), Bounds { max_rows: 10, max_bytes: 1 << 20 }, cursor);
    feed.all(&transaction(100, 3)).all(&transaction(200, 4)).all(&transaction(300, 1));
    let batch = feed.batch();
    let first = &batch.transactions[0];
    assert_eq!((first.commit.get(), first.source_ordinal, first.change_count), (200, 2, 2));
    assert!(first.part > 0 && first.last_part, "earlier parts went before");
    assert_eq!(batch.groups[0].after[0].values, Values::Int32(vec![2, 3, 0]));

    // All of it was covered: the last part is empty, and still tells where the transaction ends.
    let cursor = Cursor { ordinal: 4, ..cursor };
    let mut feed = Feed::from(grants(), Bounds { max_rows: 10, max_bytes: 1 << 20 }, cursor);
    let batch = feed.all(&transaction(200, 4)).batch();
    assert_eq!((batch.rows, batch.transactions[0].change_count, batch.transactions[0].end.get()), (0, 0, 210));

    // The transaction it stands in is not in the stream: nothing is guessed.
    let mut feed = Feed::from(grants(), Bounds { max_rows: 10, max_bytes: 1 << 20 }, cursor);
    let found = Lsn::new(300);
    assert_eq!(feed.refuses(&begin(300)), MinimizeErrorKind::Cursor { expected: Lsn::new(200), found });
}

#[test]
fn the_origin_comes_with_every_part() {
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 1);
    feed.all(&[begin(100), build::origin(1, "other"), announce(), insert(1), insert(2), commit(100)]);
    let origins: Vec<_> = feed.batches().into_iter().map(|batch| batch.transactions[0].origin.clone()).collect();
    assert_eq!(origins, [Some("other".to_owned()), Some("other".to_owned())]);
}

#[test]
fn transactional_messages_share_the_ordinals_of_rows() {
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 2);
    let message = build::message(true, 1, "p", "ü".as_bytes());
    feed.all(&transaction(50, 1)).all(&[begin(100), announce(), message.clone(), insert(1), commit(100)]);
    let batches = feed.batches();
    assert_eq!(batches.len(), 2, "the message made the batch too large for both");
    assert_eq!(batches[1].messages[0].ordinal, 0, "numbered anew in the next batch");
    assert_eq!((batches[1].messages[0].content.as_slice(), batches[1].rows), ("ü".as_bytes(), 2));
    assert_eq!(batches[1].groups[0].ordinals, [1]);
}

#[test]
fn texts_are_cut_in_bytes_and_kept_whole() {
    let mut feed = Feed::new(grant(&[only("t", &["t"])]), 10);
    let row = |text: &'static str| build::insert(1, &["1".into(), CANARY.into(), text.into()]);
    feed.all(&[begin(100), announce(), row("größe"), row(""), row("日本"), row("🦀"), commit(100)]);
    assert_eq!(texts(&feed.batch().groups[0].after[0].values), ["größe", "", "日本", "🦀"]);
}

#[test]
fn a_text_that_is_not_utf8_is_refused_by_name() {
    let mut feed = Feed::new(grant(&[only("t", &["t"])]), 10);
    feed.all(&[
        begin(100),
        announce(),
        build::insert(1, &["1".into(), Value::Null, Value::Text(b"\xFF")]),
        commit(100),
    ]);
    let error = feed.minimizer.cut().unwrap_err().to_string();
    assert!(error.contains("\"t\"") && error.contains("UTF-8"), "{error}");
}

#[test]
fn a_thousand_columns_and_none() {
    let names: Vec<String> = (0..1_000).map(|at| format!("c{at}")).collect();
    let columns: Vec<Column<'_>> = names.iter().map(|name| column(name, INT4, false)).collect();
    let mut table = only("t", &[]);
    table.columns = Columns::AllExcept(vec!["c500".to_owned()]);
    let mut feed = Feed::new(grant(&[table, only("empty", &[])]), 10);
    let cells: Vec<Value<'_>> = (0..1_000).map(|_| Value::from("7")).collect();
    feed.all(&[begin(100), build::relation(1, "public", "t", b'd', &columns), build::insert(1, &cells)]);
    feed.all(&[build::relation(2, "public", "empty", b'd', &[]), build::insert(2, &[]), build::insert(2, &[])]);
    feed.push(&commit(100)).unwrap();
    let batch = feed.batch();
    assert_eq!((batch.groups[0].after.len(), batch.groups[0].ordinals.len()), (999, 1));
    assert_eq!((batch.groups[1].after.len(), &batch.groups[1].ordinals), (0, &vec![1, 2]));
}

#[test]
fn before_columns_that_a_cut_emptied_are_not_listed() {
    let mut feed = Feed::new(grant(&[only("t", &["id", "t"])]), 10);
    let new = ["5".into(), CANARY.into(), "x".into()];
    let key = ["4".into(), Value::Null, Value::Null];
    feed.all(&[begin(100), announce(), build::update(1, None, &new), commit(100)]);
    feed.all(&[begin(200), build::update(1, Some((b'K', &key)), &new)]);
    assert!(feed.batch().groups[0].before.is_empty(), "the old key belongs to the transaction that is still open");
    feed.push(&commit(200)).unwrap();
    assert_eq!(feed.batch().groups[0].before[0].values, Values::Int32(vec![4]));
}

#[test]
fn ordinals_have_room_whatever_the_size_of_a_transaction() {
    let mut feed = Feed::new(grant(&[only("t", &["id"])]), 10);
    feed.all(&transaction(100, 1)).push(&begin(200)).unwrap();
    let relation = {
        let bytes = announce();
        match feed.assembler.push(Lsn::ZERO, &bytes) {
            Ok(Event::Relation(relation)) => relation.clone(),
            _ => panic!("not a relation"),
        }
    };
    let bytes = insert(9);
    let Message::Row(body) = Message::decode(&bytes).unwrap() else { panic!("not a row") };
    let head =
        Head { begin: crate::pgoutput::Begin { commit: Lsn::new(200), commit_time_us: 0, xid: 1 }, origin: None };
    // Hidden changes count: the one we see may be the four billionth.
    feed.minimizer.apply(&Event::Row(&head, &relation, body, u32::MAX - 1)).unwrap();
    let end = Commit { commit: Lsn::new(200), end: Lsn::new(210), commit_time_us: 0 };
    feed.minimizer.apply(&Event::Commit(&head, end, u32::MAX)).unwrap();
    let batches = feed.batches();
    assert_eq!(batches.iter().map(|batch| batch.rows).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(batches[1].groups[0].ordinals, [u32::MAX - 1]);
}

#[test]
fn spare_buffers_are_bounded_by_bytes() {
    let bounds = Bounds { max_rows: 1_000, max_bytes: 1_000 };
    let mut feed = Feed::from(star(true), bounds, Cursor::default());
    for at in 1..50_u32 {
        // A table that is dropped and made again, under a new id each time.
        let relation = build::relation(at, "public", "t", b'd', &COLUMNS);
        let text = "x".repeat(900);
        let row = build::insert(at, &["1".into(), CANARY.into(), text.as_str().into()]);
        feed.all(&[begin(u64::from(at) * 100), relation, row, commit(u64::from(at) * 100)]);
        for batch in feed.batches() {
            feed.minimizer.recycle(batch);
        }
        assert!(feed.minimizer.spares.bytes() <= 4_000, "{}", feed.minimizer.spares.bytes());
    }
    assert!(feed.minimizer.spares.bytes() > 0, "some are kept");
}
