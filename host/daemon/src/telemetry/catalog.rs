//! Every metric of the host: its name, kind, unit, help, and the labels it may carry.
//!
//! Holds: the closed list, and the check of a series against it. A call may leave a label out, never add one. The one open
//! family is `walgate_plugin_…`: what plugins count themselves, under names that the worker has checked and capped.
//! Refuses to know who counts. Names follow Prometheus: a counter ends in `_total`, bytes are bytes.
//! Read next: `events.rs`.

use metrics::{Key, Unit};

use super::allow::is_plugin;
use crate::halt::HaltClass;

/// Log keys, log values and metrics that were not on their list.
pub(super) const VIOLATIONS: &str = "walgate_telemetry_violations_total";
/// What the names of plugins' own metrics begin with.
const OF_PLUGINS: &str = "walgate_plugin_";
/// The longest name that the worker takes, with the longest suffix.
const MAX_PLUGIN_METRIC: usize = 66;

/// What a metric does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A label and its values.
#[derive(Debug, Clone, Copy)]
pub(super) enum Label {
    /// The name of a plugin: one of those in the plugin directory.
    Plugin,
    /// The class of a halt.
    Class,
    /// Which of these.
    Kind(&'static [&'static str]),
}

impl Label {
    fn admits(self, key: &str, value: &str) -> bool {
        match self {
            Self::Plugin => key == "plugin" && is_plugin(value),
            Self::Class => key == "class" && HaltClass::of_name(value).is_some(),
            Self::Kind(kinds) => key == "kind" && kinds.contains(&value),
        }
    }
}

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    labels: &'static [Label],
}

const fn counter(name: &'static str, unit: Unit, labels: &'static [Label], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit, help, labels }
}

const fn gauge(name: &'static str, unit: Unit, labels: &'static [Label], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, help, labels }
}

const NONE: &[Label] = &[];
const PLUGIN: &[Label] = &[Label::Plugin];
const CHECKPOINTS: &[Label] = &[Label::Kind(&["data", "idle"])];
/// The names that `walgate-wire` gives to faults that pass, and `hang_up` for an end of our own.
const DISCONNECTS: &[Label] = &[Label::Kind(&[
    "conflict",
    "connect_timeout",
    "connection_lost",
    "hang_up",
    "peer_silent",
    "server_resources",
    "server_unavailable",
    "slot_active",
    "stream_ended",
    "too_many_connections",
])];
const LAGS: &[Label] = &[Label::Kind(&["confirmed", "read", "restart"])];
/// The names that `walgate-plugin` gives to what wears an instance out.
const RECYCLED: &[Label] = &[Label::Plugin, Label::Kind(&["calls", "memory"])];
const LETTERS: &[Label] = &[Label::Plugin, Label::Kind(&crate::status::LETTERS)];
const STATES: &[Label] = &[Label::Kind(&crate::status::STATES)];
const LOSSES: &[Label] = &[Label::Plugin, Label::Kind(&["dropped", "expired"])];

