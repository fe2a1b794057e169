//! Never comes back from `describe`, which tools call on files they know nothing about.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        let mut n = 0u64;
        loop {
            n = std::hint::black_box(n.wrapping_add(1));
        }
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
