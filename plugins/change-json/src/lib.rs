//! Changes as JSON, in the one form that all plugins here write.
//!
//! Holds: the keys of a change, and the exact JSON of every value. Refuses to know where it goes; it is no plugin by itself.
//! Read next: `change.rs`.

mod change;
mod json;

pub use change::{lsn, member, separated, write};
pub use json::{display, integer, quoted, string, word};
