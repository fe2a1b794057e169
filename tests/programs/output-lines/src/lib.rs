//! Appends one line `table op ordinal` a change to the output `lines`, in commit order.

use walgate_sdk::{
    Batch, Change, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host,
};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("output-lines", "0.0.0").table(TableRequest::all()).capability("output:lines")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        for change in batch.rows() {
            let line = match change {
                Change::Row(row) => {
                    format!("{} {} {}\n", row.relation().full_name(), row.operation().name(), row.key().1)
                }
                Change::Message(message) => format!("{} message {}\n", message.prefix(), message.key().1),
            };
            host::output::append("lines", line.as_bytes())?;
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
