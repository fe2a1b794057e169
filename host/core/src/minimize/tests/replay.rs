//! Random streams under random bounds, cuts and lost connections, against the naive reference of [`super::model`].

use std::collections::HashMap;

use proptest::prelude::*;

use super::model::{Cell, Dice, Piece, Seen, grants, known, messages, reference, stream};
use super::*;

/// What a plugin makes of the items: single changes in order. Checks on the way what must hold of every batch.
struct Plugin {
    relations: HashMap<u32, ProjectedRelation>,
    seen: Vec<Seen>,
    /// (commit, number of the next part) of a transaction whose last part has not come.
    part: Option<(Lsn, u32)>,
    bounds: Bounds,
    /// Rows and messages in each batch, by its name.
    names: HashMap<String, Vec<Seen>>,
    durable: Cursor,
}

impl Plugin {
    fn new(bounds: Bounds) -> Self {
        let (relations, names) = (HashMap::new(), HashMap::new());
        Self { relations, seen: Vec::new(), part: None, bounds, names, durable: Cursor::default() }
    }

    fn take(&mut self, item: Item) -> Option<Batch> {
        match item {
            Item::Relation { current, previous } => {
                let known = self.relations.insert(current.id, current.clone());
                assert_eq!(known, previous, "what was before is what was told before");
                assert!(known.is_none_or(|known| known.version < current.version), "versions rise");
                None
            }
            Item::Batch(batch) => {
                check_batch(&batch);
                assert_no_canary(&batch);
                assert!(batch.rows <= self.bounds.max_rows);
                assert!(batch.reaches >= self.durable, "the cursor never goes back");
                self.durable = batch.reaches;
                self.check_parts(&batch);
                let seen = self.changes(&batch);
                let before = self.names.insert(batch.id.clone(), seen.clone());
                assert!(before.is_none_or(|before| before == seen), "equal names, equal content: {}", batch.id);
                self.seen.extend(seen);
                Some(batch)
            }
        }
    }

    fn check_parts(&mut self, batch: &Batch) {
        for transaction in &batch.transactions {
            match self.part {
                Some((commit, part)) if transaction.commit == commit => assert_eq!(transaction.part, part),
                // After a restart only this is known: earlier parts went before.
                _ if transaction.source_ordinal > 0 => assert!(transaction.part > 0),
                _ => assert_eq!(transaction.part, 0),
            }
            self.part = (!transaction.last_part).then_some((transaction.commit, transaction.part + 1));
        }
    }

    /// Merges the groups and messages of a batch by ordinal: `merge groups by ordinal == naive order`.
    fn changes(&self, batch: &Batch) -> Vec<Seen> {
        let mut merged: Vec<(u32, Seen)> = Vec::new();
        for group in &batch.groups {
            let relation = &self.relations[&group.relation];
            for (row, ordinal) in group.ordinals.iter().enumerate() {
                let what = format!("{} {}", group.operation.name(), group.relation);
                let has_after = matches!(group.operation, Operation::Insert | Operation::Update);
                let has_before = matches!(group.operation, Operation::Update | Operation::Delete);
                let after = if has_after { cells(relation, &group.after, row) } else { Vec::new() };
                let before = if has_before { cells(relation, &group.before, row) } else { Vec::new() };
                assert!(!has_after || group.after.len() == relation.columns.len());
                merged.push((*ordinal, Seen { key: key(batch, *ordinal), what, after, before }));
            }
        }
        for message in &batch.messages {
            let content = String::from_utf8(message.content.clone()).unwrap();
            let loose = || (content.trim_start_matches("loose ").parse().unwrap(), 0);
            let key = if message.transactional { key(batch, message.ordinal) } else { loose() };
            let what = format!("message {content}");
            merged.push((message.ordinal, Seen { key, what, after: vec![], before: vec![] }));
        }
        merged.sort_by_key(|(ordinal, _)| *ordinal);
        merged.into_iter().map(|(_, seen)| seen).collect()
    }
}

/// The stable key of a change.
fn key(batch: &Batch, ordinal: u32) -> (u64, u32) {
    let owner = batch.transactions.iter().rfind(|transaction| transaction.first_ordinal <= ordinal).unwrap();
    (owner.commit.get(), owner.source_ordinal + ordinal - owner.first_ordinal)
}

fn cells(relation: &ProjectedRelation, columns: &[crate::batch::Column], row: usize) -> Vec<(String, Cell)> {
    let cell = |index: usize| {
        let Some(column) = columns.iter().find(|column| usize::from(column.index) == index) else {
            return Cell::NotSent;
        };
        match column.presence.as_ref().map_or(VALUE, |presence| presence[row]) {
            NULL => Cell::Null,
            UNCHANGED => Cell::Unchanged,
            NOT_SENT => Cell::NotSent,
            _ => Cell::Text(match &column.values {
                Values::Int32(values) => values[row].to_string(),
                values => texts(values)[row].to_owned(),
            }),
        }
    };
    relation.columns.iter().enumerate().map(|(index, column)| (column.name.clone(), cell(index))).collect()
}

fn bounds(dice: &mut Dice) -> Bounds {
    match dice.below(3) {
        0 => Bounds { max_rows: 1 + dice.below(6), max_bytes: 1 << 20 },
        1 => Bounds { max_rows: 1_000, max_bytes: 1 + dice.below(200) },
        _ => Bounds { max_rows: 1 + dice.below(30), max_bytes: 1 + dice.below(2_000) },
    }
}

