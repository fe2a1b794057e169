//! What a sink answers: a receipt or a failure.
//!
//! Holds: builders over the two records of the contract. Refuses to decide what happens next: that is the host's part,
//! written in `wit/v0.1/change.wit`. Read next: [`crate::Sink::deliver`].

use std::fmt;

use crate::bindings::walgate::cdc::outcome as raw;
use crate::host::Fault;
use crate::rows::MixedCells;
use crate::value::CellError;

pub use raw::Disposition;

/// A failure the sink saw coming, with its judgement of what should happen.
///
/// The code matches `[a-z0-9-]{1,40}`, anything else becomes `invalid-code` in the host. It is shown to operators, so it
/// never carries a value of a row; the message may, and the host drops it unless `diagnostics = "guest-text"`.
#[derive(Clone, PartialEq)]
pub struct Failure {
    raw: raw::Failure,
}

impl Failure {
    /// The same batch again after a growing pause: for a peer that is away.
    pub fn retry(code: impl Into<String>) -> Self {
        Self::new(Disposition::Retry, code)
    }

    /// This batch can never be taken: it goes to the dead letters as a whole.
    pub fn reject(code: impl Into<String>) -> Self {
        Self::new(Disposition::Reject, code)
    }

    /// Nothing more can be done: the failure policy in plugin.toml decides what stops.
    pub fn halt(code: impl Into<String>) -> Self {
        Self::new(Disposition::Halt, code)
    }

    fn new(disposition: Disposition, code: impl Into<String>) -> Self {
        let raw = raw::Failure { disposition, code: code.into(), message: String::new(), retry_after_ms: None };
        Self { raw }
    }

    /// Adds text for the author of the plugin.
    #[must_use]
    pub fn message(mut self, text: impl Into<String>) -> Self {
        self.raw.message = text.into();
        self
    }

    /// With retry: not sooner than this, in milliseconds. The host caps it.
    #[must_use]
    pub fn after_ms(mut self, ms: u32) -> Self {
        self.raw.retry_after_ms = Some(ms);
        self
    }

    /// The code.
    pub fn code(&self) -> &str {
        &self.raw.code
    }

    /// The judgement.
    pub fn disposition(&self) -> Disposition {
        self.raw.disposition
    }

    /// The pause asked for, in milliseconds.
    pub fn retry_after_ms(&self) -> Option<u32> {
        self.raw.retry_after_ms
    }

    /// The record of the contract.
    pub(crate) fn into_raw(self) -> raw::Failure {
        self.raw
    }
}

impl fmt::Debug for Failure {
    /// Without the message, which may hold values of rows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.raw.disposition.name(), self.raw.code)
    }
}

impl std::error::Error for Failure {}

/// A cell that cannot be read as the sink expects stops the sink: repeating the batch would not change it.
impl From<CellError> for Failure {
    fn from(error: CellError) -> Self {
        Self::halt("unexpected-cell").message(error.to_string())
    }
}

/// Rows that the plugin put together wrongly stop it: repeating the batch would not change them.
impl From<MixedCells> for Failure {
    fn from(error: MixedCells) -> Self {
        Self::halt("mixed-cells").message(error.to_string())
    }
}

/// A host call that may work later asks for a retry, every other fault halts. The code is the host's.
impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let failure = if fault.retryable { Self::retry(fault.code.as_str()) } else { Self::halt(fault.code.as_str()) };
        failure.message(fault.to_string())
    }
}

/// The answer to a batch that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    raw: raw::Receipt,
}

impl Receipt {
    /// This batch and all before it survive a power cut, or went into the host (state, outputs, rows), which makes them
    /// durable itself. The host frees log on the source on the strength of this word.
    pub fn durable() -> Self {
        Self { raw: raw::Receipt { durable: true, rejected: Vec::new() } }
    }

    /// Taken but not yet durable: the host calls [`crate::Sink::flush`] before it acknowledges.
    pub fn accepted() -> Self {
        Self { raw: raw::Receipt { durable: false, rejected: Vec::new() } }
    }

    /// Sends one change to the dead letters; the rest of the batch counts. Each ordinal at most once.
    #[must_use]
    pub fn reject(mut self, ordinal: u32, code: impl Into<String>) -> Self {
        self.raw.rejected.push(raw::Rejection { ordinal, code: code.into() });
        self
    }

    /// Whether the batch is durable.
    pub fn is_durable(&self) -> bool {
        self.raw.durable
    }

    /// Ordinal and code of each rejected change.
    pub fn rejected(&self) -> impl Iterator<Item = (u32, &str)> {
        self.raw.rejected.iter().map(|one| (one.ordinal, one.code.as_str()))
    }

    /// The record of the contract.
    pub(crate) fn into_raw(self) -> raw::Receipt {
        self.raw
    }
}

impl Disposition {
    /// `retry`, `reject` or `halt`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Reject => "reject",
            Self::Halt => "halt",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_fill_the_record_of_the_contract() {
        let failure = Failure::retry("peer-away").message("text").after_ms(250).into_raw();
        assert_eq!(failure.disposition, Disposition::Retry);
        assert_eq!((failure.code.as_str(), failure.message.as_str()), ("peer-away", "text"));
        assert_eq!(failure.retry_after_ms, Some(250));
        let receipt = Receipt::accepted().reject(3, "too-long").into_raw();
        assert!(!receipt.durable);
        assert_eq!(receipt.rejected[0].ordinal, 3);
    }

    #[test]
    fn debug_drops_the_message() {
        let failure = Failure::halt("broken").message("hostile-value");
        assert_eq!(format!("{failure:?} {failure}"), "Failure(halt broken) halt broken");
    }

    #[test]
    fn faults_keep_their_code_and_their_hope() {
        let fault = Fault { call: "state.set", code: "over-limit".into(), retryable: false };
        assert_eq!(Failure::from(fault.clone()).disposition(), Disposition::Halt);
        let failure = Failure::from(Fault { retryable: true, ..fault });
        assert_eq!((failure.disposition(), failure.code()), (Disposition::Retry, "over-limit"));
    }
}
