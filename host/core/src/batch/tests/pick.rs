//! Cutting batches: nothing is lost, doubled, moved or renamed, at whatever place.

use std::collections::BTreeSet;
use std::ops::Range;

use super::*;
use crate::assemble::Assembler;
use crate::fuzzing::check_batch;
use crate::grant::rules::Rules;
use crate::grant::{Columns, Grant, Operations, TableGrant};
use crate::minimize::{Bounds, Item, Minimizer};
use crate::pgoutput::build::{self, Value, column};

fn cut(batch: &Batch, ranges: &[Range<usize>]) -> Vec<Batch> {
    ranges.iter().map(|range| batch.transactions_in(range.clone())).inspect(check_batch).collect()
}

#[track_caller]
fn assert_parts(parts: &[Batch], whole: &Batch) {
    assert_eq!(parts.iter().flat_map(seen).collect::<Vec<_>>(), seen(whole));
    assert_eq!(parts.iter().map(|part| part.rows).sum::<usize>(), whole.rows);
    assert_eq!(parts.iter().map(|part| part.bytes).sum::<usize>(), whole.bytes);
    assert_eq!(parts.last().unwrap().reaches, whole.reaches);
    assert!(parts.is_sorted_by(|a, b| a.reaches < b.reaches), "the cursor moves with every part");
    let names: BTreeSet<&str> = parts.iter().map(|part| part.id.as_str()).chain([whole.id.as_str()]).collect();
    assert_eq!(names.len(), parts.len() + usize::from(parts.len() > 1), "every content has its name");
    for part in parts {
        assert!(part.id.starts_with(PREFIX), "{}", part.id);
        let lowest = part.transactions.iter().map(|t| t.first_ordinal).chain(part.messages.iter().map(|m| m.ordinal));
        assert_eq!(lowest.min(), Some(0), "ordinals from 0");
    }
}

