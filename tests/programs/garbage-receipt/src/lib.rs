//! Answers a receipt with one ordinal twice and one that the batch does not have. Setting `lie` = `twice` or `beyond`: only that.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

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
        let first = batch.rows().next().map(|change| change.ordinal()).unwrap_or_default();
        let twice = |receipt: Receipt| receipt.reject(first, "first").reject(first, "again");
        let beyond = |receipt: Receipt| receipt.reject(beyond, "beyond");
        Ok(match host::setting("lie").unwrap_or_default().as_str() {
            "twice" => twice(Receipt::durable()),
            "beyond" => beyond(Receipt::durable()),
            _ => beyond(twice(Receipt::durable())),
        })
    }
}

export_sink!(Program);
