//! Appends one line a change, and traps at the first inserted row with `poison` in a text.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("trap-on-poison", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        for change in batch.rows() {
            assert!(!ledger::is_poisoned(&change));
            ledger::append([change])?;
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
