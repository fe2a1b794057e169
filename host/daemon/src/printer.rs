//! What people and machines read on standard output.
//!
//! Holds: the one place that prints. Every command gives a value that serializes, and a way to show it to a person.
//! Refuses to know commands. Logs go to standard error through `tracing`.

use std::io::Write as _;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Prints results as text for people or as JSON for machines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    json: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints the value as one JSON document, or the text.
    pub(crate) fn show(self, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
        if self.json {
            match serde_json::to_string_pretty(value) {
                Ok(json) => self.line(&json),
                Err(error) => self.problem(&format!("the answer cannot be written as JSON: {error}")),
            }
        } else {
            self.line(&visible(text().trim_end()));
        }
    }

    /// Prints lines as they are. A closed pipe is not an error of ours.
    pub(crate) fn line(self, text: &str) {
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    /// Prints a problem to standard error.
    pub(crate) fn problem(self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "walgate: {text}");
    }
}

/// A name that may hold a line break, on one line.
pub(crate) fn one_line(name: &str) -> String {
    visible(name).replace('\n', "\\n")
}

/// Seconds from 1970 as people write a moment: in UTC, after RFC 3339.
pub(crate) fn moment(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| format!("second {seconds}"))
}

/// Names come from elsewhere, and may hold what a terminal obeys.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && letter != '\n' && letter != '\t' {
            out.extend(letter.escape_default());
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn what_a_terminal_obeys_is_shown_instead() {
        assert_eq!(visible("a\u{1b}[31mb\nc\td\r"), "a\\u{1b}[31mb\nc\td\\r");
    }
}
