//! Takes as many batches as the setting `batches` says, as `output-lines` does, and traps in the next: a fresh instance
//! takes as many again.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program {
    left: u32,
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("trap-after-batches", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        let left = host::setting("batches").and_then(|text| text.parse().ok());
        Ok(Program { left: left.ok_or_else(|| Failure::halt("no-batches"))? }.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        // First what must leave no trace.
        ledger::append(batch.rows())?;
        self.left = self.left.checked_sub(1).expect("a trap");
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
