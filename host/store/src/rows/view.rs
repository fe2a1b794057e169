//! One set of rows, seen through the shape of its target.
//!
//! Holds: which cells are for which column, checked once a set, so that what is read a row later is only looked up.
//! Refuses to know other sets. Invariant: every cell of a view has a slot and a presence code for every row.
//! Read next: [`super::key`].

use walgate_core::batch::{NOT_SENT, NULL, Operation, UNCHANGED, VALUE, Values};
use walgate_core::rows::{Cells, RowSet};
use walgate_core::value::Kind as ValueKind;

use super::cell::{code, joined, kind_of};
use super::error::Kind;
use super::mask::{EMPTY, Mask, Masks};
use super::shape::Shape;

const DOING: &str = "reading rows of the plugin";

/// The kind in which the values of each column arrive; `None` for a column that does not.
pub(super) type Kinds = Vec<Option<ValueKind>>;

/// One set of rows.
pub(super) struct View<'a> {
    /// What the rows do.
    pub(super) operation: Operation,
    /// Which call it came in, and its place there.
    pub(super) place: (u32, u32),
    /// By column of the shape; key columns are not here.
    values: Vec<Option<&'a Cells>>,
    /// The same as a list, for walking.
    listed: Vec<(usize, &'a Cells)>,
    /// The key in the new rows, by its place in the key, as far as the set has it.
    pub(super) after_key: Vec<Option<&'a Cells>>,
    /// The key in the old rows, likewise.
    pub(super) before_key: Vec<Option<&'a Cells>>,
    /// All columns outside the key.
    mask: Mask,
    /// Some row leaves some column outside the key alone.
    partial: bool,
}

impl<'a> View<'a> {
    /// Looks at a set; `kinds` learns in which form its values arrive.
    pub(super) fn new(
        set: &'a RowSet,
        place: (u32, u32),
        shape: &Shape,
        masks: &mut Masks,
        kinds: &mut Kinds,
    ) -> Result<Self, Kind> {
        let rows = set.ordinals.len();
        let mut view = Self {
            operation: set.operation,
            place,
            values: vec![None; shape.columns.len()],
            listed: Vec::new(),
            after_key: vec![None; shape.key.len()],
            before_key: vec![None; shape.key.len()],
            mask: EMPTY,
            partial: false,
        };
        let writes = !matches!(set.operation, Operation::Delete | Operation::Truncate);
        for cells in set.after.iter().filter(|_| writes) {
            let Some(column) = shape.writable(&cells.name)? else { continue };
            check(shape, cells, rows)?;
            learn(shape, column, cells, kinds)?;
            let slot = match shape.key_place(column) {
                Some(place) => view.after_key.get_mut(place),
                None => {
                    view.listed.push((column, cells));
                    view.values.get_mut(column)
                }
            };
            if slot.and_then(|slot| slot.replace(cells)).is_some() {
                return Err(malformed(shape, cells, "a column is named twice in one set"));
            }
        }
        let changes = matches!(set.operation, Operation::Update | Operation::Delete);
        // The old row may have any columns of the source; only the key of the target is read from it.
        for cells in set.before.iter().filter(|_| changes) {
            let Some(place) = shape.key.iter().position(|key| shape.names(key.column, &cells.name)) else { continue };
            let Some(key) = shape.key.get(place) else { continue };
            check(shape, cells, rows)?;
            learn(shape, key.column, cells, kinds)?;
            if view.before_key.get_mut(place).and_then(|slot| slot.replace(cells)).is_some() {
                return Err(malformed(shape, cells, "a column is named twice in one set"));
            }
        }
        view.mask = masks.of(view.listed.iter().map(|(column, _)| *column));
        view.partial = view.listed.iter().any(|(_, cells)| {
            cells
                .presence
                .as_ref()
                .is_some_and(|codes| codes.iter().any(|code| *code == UNCHANGED || *code == NOT_SENT))
        });
        Ok(view)
    }

    /// The columns outside the key that a row writes, and those that it leaves alone although the set has them.
    pub(super) fn masks_of(&self, row: usize, masks: &mut Masks) -> (Mask, Mask) {
        if !self.partial {
            return (self.mask, EMPTY);
        }
        let listed = |wanted: bool| {
            self.listed
                .iter()
                .filter(move |(_, cells)| matches!(code(cells, row), VALUE | NULL) == wanted)
                .map(|(column, _)| *column)
        };
        (masks.of(listed(true)), masks.of(listed(false)))
    }

    /// The cells for a column outside the key.
    #[inline]
    pub(super) fn cells(&self, column: usize) -> Option<&'a Cells> {
        self.values.get(column).copied().flatten()
    }
}

fn malformed(shape: &Shape, cells: &Cells, reason: &'static str) -> Kind {
    // The name is one that the catalog knows: it was looked up there before anything else was looked at.
    Kind::Malformed { at: shape.at(DOING), column: Some(cells.name.clone()), reason }
}

/// The plugin's columns have to be as long as it says.
fn check(shape: &Shape, cells: &Cells, rows: usize) -> Result<(), Kind> {
    let whole = match &cells.values {
        Values::Uuid(bytes) => bytes.len() == rows.saturating_mul(16),
        Values::Text(texts) => ends_fit(&texts.ends, texts.data.len()),
        Values::Bytes(bytes) => ends_fit(&bytes.ends, bytes.data.len()),
        _ => true,
    };
    if !whole || cells.values.len() != rows {
        return Err(malformed(shape, cells, "it has another number of values than the set has rows"));
    }
    let Some(codes) = &cells.presence else { return Ok(()) };
    if codes.len() != rows || codes.iter().any(|code| *code > NOT_SENT) {
        return Err(malformed(shape, cells, "its presence codes are not one from 0 to 3 for each row"));
    }
    Ok(())
}

fn ends_fit(ends: &[u32], bytes: usize) -> bool {
    ends.is_sorted() && ends.last().is_none_or(|end| *end as usize <= bytes)
}

/// A column is staged in one form. Cells without any value have none: the kind of their list means nothing.
fn learn(shape: &Shape, column: usize, cells: &Cells, kinds: &mut Kinds) -> Result<(), Kind> {
    if cells.presence.as_ref().is_some_and(|codes| !codes.contains(&VALUE)) {
        return Ok(());
    }
    let Some(known) = kinds.get_mut(column) else { return Ok(()) };
    let kind = kind_of(&cells.values);
    let both = known.map_or(Some(kind), |known| joined(known, kind));
    *known = Some(both.ok_or_else(|| malformed(shape, cells, "its values come in two forms in one call"))?);
    Ok(())
}
