//! Allocates without end in `deliver` and touches what it got.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("eat-memory", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        let mut kept = Vec::new();
        loop {
            kept.push(std::hint::black_box(vec![1u8; 1 << 20]));
        }
    }
}

export_sink!(Program);
