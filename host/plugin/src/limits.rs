//! How much one plugin may use, and the limiter wasmtime asks before memory grows.
//!
//! Holds: every limit with its default, unit and range, as `[limits]` of plugin.toml spells them. Refuses to know who
//! counts: each capability counts its own.

use std::time::Duration;

use serde::Deserialize;
use wasmtime::ResourceLimiter;

/// Memories and tables a component may have, each. A Rust component has one, a Python one a handful.
const MAX_MEMORIES_AND_TABLES: usize = 100;

/// The limits of one plugin. Every field is a key of `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Linear memory of the instance, in MiB, all memories together. 256: a batch is copied in whole, a Python guest was
    /// measured with 13 to 20 for itself, and a JavaScript guest with up to 128, because it collects late.
    pub memory_mib: u64,
    /// Elements of each table. 100,000: interpreters have some ten thousand functions.
    pub table_elements: u64,
    /// Core instances inside the component. 500: a Python component links some thirty modules.
    pub instances: u64,
    /// Time for one `deliver`, `relation-changed`, `flush` or `close`, in milliseconds.
    pub call_deadline_ms: u64,
    /// Time to instantiate, and again for `describe` and for `open`, in milliseconds.
    pub open_deadline_ms: u64,
    /// Bytes one host call may hand over. More ends the instance, because the host would have to allocate it first.
    pub host_call_bytes: u64,
    /// Lines `log` writes in one call; the rest is counted and dropped. Standard output and error are capped alike.
    pub log_lines_per_call: u64,
    /// Bytes of text `log` takes in one call.
    pub log_bytes_per_call: u64,
    /// Names of metrics over the life of the plugin: each is a time series somewhere.
    pub metric_names: u64,
    /// Keys of the state.
    pub state_keys: u64,
    /// Bytes of one key.
    pub state_key_bytes: u64,
    /// Bytes of one value.
    pub state_value_bytes: u64,
    /// Bytes of all keys and values.
    pub state_total_bytes: u64,
    /// Bytes staged in all outputs and not yet handed over.
    pub output_bytes_per_call: u64,
    /// Bytes of rows staged and not yet handed over.
    pub rows_bytes_per_call: u64,
    /// HTTP requests under way at one time, those whose answer is being read among them. 4: one is usual, and each may hold
    /// its whole body in the host.
    pub http_in_flight: u64,
    /// Bytes of the body of one HTTP request. It is collected before it is sent.
    pub http_request_bytes: u64,
    /// Bytes of the body of one HTTP answer. It is never collected, so this ends those without an end.
    pub http_response_bytes: u64,
    /// Time for one HTTP request from the call to the last byte of the answer, in milliseconds.
    pub http_timeout_ms: u64,
    /// Batches that one instance takes before a fresh one is opened in its place; 0 for any number. A million: what leaks
    /// a little with every call is gone in time, and opening costs nothing beside so many.
    pub recycle_calls: u64,
    /// Linear memory of an instance, in MiB, above which a fresh one is opened in its place; 0 for never. 192: three
    /// quarters of what it may have. One that is above it after its first batch is left alone.
    pub recycle_memory_mib: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: 256,
            table_elements: 100_000,
            instances: 500,
            call_deadline_ms: 30_000,
            open_deadline_ms: 30_000,
            host_call_bytes: 64 << 20,
            log_lines_per_call: 100,
            log_bytes_per_call: 64 << 10,
            metric_names: 100,
            state_keys: 10_000,
            state_key_bytes: 512,
            state_value_bytes: 1 << 20,
            state_total_bytes: 64 << 20,
            output_bytes_per_call: 64 << 20,
            rows_bytes_per_call: 64 << 20,
            http_in_flight: 4,
            http_request_bytes: 64 << 20,
            http_response_bytes: 16 << 20,
            http_timeout_ms: 10_000,
            recycle_calls: 1_000_000,
            recycle_memory_mib: 192,
        }
    }
}

/// A limit outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("limits.{key} must lie between {min} and {max}")]
pub(crate) struct LimitRange {
    /// The key.
    pub(crate) key: &'static str,
    /// The smallest allowed value.
    pub(crate) min: u64,
    /// The largest allowed value.
    pub(crate) max: u64,
}

