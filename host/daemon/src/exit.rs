//! How the process ends: exit codes, halts, and failures before anything ran.
//!
//! Holds: the closed set of exit codes. Read next: [`crate::halt`]. Refuses to know which stage halts.

use crate::halt::Halt;

/// Why the process ends, as the shell sees it. Zero is a stop as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Bad usage or configuration: nothing was started.
    Usage,
    /// Halted: it needs an operator, and starting it again changes nothing.
    Halted,
    /// Something it depends on is away: starting it again later may help.
    Unavailable,
}

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::Halted => 3,
            Self::Unavailable => 4,
        }
    }
}

/// A command that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) halt: Option<Halt>,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into(), halt: None }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { exit: Exit::Unavailable, message: message.into(), halt: None }
    }
}

impl From<Halt> for Failure {
    fn from(halt: Halt) -> Self {
        Self { exit: Exit::Halted, message: halt.to_string(), halt: Some(halt) }
    }
}

/// An error and its causes in one line. The causes of our own error types are attached, never printed twice, and hold
/// no values.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
