//! Asks for a table whose name has a mebibyte, in `describe`, whose answer is printed to people and kept.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        let table = TableRequest::new("public", "x-huge-text-".repeat((1 << 20) / 12)).column("*");
        Description::new("huge-describe", "0.0.0").table(table)
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
