//! Puts the first text of a batch where the setting `where` says, everywhere a plugin can put a text. None of it may show.
//!
//! Only the state and the outputs that are granted may keep it, for they are where rows are meant to go.

use walgate_sdk::{
    Batch, Cells, Change, Context, Description, Failure, Opened, Operation, Receipt, RowSet, Sink, TableRequest, Value,
    Values, export_sink, host,
};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        let capabilities = ["log", "metrics", "state", "output:lines", "rows:orders"];
        capabilities
            .into_iter()
            .fold(Description::new("leak-everything", "0.0.0").table(TableRequest::all()), |description, capability| {
                description.capability(capability)
            })
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let Some((ordinal, text)) = some_text(batch) else { return Ok(Receipt::durable()) };
        let place = host::setting("where").unwrap_or_default();
        let row = |target: &str, column: &str| {
            let set = RowSet::new(target, Operation::Insert).ordinals([0]);
            host::rows::apply(&[set.after(Cells::new(column, Values::Int64(vec![1])))])
        };
        match place.as_str() {
            "log-code" => host::log::error(text, ""),
            "log-message" => host::log::error("leak", text),
            "metric-count" => host::metrics::count(text, 1),
            "metric-observe" => host::metrics::observe(text, 1.0),
            "failure-code" => return Err(Failure::halt(text)),
            "failure-message" => return Err(Failure::halt("leak").message(text)),
            "reject-code" => return Ok(Receipt::durable().reject(ordinal, text)),
            "reject-batch" => return Err(Failure::reject(text).message(text)),
            "retry" => return Err(Failure::retry(text).message(text)),
            "output-name" => host::output::append(text, b"x")?,
            "output" => host::output::append("lines", text.as_bytes())?,
            "state-key" => host::state::set(text, b"x")?,
            "state-value" => host::state::set("leak", text.as_bytes())?,
            "rows-target" => row(text, "id").map(|_| ())?,
            "rows-column" => row("orders", text).map(|_| ())?,
            "secret" => host::secret(text).map(|_| ())?,
            "replica" => {
                host::replica::by_field(text, text, text);
            }
            "panic" => panic!("{text}"),
            "stdout" => println!("{text}"),
            "stderr" => eprintln!("{text}"),
            _ => return Err(Failure::halt("unknown-place")),
        }
        Ok(Receipt::durable())
    }
}

/// The first text of the batch and the ordinal of its row.
fn some_text(batch: &Batch) -> Option<(u32, &str)> {
    batch.rows().find_map(|change| match change {
        Change::Row(row) => row.cells().find_map(|(_, cell)| match cell.value() {
            Some(Value::Text(text)) => Some((row.ordinal(), text)),
            _ => None,
        }),
        Change::Message(_) => None,
    })
}

export_sink!(Program);
