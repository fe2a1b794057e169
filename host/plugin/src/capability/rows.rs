//! `walgate:cdc/rows`: rows for granted tables, staged until the delivery or flush that made them is committed.
//!
//! A call is taken whole or not at all: everything is checked before any of it is kept. The buffers are the guest's answer
//! moved on, never copied. Read next: `row_set.rs` for the checks, `target.rs` for what is granted.

use walgate_core::batch::{ByteValues, Operation, TextValues, Values};
use walgate_core::rows::{Cells, RowCall, RowSet};

use crate::bindings::v0_1::walgate::cdc::change as wit;
use crate::bindings::v0_1::walgate::cdc::rows::{Cells as WitCells, Fault, Host, RowSet as WitRowSet};
use crate::capability::{HostState, NOT_GRANTED, OUTSIDE_DELIVERY, OVER_LIMIT, Phase, row_set, within};
use crate::description::{Capabilities, EVERY_TARGET};
use crate::grant::{column_lines, operation_lines};
use crate::target;

/// The fault of rows that are not what the contract says.
const INVALID_ROWS: &str = "invalid-rows";

/// What is staged.
#[derive(Default)]
pub(crate) struct RowCalls {
    staged: Vec<RowCall>,
    bytes: usize,
}

/// How much was staged before a call. Calls are only added, so that is enough to go back.
pub(crate) struct Savepoint {
    calls: usize,
    bytes: usize,
}

impl RowCalls {
    pub(crate) fn savepoint(&self) -> Savepoint {
        Savepoint { calls: self.staged.len(), bytes: self.bytes }
    }

    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        self.staged.truncate(to.calls);
        self.bytes = to.bytes;
    }

    pub(crate) fn take(&mut self) -> Vec<RowCall> {
        self.bytes = 0;
        std::mem::take(&mut self.staged)
    }
}

impl Host for HostState {
    fn apply(&mut self, sets: Vec<WitRowSet>) -> Result<u64, Fault> {
        if self.granted.rows.is_empty() {
            return Err(deny_target(self, ""));
        }
        let call: RowCall = sets.into_iter().map(row_set).collect();
        // Before the phase, so that a plugin can ask for its grant with sets without rows when it is told of a table.
        for set in &call {
            permit(self, set)?;
        }
        if !matches!(self.phase, Phase::Deliver | Phase::Flush) {
            return Err(fault(OUTSIDE_DELIVERY));
        }
        let rows = call.iter().map(|set| set.ordinals.len()).fold(0, usize::saturating_add);
        let total = self.rows.bytes.saturating_add(row_set::bytes(&call));
        if rows > row_set::MAX_ROWS || !within(total, self.policy.limits.rows_bytes_per_call) {
            return Err(fault(OVER_LIMIT));
        }
        row_set::check(&call).map_err(|flaw| refuse(self, &flaw))?;
        self.rows.bytes = total;
        self.rows.staged.push(call);
        Ok(rows as u64)
    }
}

/// Whether the grant covers target, operation and columns of a set.
fn permit(host: &mut HostState, set: &RowSet) -> Result<(), Fault> {
    let named = host.granted.rows.contains(&set.target) || host.granted.rows.contains(EVERY_TARGET);
    let policy = std::sync::Arc::clone(&host.policy);
    let granted = target::find(&policy.rows, &set.target).filter(|_| named);
    let Some((section, granted)) = granted else { return Err(deny_target(host, &set.target)) };
    if !granted.operations.contains(set.operation) {
        host.deny_until("rows operation", &operation_lines(section, granted.operations.with(set.operation)));
        return Err(fault(NOT_GRANTED));
    }
    if set.after.iter().chain(&set.before).any(|cells| !granted.writes(&cells.name)) {
        // The name is the guest's own text and could be a value.
        host.deny_until("rows column", &column_lines(section, granted.columns.as_deref().unwrap_or_default()));
        return Err(fault(NOT_GRANTED));
    }
    Ok(())
}

/// The name is the guest's own text at call time, and could be a value: it is printed only when plugin.toml has it.
fn deny_target(host: &mut HostState, name: &str) -> Fault {
    let name = if host.policy.rows.contains_key(name) { name } else { "NAME" };
    host.deny("rows", &Capabilities { rows: [name.to_owned()].into(), ..Capabilities::default() });
    fault(NOT_GRANTED)
}

/// The guest learns the code alone; the first flaw of an instance is told to the operator, by numbers.
fn refuse(host: &mut HostState, flaw: &row_set::Flaw) -> Fault {
    if host.denied.insert(INVALID_ROWS) {
        let (plugin, row_set::Flaw { set, column, rule }) = (&host.policy.plugin, flaw);
        tracing::warn!(%plugin, set, column, rule, "refused: the plugin's rows break the contract; report it to its author");
    }
    fault(INVALID_ROWS)
}

/// None of these faults goes away by repeating the call.
fn fault(code: &str) -> Fault {
    Fault { code: code.to_owned(), retryable: false }
}

fn row_set(set: WitRowSet) -> RowSet {
    RowSet {
        target: set.target,
        operation: match set.operation {
            wit::Operation::Read => Operation::Read,
            wit::Operation::Insert => Operation::Insert,
            wit::Operation::Update => Operation::Update,
            wit::Operation::Delete => Operation::Delete,
            wit::Operation::Truncate => Operation::Truncate,
        },
        ordinals: set.ordinals,
        after: set.after.into_iter().map(cells).collect(),
        before: set.before.into_iter().map(cells).collect(),
    }
}

fn cells(cells: WitCells) -> Cells {
    Cells {
        name: cells.name,
        presence: cells.presence,
        values: match cells.values {
            wit::Values::Boolean(v) => Values::Boolean(v),
            wit::Values::Int16(v) => Values::Int16(v),
            wit::Values::Int32(v) => Values::Int32(v),
            wit::Values::Int64(v) => Values::Int64(v),
            wit::Values::Float32(v) => Values::Float32(v),
            wit::Values::Float64(v) => Values::Float64(v),
            wit::Values::DateDays(v) => Values::DateDays(v),
            wit::Values::TimeUs(v) => Values::TimeUs(v),
            wit::Values::TimestampUs(v) => Values::TimestampUs(v),
            wit::Values::Uuid(v) => Values::Uuid(v),
            wit::Values::Bytes(v) => Values::Bytes(ByteValues { ends: v.ends, data: v.data }),
            wit::Values::Text(v) => Values::Text(TextValues { ends: v.ends, data: v.data }),
        },
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
