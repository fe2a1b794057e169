//! Where progress becomes durable: the state database, and the output files whose lengths commit with it.
//!
//! Holds: the only SQL on the schema `walgate` (migrations ledger, leadership, lineage, cursors, plugin state, output
//! lengths, dead letters, generations) and the append-only outputs of plugins. Never knows: the source, the replication stream, plugins
//! as running things.
//! Invariant: a position may be told to the source only with a [`Durable`] in hand, and only a commit makes one.
//!
//! ```
//! // What the ack stage looks like: it takes the proof, not a number.
//! fn acknowledge(durable: walgate_store::Durable) -> walgate_core::Lsn {
//!     durable.acked()
//! }
//! ```
//!
//! Acknowledging before the checkpoint does not compile, because nobody else can make the proof:
//!
//! ```compile_fail,E0451
//! let forged = walgate_store::Durable { acked: walgate_core::Lsn::ZERO };
//! ```
//!
//! Read in this order: [`Store`], [`Checkpoint`], [`Retries`], [`Lease`], [`DeadLetter`], [`Output`], [`StoreError`].

mod columns;
mod commit;
mod connection;
mod error;
mod generation;
mod halt;
mod leader;
mod lease;
mod letter;
mod loss;
mod migrate;
mod output;
mod pipeline;
mod plugin;
mod redrive;
mod retrying;
#[expect(clippy::result_large_err, reason = "an error ends a whole work; a result without one costs a word")]
mod rows;
mod state;
mod store;

pub use commit::{Checkpoint, Durable, OutputLength, PluginCursor, StateWrite};
pub use error::{Class, HALT_NAMES, StoreError};
pub use generation::{Entered, Generation, ran_before};
pub use halt::StoredHalt;
pub use leader::Leader;
pub use lease::{Lease, LeaseGuard};
pub use letter::{DeadLetter, NewDeadLetter};
pub use loss::DeadLetterLoss;
pub use output::{OUTPUT_HALT_NAMES, Output, OutputError, OutputFile, OutputMark, StandardOutput};
pub use pipeline::{ORDINAL_SCHEME, PipelineRow};
pub use plugin::StateLimits;
pub use redrive::due;
pub use retrying::{Retries, RetryPolicy};
pub use rows::{RowsDone, RowsError, RowsPlace, RowsRest, RowsSink, RowsTable, RowsTargets, RowsWork};
pub use state::StateKey;
pub use store::{Store, StoreReader};
