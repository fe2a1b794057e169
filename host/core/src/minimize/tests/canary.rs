//! Random grants over random streams: what comes out is exactly what a naive reading of the grant says, and nothing else of
//! the source is in anything that the minimizer gives out.
//!
//! Every value of the stream is there only once, so that it is found wherever it went. The reference works on the rows of
//! the table, which the minimizer never sees whole, and shares nothing with the code it checks.

use std::collections::{BTreeMap, BTreeSet};

use hmac::{Hmac, KeyInit, Mac};
use proptest::prelude::*;
use sha2::Sha256;

use super::model::{Cell, Dice, Seen};
use super::*;
use crate::grant::filter::Filter;
use crate::grant::rules::{Before, EmptyUpdates, Treatment, Untouched};
use crate::minimize::HashKey;

const NAMES: [&str; 6] = ["id", "n", "m", "t", "b", "s"];
const OIDS: [u32; 6] = [INT4, INT4, 1700, TEXT, 17, TEXT];
const SECRET: [u8; 32] = [7; 32];
/// Values of `id`, `n` and `m` begin with a digit from 1 to 4, by which they are filtered, and are equally long: none is
/// a part of another.
const STEP: u64 = 100_000_000;

/// A row of the table; none stands for NULL.
type Row = [Option<String>; 6];

struct Case {
    full: bool,
    grant: TableGrant,
    condition: Option<Naive>,
}

/// A condition over `id`, `n`, `m` (numbers) and `t` (only whether it is NULL).
enum Naive {
    Less(usize, u64),
    Between(usize, u64),
    IsNull(usize),
    And(Box<Naive>, Box<Naive>),
    Or(Box<Naive>, Box<Naive>),
    Not(Box<Naive>),
}

impl Naive {
    fn random(dice: &mut Dice, columns: usize, depth: usize) -> Self {
        if depth > 0 && dice.one_in(2) {
            let a = Box::new(Self::random(dice, columns, depth - 1));
            let b = Box::new(Self::random(dice, columns, depth - 1));
            return match dice.below(3) {
                0 => Self::And(a, b),
                1 => Self::Or(a, b),
                _ => Self::Not(a),
            };
        }
        let column = dice.below(columns);
        let bound = dice.below(6) as u64;
        match dice.below(4) {
            _ if column == 3 => Self::IsNull(column),
            0 => Self::IsNull(column),
            1 | 2 => Self::Less(column, bound),
            _ => Self::Between(column, bound),
        }
    }

    fn text(&self) -> String {
        let name = |column: &usize| NAMES[*column];
        match self {
            Self::Less(column, bound) => format!("{} < {}", name(column), bound * STEP),
            Self::Between(column, bound) => {
                format!("({c} >= {} and {c} < '{}')", bound * STEP, (bound + 1) * STEP, c = name(column))
            }
            Self::IsNull(column) => format!("{} is null", name(column)),
            Self::And(a, b) => format!("({} and {})", a.text(), b.text()),
            Self::Or(a, b) => format!("({} OR {})", a.text(), b.text()),
            Self::Not(a) => format!("not ({})", a.text()),
        }
    }

