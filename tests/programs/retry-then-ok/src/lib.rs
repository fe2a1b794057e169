//! Fails the first two attempts of every batch and takes the third; counts what it took.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("retry-then-ok", "0.0.0").table(TableRequest::all()).capability("metrics").capability("state")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        // Staged by an attempt that fails, so it must never be seen.
        host::state::set("attempt", batch.attempt().to_string().as_bytes())?;
        if batch.attempt() < 3 {
            return Err(Failure::retry("not-yet").after_ms(1));
        }
        host::metrics::count("taken", 1);
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
