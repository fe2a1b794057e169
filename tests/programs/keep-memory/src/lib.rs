//! As `output-lines`, and keeps four mebibytes more with every batch.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

#[derive(Default)]
struct Program {
    kept: Vec<Vec<u8>>,
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("keep-memory", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program::default().into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        self.kept.push(std::hint::black_box(vec![1; 4 << 20]));
        ledger::append(batch.rows())?;
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
