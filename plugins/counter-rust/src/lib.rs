//! A sink that reads every granted value and keeps totals: the cheapest honest consumer there is.
//!
//! Holds: the walk over columns and the totals in the plugin's state. Refuses to know commit order, because sums need
//! none. Read next: `fingerprint.rs`, which reads the values.

mod fingerprint;
mod totals;

use walgate_sdk::{
    Batch, Column, Context, Description, Failure, Opened, Operation, Receipt, Sink, TableRequest, export_sink, host,
};

pub use fingerprint::fingerprint;
pub use totals::Totals;

/// The key of the totals in the plugin's state.
pub const STATE_KEY: &str = "totals";

/// The counter.
pub struct Counter {
    totals: Totals,
}

impl Sink for Counter {
    fn describe() -> Description {
        Description::new("counter-rust", env!("CARGO_PKG_VERSION"))
            .table(TableRequest::all())
            .capability("metrics")
            .capability("state")
    }

    fn open(_context: &Context) -> Result<Opened<Self>, Failure> {
        let stored = host::state::get(STATE_KEY)?;
        let totals = match stored {
            Some(bytes) => Totals::parse(&bytes).ok_or_else(|| Failure::halt("unreadable-totals"))?,
            None => Totals::default(),
        };
        Ok(Counter { totals }.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let mut added = Totals::default();
        for group in batch.groups() {
            added.add_rows(group.operation(), group.len() as u64);
            group.after().chain(group.before()).for_each(|column| read(column, &mut added));
        }
        let totals = self.totals.plus(&added);
        host::state::set(STATE_KEY, totals.to_string().as_bytes())?;
        for operation in Operation::ALL {
            match added.rows(operation) {
                0 => {}
                rows => host::metrics::count(metric(operation), rows),
            }
        }
        host::metrics::count("values", added.values);
        self.totals = totals;
        Ok(Receipt::durable())
    }
}

/// Adds one column to the totals, having read all of it.
fn read(column: Column<'_>, added: &mut Totals) {
    let absent = column.presence().map_or(0, fingerprint::absent);
    let (slots, sum) = fingerprint(column.values());
    added.absent += absent;
    added.values += slots - absent;
    added.fingerprint = added.fingerprint.wrapping_add(sum);
}

fn metric(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "rows_read",
        Operation::Insert => "rows_insert",
        Operation::Update => "rows_update",
        Operation::Delete => "rows_delete",
        Operation::Truncate => "rows_truncate",
    }
}

export_sink!(Counter);

#[cfg(test)]
mod tests;
