//! Tries host calls in `describe`, where every one is denied, and names itself after the answers.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        let set = host::state::set("k", b"v").map_or_else(|fault| fault.code, |()| "allowed".to_owned());
        let get = host::state::get("k").map_or_else(|fault| fault.code, |_| "allowed".to_owned());
        Description::new(format!("set-{set}-get-{get}"), "0.0.0").table(TableRequest::all()).capability("state")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
