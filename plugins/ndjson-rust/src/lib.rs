//! A sink that writes one JSON line a change into the granted output `changes`.
//!
//! Holds: the sink and its buffer. Refuses to keep a file or a position: the host cuts the output back to its checkpoint
//! after a crash, so a line is neither lost nor written twice. Read next: `change-json`, which says what a line holds.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

/// The name of the output, as the grant must spell it.
pub const OUTPUT: &str = "changes";

/// Bytes collected before they are handed to the host.
///
/// One call a batch would do, but the host bounds the bytes of a call and a copy of a whole large batch would double the
/// plugin's memory. At 256 KiB the cost of the call vanishes beside that of writing the lines.
pub const APPEND_BYTES: usize = 256 * 1024;

/// The sink. It keeps nothing between batches but an empty buffer.
pub struct Ndjson {
    buffer: Vec<u8>,
}

impl Sink for Ndjson {
    fn describe() -> Description {
        Description::new("ndjson-rust", env!("CARGO_PKG_VERSION"))
            .table(TableRequest::all())
            .capability(format!("output:{OUTPUT}"))
    }

    fn open(_context: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Ndjson { buffer: Vec::new() }.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        self.buffer.clear();
        for change in batch.rows() {
            change_json::write(&mut self.buffer, &change);
            self.buffer.push(b'\n');
            if self.buffer.len() >= APPEND_BYTES {
                self.hand_over()?;
            }
        }
        self.hand_over()?;
        Ok(Receipt::durable())
    }
}

impl Ndjson {
    /// Gives whole lines to the host, which makes them durable together with its checkpoint.
    fn hand_over(&mut self) -> Result<(), Failure> {
        if !self.buffer.is_empty() {
            host::output::append(OUTPUT, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

export_sink!(Ndjson);

#[cfg(test)]
mod tests;
