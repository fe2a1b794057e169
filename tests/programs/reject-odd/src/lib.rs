//! Rejects every change with an odd ordinal and takes the rest.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("reject-odd", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let odd = batch.rows().map(|change| change.ordinal()).filter(|ordinal| ordinal % 2 == 1);
        Ok(odd.fold(Receipt::durable(), |receipt, ordinal| receipt.reject(ordinal, "odd")))
    }
}

export_sink!(Program);
