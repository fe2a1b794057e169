//! Declines every new shape of a table it has seen before; takes the first.

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Receipt, Relation, Sink, TableRequest, Verdict, export_sink,
};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("relation-decline", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Ok(Receipt::durable())
    }

    fn relation_changed(&mut self, _: &Relation, previous: Option<&Relation>) -> Result<Verdict, Failure> {
        Ok(if previous.is_some() { Verdict::Decline } else { Verdict::Accept })
    }
}

export_sink!(Program);
