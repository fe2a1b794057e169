//! The work put in order: what is written to which table, in which steps.
//!
//! Holds: the merge of the sets of a call by ordinal, what a TRUNCATE makes void, and the cut of the work into steps.
//! Refuses to know keys. Invariant: applying the steps in order, and the rows of each in order, is applying the work.
//! Read next: [`super::fold`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use walgate_core::batch::Operation;
use walgate_core::rows::{RowCall, RowSet};

use super::cell::joined;
use super::error::Kind;
use super::mask::Masks;
use super::shape::Shape;
use super::view::{Kinds, View};

/// One row that does something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Change {
    /// Its place in the order of the call.
    ordinal: u32,
    /// Which view of the table.
    pub(super) view: u32,
    /// Which row of the view.
    pub(super) row: u32,
}

/// One table and all that the work has for it.
pub(super) struct Table<'a> {
    /// What it looks like.
    pub(super) shape: Arc<Shape>,
    /// The sets for it.
    pub(super) views: Vec<View<'a>>,
    /// The sets of columns in them.
    pub(super) masks: Masks,
    /// It is emptied before anything is written.
    pub(super) truncated: bool,
}

/// Rows of one table that are folded together.
pub(super) struct Step {
    /// Which table.
    pub(super) table: usize,
    /// The rows, in order.
    pub(super) changes: Vec<Change>,
    /// In which form the values of each column come.
    pub(super) kinds: Kinds,
    /// The table is empty when the step begins.
    pub(super) fresh: bool,
}

/// How much is folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// All rows of a table that can be.
    Folded,
    /// Nothing: every row for itself, in the order of the work across tables. Slow, and right also where the table
    /// checks more than its key at once.
    OneByOne,
}

/// A place in the work: call, ordinal, set.
type Place = (usize, u32, usize);

/// The targets in the order in which the work first names them.
pub(super) fn targets(calls: &[RowCall]) -> Vec<&str> {
    let mut first: HashMap<&str, Place> = HashMap::new();
    for (call, sets) in calls.iter().enumerate() {
        for (index, set) in sets.iter().enumerate() {
            let Some(ordinal) = set.ordinals.first() else { continue };
            let place = (call, *ordinal, index);
            first.entry(&set.target).and_modify(|known| *known = place.min(*known)).or_insert(place);
        }
    }
    let mut names: Vec<&str> = first.keys().copied().collect();
    names.sort_unstable_by_key(|name| first.get(name));
    names
}

/// Puts the work in order; `shapes` are those of [`targets`].
pub(super) fn plan<'a>(
    calls: &'a [RowCall],
    names: &[&str],
    shapes: &[Arc<Shape>],
    pace: Pace,
) -> Result<(Vec<Table<'a>>, Vec<Step>), Kind> {
    let mut sets: HashMap<&str, Vec<(usize, usize, &'a RowSet)>> = HashMap::new();
    for (call, of_call) in calls.iter().enumerate() {
        for (index, set) in of_call.iter().enumerate().filter(|(_, set)| !set.ordinals.is_empty()) {
            sets.entry(&set.target).or_default().push((call, index, set));
        }
    }
    let mut tables = Vec::new();
    let mut steps = Vec::new();
    for (name, shape) in names.iter().zip(shapes) {
        let (table, of_table) = plan_table(sets.get(name).map_or(&[], Vec::as_slice), shape, tables.len())?;
        tables.push(table);
        steps.extend(of_table);
    }
    if pace == Pace::OneByOne {
        steps = one_by_one(&tables, steps);
    }
    Ok((tables, steps))
}

fn plan_table<'a>(
    sets: &[(usize, usize, &'a RowSet)],
    shape: &Arc<Shape>,
    index: usize,
) -> Result<(Table<'a>, Vec<Step>), Kind> {
    // The last TRUNCATE makes every row before it void: they are not even looked at.
    let emptied: Option<Place> = sets
        .iter()
        .filter(|(_, _, set)| set.operation == Operation::Truncate)
        .filter_map(|(call, index, set)| Some((*call, *set.ordinals.iter().max()?, *index)))
        .max();
    let mut table = Table {
        shape: shape.clone(),
        views: Vec::new(),
        masks: Masks::new(shape.columns.len()),
        truncated: emptied.is_some(),
    };
    let step = |fresh| Step { table: index, changes: Vec::new(), kinds: vec![None; shape.columns.len()], fresh };
    let mut done = Vec::new();
    let mut open = step(table.truncated);
    for of_call in sets.chunk_by(|one, other| one.0 == other.0) {
        let mut kinds = vec![None; shape.columns.len()];
        let mut changes = Vec::new();
        for (call, index, set) in of_call.iter().filter(|(_, _, set)| set.operation != Operation::Truncate) {
            let survives = |ordinal: u32| emptied.is_none_or(|emptied| (*call, ordinal, *index) > emptied);
            if !set.ordinals.iter().any(|ordinal| survives(*ordinal)) {
                continue;
            }
            if shape.key.is_empty() && matches!(set.operation, Operation::Update | Operation::Delete) {
                return Err(Kind::NoKey { at: shape.at("reading rows of the plugin") });
            }
            let number = |count: usize| u32::try_from(count).map_err(|_| Kind::Range { what: "a work" });
            let place = (number(*call)?, number(*index)?);
            let view = number(table.views.len())?;
            table.views.push(View::new(set, place, shape, &mut table.masks, &mut kinds)?);
            number(set.ordinals.len())?;
            changes.extend(
                (0_u32..).zip(&set.ordinals).filter(|(_, ordinal)| survives(**ordinal)).map(|(row, ordinal)| Change {
                    ordinal: *ordinal,
                    view,
                    row,
                }),
            );
        }
        // Sets keep their order where ordinals are equal, because views are numbered in it.
        changes.sort_unstable();
        match together(&open.kinds, &kinds) {
            Some(both) => open.kinds = both,
            // The plugin changed the form of a column from one call to the next, as after a change of the source.
            None => {
                done.push(std::mem::replace(&mut open, Step { kinds, ..step(false) }));
            }
        }
        open.changes.extend(changes);
    }
    done.push(open);
    done.retain(|step| !step.changes.is_empty());
    Ok((table, done))
}

fn together(one: &Kinds, other: &Kinds) -> Option<Kinds> {
    let both = one.iter().zip(other).map(|pair| match pair {
        (Some(one), Some(other)) => joined(*one, *other).map(Some),
        (known, None) | (None, known) => Some(*known),
    });
    both.collect()
}

fn one_by_one(tables: &[Table<'_>], steps: Vec<Step>) -> Vec<Step> {
    let mut singles: Vec<((u32, u32, u32, u32), Step)> = Vec::new();
    let mut begun = HashSet::new();
    for step in steps {
        for change in &step.changes {
            let place = tables
                .get(step.table)
                .and_then(|table| table.views.get(change.view as usize))
                .map_or((0, 0), |view| view.place);
            let single = Step {
                table: step.table,
                changes: vec![*change],
                kinds: step.kinds.clone(),
                fresh: step.fresh && begun.insert(step.table),
            };
            singles.push(((place.0, change.ordinal, place.1, change.row), single));
        }
    }
    singles.sort_by_key(|(place, _)| *place);
    singles.into_iter().map(|(_, step)| step).collect()
}