/// The first piece the server sends again to a client that has acknowledged up to `end`.
fn resume(pieces: &[Piece], end: Lsn) -> usize {
    let after = |piece: &Piece| match piece {
        Piece::Transaction { end: piece_end, .. } => *piece_end > end.get(),
        Piece::Loose { lsn, .. } => *lsn >= end.get(),
    };
    pieces.iter().position(after).unwrap_or(pieces.len())
}

/// Feeds the stream until all of it was taken. Connections are lost between any two messages; the server then goes
/// back to what is acknowledged, which is anything up to what is durable. `restart` also loses the minimizer.
fn drive(dice: &mut Dice, pieces: &[Piece], plugin: &mut Plugin, losses: usize, restarts: usize) {
    let mut minimizer = Minimizer::new(grants(), "l1", plugin.bounds, Cursor::default()).knowing(known());
    let (mut losses, mut restarts) = (losses, restarts);
    let mut acked = Lsn::ZERO;
    'connection: loop {
        let mut assembler = Assembler::new();
        for message in messages(&pieces[resume(pieces, acked)..]) {
            minimizer.apply(&assembler.push(Lsn::ZERO, &message).unwrap()).unwrap();
            if dice.one_in(5) {
                minimizer.cut().unwrap();
            }
            while !dice.one_in(3)
                && let Some(item) = minimizer.next_item()
            {
                let batch = plugin.take(item);
                batch.into_iter().for_each(|batch| minimizer.recycle(batch));
            }
            if dice.one_in(2) {
                acked.advance(plugin.durable.end);
            }
            if losses > 0 && dice.one_in(8) {
                losses -= 1;
                minimizer.rewind();
                continue 'connection;
            }
            if restarts > 0 && dice.one_in(12) {
                restarts -= 1;
                minimizer = Minimizer::new(grants(), "l1", plugin.bounds, plugin.durable).knowing(known());
                // A new instance is told everything anew, and the number of a part begins at 1.
                plugin.relations.clear();
                plugin.part = None;
                continue 'connection;
            }
        }
        break;
    }
    minimizer.cut().unwrap();
    while let Some(item) = minimizer.next_item() {
        plugin.take(item);
    }
    assert!(minimizer.is_empty());
}

#[track_caller]
fn assert_same(seen: &[Seen], expect: &[Seen]) {
    for (at, (seen, expect)) in seen.iter().zip(expect).enumerate() {
        assert_eq!(seen, expect, "change {at}");
    }
    assert_eq!(seen.len(), expect.len(), "nothing lost, nothing repeated");
}

fn is_loose(seen: &Seen) -> bool {
    seen.what.starts_with("message loose")
}

proptest! {
    // The one input is a seed, printed when a case fails; the whole case follows from it.
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merged_groups_are_the_naive_order_whatever_the_bounds(seed: u64) {
        let mut dice = Dice(seed);
        let pieces = stream(&mut dice);
        let mut plugin = Plugin::new(bounds(&mut dice));
        drive(&mut dice, &pieces, &mut plugin, 0, 0);
        assert_same(&plugin.seen, &reference(&pieces));
    }

    #[test]
    fn lost_connections_lose_and_repeat_nothing(seed: u64) {
        let mut dice = Dice(seed);
        let pieces = stream(&mut dice);
        let mut plugin = Plugin::new(bounds(&mut dice));
        drive(&mut dice, &pieces, &mut plugin, 6, 0);
        assert_same(&plugin.seen, &reference(&pieces));
    }

    #[test]
    fn restarts_resume_at_the_durable_cursor(seed: u64) {
        let mut dice = Dice(seed);
        let pieces = stream(&mut dice);
        let mut plugin = Plugin::new(bounds(&mut dice));
        drive(&mut dice, &pieces, &mut plugin, 3, 4);
        // A cursor counts commits: messages outside of transactions come at least once, and in order.
        let (loose, rows): (Vec<Seen>, Vec<Seen>) = plugin.seen.into_iter().partition(is_loose);
        let (expect_loose, expect): (Vec<Seen>, Vec<Seen>) = reference(&pieces).into_iter().partition(is_loose);
        assert_same(&rows, &expect);
        prop_assert!(expect_loose.iter().all(|message| loose.contains(message)));
    }

    #[test]
    fn only_large_transactions_and_new_shapes_make_parts(seed: u64) {
        let mut dice = Dice(seed);
        let pieces = stream(&mut dice);
        let mut plugin = Plugin::new(Bounds { max_rows: 1 + dice.below(6), max_bytes: 1 << 20 });
        let mut minimizer = Minimizer::new(grants(), "l1", plugin.bounds, Cursor::default()).knowing(known());
        let mut assembler = Assembler::new();
        let mut items = Vec::new();
        for message in messages(&pieces) {
            minimizer.apply(&assembler.push(Lsn::ZERO, &message).unwrap()).unwrap();
            items.extend(std::iter::from_fn(|| minimizer.next_item()));
        }
        for at in 0..items.len() {
            let new_shape = matches!(items.get(at + 1), Some(Item::Relation { .. }));
            if let Item::Batch(batch) = &items[at]
                && batch.transactions.last().is_some_and(|last| !last.last_part)
            {
                let full = batch.rows == plugin.bounds.max_rows;
                prop_assert!(full || new_shape, "a part for no reason");
                prop_assert!(batch.transactions.len() == 1 && batch.messages.iter().all(|m| m.transactional));
            }
        }
        items.into_iter().for_each(|item| drop(plugin.take(item)));
    }
}
