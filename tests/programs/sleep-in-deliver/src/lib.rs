//! Sleeps for a day inside a host call: the epoch never ticks for it, so only the outer timeout ends it.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

mod wasi {
    //! The two calls of WASI 0.2 that sleeping takes.
    wit_bindgen::generate!({ path: "wit", world: "local:sleep/sleeper", generate_all });
}

/// One day in nanoseconds.
const DAY_NS: u64 = 86_400_000_000_000;

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("sleep-in-deliver", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        wasi::wasi::clocks::monotonic_clock::subscribe_duration(DAY_NS).block();
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