/// All of them, in the order of their names.
pub(super) const CATALOG: &[Metric] = {
    use Unit::{Bytes, Count};
    &[
        counter(
            "walgate_batches_bisected_total",
            Count,
            PLUGIN,
            "Batches that were halved to find what a plugin cannot take.",
        ),
        counter("walgate_batches_delivered_total", Count, PLUGIN, "Batches that a plugin has taken, by plugin."),
        counter(
            "walgate_candidates_rejected_total",
            Count,
            PLUGIN,
            "New versions of a plugin that were not started, by plugin.",
        ),
        counter(
            "walgate_checkpoints_total",
            Count,
            CHECKPOINTS,
            "Checkpoints committed, with data or to follow an idle stream.",
        ),
        gauge("walgate_dead_letters", Count, PLUGIN, "Dead letters that wait for an operator."),
        counter(
            "walgate_dead_letters_lost_total",
            Count,
            LOSSES,
            "Dead letters that were dropped or expired: their changes are lost to the plugin.",
        ),
        counter(
            "walgate_dead_letters_total",
            Count,
            LETTERS,
            "Dead letters written, by what became of their changes: the class in the list of letters.",
        ),
        counter("walgate_delivery_retries_total", Count, PLUGIN, "Deliveries that were repeated, by plugin."),
        gauge("walgate_epoch", Count, NONE, "The fencing epoch of this process; an earlier one can no longer write."),
        gauge("walgate_generation", Count, PLUGIN, "The number of the generation that took over last, by plugin."),
        gauge(
            "walgate_halted",
            Count,
            &[Label::Class],
            "1 when the pipeline has halted and needs an operator; also by class.",
        ),
        counter("walgate_heartbeat_failures_total", Count, NONE, "Heartbeats that could not be written to the source."),
        counter("walgate_heartbeats_total", Count, NONE, "Heartbeats written to the source."),
        gauge("walgate_inflight_bytes", Bytes, PLUGIN, "Bytes that were read and wait for the plugin."),
        counter(
            "walgate_instances_ended_total",
            Count,
            PLUGIN,
            "Instances ended by trap, deadline or broken answer, by plugin.",
        ),
        counter(
            "walgate_instances_recycled_total",
            Count,
            RECYCLED,
            "Instances that gave way to a fresh one after many calls or above a mark of memory, by plugin.",
        ),
        gauge(
            "walgate_lag_bytes",
            Bytes,
            LAGS,
            "Bytes of log between what was read and what was acknowledged; by kind, between the end of the source's log and that position.",
        ),
        gauge("walgate_leader", Count, NONE, "1 while this process leads its pipeline, 0 while it stands by."),
        counter("walgate_messages_total", Count, NONE, "Logical messages read."),
        counter(
            "walgate_metrics_dropped_total",
            Count,
            PLUGIN,
            "Calls of a plugin's own metrics that broke the rules, by plugin.",
        ),
        gauge("walgate_parked", Count, PLUGIN, "1 when the plugin is parked and needs an operator, by plugin."),
        gauge(
            "walgate_parked_wal_bytes",
            Bytes,
            PLUGIN,
            "Bytes of the source's log that a parked plugin keeps from being freed.",
        ),
        gauge("walgate_plugins", Count, STATES, "Plugins by the state they are in."),
        gauge("walgate_reading_paused", Count, NONE, "1 while reading waits for a plugin to catch up."),
        counter("walgate_redriven_total", Count, PLUGIN, "Dead letters that the plugin has taken after all."),
        counter(
            "walgate_rollbacks_total",
            Count,
            PLUGIN,
            "New versions that failed and gave way to the one before, by plugin.",
        ),
        counter("walgate_rows_applied_total", Count, PLUGIN, "Rows that the host wrote to a target for the plugin."),
        counter("walgate_rows_delivered_total", Count, PLUGIN, "Rows that a plugin has taken, by plugin."),
        counter(
            "walgate_rows_missed_total",
            Count,
            PLUGIN,
            "Updates that found no row in the target and could not make one.",
        ),
        counter("walgate_schema_changes_total", Count, PLUGIN, "New shapes of tables that the plugin was told of."),
        gauge("walgate_slot_active", Count, NONE, "1 while the slot is being read by this process."),
        counter("walgate_state_failures_total", Count, NONE, "Writes to the state database that were given up."),
        counter(
            "walgate_state_retries_total",
            Count,
            NONE,
            "Attempts to write to the state database that failed and were repeated.",
        ),
        counter("walgate_swaps_total", Count, PLUGIN, "Generations that took over from another one, by plugin."),
        counter(
            VIOLATIONS,
            Count,
            NONE,
            "Log keys, log values and metrics outside their closed sets. They were withheld; please report this.",
        ),
        counter("walgate_transactions_total", Count, NONE, "Committed transactions read."),
        counter("walgate_wire_bytes_total", Bytes, NONE, "Bytes received from the source."),
        counter("walgate_wire_connections_total", Count, NONE, "Connections made to the source."),
        counter(
            "walgate_wire_disconnects_total",
            Count,
            DISCONNECTS,
            "Streams that ended without being asked to, by what ended them.",
        ),
    ]
};

/// Whether a series may exist.
pub(super) fn admits(kind: Kind, key: &Key) -> bool {
    let labels = || key.labels().map(|label| (label.key(), label.value()));
    let once = labels().enumerate().all(|(at, (key, _))| labels().take(at).all(|(earlier, _)| earlier != key));
    let found = CATALOG.binary_search_by(|metric| metric.name.cmp(key.name())).ok().and_then(|at| CATALOG.get(at));
    match found {
        Some(metric) => {
            let admitted = |(key, value)| metric.labels.iter().any(|label: &Label| label.admits(key, value));
            metric.kind == kind && once && labels().all(admitted)
        }
        None => {
            let of_one_plugin = labels().count() == 1 && labels().all(|(key, value)| Label::Plugin.admits(key, value));
            of_one_plugin && key.name().strip_prefix(OF_PLUGINS).is_some_and(is_plugin_metric)
        }
    }
}

fn is_plugin_metric(name: &str) -> bool {
    name.len() <= MAX_PLUGIN_METRIC
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Tells the registry what each is.
pub(super) fn describe() {
    for metric in CATALOG {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.unit, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.unit, metric.help),
        }
    }
}

/// The names, for the tests of call sites.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CATALOG.iter().map(|metric| metric.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_follow_the_custom() {
        assert!(CATALOG.is_sorted_by(|a, b| a.name < b.name), "binary search needs the order");
        for Metric { name, kind, unit, help, .. } in CATALOG {
            assert!(name.starts_with("walgate_") && !name.starts_with(OF_PLUGINS), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(name.contains("bytes"), *unit == Unit::Bytes, "{name}");
            assert!(help.ends_with('.'), "{name}");
        }
    }
}
