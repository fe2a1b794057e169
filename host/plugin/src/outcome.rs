//! What a call of a plugin can come to, and what travels with it.
//!
//! Holds: answers, refusals, traps and deadlines as types that never mix, and what a delivery staged. Refuses to know
//! what a pipeline does with them, and how a guest spells them.

use std::collections::BTreeMap;

use walgate_core::batch::Batch;
use walgate_core::rows::RowCall;

use crate::error::Class;

/// What a plugin is told once, when it is opened. Its settings come from plugin.toml.
#[derive(Clone, Default)]
pub struct OpenContext {
    /// The name of the plugin.
    pub plugin: String,
    /// Counts the versions of this plugin that the pipeline has run.
    pub generation: u64,
    /// The name of the pipeline.
    pub pipeline: String,
    /// The token of the lineage, see `walgate_core::Lineage::token`.
    pub lineage: String,
    /// Strictly larger at every open.
    pub epoch: u64,
    /// The plugin's state as its last durable delivery left it.
    pub state: BTreeMap<String, Vec<u8>>,
}

/// What an operator can do when a plugin passes the host's own fault on.
const OVER_LIMIT_HINT: &str = ", which a host call answered: look at the state_…, http_…, output_bytes_per_call and rows_bytes_per_call keys in [limits] of its plugin.toml";

/// The plugin's judgement of its own failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The same batch again, later.
    Retry,
    /// This batch can never be taken.
    Reject,
    /// Nothing more can be done.
    Halt,
}

/// A failure the plugin saw coming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the host should do next.
    pub disposition: Disposition,
    /// A word of `[a-z0-9-]{1,40}`, or `invalid-code`.
    pub code: String,
    /// Not sooner than this, in milliseconds; capped by the host.
    pub retry_after_ms: Option<u32>,
    /// The plugin's own text. Only under `diagnostics = "guest-text"`, because it may hold row values.
    pub message: Option<String>,
}

/// Why an instance ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrapCause {
    /// The guest gave up: a panic, an assertion, an abort.
    Unreachable,
    /// It needed more memory than `memory_mib`.
    MemoryLimit,
    /// It needed more table elements or instances than its limits.
    TableLimit,
    /// It used up its stack.
    StackOverflow,
    /// It read or wrote outside its memory, or answered with a pointer outside of it.
    OutOfBounds,
    /// It divided by zero or overflowed.
    Arithmetic,
    /// One call handed the host more than `host_call_bytes`.
    HostCallBytes,
    /// It ended itself through `wasi:cli/exit`.
    Exited,
    /// The host failed while serving it.
    HostPanic,
    /// Anything else.
    Other,
}

impl TrapCause {
    /// The key of plugin.toml to look at, as the end of a sentence; empty when there is none.
    const fn hint(self) -> &'static str {
        match self {
            Self::MemoryLimit => "; raise memory_mib in [limits] of its plugin.toml, or lower delivery.max_batch_bytes",
            Self::TableLimit => "; raise table_elements or instances in [limits] of its plugin.toml",
            Self::HostCallBytes => "; raise host_call_bytes in [limits] of its plugin.toml",
            _ => "",
        }
    }

    /// A stable word for status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::MemoryLimit => "memory-limit",
            Self::TableLimit => "table-limit",
            Self::StackOverflow => "stack-overflow",
            Self::OutOfBounds => "out-of-bounds",
            Self::Arithmetic => "arithmetic",
            Self::HostCallBytes => "host-call-bytes",
            Self::Exited => "exited",
            Self::HostPanic => "host-panic",
            Self::Other => "other",
        }
    }
}

/// Where a call was when its time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineIn {
    /// In the guest's own code.
    Guest,
    /// In a host call that waits.
    HostCall,
}

/// A call that did not succeed. None of its texts holds guest text other than a checked code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The plugin answered with a failure. The instance stays, except after a refused `open`.
    #[error("the plugin refused with code {:?}{}", .0.code, if .0.code == "over-limit" { OVER_LIMIT_HINT } else { "" })]
    Refused(Failure),
    /// The instance ended; the next `open` makes a fresh one.
    #[error("the plugin trapped: {}{}", .0.name(), .0.hint())]
    Trapped(TrapCause),
    /// The call ran out of time and the instance was ended. Raise the key in `[limits]` or make the plugin faster.
    #[error(
        "the plugin did not answer within {limit_ms} ms; call_deadline_ms and open_deadline_ms in [limits] of its plugin.toml say how long it may take"
    )]
    Deadline {
        /// The limit, in milliseconds.
        limit_ms: u64,
        /// Where it was.
        place: DeadlineIn,
    },
    /// The answer breaks the contract; the instance was ended because nothing it holds can be trusted.
    #[error("the plugin answered against the contract: {0}")]
    Garbage(Garbage),
    /// There is no instance: none was opened, or the last call ended it. Also when the worker itself is gone.
    #[error("the plugin has no open instance; open it first")]
    Gone,
}

