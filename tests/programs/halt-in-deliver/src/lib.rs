//! Says that nothing more can be done.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("halt-in-deliver", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Err(Failure::halt("out-of-ideas"))
    }
}

export_sink!(Program);
