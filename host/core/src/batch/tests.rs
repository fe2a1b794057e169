//! Random batches of every kind of column, and a naive view of what is in them.
//!
//! Cuts are in [`pick`], images in [`image`].

mod image;
mod pick;

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::name::{Place, name};
use super::*;
use crate::relation::{ProjectedColumn, ProjectedRelation, ReplicaIdentity, SchemaVersion};

/// In every text, byte string and message.
const CANARY: &str = "c4n4ry";
const PREFIX: &str = "am1f";

struct Dice(TestRng);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// A batch as the minimizer makes them, and the relations it needs.
fn batches() -> impl Strategy<Value = (Batch, Vec<ProjectedRelation>)> {
    Just(()).prop_perturb(|(), rng| random(&mut Dice(rng)))
}

fn random(dice: &mut Dice) -> (Batch, Vec<ProjectedRelation>) {
    let shapes: Vec<(ProjectedRelation, Vec<Values>)> = (0..1 + dice.below(3)).map(|at| relation(dice, at)).collect();
    let mut groups: BTreeMap<(usize, Operation), Group> = BTreeMap::new();
    let (mut transactions, mut messages) = (Vec::new(), Vec::new());
    let (mut ordinal, mut at) = (0, 100 + dice.below(1 << 20) as u64);
    let mut loose: Option<(Place, u32)> = None;
    let mut last_loose = Place::Nowhere;
    let is_part = dice.one_in(4);
    let count = if is_part { 1 } else { dice.below(5) };
    for number in 0..=count {
        if !is_part {
            for _ in 0..dice.below(4).saturating_sub(1) {
                at += 10;
                loose = loose.or(Some((Place::Message(Lsn::new(at)), ordinal)));
                last_loose = Place::Message(Lsn::new(at));
                messages.push(message(dice, ordinal, false));
                ordinal += 1;
            }
        }
        if number == count {
            break;
        }
        let first_ordinal = ordinal;
        for _ in 0..1 + dice.below(9) {
            match dice.below(8) {
                0 => messages.push(message(dice, ordinal, true)),
                1 => {} // A hidden change.
                _ => change(dice, &shapes, &mut groups, ordinal),
            }
            ordinal += 1;
        }
        at += 10 + dice.below(90) as u64;
        transactions.push(Transaction {
            xid: dice.0.next_u32(),
            commit: Lsn::new(at),
            end: if is_part { Lsn::ZERO } else { Lsn::new(at + 10) },
            commit_time_us: dice.0.next_u64() as i64,
            origin: dice.one_in(3).then(|| "other \"node\"".to_owned()),
            first_ordinal,
            change_count: ordinal - first_ordinal,
            source_ordinal: if is_part || number == 0 && dice.one_in(4) { 70 } else { 0 },
            part: u32::from(is_part),
            last_part: !is_part,
        });
        at += 10;
    }
    let reaches = match transactions.last() {
        Some(last) if is_part => {
            Cursor { end: Lsn::new(50), commit: last.commit, ordinal: last.source_ordinal + last.change_count }
        }
        _ => Cursor::at(Lsn::new(at)),
    };
    let starts = match (transactions.first(), loose) {
        (Some(first), Some((_, loose))) if first.first_ordinal < loose => first.first_place(),
        (Some(first), None) => first.first_place(),
        (_, loose) => loose.map_or(Place::Nowhere, |(place, _)| place),
    };
    let ends = match transactions.last() {
        Some(last) if messages.last().is_none_or(|m| u64::from(m.ordinal) < last.ordinals().end) => last.last_place(),
        _ => last_loose,
    };
    let groups: Vec<Group> = groups.into_values().map(finished).collect();
    let batch = Batch {
        id: name(PREFIX, starts, ends),
        attempt: 1 + dice.below(3) as u32,
        transactions,
        rows: groups.iter().map(|group| group.ordinals.len()).sum::<usize>() + messages.len(),
        bytes: dice.below(1 << 16),
        groups,
        messages,
        reaches,
    };
    (batch, shapes.into_iter().map(|(relation, _)| relation).collect())
}

fn message(dice: &mut Dice, ordinal: u32, transactional: bool) -> LogicalMessage {
    let content = format!("{CANARY}{ordinal}{}", "m".repeat(dice.below(9))).into_bytes();
    LogicalMessage { ordinal, transactional, prefix: format!("p{CANARY}"), content }
}

