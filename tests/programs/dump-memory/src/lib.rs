//! Appends all of its memory to the output `memory`, in every call that may write: the host's tests look in it for what no
//! grant of it names.
//!
//! The memory of a component is where the host puts what it hands over, so nothing that reached the guest is elsewhere.

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Receipt, Relation, Sink, TableRequest, Verdict, export_sink,
};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("dump-memory", "0.0.0").table(TableRequest::all()).capability("output:memory")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        dump()?;
        Ok(Program.into())
    }

    fn relation_changed(&mut self, _: &Relation, _: Option<&Relation>) -> Result<Verdict, Failure> {
        dump()?;
        Ok(Verdict::Accept)
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        dump()?;
        Ok(Receipt::durable())
    }
}

#[allow(unsafe_code, reason = "no safe Rust reads memory that is not its own")]
fn dump() -> Result<(), Failure> {
    #[cfg(target_arch = "wasm32")]
    {
        let bytes = core::arch::wasm32::memory_size(0) * 65_536;
        // SAFETY: every address of a linear memory below its size can be read. The first is left out, because a slice
        // must not begin there. Nothing writes while the host copies.
        let memory = unsafe { core::slice::from_raw_parts(core::hint::black_box(1 as *const u8), bytes - 1) };
        walgate_sdk::host::output::append("memory", memory)?;
    }
    Ok(())
}

export_sink!(Program);
