//! Asks for a retry at every attempt, at once.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("retry-forever", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Err(Failure::retry("never-well").after_ms(1))
    }
}

export_sink!(Program);
