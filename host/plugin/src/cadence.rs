//! How often: when a plugin is tried again, flushed, and checkpointed, as plugin.toml says.
//!
//! Holds: three sets of numbers with their defaults and ranges. Refuses to know who counts and waits (the pipeline), and
//! which plugins are flushed or checkpointed by the host at all (see `mode.rs`).

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;

use crate::manifest::Wrong;

const HOUR_MS: u64 = 3_600_000;
const MAX_TRANSACTIONS: u64 = 1_000_000;
const GIB: u64 = 1 << 30;

/// How often a call that trapped, ran out of time or answered `retry` is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Attempts of one batch before `on_failure` decides.
    pub max_attempts: u32,
    /// The pause after the first failure. It doubles with each one that follows; the pipeline adds jitter.
    pub backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
}

/// At the latest when a plugin that answers `durable = false` is flushed: whichever bound is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// Transactions taken and not yet durable.
    pub max_transactions: u64,
    /// Time since the first of them was taken.
    pub max_delay: Duration,
    /// Bytes of the batches taken and not yet durable.
    pub max_bytes: usize,
    /// Bytes of log the source has to keep for them.
    pub max_wal_bytes: u64,
}

/// How often the position of a host-checkpointed plugin is stored: whichever bound is reached first. What was delivered
/// since is delivered again after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointEvery {
    /// Transactions delivered since the last one.
    pub max_transactions: u64,
    /// Time since the first of them was delivered.
    pub max_delay: Duration,
}

/// The keys of `[plugin]` that make a [`Retry`].
pub(crate) fn retry(max_attempts: u32, backoff_ms: u64, max_backoff_ms: u64) -> Result<Retry, Wrong> {
    check("plugin.max_attempts", u64::from(max_attempts), 1..=1000)?;
    check("plugin.backoff_ms", backoff_ms, 1..=HOUR_MS)?;
    check("plugin.max_backoff_ms", max_backoff_ms, 1..=HOUR_MS)?;
    if max_backoff_ms < backoff_ms {
        return Err(Wrong::new("plugin.max_backoff_ms", "must not be smaller than backoff_ms"));
    }
    let (backoff, max_backoff) = (Duration::from_millis(backoff_ms), Duration::from_millis(max_backoff_ms));
    Ok(Retry { max_attempts, backoff, max_backoff })
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FlushSection {
    max_transactions: u64,
    max_delay_ms: u64,
    max_bytes: usize,
    max_wal_bytes: u64,
}

impl Default for FlushSection {
    fn default() -> Self {
        Self { max_transactions: 1000, max_delay_ms: 1000, max_bytes: 16 << 20, max_wal_bytes: 16 << 20 }
    }
}

impl FlushSection {
    pub(crate) fn check(self) -> Result<Flush, Wrong> {
        check("flush.max_transactions", self.max_transactions, 1..=MAX_TRANSACTIONS)?;
        check("flush.max_delay_ms", self.max_delay_ms, 1..=HOUR_MS)?;
        check("flush.max_bytes", self.max_bytes as u64, 1..=GIB)?;
        check("flush.max_wal_bytes", self.max_wal_bytes, 1..=1024 * GIB)?;
        Ok(Flush {
            max_transactions: self.max_transactions,
            max_delay: Duration::from_millis(self.max_delay_ms),
            max_bytes: self.max_bytes,
            max_wal_bytes: self.max_wal_bytes,
        })
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CheckpointSection {
    max_transactions: u64,
    max_delay_ms: u64,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self { max_transactions: 1000, max_delay_ms: 1000 }
    }
}

impl CheckpointSection {
    pub(crate) fn check(self) -> Result<CheckpointEvery, Wrong> {
        check("checkpoint.max_transactions", self.max_transactions, 1..=MAX_TRANSACTIONS)?;
        check("checkpoint.max_delay_ms", self.max_delay_ms, 1..=HOUR_MS)?;
        let max_delay = Duration::from_millis(self.max_delay_ms);
        Ok(CheckpointEvery { max_transactions: self.max_transactions, max_delay })
    }
}

fn check(key: &str, value: u64, range: RangeInclusive<u64>) -> Result<(), Wrong> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Wrong::new(key, format!("must lie between {} and {}", range.start(), range.end())))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::{Manifest, ManifestError};

    fn parse(text: &str) -> Result<Manifest, ManifestError> {
        Manifest::parse(Path::new("plugin.toml"), text)
    }

    #[test]
    fn defaults() {
        let manifest = parse("").unwrap();
        let (backoff, max_backoff) = (Duration::from_millis(100), Duration::from_secs(30));
        assert_eq!(manifest.retry, Retry { max_attempts: 5, backoff, max_backoff });
        let second = Duration::from_secs(1);
        let flush = Flush { max_transactions: 1000, max_delay: second, max_bytes: 16 << 20, max_wal_bytes: 16 << 20 };
        assert_eq!((manifest.flush, manifest.checkpoint), (flush, None));
        let every = CheckpointEvery { max_transactions: 1000, max_delay: second };
        assert_eq!(parse("[checkpoint]").unwrap().checkpoint, Some(every));
    }

    #[test]
    fn every_key_is_read() {
        let manifest = parse(
            "[plugin]\nmax_attempts = 2\nbackoff_ms = 3\nmax_backoff_ms = 4\n[flush]\nmax_transactions = 5\n\
             max_delay_ms = 6\nmax_bytes = 7\nmax_wal_bytes = 8\n[checkpoint]\nmax_transactions = 9\nmax_delay_ms = 10",
        )
        .unwrap();
        let ms = Duration::from_millis;
        assert_eq!(manifest.retry, Retry { max_attempts: 2, backoff: ms(3), max_backoff: ms(4) });
        let flush = Flush { max_transactions: 5, max_delay: ms(6), max_bytes: 7, max_wal_bytes: 8 };
        assert_eq!(manifest.flush, flush);
        assert_eq!(manifest.checkpoint, Some(CheckpointEvery { max_transactions: 9, max_delay: ms(10) }));
    }

    #[test]
    fn refusals_name_the_key_and_the_range() {
        for (section, key) in [
            ("plugin", "max_attempts"),
            ("plugin", "backoff_ms"),
            ("plugin", "max_backoff_ms"),
            ("flush", "max_transactions"),
            ("flush", "max_delay_ms"),
            ("flush", "max_bytes"),
            ("flush", "max_wal_bytes"),
            ("checkpoint", "max_transactions"),
            ("checkpoint", "max_delay_ms"),
        ] {
            let error = parse(&format!("[{section}]\n{key} = 0")).unwrap_err().to_string();
            assert!(error.contains(&format!("{section}.{key} must lie between 1 and ")), "{error}");
        }
        let error = parse("[plugin]\nbackoff_ms = 10\nmax_backoff_ms = 9").unwrap_err().to_string();
        assert!(error.contains("plugin.max_backoff_ms must not be smaller"), "{error}");
        for text in ["[flush]\nmax_rows = 1", "[checkpoint]\nmax_bytes = 1"] {
            assert!(matches!(parse(text), Err(ManifestError::Syntax { line: 2, .. })), "{text}");
        }
    }
}
