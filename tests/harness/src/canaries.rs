//! Random changes of a table in which every value is there only once, random grants of it, and what a grant hides.
//!
//! Holds: the changes, their SQL, grants as plugin.toml spells them, and a search that tells which values are in some bytes.
//! The rule of what is hidden is naive on purpose. Never knows: how a grant is enforced.

use std::collections::BTreeSet;

/// A small generator with a seed that tells the whole run. (SplitMix64.)
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// From 0 to `end`, without it.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }

    /// True as often as that.
    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// The columns that hold canaries, with their types. Before them, a row has `id bigint` and `tenant int`.
pub const COLUMNS: [(&str, &str); 5] =
    [("a", "text"), ("b", "text"), ("c", "bigint"), ("d", "numeric"), ("e", "bytea")];

/// What makes the tables: one for the grants, and one that nobody is granted.
pub const TABLES: &str = "
    CREATE TABLE canaries (id bigint PRIMARY KEY, tenant int, a text, b text, c bigint, d numeric, e bytea);
    ALTER TABLE canaries REPLICA IDENTITY FULL;
    CREATE TABLE unseen (a text);";

const TEXT: &str = "cAnArY";
const BIGINT: u64 = 7_040_111_222_000_000;
const NUMERIC: &str = "8150222333";
/// Digits of a number in a text.
const DIGITS: usize = 6;

/// The canary of that number, as Postgres prints it in the column at that place of [`COLUMNS`].
pub fn text(column: usize, number: u32) -> String {
    match column {
        2 => (BIGINT + u64::from(number)).to_string(),
        3 => format!("{NUMERIC}{number:06}.5"),
        4 => format!("\\x{}", hex(&text(0, number))),
        _ => format!("{TEXT}{number:06}"),
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// A change of the table, with the numbers of its canaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key of the row.
    pub id: u64,
    /// Whose it is; a row keeps it.
    pub tenant: u32,
    /// Before an update or a delete.
    pub old: Option<[u32; 5]>,
    /// After an insert or an update.
    pub new: Option<[u32; 5]>,
}

/// What a transaction does, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// In the table of the grants.
    Change(Change),
    /// A row of the table that nobody is granted.
    Unseen(u32),
    /// A logical message under a prefix that nobody is granted.
    Message(u32),
}

/// Transactions.
#[derive(Debug, Default)]
pub struct Stream {
    /// In the order of their commits, each with one step at least.
    pub transactions: Vec<Vec<Step>>,
    numbers: u32,
}

impl Stream {
    /// Some dozen changes.
    pub fn random(dice: &mut Dice) -> Self {
        let (mut stream, mut rows, mut ids) = (Self::default(), Vec::new(), 0);
        for _ in 0..4 + dice.below(8) {
            let steps = (0..1 + dice.below(8)).map(|_| stream.step(dice, &mut rows, &mut ids)).collect();
            stream.transactions.push(steps);
        }
        stream
    }

