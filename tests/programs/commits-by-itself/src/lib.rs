//! Rejects inserted rows with `poison` in a text and accepts the rest, until a deleted row: there it traps. From its second
//! instance in a process on it answers the setting `position`, as a sink does that had committed before it trapped.

use walgate_sdk::{
    Batch, Change, Context, Description, Failure, Opened, Operation, Position, Receipt, Sink, TableRequest,
    export_sink, host,
};

/// Opens of one process count up from a multiple of this.
const OPENS: u64 = 1 << 20;

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("commits-by-itself", "0.0.0").table(TableRequest::all())
    }

    fn open(context: &Context) -> Result<Opened<Self>, Failure> {
        let is_first = context.epoch % OPENS <= 1;
        let end_lsn = host::setting("position").and_then(|text| text.parse().ok());
        let end_lsn = end_lsn.ok_or_else(|| Failure::halt("no-position"))?;
        let position = Position { end_lsn, commit_lsn: 0, ordinal: 0 };
        Ok(if is_first { Opened::new(Program) } else { Opened::at(Program, position) })
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let deletes = |change: Change<'_>| matches!(change, Change::Row(row) if row.operation() == Operation::Delete);
        assert!(!batch.rows().any(deletes));
        let poisoned = batch.rows().filter(ledger::is_poisoned);
        Ok(poisoned.fold(Receipt::accepted(), |receipt, change| receipt.reject(change.ordinal(), "poison-row")))
    }
}

export_sink!(Program);
