//! The seed of a run, and a line of progress for each thing that was proved.
//!
//! Holds: how both reach the person who waits. Written past libtest, which keeps back what a test prints until it fails.

use std::io::Write as _;
use std::sync::LazyLock;

/// Everything random in a run comes from this number.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let given = std::env::var("WALGATE_CRASH_SEED").ok().and_then(|text| text.trim().parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    say(&format!("WALGATE_CRASH_SEED={seed} repeats this run"));
    seed
});

/// The seed for one part of the run: another one for each name, the same one in each run of the same seed.
pub(crate) fn seed_of(part: &str) -> u64 {
    part.bytes().fold(*SEED, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(7))
}

/// Prints one line.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "crash: {line}");
}
