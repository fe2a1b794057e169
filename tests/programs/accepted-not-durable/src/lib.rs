//! Takes batches without making them durable until `flush`; counts both.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("accepted-not-durable", "0.0.0").table(TableRequest::all()).capability("metrics")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        host::metrics::count("accepted_rows", batch.row_count() as u64);
        Ok(Receipt::accepted())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        host::metrics::count("flushes", 1);
        Ok(())
    }
}

export_sink!(Program);
