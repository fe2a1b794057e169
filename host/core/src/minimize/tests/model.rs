//! Random streams, and what a plugin must see of them: row by row, without batches, columns or bounds.
//!
//! The reference is naive on purpose: it never looks at bytes, and shares nothing with the code it checks.

use std::collections::HashMap;

use super::*;

/// A small generator with a seed that tells the whole run. (SplitMix64.)
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `end`, without it.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// A cell, in the source and as a plugin sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    Text(String),
    Null,
    Unchanged,
    NotSent,
}

/// What one relation looks like at one time: columns by name, and how rows are identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) id: u32,
    name: &'static str,
    identity: u8,
    columns: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Insert(Table, Vec<Cell>),
    /// The old tuple with its tag, and the new one.
    Update(Table, Option<(u8, Vec<Cell>)>, Vec<Cell>),
    Delete(Table, u8, Vec<Cell>),
    Truncate(Vec<Table>),
    Message(&'static str, String),
}

#[derive(Debug, Clone)]
pub(super) enum Piece {
    Transaction { commit: u64, end: u64, changes: Vec<Change> },
    Loose { lsn: u64, content: String },
}

/// One change as the plugin must see it. `key` is (commit, ordinal in the source transaction).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) key: (u64, u32),
    pub(super) what: String,
    /// By column name, in the order of the table.
    pub(super) after: Vec<(String, Cell)>,
    pub(super) before: Vec<(String, Cell)>,
}

/// Three tables that change their shapes as time goes by. `id` is the key, `n` an int4, `h…` is hidden, the rest text.
pub(super) fn stream(dice: &mut Dice) -> Vec<Piece> {
    let mut tables: Vec<Table> = (1..=3)
        .map(|id| Table {
            id,
            name: ["a", "b", "ungranted"][id as usize - 1],
            identity: if id == 2 { b'f' } else { b'd' },
            columns: ["id", "h1", "n", "t1"].map(str::to_owned).to_vec(),
        })
        .collect();
    let mut at = 1_000;
    let mut pieces = Vec::new();
    for _ in 0..2 + dice.below(12) {
        if dice.one_in(4) {
            at += 10;
            pieces.push(Piece::Loose { lsn: at, content: format!("loose {at}") });
        }
        let changes = (0..dice.below(9)).map(|_| change(dice, &mut tables)).collect();
        at += 10 + dice.below(50) as u64;
        pieces.push(Piece::Transaction { commit: at, end: at + 10, changes });
        // The next record may begin where this one ends.
        at += if dice.one_in(3) { 0 } else { 10 };
    }
    pieces
}

fn change(dice: &mut Dice, tables: &mut [Table]) -> Change {
    if dice.one_in(8) {
        let table = dice.below(tables.len());
        reshape(dice, &mut tables[table]);
    }
    let table = tables[dice.below(tables.len())].clone();
    let id = dice.below(1_000).to_string();
    let mut new = row(dice, &table, &id);
    match dice.below(12) {
        0..=4 => Change::Insert(table, new),
        5..=7 => {
            let old = match table.identity {
                b'f' => Some((b'O', row(dice, &table, &id))),
                _ if dice.one_in(2) => Some((b'K', key(&table, "77"))),
                _ => None,
            };
            for (cell, column) in new.iter_mut().zip(&table.columns) {
                if column.starts_with(['t', 'h']) && dice.one_in(3) {
                    *cell = Cell::Unchanged;
                }
            }
            Change::Update(table, old, new)
        }
        8 | 9 if table.identity == b'f' => Change::Delete(table, b'O', new),
        8 | 9 => {
            let key = key(&table, &id);
            Change::Delete(table, b'K', key)
        }
        10 => {
            let mut truncated = tables.to_vec();
            truncated.rotate_left(dice.below(tables.len()));
            truncated.truncate(1 + dice.below(tables.len()));
            Change::Truncate(truncated)
        }
        _ => Change::Message(if dice.one_in(2) { "p" } else { "other" }, format!("message {id}")),
    }
}

