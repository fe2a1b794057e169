//! The pure heart of walgate: from replication messages to columnar batches of granted columns.
//!
//! Holds: positions, the pgoutput decoder, the relation cache, transaction assembly, grants and the minimizer.
//! Never knows: sockets, clocks, files, tokio, wasmtime. Bytes come in, typed things go out, nothing panics on input.
//! Read in this order: [`lsn`], [`lineage`], [`pgoutput`], [`relation`], [`grant`], [`assemble`], [`minimize`], [`batch`];
//! [`publication`] and [`webhook`] stand beside the flow.

pub mod assemble;
pub mod batch;
pub mod column;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod grant;
pub mod lineage;
pub mod lsn;
pub mod minimize;
pub mod pgoutput;
pub mod publication;
pub mod relation;
pub mod rows;
pub mod value;
pub mod webhook;

pub use lineage::{Cursor, Lineage};
pub use lsn::Lsn;
