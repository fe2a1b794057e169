//! Logs a thousand long lines a batch, each with a text that could be a value.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("log-flood", "0.0.0").table(TableRequest::all()).capability("log")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        let text = "alicelog-floodexample.com ".repeat(100);
        for _ in 0..1_000 {
            host::log::warn("flood", &text);
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
