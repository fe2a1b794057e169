//! The keys of a step: each told apart once, then a number.
//!
//! Holds: which row means which key, and the index over the bytes of keys. Refuses to know what the table makes of two
//! spellings of one value; whoever asked the server says so with [`Keys::merge`]. No value is copied but the bytes of
//! keys, into one buffer. Read next: [`super::fold`].

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use walgate_core::batch::{NULL, Operation, VALUE};
use walgate_core::rows::Cells;

use super::cell::{append_key, code};
use super::error::Kind;
use super::plan::{Change, Step, Table};
use super::view::View;

/// The number of a key.
pub(super) type KeyNumber = u32;

/// Where the values of a key are: a row, and whether its old or its new image.
#[derive(Clone, Copy)]
pub(super) struct KeyPlace {
    view: u32,
    row: u32,
    before: bool,
}

impl KeyPlace {
    /// The cells of one column of the key, and the row in them.
    #[inline]
    pub(super) fn cells<'a>(self, views: &[View<'a>], place: usize) -> Option<(&'a Cells, usize)> {
        let view = views.get(self.view as usize)?;
        let row = self.row as usize;
        let after = || view.after_key.get(place).copied().flatten();
        let before = || view.before_key.get(place).copied().flatten();
        // A column of the key that the update did not send has its old value.
        let cells = match after() {
            Some(cells) if !self.before && code(cells, row) == VALUE => cells,
            _ => before()?,
        };
        Some((cells, row))
    }
}

/// The keys that one row is about.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    /// Of the row that is there.
    pub(super) old: KeyNumber,
    /// Of the row that will be there; the same for all but a change of the key.
    pub(super) new: KeyNumber,
}

/// All keys of a step.
pub(super) struct Keys {
    /// One a row of the step.
    pub(super) pairs: Vec<Pair>,
    /// By number of the key: where its newest spelling is.
    pub(super) places: Vec<KeyPlace>,
}

impl Keys {
    /// Reads the keys of all rows.
    pub(super) fn read(table: &Table<'_>, step: &Step) -> Result<Self, Kind> {
        let mut index = Index::new(step.changes.len());
        let mut pairs = Vec::with_capacity(step.changes.len());
        for change in &step.changes {
            pairs.push(pair(table, *change, &mut index)?);
        }
        Ok(Self { pairs, places: index.places })
    }

    /// Makes keys one that the table takes for one; `lowest` gives for each key the lowest number of its like.
    pub(super) fn merge(&mut self, lowest: &[KeyNumber]) {
        let like = |key: KeyNumber| lowest.get(key as usize).copied().unwrap_or(key);
        for pair in &mut self.pairs {
            *pair = Pair { old: like(pair.old), new: like(pair.new) };
        }
    }

    /// The row that is written has this spelling of the key.
    #[inline]
    pub(super) fn respell(&mut self, key: KeyNumber, change: Change) {
        if let Some(place) = self.places.get_mut(key as usize) {
            *place = KeyPlace { view: change.view, row: change.row, before: false };
        }
    }
}

/// What one image of a row says about the key.
enum Image {
    Whole,
    Null(usize),
    Missing(usize),
}

fn pair(table: &Table<'_>, change: Change, index: &mut Index) -> Result<Pair, Kind> {
    let Some(view) = table.views.get(change.view as usize) else { return Err(Kind::Range { what: "a work" }) };
    let row = change.row as usize;
    let at = |before| KeyPlace { view: change.view, row: change.row, before };
    let refused = |place: usize, reason| {
        let column = table.shape.key.get(place).and_then(|key| table.shape.columns.get(key.column));
        let column = column.map(|column| column.name.clone());
        Kind::Malformed { at: table.shape.at("reading rows of the plugin"), column, reason }
    };
    const IS_NULL: &str = "a column of the key is NULL";
    const IS_MISSING: &str = "a column of the key is missing";

    let before = image(&view.before_key, row);
    if let Image::Null(place) = before {
        return Err(refused(place, IS_NULL));
    }
    match (view.operation, before, image(&view.after_key, row)) {
        (_, _, Image::Null(place)) => Err(refused(place, IS_NULL)),
        (Operation::Delete, Image::Whole, _) => {
            let old = index.number(&table.views, at(true), table.shape.key.len())?;
            Ok(Pair { old, new: old })
        }
        (Operation::Delete, Image::Missing(place) | Image::Null(place), _) => Err(refused(place, IS_MISSING)),
        (Operation::Update, Image::Whole, _) => {
            let old = index.number(&table.views, at(true), table.shape.key.len())?;
            // New spellings of the key columns, or the old ones where the update has none.
            let new = index.number(&table.views, at(false), table.shape.key.len())?;
            Ok(Pair { old, new })
        }
        (_, _, Image::Whole) => {
            let new = index.number(&table.views, at(false), table.shape.key.len())?;
            Ok(Pair { old: new, new })
        }
        (_, _, Image::Missing(place)) => Err(refused(place, IS_MISSING)),
    }
}

fn image(key: &[Option<&Cells>], row: usize) -> Image {
    let holds = |cells: &Option<&Cells>, wanted| cells.is_some_and(|cells| code(cells, row) == wanted);
    // A NULL anywhere counts more than a gap before it: no row of the table can be meant.
    if let Some(place) = key.iter().position(|cells| holds(cells, NULL)) {
        return Image::Null(place);
    }
    key.iter().position(|cells| !holds(cells, VALUE)).map_or(Image::Whole, Image::Missing)
}

/// Keys by their bytes. The hash is keyed, so a plugin cannot aim at one bucket.
struct Index {
    hashing: RandomState,
    first: HashMap<u64, KeyNumber, BuildHasherDefault<Hashed>>,
    /// By number: where its bytes end, and the key before it with the same hash.
    known: Vec<(usize, Option<KeyNumber>)>,
    places: Vec<KeyPlace>,
    bytes: Vec<u8>,
}

impl Index {
    fn new(rows: usize) -> Self {
        Self {
            hashing: RandomState::new(),
            first: HashMap::with_capacity_and_hasher(rows, BuildHasherDefault::default()),
            known: Vec::with_capacity(rows),
            places: Vec::with_capacity(rows),
            bytes: Vec::new(),
        }
    }

    fn number(&mut self, views: &[View<'_>], place: KeyPlace, columns: usize) -> Result<KeyNumber, Kind> {
        let start = self.bytes.len();
        for column in 0..columns {
            let appended = place.cells(views, column).and_then(|(cells, row)| append_key(cells, row, &mut self.bytes));
            appended.ok_or(Kind::Range { what: "a key" })?;
        }
        let bytes = self.bytes.get(start..).unwrap_or_default();
        let number = u32::try_from(self.known.len()).map_err(|_| Kind::Range { what: "a work" })?;
        let hash = self.hashing.hash_one(bytes);
        let same_hash = self.first.get(&hash).copied();
        let mut candidate = same_hash;
        while let Some(known) = candidate {
            if self.bytes_of(known) == bytes {
                self.bytes.truncate(start);
                return Ok(known);
            }
            candidate = self.known.get(known as usize).and_then(|(_, before)| *before);
        }
        self.first.insert(hash, number);
        self.known.push((self.bytes.len(), same_hash));
        self.places.push(place);
        Ok(number)
    }

    fn bytes_of(&self, key: KeyNumber) -> &[u8] {
        let end = |key: u32| self.known.get(key as usize).map_or(0, |(end, _)| *end);
        let start = key.checked_sub(1).map_or(0, end);
        self.bytes.get(start..end(key)).unwrap_or_default()
    }
}

/// Passes a number on that is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
