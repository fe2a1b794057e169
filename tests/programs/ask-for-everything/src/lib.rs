//! Cannot work without `public.customers.email`: a grant that leaves the column out keeps it from starting.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        let customers = TableRequest::new("public", "customers").column("id").column("email");
        Description::new("ask-for-everything", "0.0.0").table(customers).table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
