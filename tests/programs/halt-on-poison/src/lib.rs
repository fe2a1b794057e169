//! Appends one line a change, and halts when an inserted row has `poison` in a text.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("halt-on-poison", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        // What a failed call appended must never be seen.
        ledger::append(batch.rows())?;
        if batch.rows().any(|change| ledger::is_poisoned(&change)) {
            return Err(Failure::halt("poison"));
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
