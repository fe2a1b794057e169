//! Logs and metrics: closed sets, so that what was never meant to leave the host cannot.
//!
//! Holds: the set-up of both. A log line carries only keys of [`allow`], each with a value of its key's shape; the registry
//! takes only metrics of [`catalog`]. Anything else is not printed, but counted in `walgate_telemetry_violations_total`.
//! Refuses to know what happens in the pipeline.
//! Read next: `allow.rs`, `catalog.rs`, and `events.rs` for what a stage calls.

mod allow;
mod catalog;
pub(crate) mod events;
mod format;
mod recorder;

#[cfg(test)]
mod call_sites;
#[cfg(test)]
mod captured;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::config::{Level, Log, LogFormat};
use format::ClosedFormat;
use recorder::Guard;

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
    let lines = tracing_subscriber::fmt::layer()
        .event_format(ClosedFormat::new(log.format == LogFormat::Json))
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let subscriber = tracing_subscriber::registry().with(EnvFilter::new(format!("off,{filter}"))).with(lines);
    // A second start in one process (tests) keeps the first subscriber. Records of the `log` crate, which only libraries
    // write, are not taken in at all.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Installs the registry and describes what is in it.
pub(crate) fn metrics() -> Result<PrometheusHandle, String> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(Guard::new(recorder))
        .map_err(|error| format!("the metrics registry cannot be installed: {error}"))?;
    catalog::describe();
    metrics::gauge!("walgate_halted").set(0.0);
    // Shown from the start: that it is zero is what an alert looks at.
    metrics::counter!(catalog::VIOLATIONS).absolute(0);
    Ok(handle)
}
