//! Keeps its lines in memory and appends them in `flush` alone: durable no sooner than that.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

/// The lines of all batches since the last flush.
#[derive(Default)]
struct Program {
    lines: String,
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("flush-later", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program::default().into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        self.lines.extend(batch.rows().map(|change| ledger::line(&change)));
        Ok(Receipt::accepted())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if !self.lines.is_empty() {
            host::output::append(ledger::OUTPUT, self.lines.as_bytes())?;
            self.lines.clear();
        }
        Ok(())
    }
}

export_sink!(Program);
