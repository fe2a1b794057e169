//! Imports an interface that neither the contract nor WASI 0.2 has: the host refuses the file and names the import.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

mod elsewhere {
    //! The interface nobody offers.
    wit_bindgen::generate!({
        inline: "
            package elsewhere:backdoor@1.0.0;
            interface door { open: func(name: string) -> bool; }
            world visitor { import door; }
        ",
        generate_all,
    });
}

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("unknown-import", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        match elsewhere::elsewhere::backdoor::door::open(batch.id()) {
            true => Ok(Receipt::durable()),
            false => Err(Failure::halt("door-closed")),
        }
    }
}

export_sink!(Program);
