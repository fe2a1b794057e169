//! One line a request, whatever becomes of it: who asked whom, how, how much, how long, and how it ended.
//!
//! Holds: what the line says, and that it is written exactly once, at the latest when the request is dropped. Refuses to know
//! paths, queries, headers and bodies.

use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;

use super::fault::Fault;

/// A request under way. It counts as in flight until this is dropped, which is when the line is written.
pub(super) struct Call {
    plugin: String,
    method: String,
    host: String,
    began: Instant,
    sent: u64,
    received: u64,
    status: &'static str,
    outcome: &'static str,
    _in_flight: OwnedSemaphorePermit,
}

impl Call {
    /// `host` is that of the grant, so it is the operator's own text; `method` is one of those that can be granted.
    pub(super) fn begin(plugin: &str, method: &http::Method, host: String, in_flight: OwnedSemaphorePermit) -> Self {
        Self {
            plugin: plugin.to_owned(),
            method: method.as_str().to_ascii_lowercase(),
            host,
            began: Instant::now(),
            sent: 0,
            received: 0,
            status: "none",
            // Until something else is known: who dropped the call knows why.
            outcome: "cancelled",
            _in_flight: in_flight,
        }
    }

    /// Bytes of the body that are sent.
    pub(super) fn sends(&mut self, bytes: usize) {
        self.sent = u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// The head of the answer is there.
    pub(super) fn answered(&mut self, status: http::StatusCode) {
        self.status = match status.as_u16() / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        };
        self.outcome = "unread";
    }

    /// Some of its body, too. Answers all that came so far.
    pub(super) fn receives(&mut self, bytes: usize) -> u64 {
        self.received = self.received.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        self.received
    }

    /// All of it.
    pub(super) fn is_whole(&mut self) {
        self.outcome = "whole";
    }

    /// It came to nothing.
    pub(super) fn fails(&mut self, fault: Fault) -> Fault {
        self.outcome = fault.word();
        fault
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (plugin, method, host) = (&self.plugin, &self.method, &self.host);
        let (status, outcome) = (self.status, self.outcome);
        let (sent_bytes, received_bytes) = (self.sent, self.received);
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(%plugin, %method, %host, status, outcome, sent_bytes, received_bytes, took_ms, "http request");
    }
}
