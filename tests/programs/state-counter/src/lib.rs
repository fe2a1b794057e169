//! Counts rows in its state, and tells in a metric when state and memory disagree.
//!
//! A row that is lost or counted twice by a restart, a swap or a retry shows in the one number under `rows`.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("state-counter", "0.0.0").table(TableRequest::all()).capability("state").capability("metrics")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let rows = stored()? + batch.row_count() as u64;
        host::state::set("rows", rows.to_string().as_bytes())?;
        if stored()? != rows {
            return Err(Failure::halt("own-write-not-read"));
        }
        host::metrics::count("rows", batch.row_count() as u64);
        Ok(Receipt::durable())
    }
}

fn stored() -> Result<u64, Failure> {
    let Some(bytes) = host::state::get("rows")? else { return Ok(0) };
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Failure::halt("unreadable-state"))
}

export_sink!(Program);