    /// None is unknown.
    fn holds(&self, row: &Row) -> Option<bool> {
        let number = |column: &usize| {
            let text = row[*column].as_deref()?;
            Some(text.split('.').next().unwrap().parse::<u64>().unwrap())
        };
        match self {
            Self::Less(column, bound) => number(column).map(|n| n < bound * STEP),
            Self::Between(column, bound) => number(column).map(|n| n / STEP == *bound),
            Self::IsNull(column) => Some(row[*column].is_none()),
            Self::And(a, b) => match (a.holds(row), b.holds(row)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Or(a, b) => match (a.holds(row), b.holds(row)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Self::Not(a) => a.holds(row).map(|value| !value),
        }
    }
}

fn case(dice: &mut Dice) -> Case {
    let full = dice.one_in(2);
    let names: Vec<&str> = NAMES.into_iter().filter(|_| !dice.one_in(3)).collect();
    let all = dice.one_in(3);
    let mut grant = only("t", &names);
    let words = ["plain", "masked", "hashed", "truncated(3)", "truncated(8)", "nulled"];
    for (name, oid) in NAMES.into_iter().zip(OIDS) {
        let words = match (name, oid) {
            ("id", _) => &["plain", "hashed"][..],
            (_, INT4 | 17) => &["plain", "masked", "hashed", "nulled"],
            _ => &words,
        };
        let treatment = Treatment::parse(words[dice.below(words.len())]).unwrap();
        if names.contains(&name) {
            grant.rules.treatments.insert(name.to_owned(), treatment);
        }
    }
    if all {
        let except = NAMES.into_iter().filter(|name| !names.contains(name));
        grant.columns = Columns::AllExcept(except.map(str::to_owned).collect());
    }
    grant.operations = [Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate]
        .into_iter()
        .filter(|_| !dice.one_in(4))
        .fold(Operations::NONE, Operations::with);
    let follows = [Operation::Update, Operation::Delete].iter().any(|operation| grant.operations.contains(*operation));
    let condition = dice.one_in(2).then(|| Naive::random(dice, if full || !follows { 4 } else { 1 }, 2));
    grant.rules.filter = condition.as_ref().map(|condition| Filter::parse(&condition.text()).unwrap());
    grant.rules.before = [Before::None, Before::Key, Before::Granted][dice.below(3)];
    grant.rules.untouched = [Untouched::Deliver, Untouched::Withhold][dice.below(2)];
    grant.rules.empty_updates = [EmptyUpdates::Drop, EmptyUpdates::Deliver][dice.below(2)];
    grant.rules.key = vec!["id".to_owned()];
    Case { full, grant, condition }
}

/// One change of the table: the rows before and after, and which columns of the new one were left out as unchanged.
struct Change {
    kind: Operation,
    old: Row,
    new: Row,
    left_out: [bool; 6],
}

struct World {
    rows: Vec<Row>,
    /// Every value there ever was.
    values: BTreeSet<String>,
}

impl World {
    fn value(&mut self, dice: &mut Dice, column: usize) -> Option<String> {
        let number = self.values.len() as u64;
        let value = match column {
            0 | 1 => format!("{}", (1 + dice.below(4) as u64) * STEP + number),
            2 => format!("{}.50", (1 + dice.below(4) as u64) * STEP + number),
            4 => format!("\\xca{:08x}", 0x7a5a_0000_u64 + number),
            _ => format!("{CANARY}-ß{number:06}Z"),
        };
        self.values.insert(value.clone());
        (column == 0 || !dice.one_in(5)).then_some(value)
    }

    fn change(&mut self, dice: &mut Dice) -> Change {
        let none: Row = Default::default();
        let at = if self.rows.is_empty() { 0 } else { dice.below(self.rows.len()) };
        match dice.below(10) {
            9 if dice.one_in(3) => {
                self.rows.clear();
                Change { kind: Operation::Truncate, old: none.clone(), new: none, left_out: [false; 6] }
            }
            7..9 if !self.rows.is_empty() => {
                Change { kind: Operation::Delete, old: self.rows.swap_remove(at), new: none, left_out: [false; 6] }
            }
            3..7 if !self.rows.is_empty() => {
                let (old, mut left_out) = (self.rows[at].clone(), [false; 6]);
                let mut new = old.clone();
                for column in 0..6 {
                    if dice.one_in(if column == 0 { 5 } else { 3 }) {
                        new[column] = self.value(dice, column);
                    } else if column > 2 && new[column].is_some() {
                        left_out[column] = dice.one_in(2);
                    }
                }
                self.rows[at] = new.clone();
                Change { kind: Operation::Update, old, new, left_out }
            }
            _ => {
                let new: Row = std::array::from_fn(|column| self.value(dice, column));
                self.rows.push(new.clone());
                Change { kind: Operation::Insert, old: none, new, left_out: [false; 6] }
            }
        }
    }
}

impl Change {
    /// Whether the server sends a key tuple under the default identity.
    fn moves(&self) -> bool {
        self.kind == Operation::Delete || self.old[0] != self.new[0]
    }

    fn encode(&self, full: bool) -> Vec<u8> {
        fn value(cell: Option<&String>) -> Value<'_> {
            cell.map_or(Value::Null, |text| Value::Text(text.as_bytes()))
        }
        let mut new: Vec<Value<'_>> = self.new.iter().map(|cell| value(cell.as_ref())).collect();
        for (cell, left_out) in new.iter_mut().zip(self.left_out) {
            *cell = if left_out { Value::Unchanged } else { *cell };
        }
        let old: Vec<Value<'_>> =
            self.old.iter().enumerate().map(|(at, cell)| value(cell.as_ref().filter(|_| full || at == 0))).collect();
        let tag = if full { b'O' } else { b'K' };
        match self.kind {
            Operation::Insert => build::insert(1, &new),
            Operation::Update => build::update(1, (full || self.moves()).then_some((tag, old.as_slice())), &new),
            Operation::Delete => build::delete(1, tag, &old),
            _ => build::truncate(&[1]),
        }
    }
}

impl Case {
    fn treated(&self, column: usize, cell: Option<&String>) -> Cell {
        let treatment = self.grant.rules.treatments[NAMES[column]];
        let (Some(text), true) = (cell, treatment != Treatment::Nulled) else { return Cell::Null };
        let masked = |c: char| match c {
            '0'..='9' => '0',
            'Z' => 'X',
            '-' | '.' => c,
            _ => 'x',
        };
        Cell::Text(match treatment {
            Treatment::Truncated(length) => text.chars().take(length.get() as usize).collect(),
            Treatment::Masked if column == 1 => "0".to_owned(),
            Treatment::Masked if column == 4 => "\\x0000000000".to_owned(),
            Treatment::Masked => text.chars().map(masked).collect(),
            Treatment::Hashed => {
                let mac = Hmac::<Sha256>::new_from_slice(&SECRET).unwrap().chain_update(text);
                mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
            }
            _ => text.clone(),
        })
    }

