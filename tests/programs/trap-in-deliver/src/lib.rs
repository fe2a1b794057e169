//! Traps in `deliver` by a plain `unreachable`, without a panic.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("trap-in-deliver", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        std::process::abort()
    }
}

export_sink!(Program);