/// Adds or drops a column, hidden or not, or swaps the identity.
fn reshape(dice: &mut Dice, table: &mut Table) {
    let name = ["h2", "t2", "h3"][dice.below(3)].to_owned();
    match table.columns.iter().position(|column| *column == name) {
        Some(at) => drop(table.columns.remove(at)),
        None if dice.one_in(5) => table.identity = if table.identity == b'f' { b'd' } else { b'f' },
        None => table.columns.insert(1 + dice.below(table.columns.len()), name),
    }
}

fn row(dice: &mut Dice, table: &Table, id: &str) -> Vec<Cell> {
    let texts = ["", "x", "größe", "日本🦀", "a longer text to fill a batch"];
    let cell = |column: &String| match column.as_bytes()[0] {
        b'i' => Cell::Text(id.to_owned()),
        _ if dice.one_in(5) => Cell::Null,
        b'n' => Cell::Text(format!("-{}", dice.below(1 << 30) + 1)),
        b'h' => Cell::Text(CANARY.to_owned()),
        _ => Cell::Text(texts[dice.below(texts.len())].to_owned()),
    };
    table.columns.iter().map(cell).collect()
}

/// A key tuple: `n` for everything outside the key.
fn key(table: &Table, id: &str) -> Vec<Cell> {
    let cell = |column: &String| if column == "id" { Cell::Text(id.to_owned()) } else { Cell::Null };
    table.columns.iter().map(cell).collect()
}

/// The messages one connection sends from a piece on, with what pgoutput remembers of shapes it has sent.
pub(super) fn messages(pieces: &[Piece]) -> Vec<Vec<u8>> {
    let mut sent: HashMap<u32, Table> = HashMap::new();
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Loose { lsn, content } => out.push(build::message(false, *lsn, "p", content.as_bytes())),
            Piece::Transaction { commit, end, changes } => {
                out.push(build::begin(*commit, 0, 1));
                for change in changes {
                    for table in change.tables() {
                        if sent.get(&table.id) != Some(table) {
                            sent.insert(table.id, table.clone());
                            out.push(table.announce());
                        }
                    }
                    out.push(change.encode());
                }
                out.push(build::commit(*commit, *end, 0));
            }
        }
    }
    out
}

impl Table {
    fn announce(&self) -> Vec<u8> {
        let oid = |name: &str| if name == "n" || name == "id" { INT4 } else { TEXT };
        let columns: Vec<Column<'_>> = self.columns.iter().map(|name| column(name, oid(name), name == "id")).collect();
        build::relation(self.id, "public", self.name, self.identity, &columns)
    }

    fn is_granted(&self) -> bool {
        self.name != "ungranted"
    }

    /// The granted cells, by name.
    fn granted(&self, cells: &[Cell]) -> Vec<(String, Cell)> {
        let pairs = self.columns.iter().cloned().zip(cells.iter().cloned());
        pairs.filter(|(name, _)| !name.starts_with('h')).collect()
    }
}

impl Change {
    fn tables(&self) -> &[Table] {
        match self {
            Self::Insert(table, _) | Self::Update(table, ..) | Self::Delete(table, ..) => std::slice::from_ref(table),
            Self::Truncate(tables) => tables,
            Self::Message(..) => &[],
        }
    }

