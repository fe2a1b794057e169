//! What telemetry prints and counts while a test works, apart from every other test of the process.
//!
//! Holds: a subscriber and a registry of the test's own, made as the real ones are. Refuses to know what is tested.

use std::io;
use std::sync::{Arc, Mutex};

use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::layer::SubscriberExt as _;

use super::format::ClosedFormat;
use super::recorder::Guard;

/// Log lines and the metrics page.
pub(super) struct Captured {
    pub(super) log: String,
    pub(super) page: String,
}

impl Captured {
    /// What `walgate_telemetry_violations_total` says.
    pub(super) fn violations(&self) -> u64 {
        let line = self.page.lines().find_map(|line| line.strip_prefix(super::catalog::VIOLATIONS));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// Each log line as JSON.
    pub(super) fn json(&self) -> Vec<serde_json::Value> {
        self.log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }
}

/// Runs `work` with logs as JSON or text.
pub(super) fn captured(json: bool, work: impl FnOnce()) -> Captured {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let lines = tracing_subscriber::fmt::layer()
        .event_format(ClosedFormat::new(json))
        .with_writer(move || writer.clone())
        .with_ansi(false);
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let subscriber = tracing_subscriber::registry().with(lines);
    metrics::with_local_recorder(&Guard::new(recorder), || tracing::subscriber::with_default(subscriber, work));
    let log = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    Captured { log, page: handle.render() }
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
