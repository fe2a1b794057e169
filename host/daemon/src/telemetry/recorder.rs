//! The metrics registry behind a gate: only what the catalog names gets in.
//!
//! Holds: the wrapper around a registry, and the count of what was turned away there and in log lines. Refuses to know what
//! is counted: see `catalog.rs`.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::catalog::{self, Kind, VIOLATIONS};

/// Counts one key, value or metric that is not on its list.
pub(super) fn violated() {
    metrics::counter!(VIOLATIONS).increment(1);
}

/// A registry that drops metrics, labels and label values outside the catalog, and counts them.
pub(super) struct Guard<R> {
    inner: R,
}

impl<R: Recorder> Guard<R> {
    /// In front of that registry.
    pub(super) fn new(inner: R) -> Self {
        Self { inner }
    }

    fn admits(&self, kind: Kind, key: &Key, metadata: &Metadata<'_>) -> bool {
        let admitted = catalog::admits(kind, key);
        if !admitted {
            self.violated(metadata);
        }
        admitted
    }

    fn violated(&self, metadata: &Metadata<'_>) {
        self.inner.register_counter(&Key::from_static_name(VIOLATIONS), metadata).increment(1);
    }
}

impl<R: Recorder> Recorder for Guard<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_counter(key, unit, help);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_gauge(key, unit, help);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_histogram(key, unit, help);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        if self.admits(Kind::Counter, key, metadata) {
            self.inner.register_counter(key, metadata)
        } else {
            Counter::noop()
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if self.admits(Kind::Gauge, key, metadata) { self.inner.register_gauge(key, metadata) } else { Gauge::noop() }
    }

    /// None is in the catalog: nothing here is measured by its distribution.
    fn register_histogram(&self, _: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.violated(metadata);
        Histogram::noop()
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// The page of a registry that was only used by `work`.
    fn page(work: impl FnOnce()) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&Guard::new(recorder), work);
        handle.render()
    }

    #[test]
    fn what_is_in_the_catalog_passes() {
        let page = page(|| {
            metrics::counter!("walgate_transactions_total").increment(2);
            metrics::counter!("walgate_checkpoints_total", "kind" => "idle").increment(1);
            metrics::gauge!("walgate_halted", "class" => "data_gap(cursor)").set(1.0);
            metrics::counter!("walgate_plugin_rows", "plugin" => "mirror").increment(3);
            metrics::gauge!("walgate_plugin_seconds_max", "plugin" => "mirror").set(3.0);
        });
        for line in [
            "walgate_transactions_total 2",
            "walgate_checkpoints_total{kind=\"idle\"} 1",
            "walgate_halted{class=\"data_gap(cursor)\"} 1",
            "walgate_plugin_rows{plugin=\"mirror\"} 3",
            "walgate_plugin_seconds_max{plugin=\"mirror\"} 3",
        ] {
            assert!(page.contains(line), "no {line} in {page}");
        }
        assert!(!page.contains(VIOLATIONS), "{page}");
    }

    #[test]
    fn what_is_not_is_dropped_and_counted() {
        let page = page(|| {
            metrics::counter!("walgate_secret_total").increment(1);
            // Known, but of another kind.
            metrics::gauge!("walgate_transactions_total").set(1.0);
            metrics::histogram!("walgate_transactions_total").record(1.0);
            // Labels that are foreign, of another metric, twice, or with a value outside their set.
            metrics::counter!("walgate_transactions_total", "table" => "customers").increment(1);
            metrics::counter!("walgate_transactions_total", "plugin" => "mirror").increment(1);
            metrics::counter!("walgate_checkpoints_total", "kind" => "alice@example.com").increment(1);
            metrics::counter!("walgate_batches_delivered_total", "plugin" => "alice@example.com").increment(1);
            metrics::gauge!("walgate_halted", "class" => "secret").set(1.0);
            metrics::counter!("walgate_checkpoints_total", "kind" => "idle", "kind" => "data").increment(1);
            // The open family is open in its names only.
            metrics::counter!("walgate_plugin_rows").increment(1);
            metrics::counter!("walgate_plugin_rows", "kind" => "mirror").increment(1);
            metrics::counter!("walgate_plugin_Rows", "plugin" => "mirror").increment(1);
            metrics::counter!("walgate_plugin_", "plugin" => "mirror").increment(1);
        });
        assert!(page.contains(&format!("{VIOLATIONS} 13")), "{page}");
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert_eq!(lines.len(), 1, "{page}");
    }
}
