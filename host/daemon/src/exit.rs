//! How the process ends: exit codes, halts, and failures before anything ran.
//!
//! Holds: the closed set of exit codes and the halt. Refuses to know which stage halts.

use std::fmt;

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

/// A permanent stop. It has a name that alerts can match, says what happened and what to do, and holds no value.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Halt {
    /// A stable word, `slot_missing` for example.
    pub(crate) name: String,
    /// The plugin it is about, if it is about one.
    pub(crate) plugin: Option<String>,
    /// What happened and what to do.
    pub(crate) detail: String,
}

impl Halt {
    pub(crate) fn new(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), plugin: None, detail: detail.into() }
    }

    pub(crate) fn of_plugin(name: impl Into<String>, plugin: &str, detail: impl Into<String>) -> Self {
        Self { name: name.into(), plugin: Some(plugin.to_owned()), detail: detail.into() }
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.plugin {
            Some(plugin) => write!(f, "halted: {} (plugin {plugin}): {}", self.name, self.detail),
            None => write!(f, "halted: {}: {}", self.name, self.detail),
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
