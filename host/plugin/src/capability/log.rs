//! `walgate:host/log`: lines for the operator, capped per call, without the guest's own text unless that was allowed.

use crate::bindings::v0_1::walgate::host::log::{Host, Level};
use crate::capability::{HostState, within};
use crate::description::Capabilities;
use crate::outcome::checked_code;

/// What one call has written so far.
#[derive(Default)]
pub(crate) struct Budget {
    lines: u64,
    bytes: usize,
    dropped: u64,
}

impl Budget {
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether a line of that many bytes is still within the limits; counts it either way.
    fn admit(&mut self, bytes: usize, max_lines: u64, max_bytes: u64) -> bool {
        let total = self.bytes.saturating_add(bytes);
        let admitted = self.lines < max_lines && within(total, max_bytes);
        if admitted {
            self.lines += 1;
            self.bytes = total;
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
        admitted
    }
}

impl Host for HostState {
    fn write(&mut self, level: Level, code: String, message: String) {
        if !self.granted.log {
            return self.deny("log", &Capabilities { log: true, ..Capabilities::default() });
        }
        let limits = &self.policy.limits;
        let bytes = code.len().saturating_add(message.len());
        if !self.log.admit(bytes, limits.log_lines_per_call, limits.log_bytes_per_call) {
            return;
        }
        let code = checked_code(code);
        let message = if self.guest_text() { message } else { String::new() };
        emit(level, &self.policy.plugin, &code, &message);
    }
}

/// Levels are part of a tracing call's static data, hence one call each.
fn emit(level: Level, plugin: &str, code: &str, message: &str) {
    const TARGET: &str = "walgate::guest";
    match level {
        Level::Trace => tracing::trace!(target: TARGET, plugin, code, "{message}"),
        Level::Debug => tracing::debug!(target: TARGET, plugin, code, "{message}"),
        Level::Info => tracing::info!(target: TARGET, plugin, code, "{message}"),
        Level::Warn => tracing::warn!(target: TARGET, plugin, code, "{message}"),
        Level::Error => tracing::error!(target: TARGET, plugin, code, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Phase, test_state};
    use crate::limits::Limits;
    use crate::manifest::{Diagnostics, Policy};
    use crate::test_guest::logged;

    fn write(diagnostics: Diagnostics, granted: bool, lines: &[(&str, &str)]) -> String {
        let limits = Limits { log_lines_per_call: 2, log_bytes_per_call: 100, ..Limits::default() };
        let policy = Policy { plugin: "p".into(), diagnostics, limits, ..Policy::default() };
        let mut host = test_state(policy, Capabilities { log: granted, ..Capabilities::default() });
        logged(|| {
            host.begin(Phase::Deliver);
            for (code, message) in lines {
                host.write(Level::Info, (*code).into(), (*message).into());
            }
            host.finish();
        })
    }

    #[test]
    fn keeps_the_code_and_drops_the_text() {
        let text = write(Diagnostics::None, true, &[("peer-away", "alice@example.com"), ("Bad Code", "x")]);
        assert!(text.contains("peer-away") && text.contains("invalid-code"), "{text}");
        assert!(!text.contains("alice") && !text.contains("Bad Code"), "{text}");
        let text = write(Diagnostics::GuestText, true, &[("peer-away", "alice@example.com")]);
        assert!(text.contains("alice@example.com"), "{text}");
    }

    #[test]
    fn lines_over_the_limit_are_counted() {
        let text = write(Diagnostics::None, true, &[("one", ""), ("two", ""), ("three", ""), ("four", "")]);
        assert!(text.contains("two") && !text.contains("three"), "{text}");
        assert!(text.contains("lines=2"), "{text}");
        let text = write(Diagnostics::None, true, &[("big", &"x".repeat(100)), ("small", "")]);
        assert!(!text.contains("big") && text.contains("small"), "{text}");
    }

    #[test]
    fn a_denial_is_logged_once_with_the_line_that_allows_it() {
        let text = write(Diagnostics::None, false, &[("one", ""), ("two", "")]);
        assert_eq!(text.matches("denied").count(), 1, "{text}");
        assert!(text.contains("capabilities = [\"log\"]") && !text.contains("one"), "{text}");
    }
}
