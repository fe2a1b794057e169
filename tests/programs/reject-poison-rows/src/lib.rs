//! Appends one line a change, but for inserted rows with `poison` in a text: those it rejects.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("reject-poison-rows", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        ledger::append(batch.rows().filter(|change| !ledger::is_poisoned(change)))?;
        let poisoned = batch.rows().filter(ledger::is_poisoned);
        Ok(poisoned.fold(Receipt::durable(), |receipt, change| receipt.reject(change.ordinal(), "poison-row")))
    }
}

export_sink!(Program);
