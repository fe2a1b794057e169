//! Whether a change is anything to a plugin, and what: before a row is copied anywhere.
//!
//! Holds: the row filter's word, then the look for an update that touches hidden columns only. Refuses to know batches.
//! Read next: [`super::filter`] for rows, [`super::group`] for the copying.

use crate::batch::Operation;
use crate::pgoutput::{Cell, DecodeError, OldRow, RowBody, RowKind};

use super::error::MinimizeError;
use super::project::Shape;

/// What the change is to the plugin; none when it is nothing that was granted.
#[inline]
pub(super) fn judge(shape: &Shape, body: RowBody<'_>) -> Result<Option<Operation>, MinimizeError> {
    let operation = match &shape.filter {
        Some(filter) => filter.judge(shape, body)?,
        None => Some(match body.kind() {
            RowKind::Insert => Operation::Insert,
            RowKind::Update => Operation::Update,
            RowKind::Delete => Operation::Delete,
        }),
    };
    let Some(operation) = operation.filter(|operation| shape.operations.contains(*operation)) else { return Ok(None) };
    if operation == Operation::Update && shape.drops_empty {
        let touches = touches(shape, body).map_err(|error| MinimizeError::row(&shape.relation, error))?;
        return Ok(touches.then_some(operation));
    }
    Ok(Some(operation))
}

/// Whether the plugin could see a difference between the old row and the new one. What is not known may be one.
fn touches(shape: &Shape, body: RowBody<'_>) -> Result<bool, DecodeError> {
    let mut new = body.walk();
    let sent = new.old()?;
    let mut old = None;
    if sent != OldRow::Absent {
        new.columns(shape.width)?;
        for _ in 0..shape.width {
            new.cell()?;
        }
        new.new_tag()?;
        let mut walk = body.walk();
        walk.old()?;
        walk.columns(shape.width)?;
        old = Some(walk);
    }
    new.columns(shape.width)?;
    let mut plans = shape.plans.iter();
    for granted in &shape.granted {
        let before = old.as_mut().map(|walk| walk.cell()).transpose()?;
        let after = new.cell()?;
        if !granted {
            continue;
        }
        let Some(plan) = plans.next() else { break };
        let same = match before {
            _ if after == Cell::Unchanged => true,
            // No old row is sent when the key did not change.
            None => plan.key || plan.apply.is_same(Cell::Unchanged, after),
            Some(Cell::Null) if sent == OldRow::Key => plan.apply.is_same(Cell::Unchanged, after),
            Some(before) => plan.apply.is_same(before, after),
        };
        if !same {
            return Ok(true);
        }
    }
    Ok(false)
}