    fn encode(&self) -> Vec<u8> {
        fn value(cell: &Cell) -> Value<'_> {
            match cell {
                Cell::Text(text) => Value::Text(text.as_bytes()),
                Cell::Unchanged => Value::Unchanged,
                Cell::Null | Cell::NotSent => Value::Null,
            }
        }
        fn values(cells: &[Cell]) -> Vec<Value<'_>> {
            cells.iter().map(value).collect()
        }
        match self {
            Self::Insert(table, new) => build::insert(table.id, &values(new)),
            Self::Update(table, old, new) => {
                let old = old.as_ref().map(|(tag, cells)| (*tag, values(cells)));
                build::update(table.id, old.as_ref().map(|(tag, cells)| (*tag, cells.as_slice())), &values(new))
            }
            Self::Delete(table, tag, old) => build::delete(table.id, *tag, &values(old)),
            Self::Truncate(tables) => build::truncate(&tables.iter().map(|table| table.id).collect::<Vec<_>>()),
            Self::Message(prefix, content) => build::message(true, 1, prefix, content.as_bytes()),
        }
    }

    fn ordinals(&self) -> u32 {
        if let Self::Truncate(tables) = self { tables.len() as u32 } else { 1 }
    }

    fn see(&self, commit: u64, ordinal: u32) -> Vec<Seen> {
        let seen = |at: u32, what: String, after, before| Seen { key: (commit, at), what, after, before };
        match self {
            Self::Message("p", content) => vec![seen(ordinal, format!("message {content}"), vec![], vec![])],
            Self::Message(..) => Vec::new(),
            Self::Truncate(tables) => (ordinal..)
                .zip(tables)
                .filter(|(_, table)| table.is_granted())
                .map(|(at, table)| seen(at, format!("truncate {}", table.id), vec![], vec![]))
                .collect(),
            _ if !self.tables()[0].is_granted() => Vec::new(),
            Self::Insert(table, new) => {
                vec![seen(ordinal, format!("insert {}", table.id), table.granted(new), vec![])]
            }
            Self::Update(table, old, new) => {
                let new: Vec<Cell> = new.iter().enumerate().map(|(at, cell)| filled(cell, old.as_ref(), at)).collect();
                let before = table.granted(&before(table, old.as_ref()));
                vec![seen(ordinal, format!("update {}", table.id), table.granted(&new), before)]
            }
            Self::Delete(table, tag, old) => {
                let before = table.granted(&before(table, Some(&(*tag, old.clone()))));
                vec![seen(ordinal, format!("delete {}", table.id), vec![], before)]
            }
        }
    }
}

/// Under identity full, what was left out of the new row is in the old one.
fn filled(cell: &Cell, old: Option<&(u8, Vec<Cell>)>, at: usize) -> Cell {
    match (cell, old) {
        (Cell::Unchanged, Some((b'O', old))) if matches!(old[at], Cell::Text(_)) => old[at].clone(),
        _ => cell.clone(),
    }
}

/// The before image as it was sent.
fn before(table: &Table, old: Option<&(u8, Vec<Cell>)>) -> Vec<Cell> {
    match old {
        None => table.columns.iter().map(|_| Cell::NotSent).collect(),
        Some((b'K', cells)) => {
            cells.iter().map(|cell| if *cell == Cell::Null { Cell::NotSent } else { cell.clone() }).collect()
        }
        Some((_, cells)) => cells.clone(),
    }
}

/// Everything the plugin must see, in order, each exactly once.
pub(super) fn reference(pieces: &[Piece]) -> Vec<Seen> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Loose { lsn, content } => {
                out.push(Seen { key: (*lsn, 0), what: format!("message {content}"), after: vec![], before: vec![] });
            }
            Piece::Transaction { commit, changes, .. } => {
                let mut ordinal = 0;
                for change in changes {
                    out.extend(change.see(*commit, ordinal));
                    ordinal += change.ordinals();
                }
            }
        }
    }
    out
}

/// Both tables as they were met once, with every excepted column: random tables do not always have them.
pub(super) fn known() -> [KnownTable; 2] {
    ["a", "b"].map(|name| KnownTable {
        namespace: "public".to_owned(),
        name: name.to_owned(),
        columns: ["id", "h1", "h2", "h3"].map(str::to_owned).to_vec(),
    })
}

/// All columns whose name does not begin with `h`, so far as they exist.
pub(super) fn grants() -> Grant {
    let columns = Columns::AllExcept(["h1", "h2", "h3"].map(str::to_owned).to_vec());
    let table = |name| TableGrant {
        columns: columns.clone(),
        required: vec!["id".to_owned()],
        allow_new_columns: true,
        ..only(name, &[])
    };
    grant(&[table("a"), table("b")])
}
