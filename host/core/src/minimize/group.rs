//! One group under construction: changes of one relation and one operation.
//!
//! Holds: the walk of a row into column builders. This is the hot loop of the host: it reads each cell of a row once,
//! copies the granted ones and steps over the rest. Refuses to know transactions and bounds.
//! Invariant: after each row, every `after` column has as many slots as there are ordinals; a `before` column has at
//! most as many and is filled up when it is next needed.

use crate::batch::{Column, Group, Operation};
use crate::column::{Absent, ColumnBuilder, ValueError};
use crate::pgoutput::{Cell, DecodeError, OldRow, RowBody, RowKind, TupleWalk};
use crate::value::Kind;

use super::error::MinimizeError;
use super::project::{Plan, Shape};
use super::treat::Apply;

pub(super) struct GroupBuilder {
    projection: usize,
    operation: Operation,
    ordinals: Vec<u32>,
    after: Vec<ColumnBuilder>,
    /// One a granted column; filled up lazily, because most updates send no old row at all.
    before: Vec<ColumnBuilder>,
}

impl GroupBuilder {
    pub(super) fn new(projection: usize, operation: Operation, kinds: &[Kind]) -> Self {
        let columns = |wanted: bool| match wanted {
            true => kinds.iter().map(|kind| ColumnBuilder::new(*kind)).collect(),
            false => Vec::new(),
        };
        Self {
            projection,
            operation,
            ordinals: Vec::new(),
            after: columns(matches!(operation, Operation::Read | Operation::Insert | Operation::Update)),
            before: columns(matches!(operation, Operation::Update | Operation::Delete)),
        }
    }

    #[inline]
    pub(super) fn projection(&self) -> usize {
        self.projection
    }

    #[inline]
    pub(super) fn operation(&self) -> Operation {
        self.operation
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ordinals.is_empty()
    }

    pub(super) fn push_truncate(&mut self, ordinal: u32) {
        self.ordinals.push(ordinal);
    }

    /// Adds one row; gives the bytes of values copied. After an error the group must not be used any more.
    ///
    /// The operation of the group decides which tuples are copied: behind a row filter it need not be that of the row.
    #[inline]
    pub(super) fn push_row(&mut self, shape: &Shape, body: RowBody<'_>, ordinal: u32) -> Result<usize, MinimizeError> {
        let row = |error| MinimizeError::row(&shape.relation, error);
        let mut walk = body.walk();
        let old = walk.old().map_err(row)?;
        let mut bytes = 0;
        if old != OldRow::Absent {
            match self.operation {
                Operation::Insert => skip(&mut walk, shape).map_err(row)?,
                _ => bytes += self.push_before(shape, &mut walk, old)?,
            }
            if body.kind() == RowKind::Update {
                walk.new_tag().map_err(row)?;
            }
        }
        if body.kind() != RowKind::Delete {
            match self.operation {
                Operation::Delete => skip(&mut walk, shape).map_err(row)?,
                _ => bytes += self.push_after(shape, &mut walk, body, old)?,
            }
        }
        walk.finish().map_err(row)?;
        self.ordinals.push(ordinal);
        Ok(bytes)
    }

    #[inline]
    fn push_after(
        &mut self,
        shape: &Shape,
        walk: &mut TupleWalk<'_>,
        body: RowBody<'_>,
        old: OldRow,
    ) -> Result<usize, MinimizeError> {
        let row = |error| MinimizeError::row(&shape.relation, error);
        walk.columns(shape.width).map_err(row)?;
        let mut old_cells = OldCells::of(body, old, shape.width);
        let changed_only = shape.changed_only && self.operation == Operation::Update;
        let mut columns = self.after.iter_mut().zip(&shape.plans).enumerate();
        let mut bytes = 0;
        for (at, granted) in shape.granted.iter().enumerate() {
            let mut cell = walk.cell().map_err(row)?;
            if !granted {
                continue;
            }
            let Some((index, (column, plan))) = columns.next() else { break };
            if changed_only || cell == Cell::Unchanged {
                cell = against_old(&mut old_cells, at, plan, cell, changed_only).map_err(row)?;
            }
            bytes += push(shape, index, column, &plan.apply, cell)?;
        }
        Ok(bytes)
    }

    fn push_before(&mut self, shape: &Shape, walk: &mut TupleWalk<'_>, old: OldRow) -> Result<usize, MinimizeError> {
        let row = |error| MinimizeError::row(&shape.relation, error);
        walk.columns(shape.width).map_err(row)?;
        let rows = self.ordinals.len();
        let mut columns = self.before.iter_mut().zip(&shape.plans).enumerate();
        let mut bytes = 0;
        for granted in &shape.granted {
            let cell = walk.cell().map_err(row)?;
            if !granted {
                continue;
            }
            let Some((index, (column, plan))) = columns.next() else { break };
            // In a key tuple NULL marks a column outside the key, which is not NULL: it is filled up later.
            if !plan.in_before || cell == Cell::Null && old == OldRow::Key {
                continue;
            }
            column.pad(rows, Absent::NotSent);
            bytes += push(shape, index, column, &plan.apply, cell)?;
        }
        Ok(bytes)
    }