    fn granted(&self) -> impl Iterator<Item = usize> {
        (0..6).filter(|column| self.grant.columns.contains(NAMES[*column]))
    }

    fn sees(&self, change: &Change) -> Option<Operation> {
        let operations = self.grant.operations;
        let view = match (&self.condition, change.kind) {
            (None, kind) | (_, kind @ Operation::Truncate) => Some(kind),
            (Some(condition), kind) => {
                let was = kind != Operation::Insert && condition.holds(&change.old) == Some(true);
                let is = kind != Operation::Delete && condition.holds(&change.new) == Some(true);
                match (was, is) {
                    (true, true) => Some(Operation::Update),
                    (true, false) => Some(Operation::Delete),
                    (false, true) => Some(Operation::Insert),
                    (false, false) => None,
                }
            }
        };
        // Who is told neither of updates nor of deletes is told of nothing that an update does.
        let follows = operations.contains(Operation::Update) || operations.contains(Operation::Delete);
        let view = view.filter(|view| operations.contains(*view) && (follows || change.kind != Operation::Update))?;
        if view == Operation::Update && self.grant.rules.empty_updates == EmptyUpdates::Drop {
            let same = |column: usize| {
                let told = self.full || column == 0;
                let nulled = self.grant.rules.treatments[NAMES[column]] == Treatment::Nulled;
                let equal = self.treated(column, change.old[column].as_ref())
                    == self.treated(column, change.new[column].as_ref());
                change.left_out[column] || nulled || told && equal
            };
            return (!self.granted().all(same)).then_some(view);
        }
        Some(view)
    }

