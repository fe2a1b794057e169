//! Decodes pgoutput messages, protocol version 1, text format. Total: any bytes give a message or a typed error.
//!
//! Holds: the message set, and the bounds-checked reader. Rows stay undecoded (see [`RowBody`]): the minimizer walks
//! them once, straight into columns. Never knows: transactions, grants, sockets.
//! Invariant: no error, and no `Debug` of anything here, holds a byte of a row.
//! Read next: [`crate::assemble`].

#[cfg(any(test, feature = "testing"))]
pub mod build;
mod message;
mod reader;
mod row;

pub use message::{Begin, Commit, Message, MessageBody, Origin, RelationBody, RelationColumn, TruncateBody, TypeBody};
pub use reader::{DecodeError, DecodeErrorKind};
pub use row::{Cell, OldRow, RowBody, RowKind, TupleWalk};

#[cfg(test)]
mod tests;
