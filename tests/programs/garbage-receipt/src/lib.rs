//! Answers a receipt with one ordinal twice and one that the batch does not have.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("garbage-receipt", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let beyond = batch.rows().map(|change| change.ordinal()).max().unwrap_or_default() + 1_000;
        Ok(Receipt::durable().reject(0, "first").reject(0, "again").reject(beyond, "beyond"))
    }
}

export_sink!(Program);
