//! Hits `unreachable` in the call that the setting `where` names: `relation-changed`, `flush` or `close`.

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Receipt, Relation, Sink, TableRequest, Verdict, export_sink, host,
};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("trap-in-call", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn relation_changed(&mut self, _: &Relation, _: Option<&Relation>) -> Result<Verdict, Failure> {
        trap("relation-changed");
        Ok(Verdict::Accept)
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        // Only what is not durable is flushed.
        Ok(if is_here("flush") { Receipt::accepted() } else { Receipt::durable() })
    }

    fn flush(&mut self) -> Result<(), Failure> {
        trap("flush");
        Ok(())
    }

    fn close(&mut self) {
        trap("close");
    }
}

fn is_here(call: &str) -> bool {
    host::setting("where").is_some_and(|place| place == call)
}

fn trap(call: &str) {
    assert!(!is_here(call));
}

export_sink!(Program);
