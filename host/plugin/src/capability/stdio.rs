//! Standard output and error of a guest: counted and dropped, or logged up to a cap when its text was allowed.
//!
//! Writing there never fails and never waits, so a guest that prints too much is slowed by nothing but its own work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::manifest::{Diagnostics, Policy};

/// Bytes a guest may write at once; wasmtime allocates up to this for `write-zeroes`.
const PERMIT: usize = 64 << 10;

/// What both streams of an instance wrote during the current call.
pub(crate) struct Meter {
    plugin: String,
    guest_text: bool,
    limit: u64,
    written: AtomicU64,
}

impl Meter {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            plugin: policy.plugin.clone(),
            guest_text: policy.diagnostics == Diagnostics::GuestText,
            limit: policy.limits.log_bytes_per_call,
            written: AtomicU64::new(0),
        }
    }

    pub(crate) fn begin_call(&self) {
        self.written.store(0, Ordering::Relaxed);
    }

    /// Bytes over the limit. Without guest text everything is dropped by design, and only the excess is worth a line.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.written.load(Ordering::Relaxed).saturating_sub(self.limit)
    }

    fn take(&self, stream: &'static str, bytes: &[u8]) {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let before = self.written.fetch_add(length, Ordering::Relaxed);
        if self.guest_text && before.saturating_add(length) <= self.limit {
            let text = String::from_utf8_lossy(bytes);
            tracing::info!(target: "walgate::guest", plugin = %self.plugin, stream, "{}", text.trim_end());
        }
    }
}

/// One of the two streams.
#[derive(Clone)]
pub(crate) struct Sink {
    meter: Arc<Meter>,
    stream: &'static str,
}

impl Sink {
    pub(crate) fn new(meter: &Arc<Meter>, stream: &'static str) -> Self {
        Self { meter: Arc::clone(meter), stream }
    }
}

impl IsTerminal for Sink {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Sink {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Pollable for Sink {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for Sink {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.meter.take(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::test_guest::logged;

    fn print(diagnostics: Diagnostics, texts: &[&str]) -> (String, u64) {
        let limits = Limits { log_bytes_per_call: 10, ..Limits::default() };
        let meter = Arc::new(Meter::new(&Policy { diagnostics, limits, ..Policy::default() }));
        let mut sink = Sink::new(&meter, "stderr");
        let text = logged(|| {
            for text in texts {
                sink.write(Bytes::copy_from_slice(text.as_bytes())).unwrap();
            }
        });
        (text, meter.dropped_bytes())
    }

    #[test]
    fn text_is_dropped_unless_allowed_and_then_capped() {
        assert_eq!(print(Diagnostics::None, &["alice"]), (String::new(), 0));
        assert_eq!(print(Diagnostics::None, &["alice", "1234567"]), (String::new(), 2));
        let (text, dropped) = print(Diagnostics::GuestText, &["short", "far too long"]);
        assert!(text.contains("short") && !text.contains("far"), "{text}");
        assert_eq!(dropped, 7);
    }
}
