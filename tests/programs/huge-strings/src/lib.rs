//! Puts a text of eight mebibytes where the setting `where` says, everywhere a plugin can put a text after `describe`.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        ["log", "metrics", "state", "output:lines"]
            .into_iter()
            .fold(Description::new("huge-strings", "0.0.0").table(TableRequest::all()), Description::capability)
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let huge = "x-huge-text-".repeat((8 << 20) / 12);
        let Some(first) = batch.rows().next() else { return Ok(Receipt::durable()) };
        match host::setting("where").unwrap_or_default().as_str() {
            "failure-code" => return Err(Failure::halt(huge)),
            "failure-message" => return Err(Failure::halt("huge-message").message(huge)),
            "reject-code" => return Ok(Receipt::durable().reject(first.ordinal(), huge)),
            "log-code" => host::log::error(&huge, ""),
            "log-message" => host::log::error("huge", &huge),
            "metric-name" => host::metrics::count(&huge, 1),
            "state-key" => host::state::set(&huge, b"")?,
            "output-name" => host::output::append(&huge, b"x")?,
            "secret" => host::secret(&huge).map(drop)?,
            "setting" => assert!(host::setting(&huge).is_none()),
            _ => return Err(Failure::halt("unknown-place")),
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
