//! Recurses without end in `deliver`: the stack of the guest ends, not that of the host.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

/// Keeps almost nothing in linear memory, so that the stack of calls ends first.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    if std::hint::black_box(depth) == u64::MAX {
        return 0;
    }
    deeper(depth + 1).rotate_left(1) ^ depth
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("recurse", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        std::hint::black_box(deeper(0));
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