    fn step(&mut self, dice: &mut Dice, rows: &mut Vec<(u64, u32, [u32; 5])>, ids: &mut u64) -> Step {
        let at = dice.below(rows.len());
        match dice.below(12) {
            0 => Step::Unseen(self.number()),
            1 => Step::Message(self.number()),
            2 | 3 if !rows.is_empty() => {
                let (id, tenant, old) = rows.swap_remove(at);
                Step::Change(Change { id, tenant, old: Some(old), new: None })
            }
            4..8 if !rows.is_empty() => {
                let Some((id, tenant, row)) = rows.get_mut(at) else { return Step::Unseen(self.number()) };
                let old = *row;
                for cell in row.iter_mut() {
                    if dice.one_in(2) {
                        *cell = self.number();
                    }
                }
                Step::Change(Change { id: *id, tenant: *tenant, old: Some(old), new: Some(*row) })
            }
            _ => {
                *ids += 1;
                let tenant = 1 + dice.below(2) as u32;
                let row = [(); 5].map(|()| self.number());
                rows.push((*ids, tenant, row));
                Step::Change(Change { id: *ids, tenant, old: None, new: Some(row) })
            }
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// Every value there ever was, as Postgres prints it.
    pub fn texts(&self) -> BTreeSet<String> {
        let texts = self.steps().flat_map(|step| match step {
            Step::Unseen(number) | Step::Message(number) => vec![text(0, *number)],
            Step::Change(Change { old, new, .. }) => {
                let rows = old.iter().chain(new);
                rows.flat_map(|row| row.iter().enumerate().map(|(column, number)| text(column, *number))).collect()
            }
        });
        // The bytes of a bytea are the text of a canary.
        texts.map(|text| text.trim_start_matches("\\x").to_owned()).chain(self.bytes()).collect()
    }

    fn bytes(&self) -> impl Iterator<Item = String> {
        (1..=self.numbers).map(|number| text(0, number))
    }

    /// One text a transaction, for a server with [`TABLES`].
    pub fn sql(&self) -> Vec<String> {
        let of = |steps: &Vec<Step>| steps.iter().map(Step::sql).collect::<Vec<_>>().join("; ");
        self.transactions.iter().map(of).collect()
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.transactions.iter().flatten()
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.steps().filter_map(|step| match step {
            Step::Change(change) => Some(change),
            Step::Unseen(_) | Step::Message(_) => None,
        })
    }
}

impl Step {
    fn sql(&self) -> String {
        let change = match self {
            Self::Unseen(number) => return format!("INSERT INTO unseen VALUES ('{}')", text(0, *number)),
            Self::Message(number) => {
                return format!("SELECT pg_logical_emit_message(true, 'unseen', '{}')", text(0, *number));
            }
            Self::Change(change) => change,
        };
        let Change { id, tenant, old, new } = change;
        let Some(new) = new else { return format!("DELETE FROM canaries WHERE id = {id}") };
        let cells = COLUMNS.iter().zip(new).enumerate().map(|(at, ((name, _), number))| (name, text(at, *number)));
        if old.is_none() {
            let values: Vec<String> = cells.map(|(_, text)| format!("'{text}'")).collect();
            return format!("INSERT INTO canaries VALUES ({id}, {tenant}, {})", values.join(", "));
        }
        let sets: Vec<String> = cells.map(|(name, text)| format!("{name} = '{text}'")).collect();
        format!("UPDATE canaries SET {} WHERE id = {id}", sets.join(", "))
    }
}

/// A grant of the table.
#[derive(Debug, Clone)]
pub struct Grant {
    columns: [bool; 5],
    /// It says `*` and what is left out.
    is_star: bool,
    treatments: [&'static str; 5],
    /// Insert, update, delete.
    operations: [bool; 3],
    tenant: Option<u32>,
    before: &'static str,
}

const OPERATIONS: [&str; 3] = ["insert", "update", "delete"];

impl Grant {
    /// Any that a plugin.toml can say.
    pub fn random(dice: &mut Dice) -> Self {
        let mut operations = [(); 3].map(|()| !dice.one_in(3));
        operations[dice.below(3)] = true;
        Self {
            columns: [(); 5].map(|()| !dice.one_in(3)),
            is_star: dice.one_in(2),
            treatments: COLUMNS.map(|(_, kind)| {
                let words = ["plain", "plain", "plain", "masked", "hashed", "nulled", "truncated(3)"];
                words[dice.below(if matches!(kind, "text" | "numeric") { 7 } else { 6 })]
            }),
            operations,
            tenant: dice.one_in(2).then_some(1),
            before: ["granted", "key", "none"][dice.below(3)],
        }
    }

    /// The sections of plugin.toml, under the secret `pii`.
    pub fn toml(&self) -> String {
        let list = |names: &mut dyn Iterator<Item = &str>| {
            names.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
        };
        let of = |granted: bool| {
            let is = move |(_, is): &((&'static str, &str), bool)| *is == granted;
            COLUMNS.into_iter().zip(self.columns).filter(is).map(|((name, _), _)| name)
        };
        let columns = match self.is_star {
            true => format!("columns = \"*\"\nexcept = [{}]", list(&mut ["tenant"].into_iter().chain(of(false)))),
            false => format!("columns = [{}]", list(&mut ["id"].into_iter().chain(of(true)))),
        };
        let operations =
            list(&mut OPERATIONS.into_iter().zip(self.operations).filter(|(_, is)| *is).map(|(name, _)| name));
        let treated = COLUMNS.into_iter().zip(self.columns).zip(self.treatments).filter(|((_, granted), _)| *granted);
        let treatments: Vec<String> = treated.map(|(((name, _), _), word)| format!("{name} = \"{word}\"")).collect();
        let filter = self.tenant.map(|tenant| format!("row_filter = \"tenant = {tenant}\"\n")).unwrap_or_default();
        format!(
            "[[grant.table]]\nschema = \"public\"\nname = \"canaries\"\n{columns}\noperations = [{operations}]\n\
             treatments = {{ {} }}\n{filter}before = \"{}\"\nkey = [\"id\"]\n[grant]\nhash_key = \"pii\"\n",
            treatments.join(", "),
            self.before
        )
    }

    /// Numbers that nothing may carry to a plugin with this grant.
    pub fn hides(&self, stream: &Stream) -> BTreeSet<u32> {
        let seen: BTreeSet<u32> = stream.changes().flat_map(|change| self.shows(change)).collect();
        (1..=stream.numbers).filter(|number| !seen.contains(number)).collect()
    }

    /// Numbers that must reach it: those of inserted rows that it is told of.
    pub fn hands_over(&self, stream: &Stream) -> BTreeSet<u32> {
        stream.changes().filter(|change| change.old.is_none()).flat_map(|change| self.shows(change)).collect()
    }

    fn shows(&self, change: &Change) -> Vec<u32> {
        let operation = match (change.old, change.new) {
            (None, _) => 0,
            (Some(_), Some(_)) => 1,
            (Some(_), None) => 2,
        };
        if !self.operations[operation] || self.tenant.is_some_and(|tenant| tenant != change.tenant) {
            return Vec::new();
        }
        let old = change.old.filter(|_| self.before == "granted");
        let plain = |column: usize| self.columns[column] && self.treatments[column] == "plain";
        let rows = old.into_iter().chain(change.new);
        rows.flat_map(|row| row.into_iter().enumerate()).filter(|(column, _)| plain(*column)).map(|(_, n)| n).collect()
    }
}

/// The numbers of all canaries in some bytes: as texts, as digits of hexadecimal, and as the integers of a column.
pub fn found(bytes: &[u8]) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    let encoded = hex(TEXT);
    let decimal = (BIGINT / 1_000_000).to_string();
    for at in 0..bytes.len() {
        let rest = &bytes[at..];
        for prefix in [TEXT, NUMERIC, decimal.as_str()] {
            numbers.extend(rest.strip_prefix(prefix.as_bytes()).and_then(|rest| digits(rest.get(..DIGITS)?)));
        }
        numbers.extend(rest.strip_prefix(encoded.as_bytes()).and_then(|rest| {
            // The digits of a digit are 3 and itself.
            let pairs = rest.get(..2 * DIGITS)?.chunks(2);
            digits(&pairs.filter_map(|pair| pair.get(1).copied()).collect::<Vec<u8>>())
        }));
        numbers.extend(rest.first_chunk().and_then(|eight| {
            let number = u64::from_le_bytes(*eight).checked_sub(BIGINT).filter(|number| *number < 1_000_000)?;
            u32::try_from(number).ok()
        }));
    }
    numbers
}

fn digits(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_found() {
        for column in 0..COLUMNS.len() {
            let printed = format!("xy {} z", text(column, 4_711));
            assert_eq!(found(printed.as_bytes()), BTreeSet::from([4_711]), "{printed}");
        }
        let stored = [b"x".as_slice(), &(BIGINT + 17).to_le_bytes(), b"cAnArY000018"].concat();
        assert_eq!(found(&stored), BTreeSet::from([17, 18]));
        assert_eq!(found(b"cAnArx000001 cAnArY00001"), BTreeSet::new());
    }

    #[test]
    fn grants_hide_and_show_over_many_seeds() {
        let (mut hidden, mut shown, mut updated) = (0, 0, 0);
        for seed in 0..200 {
            let mut dice = Dice(seed);
            let (stream, grant) = (Stream::random(&mut dice), Grant::random(&mut dice));
            let (hides, hands_over) = (grant.hides(&stream), grant.hands_over(&stream));
            assert!(hides.is_disjoint(&hands_over), "seed {seed}");
            hidden += hides.len();
            shown += hands_over.len();
            updated += stream.changes().filter(|change| change.old.is_some() && change.new.is_some()).count();
            assert_eq!(stream.sql().len(), stream.transactions.len());
        }
        assert!(hidden > 2_000 && shown > 1_000 && updated > 500, "{hidden} {shown} {updated}");
    }
}
