//! Says that everything is durable and keeps it in memory. At a row with `poison` an instance that has something traps, and
//! it is gone; a fresh one writes that row to the output `lines`.
//!
//! With the setting `position` = `second` it answers, from its second instance in a process on, that it has nothing: what
//! a sink that keeps its own position answers when it was set back. `position` = `always` answers that from the first on.

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Position, Receipt, Sink, TableRequest, export_sink, host,
};

/// Opens of one process count up from a multiple of this.
const OPENS: u64 = 1 << 20;
/// Before everything.
const NOTHING: Position = Position { end_lsn: 1, commit_lsn: 0, ordinal: 0 };

#[derive(Default)]
struct Program {
    lines: String,
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("durable-and-lost", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(context: &Context) -> Result<Opened<Self>, Failure> {
        let answers = match host::setting("position").unwrap_or_default().as_str() {
            "second" => context.epoch % OPENS > 1,
            "always" => true,
            _ => false,
        };
        let sink = Program::default();
        Ok(if answers { Opened::at(sink, NOTHING) } else { sink.into() })
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let poisoned = batch.rows().any(|change| ledger::is_poisoned(&change));
        assert!(!poisoned || self.lines.is_empty());
        self.lines.extend(batch.rows().map(|change| ledger::line(&change)));
        if poisoned {
            host::output::append(ledger::OUTPUT, self.lines.as_bytes())?;
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
