//! A double of the host, so that a plugin is tested with plain `cargo test`.
//!
//! Holds: [`Host`], which grants and then opens a sink as a [`Run`]; [`Table`] and [`BatchBuilder`], which make what a
//! run delivers. Refuses to soften the contract: what the real host denies or calls garbage fails here as well. Misuse
//! of the double itself panics, which is how a test fails. Not compiled for wasm. Read next: [`Run::deliver`].
//!
//! The double belongs to the thread of the test: one open run a thread.

mod batch;
pub(crate) mod double;
mod run;

pub use batch::{BatchBuilder, NOT_SENT, NULL, Slot, Table, TestBatch, UNCHANGED};
pub use run::{Host, Logged, Query, Run};

#[cfg(test)]
mod tests;
