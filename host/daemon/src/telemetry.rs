//! Logs and the metrics registry.
//!
//! Holds: their set-up. Metrics are named where they are counted, all with the prefix `walgate_` and with no label but
//! the plugin; a Prometheus page is rendered from the registry. Refuses to know values of rows: no call site has one.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::{Level, Log, LogFormat};

/// Starts logging to standard error. Only our own targets log: libraries may print what passes through them.
pub(crate) fn logs(log: &Log) {
    let level = match log.level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    let ours = ["walgate", "walgate_core", "walgate_wire", "walgate_store", "walgate_plugin"];
    let filter = ours.map(|target| format!("{target}={level}")).join(",");
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!("off,{filter}")))
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // A second start in one process (tests) keeps the first subscriber.
    let _ = match log.format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
}

/// Installs the registry and describes what is in it.
pub(crate) fn metrics() -> Result<PrometheusHandle, String> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)
        .map_err(|error| format!("the metrics registry cannot be installed: {error}"))?;
    metrics::describe_counter!("walgate_wire_bytes_total", "Bytes received from the source.");
    metrics::describe_counter!("walgate_wire_connections_total", "Connections made to the source.");
    metrics::describe_counter!("walgate_transactions_total", "Committed transactions read.");
    metrics::describe_counter!("walgate_rows_delivered_total", "Rows that a plugin has taken, by plugin.");
    metrics::describe_counter!("walgate_batches_delivered_total", "Batches that a plugin has taken, by plugin.");
    metrics::describe_counter!("walgate_delivery_retries_total", "Deliveries that were repeated, by plugin.");
    metrics::describe_counter!(
        "walgate_instances_ended_total",
        "Instances ended by trap, deadline or broken answer, by plugin."
    );
    metrics::describe_counter!("walgate_checkpoints_total", "Checkpoints committed.");
    metrics::describe_counter!(
        "walgate_state_retries_total",
        "Attempts to write to the state database that failed and were repeated."
    );
    metrics::describe_gauge!("walgate_lag_bytes", "Bytes of log between what was read and what was acknowledged.");
    metrics::describe_gauge!("walgate_halted", "1 when the pipeline has halted and needs an operator.");
    metrics::describe_gauge!("walgate_parked", "1 when the plugin is parked and needs an operator, by plugin.");
    metrics::gauge!("walgate_halted").set(0.0);
    Ok(handle)
}
