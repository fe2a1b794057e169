//! Logs, prints and panics with the text of a row: nothing of it may leave the sandbox.

use walgate_sdk::{
    Batch, Change, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, Value, export_sink, host,
};

struct Program;

/// The first text of the batch.
fn some_text(batch: &Batch) -> Option<&str> {
    batch.rows().find_map(|change| match change {
        Change::Row(row) => row.cells().find_map(|(_, cell)| match cell.value() {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }),
        Change::Message(_) => None,
    })
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("panic-with-value", "0.0.0").table(TableRequest::all()).capability("log")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let text = some_text(batch).unwrap_or("no text in this batch");
        host::log::error("about-to-panic", text);
        println!("{text}");
        eprintln!("{text}");
        panic!("{text}")
    }
}

export_sink!(Program);