fn relation(dice: &mut Dice, at: usize) -> (ProjectedRelation, Vec<Values>) {
    let kinds: Vec<Values> = (0..1 + dice.below(13)).map(|_| super::slot::kinds()[dice.below(12)].clone()).collect();
    let names = ["id", "größe", "a \"quoted\" one", "unchanged", "z", "A"];
    let column = |index: usize, dice: &mut Dice| ProjectedColumn {
        name: names.get(index).map_or_else(|| format!("c{index}"), |name| (*name).to_owned()),
        type_name: ["", "int4", "other.type"][dice.below(3)].to_owned(),
        type_oid: dice.0.next_u32(),
        type_modifier: dice.below(9) as i32 - 1,
        key_position: dice.one_in(2).then_some(index as u16),
        treatment: "plain".to_owned(),
    };
    let identities =
        [ReplicaIdentity::Default, ReplicaIdentity::Nothing, ReplicaIdentity::Full, ReplicaIdentity::Index];
    let relation = ProjectedRelation {
        id: 16_384 + at as u32,
        namespace: "public".to_owned(),
        name: format!("t{at}"),
        version: SchemaVersion { commit: Lsn::new(dice.0.next_u64()), message: Lsn::new(dice.below(9) as u64) },
        identity: identities[dice.below(4)],
        columns: (0..kinds.len()).map(|index| column(index, dice)).collect(),
    };
    (relation, kinds)
}

fn change(
    dice: &mut Dice,
    shapes: &[(ProjectedRelation, Vec<Values>)],
    groups: &mut BTreeMap<(usize, Operation), Group>,
    ordinal: u32,
) {
    let at = dice.below(shapes.len());
    let operations = [Operation::Read, Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];
    let operation = operations[dice.below(operations.len())];
    let (relation, kinds) = &shapes[at];
    let columns = |wanted: bool| {
        let column = |(index, values): (usize, &Values)| Column {
            index: index as u16,
            presence: Some(Vec::new()),
            values: values.clone(),
        };
        kinds.iter().enumerate().filter(|_| wanted).map(column).collect::<Vec<_>>()
    };
    let group = groups.entry((at, operation)).or_insert_with(|| Group {
        relation: relation.id,
        operation,
        ordinals: Vec::new(),
        after: columns(matches!(operation, Operation::Read | Operation::Insert | Operation::Update)),
        before: columns(matches!(operation, Operation::Update | Operation::Delete)),
    });
    group.ordinals.push(ordinal);
    let has_old = operation == Operation::Delete || dice.one_in(2);
    for column in &mut group.after {
        let code = [VALUE, VALUE, VALUE, NULL, UNCHANGED][dice.below(5)];
        add(dice, column, code);
    }
    for column in &mut group.before {
        let code = if has_old { [VALUE, VALUE, NULL, NOT_SENT][dice.below(4)] } else { NOT_SENT };
        add(dice, column, code);
    }
}

fn add(dice: &mut Dice, column: &mut Column, code: u8) {
    column.presence.as_mut().unwrap().push(code);
    let raw = if code == VALUE { dice.0.next_u64() >> (8 * dice.below(8)) } else { 0 };
    let text = match code {
        VALUE => ["", CANARY, "c4n4ry größe 日本🦀", "\"c4n4ry\"\n{\\"][dice.below(4)],
        _ => "",
    };
    let floats = [0, 1 << 63, 0x7FF8 << 48, 0xFFF8 << 48 | 1, 0x7FF0 << 48, 0xFFF0 << 48, 1, raw];
    match &mut column.values {
        Values::Boolean(v) => v.push((raw & 1) as u8),
        Values::Int16(v) => v.push(raw as i16),
        Values::Int32(v) | Values::DateDays(v) => v.push(raw as i32),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => v.push(raw as i64),
        Values::Float32(v) if code == VALUE => {
            // The same cases in half the width: the shift loses nothing but the 1 of a NaN and of the smallest.
            let bits = [(floats[dice.below(8)] >> 32) as u32, 0x7FC0_0000, 0xFFC0_0001, 0x7F80_0000, 1][dice.below(5)];
            v.push(f32::from_bits(bits));
        }
        Values::Float64(v) if code == VALUE => v.push(f64::from_bits(floats[dice.below(8)])),
        Values::Float32(v) => v.push(0.0),
        Values::Float64(v) => v.push(0.0),
        Values::Uuid(v) => v.extend([raw.to_be_bytes(), (raw / 3).to_le_bytes()].concat()),
        Values::Bytes(v) => {
            v.data.extend(text.bytes().map(|byte| byte ^ 0x80));
            v.ends.push(v.data.len() as u32);
        }
        Values::Text(v) => {
            v.data.push_str(text);
            v.ends.push(v.data.len() as u32);
        }
    }
}

