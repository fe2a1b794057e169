//! The one question every error of this crate answers: who can do something about it.
//!
//! Holds: the classes. Refuses to know any error; each error type has a `class` of its own.

/// What an error calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The same again may succeed.
    Retry,
    /// A person has to change a file, a grant or a plugin.
    Operator,
    /// walgate itself is wrong.
    Bug,
}

impl Class {
    /// The word used in status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Operator => "operator",
            Self::Bug => "bug",
        }
    }
}
