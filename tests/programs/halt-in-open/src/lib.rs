//! Refuses to open.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("halt-in-open", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Err(Failure::halt("not-today"))
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