/// The ordinals of everything in a batch.
fn ordinals(batch: &Batch) -> Vec<u32> {
    let rows = batch.groups.iter().flat_map(|group| group.ordinals.iter().copied());
    rows.chain(batch.messages.iter().map(|message| message.ordinal)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_at_any_place_keeps_everything((batch, _) in batches()) {
        check_batch(&batch);
        let count = batch.cuttable();
        for at in 1..count {
            assert_parts(&cut(&batch, &[0..at, at..count]), &batch);
        }
        assert_same(&batch.transactions_in(0..count), &batch);
        if count > 0 {
            let singles: Vec<_> = (0..count).map(|at| at..at + 1).collect();
            assert_parts(&cut(&batch, &singles), &batch);
        }
    }

    #[test]
    fn a_cut_of_a_cut_is_the_cut((batch, _) in batches()) {
        let count = batch.cuttable();
        for (from, at, to) in [(0, 1, 3), (1, 2, 3), (1, 3, 4), (0, 2, 4)] {
            if to <= count {
                let inner = batch.transactions_in(from..to);
                let halves = [inner.transactions_in(0..at - from), inner.transactions_in(at - from..to - from)];
                let bytes = halves.iter().map(|half| half.bytes).sum::<usize>();
                prop_assert_eq!(bytes, inner.bytes);
                for (half, range) in halves.iter().zip([from..at, at..to]) {
                    let direct = batch.transactions_in(range);
                    // Rounding twice may move a byte from one part to the other.
                    assert_same(&Batch { bytes: 0, ..half.clone() }, &Batch { bytes: 0, attempt: half.attempt, ..direct });
                }
            }
        }
    }

    #[test]
    fn all_changes_of_a_transaction_are_the_transaction((batch, _) in batches()) {
        for (at, owner) in batch.transactions.iter().enumerate() {
            let own: Vec<u32> = owner.ordinals().map(|ordinal| ordinal as u32).collect();
            let mut expected = batch.transactions_in(at..at + 1);
            if expected.messages.iter().any(|message| !message.transactional) {
                continue;
            }
            let picked = batch.only(&own);
            if expected.rows == 0 {
                prop_assert!(picked.is_empty());
                continue;
            }
            // The first or last transaction of a whole keeps its hidden ordinals: only the copy counts attempts on.
            expected.attempt = picked[0].attempt;
            assert_same(&picked[0], &expected);
            prop_assert_eq!(picked.len(), 1);
        }
    }

    #[test]
    fn picked_changes_keep_their_keys_and_values((batch, _) in batches(), picks: Vec<bool>, strange: Vec<u32>) {
        let mut wanted: Vec<u32> = ordinals(&batch);
        let mut picks = picks.into_iter().chain(std::iter::repeat(false));
        wanted.retain(|_| picks.next().unwrap());
        let count = wanted.len();
        let asked: Vec<u32> = wanted.iter().copied().chain(strange.iter().map(|at| at.saturating_add(1_000))).collect();
        let letters = batch.only(&asked);
        letters.iter().for_each(check_batch);
        prop_assert_eq!(letters.iter().map(|letter| letter.rows).sum::<usize>(), count);
        prop_assert!(letters.iter().all(|letter| letter.transactions.len() <= 1));
        let mut expected = Vec::new();
        let mut at: Vec<u32> = ordinals(&batch);
        at.sort_unstable();
        expected.extend(at.iter().zip(seen(&batch)).filter(|(at, _)| wanted.contains(at)).map(|(_, seen)| seen));
        prop_assert_eq!(letters.iter().flat_map(seen).collect::<Vec<_>>(), expected);
        let names: BTreeSet<&str> = letters.iter().map(|letter| letter.id.as_str()).collect();
        prop_assert_eq!(names.len(), letters.len());
        for letter in &letters {
            prop_assert!(letter.id.starts_with(PREFIX) && letter.reaches <= batch.reaches);
            prop_assert!(letter.rows == batch.rows || letter.id != batch.id, "other content, other name");
            // A letter is picked from again when a part of it is refused a second time.
            let all = letter.only(&ordinals(letter));
            assert_same(&all[0], letter);
            prop_assert_eq!(all.len(), 1);
            if letter.rows > 1 {
                let first = letter.only(&ordinals(letter)[..1]);
                prop_assert!(first[0].rows == 1 && first[0].id != letter.id);
                let direct = batch.only(&[ordinals(letter)[0] + base(&batch, letter)]);
                prop_assert_eq!(&direct[0].id, &first[0].id, "a name is the name of its content");
            }
        }
        for letter in &letters {
            prop_assert!(letter.bytes <= batch.bytes);
        }
    }
}

/// First ordinal in the batch of the letter's transaction.
fn base(batch: &Batch, letter: &Batch) -> u32 {
    let commit = letter.transactions[0].commit;
    batch.transactions.iter().find(|transaction| transaction.commit == commit).unwrap().first_ordinal
}

/// A minimizer fed with some transactions; cut off after each of `cuts` pieces of the stream.
fn minimized(pieces: &[Vec<Vec<u8>>], cuts: &[usize]) -> Vec<Batch> {
    let table = TableGrant {
        namespace: "public".to_owned(),
        name: "t".to_owned(),
        columns: Columns::Only(vec!["id".to_owned(), "t".to_owned()]),
        required: Vec::new(),
        operations: Operations::ALL,
        allow_new_columns: false,
        rules: Rules::default(),
    };
    let grant = Grant { tables: vec![table], message_prefixes: vec!["p".to_owned()] };
    let bounds = Bounds { max_rows: 1_000, max_bytes: 1 << 20 };
    let mut minimizer = Minimizer::new(grant, PREFIX, bounds, Cursor::default());
    let mut assembler = Assembler::new();
    for (at, piece) in pieces.iter().enumerate() {
        for message in piece {
            minimizer.apply(&assembler.push(Lsn::ZERO, message).unwrap()).unwrap();
        }
        if cuts.contains(&at) || at + 1 == pieces.len() {
            minimizer.cut().unwrap();
        }
    }
    let items = std::iter::from_fn(|| minimizer.next_item());
    items.filter_map(|item| if let Item::Batch(batch) = item { Some(batch) } else { None }).collect()
}

#[test]
fn a_part_is_what_the_minimizer_would_have_made() {
    let columns = [column("id", 23, true), column("hidden", 25, false), column("t", 25, false)];
    let transaction = |commit: u64, old: bool| {
        let id = commit.to_string();
        let row: [Value<'_>; 3] = [id.as_str().into(), "h".into(), "größe".into()];
        let old = old.then_some((b'K', [row[0], Value::Null, Value::Null]));
        vec![
            build::begin(commit, 0, 1),
            build::relation(1, "public", "t", b'd', &columns),
            build::insert(1, &row),
            build::update(
                1,
                old.as_ref().map(|(tag, old)| (*tag, old.as_slice())),
                &[row[0], Value::Null, Value::Unchanged],
            ),
            build::message(true, commit, "p", b"inside"),
            build::insert(1, &[row[0], row[1], Value::Null]),
            build::commit(commit, commit + 10, 0),
        ]
    };
    let loose = |lsn: u64| vec![build::message(false, lsn, "p", b"loose")];
    let pieces = [loose(50), transaction(100, false), transaction(200, true), transaction(300, false), loose(350)];
    let whole = minimized(&pieces, &[]);
    assert_eq!((whole.len(), whole[0].cuttable()), (1, 3));
    for (cuts, ranges) in
        [(vec![1], vec![0..1, 1..3]), (vec![2], vec![0..2, 2..3]), (vec![1, 2], vec![0..1, 1..2, 2..3])]
    {
        let expected = minimized(&pieces, &cuts);
        let found = cut(&whole[0], &ranges);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            // Bytes are a share, not a count.
            assert_same(&Batch { bytes: expected.bytes, ..found.clone() }, expected);
        }
    }
}

#[test]
fn a_message_between_two_transactions_goes_with_the_second() {
    let loose = LogicalMessage { ordinal: 2, transactional: false, prefix: "p".to_owned(), content: vec![1] };
    let transaction = |commit, first_ordinal, change_count| Transaction {
        xid: 1,
        commit: Lsn::new(commit),
        end: Lsn::new(commit + 16),
        commit_time_us: 0,
        origin: None,
        first_ordinal,
        change_count,
        source_ordinal: 0,
        part: 0,
        last_part: true,
    };
    let rows =
        Group { relation: 1, operation: Operation::Truncate, ordinals: vec![0, 4], after: vec![], before: vec![] };
    let batch = Batch {
        id: "l1100-0-300-2".to_owned(),
        attempt: 3,
        transactions: vec![transaction(0x100, 0, 2), transaction(0x300, 3, 2)],
        groups: vec![rows],
        messages: vec![loose],
        reaches: Cursor::at(Lsn::new(0x400)),
        rows: 3,
        bytes: 1,
    };
    let [first, second] = [batch.transactions_in(0..1), batch.transactions_in(1..2)];
    assert_eq!((first.id.as_str(), first.attempt, first.rows, first.reaches.end.get()), ("l1100-0-100-2", 1, 1, 0x110));
    assert_eq!((second.id.as_str(), second.attempt, second.rows), ("l1m110-300-2", 1, 2));
    assert_eq!((second.messages[0].ordinal, second.transactions[0].first_ordinal), (0, 1));
    assert_eq!((second.groups[0].ordinals.as_slice(), second.reaches), (&[2][..], batch.reaches));
    let letters = batch.only(&[2, 4]);
    assert_eq!(letters.iter().map(|letter| letter.id.as_str()).collect::<Vec<_>>(), ["l1m110-n0", "l1300-0-300-2"]);
    // Outside there is nothing, and asking is no error.
    assert_eq!((batch.transactions_in(5..9).rows, batch.transactions_in(1..1).rows), (0, 0));
    assert_eq!(batch.transactions_in(1..9), second);
    assert!(batch.only(&[1, 3, 9, u32::MAX]).is_empty());
    // A name of another form still gives names that are none of the whole.
    let foreign = Batch { id: "batch-1".to_owned(), ..batch };
    assert_eq!(foreign.transactions_in(0..1).id, "batch100-0-100-2");
}
