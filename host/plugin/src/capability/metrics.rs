//! `walgate:host/metrics`: counters and observations, kept per plugin and read by whoever exposes them.
//!
//! The table outlives instances: a trap must not reset a counter.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bindings::v0_1::walgate::host::metrics::Host;
use crate::capability::{HostState, within};
use crate::description::Capabilities;

/// What was observed under one name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// How many observations.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// The metrics of one plugin at one moment, by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MetricsSnapshot {
    /// Counters.
    pub counters: BTreeMap<String, u64>,
    /// Observations.
    pub observations: BTreeMap<String, Summary>,
    /// Calls dropped for a bad name, a second kind under one name, too many names, or a value that is not finite.
    pub dropped: u64,
}

/// The metrics of one plugin.
#[derive(Debug)]
pub(crate) struct Metrics {
    max_names: u64,
    table: Mutex<MetricsSnapshot>,
}

impl Metrics {
    pub(crate) fn new(max_names: u64) -> Self {
        Self { max_names, table: Mutex::default() }
    }

    pub(crate) fn snapshot(&self) -> MetricsSnapshot {
        self.table().clone()
    }

    fn count(&self, name: String, delta: u64) {
        let mut table = self.table();
        let known = table.counters.contains_key(&name);
        if table.observations.contains_key(&name) || !(known || self.admits(&table, &name)) {
            table.dropped = table.dropped.saturating_add(1);
            return;
        }
        let counter = table.counters.entry(name).or_default();
        *counter = counter.saturating_add(delta);
    }

    fn observe(&self, name: String, value: f64) {
        let mut table = self.table();
        let known = table.observations.contains_key(&name);
        let fits = value.is_finite() && !table.counters.contains_key(&name) && (known || self.admits(&table, &name));
        if !fits {
            table.dropped = table.dropped.saturating_add(1);
            return;
        }
        let seen = table.observations.entry(name).or_insert(Summary { count: 0, sum: 0.0, min: value, max: value });
        seen.count = seen.count.saturating_add(1);
        seen.sum += value;
        seen.min = seen.min.min(value);
        seen.max = seen.max.max(value);
    }

    fn admits(&self, table: &MetricsSnapshot, name: &str) -> bool {
        good_name(name) && within(table.counters.len() + table.observations.len() + 1, self.max_names)
    }

    /// A panic while the lock was held leaves numbers, and numbers are always whole.
    fn table(&self) -> MutexGuard<'_, MetricsSnapshot> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for HostState {
    fn count(&mut self, name: String, delta: u64) {
        if self.granted.metrics { self.metrics.count(name, delta) } else { deny(self) }
    }

    fn observe(&mut self, name: String, value: f64) {
        if self.granted.metrics { self.metrics.observe(name, value) } else { deny(self) }
    }
}

fn deny(host: &mut HostState) {
    host.deny("metrics", &Capabilities { metrics: true, ..Capabilities::default() });
}

/// `[a-z][a-z0-9_]{0,59}`
fn good_name(name: &str) -> bool {
    name.len() <= 60
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::test_state;
    use crate::manifest::Policy;

    #[test]
    fn counts_and_summarizes() {
        let metrics = Metrics::new(10);
        metrics.count("rows".into(), 2);
        metrics.count("rows".into(), u64::MAX);
        for value in [2.0, -1.0, 4.0] {
            metrics.observe("seconds".into(), value);
        }
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.counters["rows"], u64::MAX);
        assert_eq!(snapshot.observations["seconds"], Summary { count: 3, sum: 5.0, min: -1.0, max: 4.0 });
        assert_eq!(snapshot.dropped, 0);
    }

    #[test]
    fn drops_and_counts_what_breaks_the_rules() {
        let metrics = Metrics::new(2);
        metrics.count("a".into(), 1);
        metrics.observe("b".into(), 1.0);
        metrics.observe("a".into(), 1.0);
        metrics.count("b".into(), 1);
        metrics.observe("b".into(), f64::NAN);
        metrics.observe("b".into(), f64::INFINITY);
        metrics.count("third".into(), 1);
        assert_eq!(metrics.snapshot().dropped, 5);
        let metrics = Metrics::new(100);
        for bad in ["", "A", "1a", "a-b", "a b", &"x".repeat(61)] {
            metrics.count(bad.into(), 1);
        }
        assert_eq!(metrics.snapshot(), MetricsSnapshot { dropped: 6, ..MetricsSnapshot::default() });
    }

    #[test]
    fn without_a_grant_nothing_is_counted() {
        let mut host = test_state(Policy::default(), Capabilities::default());
        Host::count(&mut host, "a".into(), 1);
        assert_eq!(host.metrics.snapshot(), MetricsSnapshot::default());
    }
}