impl CallError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Refused(failure) if failure.disposition == Disposition::Retry => Class::Retry,
            Self::Refused(_) | Self::Garbage(_) => Class::Operator,
            Self::Trapped(TrapCause::HostPanic) | Self::Gone => Class::Bug,
            Self::Trapped(_) | Self::Deadline { .. } => Class::Retry,
        }
    }

    /// Whether the instance is gone after it.
    pub fn ends_instance(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// A stable word for status and metrics: the plugin's own code, or the cause.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(failure) => &failure.code,
            Self::Trapped(cause) => cause.name(),
            Self::Deadline { .. } => "deadline",
            Self::Garbage(_) => "garbage",
            Self::Gone => "gone",
        }
    }
}

/// What was wrong with an answer, in the host's own words and numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Garbage(pub(crate) String);

/// One change the sink will never take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Its ordinal in the batch. Checked: the batch has it, and no other rejection names it.
    pub ordinal: u32,
    /// A word of `[a-z0-9-]{1,40}`, or `invalid-code`.
    pub code: String,
}

/// The answer to a delivered batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// Whether this batch and all before it survive a power cut once what was staged is committed.
    pub durable: bool,
    /// Changes for the dead letters, in rising order of ordinals.
    pub rejected: Vec<Rejection>,
}

/// The answer to a new shape of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Carry on.
    Accept,
    /// Copy the table again for this plugin.
    Resync,
    /// Stop before the first row of the new shape.
    Decline,
}

/// What a plugin staged in the host, to be committed together with the checkpoint.
#[derive(Clone, PartialEq, Default)]
pub struct Staged {
    /// Keys and their new values, none for a removed key; in rising order, each key once.
    pub state: Vec<(String, Option<Vec<u8>>)>,
    /// Bytes to append, each output once.
    pub outputs: Vec<(String, Vec<u8>)>,
    /// Rows to write: one entry a call of `apply`, in order.
    pub rows: Vec<RowCall>,
}

impl Staged {
    /// True when there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty() && self.outputs.is_empty() && self.rows.is_empty()
    }
}

/// Counts only: what is staged may hold row values.
impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staged")
            .field("state", &self.state.len())
            .field("outputs", &self.outputs.len())
            .field("rows", &self.rows.iter().flatten().map(|set| set.ordinals.len()).sum::<usize>())
            .finish()
    }
}

/// A batch that came back.
pub struct Delivery {
    /// The same batch, its buffers handed back, for a retry or for reuse. Empty only after [`CallError::Gone`] when the
    /// worker itself ended: then the stream is read again from the checkpoint.
    pub batch: Batch,
    /// What the plugin answered.
    pub outcome: Result<Receipt, CallError>,
    /// What it staged; empty when the outcome is an error.
    pub staged: Staged,
}

/// What a code becomes that is not `[a-z0-9-]{1,40}`.
const INVALID_CODE: &str = "invalid-code";

/// A guest's code, or [`INVALID_CODE`].
pub(crate) fn checked_code(code: String) -> String {
    let good = (1..=40).contains(&code.len())
        && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if good { code } else { INVALID_CODE.to_owned() }
}

#[cfg(test)]
mod tests {
    use walgate_core::batch::Operation;
    use walgate_core::rows::RowSet;

    use super::*;

    #[test]
    fn codes_are_short_plain_words() {
        for (code, good) in [
            ("peer-away", true),
            ("5", true),
            ("", false),
            ("Peer", false),
            ("a b", false),
            ("alice@example.com", false),
            (&"x".repeat(40), true),
            (&"x".repeat(41), false),
        ] {
            assert_eq!(checked_code(code.to_owned()) == code, good, "{code:?}");
        }
    }

    #[test]
    fn staged_values_do_not_print() {
        let staged = Staged {
            state: vec![("hostile-key".into(), Some(b"hostile".to_vec()))],
            outputs: vec![("out".into(), b"hostile".to_vec())],
            rows: vec![vec![RowSet {
                target: "hostile".into(),
                operation: Operation::Insert,
                ordinals: vec![0, 1],
                after: Vec::new(),
                before: Vec::new(),
            }]],
        };
        assert_eq!(format!("{staged:?}"), "Staged { state: 1, outputs: 1, rows: 2 }");
    }
}
