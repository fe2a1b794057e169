//! Points of the host at which a crash test ends the process, as a loss of power would.
//!
//! Holds: their names, a closed list, and what passing one does: nothing at all, unless the feature `enabled` is on. Then
//! the environment says at which pass of which point the process kills itself; see `orders.rs` for its form.
//! Never knows: what the host does there, who restarts it, and what is proved afterwards.
//! Read next: `tests/crash`, which arms them.

#[cfg(feature = "enabled")]
mod armed;
#[cfg(any(feature = "enabled", test))]
mod orders;

#[cfg(feature = "enabled")]
pub use armed::{halves, hit};

/// Every point there is, in the order in which data passes them. Each is passed at exactly one place of the sources.
pub const NAMES: &[&str] = &[
    "receive.chunk",
    "assemble.commit",
    "deliver.before_call",
    "deliver.after_call",
    "deliver.before_flush",
    "deliver.given",
    "apply.before_rows",
    "apply.in_transaction",
    "apply.committed",
    "checkpoint.before_outputs",
    "output.half_written",
    "output.synced",
    "checkpoint.before_commit",
    "checkpoint.committed",
    "ack.before",
    "ack.told",
    "dead_letter.before",
    "dead_letter.written",
    "redrive.before",
    "redrive.taken",
    "takeover.locked",
    "takeover.fenced",
    "takeover.loaded",
    "start.adopted",
    "start.opened",
    "swap.entered",
    "swap.drained",
    "swap.opened",
    "swap.done",
    "turn.begun",
    "turn.back",
];

/// The process passes the point of that name, one of [`NAMES`].
#[cfg(not(feature = "enabled"))]
#[inline(always)]
pub fn hit(_name: &str) {}

/// Where a write of these bytes is interrupted by the point of that name: the first part is written before it, the
/// second after it. Without the feature the first part is everything.
#[cfg(not(feature = "enabled"))]
#[inline(always)]
pub fn halves<'a>(_name: &str, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    (bytes, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_said_once() {
        for (at, name) in NAMES.iter().enumerate() {
            assert_eq!(NAMES.iter().position(|other| other == name), Some(at), "{name} is listed twice");
        }
    }
}
