//! Grows its table of functions by 1,000 entries at a time until that is refused, and traps then.
//!
//! No Rust on a stable compiler makes that instruction, so it is linked in: see `build.rs`.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "a function of another object file")]
fn grow(entries: u32) -> i32 {
    unsafe extern "C" {
        /// `table.grow`: the size before, or -1.
        fn walgate_table_grow(entries: u32) -> i32;
    }
    // SAFETY: the function is in the object that `build.rs` writes, with this type, and touches no memory.
    unsafe { walgate_table_grow(entries) }
}

#[cfg(not(target_arch = "wasm32"))]
fn grow(_: u32) -> i32 {
    -1
}

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("grow-tables", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        while grow(1_000) >= 0 {}
        panic!("refused");
    }
}

export_sink!(Program);