    fn after(&self, column: usize, change: &Change, view: Operation) -> Cell {
        let (old, new) =
            (self.treated(column, change.old[column].as_ref()), self.treated(column, change.new[column].as_ref()));
        let withholds = self.grant.rules.untouched == Untouched::Withhold && view == Operation::Update && column != 0;
        let nulled = self.grant.rules.treatments[NAMES[column]] == Treatment::Nulled;
        let unchanged = match withholds {
            true => change.left_out[column] || self.full && old == new,
            false => change.left_out[column] && !self.full,
        };
        if unchanged && !nulled { Cell::Unchanged } else { new }
    }

    fn before(&self, column: usize, change: &Change) -> Cell {
        let sent = if self.full { true } else { column == 0 && change.moves() };
        let handed = match self.grant.rules.before {
            Before::None => false,
            Before::Key => column == 0,
            Before::Granted => true,
        };
        if sent && handed { self.treated(column, change.old[column].as_ref()) } else { Cell::NotSent }
    }

    fn expects(&self, change: &Change, key: (u64, u32)) -> Option<Seen> {
        let view = self.sees(change)?;
        let named = |cell: &dyn Fn(usize) -> Cell| self.granted().map(|at| (NAMES[at].to_owned(), cell(at))).collect();
        let has_after = matches!(view, Operation::Insert | Operation::Update);
        let has_before = matches!(view, Operation::Update | Operation::Delete);
        Some(Seen {
            key,
            what: view.name().to_owned(),
            after: if has_after { named(&|at| self.after(at, change, view)) } else { Vec::new() },
            before: if has_before { named(&|at| self.before(at, change)) } else { Vec::new() },
        })
    }
}

/// Everything that is in a batch, as the plugin puts it together again.
fn seen(batch: &Batch, names: &[String]) -> Vec<Seen> {
    let mut merged = BTreeMap::new();
    for group in &batch.groups {
        for (row, ordinal) in group.ordinals.iter().enumerate() {
            let cells = |columns: &[crate::batch::Column]| {
                let of = |(index, name): (usize, &String)| {
                    let column = columns.iter().find(|column| usize::from(column.index) == index);
                    (name.clone(), column.map_or(Cell::NotSent, |column| cell(column, row)))
                };
                names.iter().enumerate().map(of).collect::<Vec<_>>()
            };
            let owner = batch.transactions.iter().rfind(|owner| owner.first_ordinal <= *ordinal).unwrap();
            let key = (owner.commit.get(), owner.source_ordinal + ordinal - owner.first_ordinal);
            let has_after = matches!(group.operation, Operation::Insert | Operation::Update);
            let has_before = matches!(group.operation, Operation::Update | Operation::Delete);
            assert_eq!(group.after.len(), if has_after { names.len() } else { 0 });
            assert!(has_before || group.before.is_empty());
            let after = if has_after { cells(&group.after) } else { Vec::new() };
            let before = if has_before { cells(&group.before) } else { Vec::new() };
            merged.insert(*ordinal, Seen { key, what: group.operation.name().to_owned(), after, before });
        }
    }
    merged.into_values().collect()
}

fn cell(column: &crate::batch::Column, row: usize) -> Cell {
    match column.presence.as_ref().map_or(VALUE, |presence| presence[row]) {
        NULL => Cell::Null,
        UNCHANGED => Cell::Unchanged,
        NOT_SENT => Cell::NotSent,
        _ => Cell::Text(match &column.values {
            Values::Int32(values) => values[row].to_string(),
            Values::Bytes(bytes) => {
                let start = if row == 0 { 0 } else { bytes.ends[row - 1] as usize };
                let hex = bytes.data[start..bytes.ends[row] as usize].iter().map(|byte| format!("{byte:02x}"));
                format!("\\x{}", hex.collect::<String>())
            }
            values => texts(values)[row].to_owned(),
        }),
    }
}

/// All that a batch holds, whether a presence says so or not.
fn raw(batch: &Batch, out: &mut String) {
    for column in batch.groups.iter().flat_map(|group| group.after.iter().chain(&group.before)) {
        match &column.values {
            Values::Int32(values) => values.iter().for_each(|value| out.push_str(&format!("{value}\n"))),
            Values::Bytes(bytes) => bytes.data.iter().for_each(|byte| out.push_str(&format!("{byte:02x}"))),
            Values::Text(text) => {
                assert_eq!(
                    text.data.len(),
                    text.ends.last().map_or(0, |end| *end as usize),
                    "nothing behind the slots"
                );
                out.push_str(&texts(&column.values).join("\n"));
            }
            other => panic!("{other:?}"),
        }
        out.push('\n');
    }
}

fn run(seed: u64) {
    let mut dice = Dice(seed);
    let case = case(&mut dice);
    let mut world = World { rows: Vec::new(), values: BTreeSet::new() };
    let key = |name: &str| case.full || name == "id";
    let columns: Vec<Column<'_>> =
        NAMES.into_iter().zip(OIDS).map(|(name, oid)| column(name, oid, key(name))).collect();
    let identity = if case.full { b'f' } else { b'd' };
    let (mut messages, mut expect) = (Vec::new(), Vec::new());
    for at in 1..2 + dice.below(8) as u64 {
        let at = at * 1_000;
        messages.extend([begin(at), build::relation(1, "public", "t", identity, &columns)]);
        for ordinal in 0..dice.below(12) as u32 {
            let change = world.change(&mut dice);
            messages.push(change.encode(case.full));
            expect.extend(case.expects(&change, (at, ordinal)));
        }
        messages.push(commit(at));
    }
    let bounds = Bounds { max_rows: 1 + dice.below(9), max_bytes: 1 + dice.below(2_000) };
    let mut feed = Feed::from(grant(std::slice::from_ref(&case.grant)), bounds, Cursor::default());
    feed.minimizer = feed.minimizer.hashing(HashKey::new(&SECRET).unwrap());
    let (mut given, mut found, mut names) = (String::new(), Vec::new(), Vec::new());
    let (mut next, mut losses) = (0, 3);
    while next <= messages.len() {
        match messages.get(next) {
            Some(message) => feed.push(message).unwrap(),
            None => feed.minimizer.cut().unwrap(),
        }
        for item in feed.waiting() {
            given.push_str(&format!("{item:?}"));
            match item {
                Item::Relation { current, .. } => names = current.columns.into_iter().map(|c| c.name).collect(),
                Item::Batch(batch) => {
                    check_batch(&batch);
                    raw(&batch, &mut given);
                    found.extend(seen(&batch, &names));
                    feed.minimizer.recycle(batch);
                }
            }
        }
        next += 1;
        if losses > 0 && dice.one_in(20) {
            losses -= 1;
            next = 0;
            feed.reconnect();
        }
    }
    assert_eq!(found, expect, "what the grant says, no more and no less");
    // A row whose values are not of their types, and one that is cut short: the error tells neither.
    let broken = build::insert(1, &[Value::from(CANARY); 6]);
    let broken = if dice.one_in(2) { &broken[..] } else { &broken[..broken.len() - 1 - dice.below(12)] };
    feed.all(&[begin(1 << 20)]);
    if let Err(error) = feed.push(broken) {
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
    let shown: BTreeSet<&String> = expect
        .iter()
        .flat_map(|seen| seen.after.iter().chain(&seen.before))
        .filter_map(|(_, cell)| if let Cell::Text(text) = cell { Some(text) } else { None })
        .collect();
    for value in world.values.iter().filter(|value| !shown.contains(value)) {
        assert!(!given.contains(value.trim_start_matches("\\x")), "{value} was given out");
    }
}

proptest! {
    // The one input is a seed, printed when a case fails; the whole case follows from it.
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plugin_gets_what_its_grant_says_and_nothing_else(seed: u64) {
        run(seed);
    }
}