impl Limits {
    /// Names the first key outside its range.
    pub(crate) fn validate(&self) -> Result<(), LimitRange> {
        let outside = self.ranges().into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value));
        outside.map_or(Ok(()), |(key, _, min, max)| Err(LimitRange { key, min, max }))
    }

    /// Every key with its value, the smallest and the largest that are allowed.
    fn ranges(&self) -> [(&'static str, u64, u64, u64); 21] {
        const HOUR_MS: u64 = 3_600_000;
        const GIB: u64 = 1 << 30;
        [
            ("memory_mib", self.memory_mib, 1, 4096),
            ("table_elements", self.table_elements, 1, 10_000_000),
            ("instances", self.instances, 1, 10_000),
            ("call_deadline_ms", self.call_deadline_ms, 10, HOUR_MS),
            ("open_deadline_ms", self.open_deadline_ms, 10, HOUR_MS),
            ("host_call_bytes", self.host_call_bytes, 4096, GIB),
            ("log_lines_per_call", self.log_lines_per_call, 0, 100_000),
            ("log_bytes_per_call", self.log_bytes_per_call, 0, 16 << 20),
            ("metric_names", self.metric_names, 0, 10_000),
            ("state_keys", self.state_keys, 0, 10_000_000),
            ("state_key_bytes", self.state_key_bytes, 1, 8192),
            ("state_value_bytes", self.state_value_bytes, 0, GIB),
            ("state_total_bytes", self.state_total_bytes, 0, GIB),
            ("output_bytes_per_call", self.output_bytes_per_call, 0, GIB),
            ("rows_bytes_per_call", self.rows_bytes_per_call, 0, GIB),
            ("http_in_flight", self.http_in_flight, 1, 1_000),
            ("http_request_bytes", self.http_request_bytes, 0, GIB),
            ("http_response_bytes", self.http_response_bytes, 0, GIB),
            ("http_timeout_ms", self.http_timeout_ms, 10, HOUR_MS),
            ("recycle_calls", self.recycle_calls, 0, u64::MAX),
            ("recycle_memory_mib", self.recycle_memory_mib, 0, 4096),
        ]
    }

    pub(crate) fn call_deadline(&self) -> Duration {
        Duration::from_millis(self.call_deadline_ms)
    }

    pub(crate) fn open_deadline(&self) -> Duration {
        Duration::from_millis(self.open_deadline_ms)
    }
}

/// A limit as a size in memory.
pub(crate) fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Answers wasmtime before memory or a table grows, and remembers what it refused.
///
/// A refusal is the ordinary failure of `memory.grow`, so a guest with a plan for it can go on. Most abort; then the
/// trap says only "unreachable", and the memory of the refusal is what names the true cause.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_limit: usize,
    memory_used: usize,
    last_growth: usize,
    table_elements: usize,
    instances: usize,
    refused_memory: bool,
    refused_table: bool,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory_limit: size(limits.memory_mib << 20),
            memory_used: 0,
            last_growth: 0,
            table_elements: size(limits.table_elements),
            instances: size(limits.instances),
            refused_memory: false,
            refused_table: false,
        }
    }

    /// Forgets refusals: a guest that survived one must not have a later trap blamed on it.
    pub(crate) fn begin_call(&mut self) {
        self.refused_memory = false;
        self.refused_table = false;
    }

    /// Bytes of all memories.
    pub(crate) fn memory_used(&self) -> usize {
        self.memory_used
    }

    pub(crate) fn refused_memory(&self) -> bool {
        self.refused_memory
    }

    pub(crate) fn refused_table(&self) -> bool {
        self.refused_table
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let used = self.memory_used.saturating_add(growth);
        if used > self.memory_limit {
            self.refused_memory = true;
            self.last_growth = 0;
            return Ok(false);
        }
        self.memory_used = used;
        self.last_growth = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        // Only a growth that was allowed has been counted.
        self.memory_used -= std::mem::take(&mut self.last_growth);
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let allowed = desired <= self.table_elements;
        self.refused_table |= !allowed;
        Ok(allowed)
    }

    fn instances(&self) -> usize {
        self.instances
    }

    fn tables(&self) -> usize {
        MAX_MEMORIES_AND_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES_AND_TABLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range() {
        assert_eq!(Limits::default().validate(), Ok(()));
    }

    #[test]
    fn every_key_stands_in_the_manual_with_its_default() {
        let manual = include_str!("../../../plugins/README.md");
        let section = manual.split_once("[limits]").unwrap().1.split_once("\n\n").unwrap().0;
        for (key, default, ..) in Limits::default().ranges() {
            let line = section.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            let value = line.and_then(|line| line.split_whitespace().next());
            assert_eq!(value, Some(default.to_string().as_str()), "{key}");
            let parsed: Limits = toml::from_str(&format!("{key} = {default}")).unwrap();
            assert_eq!(parsed, Limits::default(), "{key}");
        }
    }

    #[test]
    fn a_value_outside_names_the_key_and_the_range() {
        let limits = Limits { call_deadline_ms: 9, ..Limits::default() };
        let error = limits.validate().unwrap_err().to_string();
        assert_eq!(error, "limits.call_deadline_ms must lie between 10 and 3600000");
    }

    #[test]
    fn memories_add_up() {
        let mut limiter = Limiter::new(&Limits { memory_mib: 2, ..Limits::default() });
        assert!(limiter.memory_growing(0, 1 << 20, None).unwrap());
        assert!(limiter.memory_growing(0, 1 << 20, None).unwrap());
        assert!(!limiter.refused_memory());
        assert!(!limiter.memory_growing(1 << 20, (1 << 20) + 65536, None).unwrap());
        assert!(limiter.refused_memory());
        limiter.begin_call();
        assert!(!limiter.refused_memory());
    }
}