fn finished(mut group: Group) -> Group {
    group.before.retain(|column| column.presence.as_ref().unwrap().iter().any(|code| *code != NOT_SENT));
    for column in group.after.iter_mut().chain(&mut group.before) {
        column.presence = column.presence.take().filter(|presence| presence.iter().any(|code| *code != VALUE));
    }
    group
}

/// One change or message: its stable key, what it is, and every cell that was sent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    key: (u64, u32),
    what: String,
    /// Side, index of the column, presence, bits of the value.
    cells: Vec<(&'static str, u16, u8, Vec<u8>)>,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {:?}", self.key, self.what, self.cells)
    }
}

/// What a plugin makes of a batch, in order.
fn seen(batch: &Batch) -> Vec<Seen> {
    let mut merged: Vec<(u32, Seen)> = Vec::new();
    for group in &batch.groups {
        for (row, ordinal) in group.ordinals.iter().enumerate() {
            let mut sent = Vec::new();
            for (side, columns) in [("after", &group.after), ("before", &group.before)] {
                for column in columns {
                    let code = column.presence.as_ref().map_or(VALUE, |presence| presence[row]);
                    if code != NOT_SENT {
                        sent.push((side, column.index, code, bits(&column.values, row)));
                    }
                }
            }
            let what = format!("{} {}", group.operation.name(), group.relation);
            merged.push((*ordinal, Seen { key: key(batch, *ordinal), what, cells: sent }));
        }
    }
    for message in &batch.messages {
        let key = if message.transactional { key(batch, message.ordinal) } else { (0, 0) };
        let cells = vec![("message", 0, VALUE, message.content.clone())];
        merged.push((message.ordinal, Seen { key, what: message.prefix.clone(), cells }));
    }
    merged.sort_by_key(|(ordinal, _)| *ordinal);
    merged.into_iter().map(|(_, seen)| seen).collect()
}

fn key(batch: &Batch, ordinal: u32) -> (u64, u32) {
    let owner = batch.transactions.iter().rfind(|transaction| transaction.first_ordinal <= ordinal).unwrap();
    (owner.commit.get(), owner.source_ordinal + ordinal - owner.first_ordinal)
}

fn bits(values: &Values, row: usize) -> Vec<u8> {
    let data = |ends: &[u32], data: &[u8]| {
        let start = if row == 0 { 0 } else { ends[row - 1] as usize };
        data[start..ends[row] as usize].to_vec()
    };
    match values {
        Values::Boolean(v) => vec![v[row]],
        Values::Int16(v) => v[row].to_le_bytes().to_vec(),
        Values::Int32(v) | Values::DateDays(v) => v[row].to_le_bytes().to_vec(),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => v[row].to_le_bytes().to_vec(),
        Values::Float32(v) => v[row].to_bits().to_le_bytes().to_vec(),
        Values::Float64(v) => v[row].to_bits().to_le_bytes().to_vec(),
        Values::Uuid(v) => v[row * 16..row * 16 + 16].to_vec(),
        Values::Bytes(v) => data(&v.ends, &v.data),
        Values::Text(v) => data(&v.ends, v.data.as_bytes()),
    }
}

/// Everything but the values of floats, of which NaN is not equal to itself; those are in [`seen`].
fn rest(batch: &Batch) -> Batch {
    let mut batch = batch.clone();
    let columns = batch.groups.iter_mut().flat_map(|group| group.after.iter_mut().chain(&mut group.before));
    for column in columns {
        match &mut column.values {
            Values::Float32(v) => v.fill(0.0),
            Values::Float64(v) => v.fill(0.0),
            _ => {}
        }
    }
    batch
}

#[track_caller]
fn assert_same(found: &Batch, expected: &Batch) {
    assert_eq!(seen(found), seen(expected));
    assert_eq!(rest(found), rest(expected));
    // `Debug` tells no values, so a difference in one would not show: name the column at least.
    for (a, b) in found.groups.iter().zip(&expected.groups) {
        for (a, b) in a.after.iter().chain(&a.before).zip(b.after.iter().chain(&b.before)) {
            assert_eq!(all_bits(a), all_bits(b), "column {}", a.index);
        }
    }
}

/// Also of slots without a value.
fn all_bits(column: &Column) -> Vec<Vec<u8>> {
    (0..column.values.len()).map(|row| bits(&column.values, row)).collect()
}