    /// Takes the rows with an ordinal of `first` or more out into a group of their own.
    pub(super) fn split_from(
        &mut self,
        first: u32,
        empty: impl FnOnce(usize, Operation) -> GroupBuilder,
    ) -> Option<Self> {
        let at = self.ordinals.partition_point(|ordinal| *ordinal < first);
        if at == self.ordinals.len() {
            return None;
        }
        let mut tail = empty(self.projection, self.operation);
        tail.ordinals.extend(self.ordinals.drain(at..));
        let columns = self.after.iter_mut().zip(&mut tail.after);
        for (head, tail) in columns.chain(self.before.iter_mut().zip(&mut tail.before)) {
            head.split_into(at, tail);
        }
        Some(tail)
    }

    /// Numbers the rows from an earlier start.
    pub(super) fn shift(&mut self, by: u32) {
        self.ordinals.iter_mut().for_each(|ordinal| *ordinal -= by);
    }

    /// The finished group, or nothing when it has no rows.
    pub(super) fn finish(self, shape: &Shape) -> Result<Option<Group>, MinimizeError> {
        let relation = &shape.relation;
        let rows = self.ordinals.len();
        if rows == 0 {
            return Ok(None);
        }
        let finish = |index: usize, column: ColumnBuilder| -> Result<Column, MinimizeError> {
            let position = u16::try_from(index).map_err(|_| ValueError::TooLarge);
            position
                .and_then(|position| column.finish(position))
                .map_err(|error| MinimizeError::value(relation, index, error))
        };
        let after = self.after.into_iter().enumerate().map(|(index, column)| finish(index, column));
        // A split can leave a column whose rows were all filled up: nothing of it was sent.
        let sent = self.before.into_iter().enumerate().filter(|(_, column)| column.is_sent());
        let before = sent.map(|(index, mut column)| {
            column.pad(rows, Absent::NotSent);
            finish(index, column)
        });
        Ok(Some(Group {
            relation: relation.id,
            operation: self.operation,
            after: after.collect::<Result<_, _>>()?,
            before: before.collect::<Result<_, _>>()?,
            ordinals: self.ordinals,
        }))
    }

    /// An empty group with the buffers of a delivered one, if they fit the kinds.
    pub(super) fn recycle(projection: usize, group: Group, kinds: &[Kind]) -> Option<Self> {
        let mut builder = Self::new(projection, group.operation, kinds);
        builder.ordinals = group.ordinals;
        builder.ordinals.clear();
        for (columns, slots) in [(group.after, &mut builder.after), (group.before, &mut builder.before)] {
            for column in columns {
                let slot = slots.get_mut(usize::from(column.index))?;
                let recycled = ColumnBuilder::recycle(column);
                if recycled.kind() != slot.kind() {
                    return None;
                }
                *slot = recycled;
            }
        }
        Some(builder)
    }

    /// The memory its buffers hold, used or not.
    pub(super) fn capacity_bytes(&self) -> usize {
        let columns = self.after.iter().chain(&self.before).map(ColumnBuilder::capacity_bytes);
        self.ordinals.capacity() * size_of::<u32>() + columns.sum::<usize>()
    }
}

#[inline]
fn push(
    shape: &Shape,
    index: usize,
    column: &mut ColumnBuilder,
    apply: &Apply,
    cell: Cell<'_>,
) -> Result<usize, MinimizeError> {
    apply.push(column, cell).map_err(|error| MinimizeError::value(&shape.relation, index, error))
}

/// What is handed over of a new cell, given the full old row if there is one.
#[cold]
fn against_old<'a>(
    old: &mut OldCells<'a>,
    at: usize,
    plan: &Plan,
    cell: Cell<'a>,
    changed_only: bool,
) -> Result<Cell<'a>, DecodeError> {
    let before = old.cell(at)?;
    Ok(match (before, cell) {
        // There is no full old row.
        (Cell::Unchanged, _) => cell,
        // A plugin that gets changes only has the key all the same: it finds the row by it.
        _ if changed_only && !plan.key => {
            if plan.apply.is_same(before, cell) {
                Cell::Unchanged
            } else {
                cell
            }
        }
        // The old row has what the new one left out, which never is a NULL.
        (Cell::Text(_), Cell::Unchanged) => before,
        _ => cell,
    })
}

/// Steps over a tuple that the plugin does not get.
fn skip(walk: &mut TupleWalk<'_>, shape: &Shape) -> Result<(), DecodeError> {
    walk.columns(shape.width)?;
    (0..shape.width).try_for_each(|_| walk.cell().map(drop))
}

/// The full old row, walked a second time and only as far as it is needed: most rows never ask.
struct OldCells<'a> {
    row: Option<RowBody<'a>>,
    width: u16,
    walk: Option<TupleWalk<'a>>,
    next: usize,
}

impl<'a> OldCells<'a> {
    #[inline]
    fn of(body: RowBody<'a>, old: OldRow, width: u16) -> Self {
        Self { row: (old == OldRow::Full).then_some(body), width, walk: None, next: 0 }
    }

    /// The old cell at `at`; unchanged when there is no full old row. Columns are asked for in order.
    fn cell(&mut self, at: usize) -> Result<Cell<'a>, DecodeError> {
        let Some(row) = self.row else { return Ok(Cell::Unchanged) };
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => {
                let mut walk = row.walk();
                walk.old()?;
                walk.columns(self.width)?;
                self.walk.insert(walk)
            }
        };
        while self.next < at {
            walk.cell()?;
            self.next += 1;
        }
        self.next += 1;
        walk.cell()
    }
}
