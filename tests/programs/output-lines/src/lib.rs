//! Appends one line `table op ordinal` a change to the output `lines`, in commit order.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("output-lines", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        ledger::append(batch.rows())?;
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
