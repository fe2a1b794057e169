//! What the process is doing, as people and machines may see it.
//!
//! Holds: names, positions, counts, codes and causes; never a value. Stages write their own fields, the API and
//! `walgate status` read a copy. Refuses to know how it is shown.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use walgate_core::Lsn;

use crate::exit::Halt;

/// What the pipeline as a whole is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Connecting, loading plugins.
    #[default]
    Starting,
    /// Reading the stream.
    Streaming,
    /// The connection to the source is lost; it is tried again.
    Reconnecting,
    /// Stopping as asked: finishing what is in flight.
    Draining,
    /// Stopped as asked.
    Stopped,
    /// Stopped for good; it needs an operator.
    Halted,
}

/// The source as seen from here.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct SourceStatus {
    pub(crate) database: String,
    pub(crate) slot: String,
    pub(crate) publications: Vec<String>,
    pub(crate) server_major: u32,
    pub(crate) system_id: String,
    pub(crate) timeline: u32,
    /// Attempts since the last connection that worked.
    pub(crate) attempts: u32,
    /// Why the last attempt failed.
    pub(crate) last_error: Option<String>,
    /// Connections that were made.
    pub(crate) connections: u64,
}

/// Positions, as text for people and as numbers for machines.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Positions {
    /// End of the last transaction read.
    pub(crate) read: String,
    /// What the server was last told, or may be told.
    pub(crate) acknowledged: String,
    /// Bytes between the two.
    pub(crate) lag_bytes: u64,
    #[serde(skip)]
    read_lsn: Lsn,
    #[serde(skip)]
    acknowledged_lsn: Lsn,
}

/// One plugin.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PluginStatus {
    /// `awaiting-grant`, `rejected`, `opening`, `running`, `retrying`, `parked`, `stopped`.
    pub(crate) state: String,
    /// Why it is in that state, when there is a why.
    pub(crate) cause: Option<String>,
    /// Seconds from 1970 when it got into that state.
    pub(crate) since: u64,
    pub(crate) required: bool,
    pub(crate) version: String,
    pub(crate) generation: u64,
    /// Everything up to here is durable.
    pub(crate) cursor: String,
    pub(crate) batches: u64,
    pub(crate) rows: u64,
    /// Calls that were repeated.
    pub(crate) retries: u64,
    /// Instances that ended by a trap, a deadline or a broken answer.
    pub(crate) ended_instances: u64,
    /// Attempts of the batch at hand.
    pub(crate) attempt: u32,
    /// Milliseconds until the next attempt, when one is waited for.
    pub(crate) next_attempt_ms: Option<u64>,
}

/// All of it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Status {
    pub(crate) version: &'static str,
    pub(crate) phase: Phase,
    pub(crate) source: SourceStatus,
    pub(crate) positions: Positions,
    pub(crate) plugins: BTreeMap<String, PluginStatus>,
    /// State database faults that are being retried.
    pub(crate) state_error: Option<String>,
    pub(crate) halt: Option<Halt>,
}

/// The shared place. Locks are short: a field is written or all is copied, nothing waits inside.
#[derive(Clone, Default)]
pub(crate) struct Board(Arc<Mutex<Status>>);

impl Board {
    pub(crate) fn new() -> Self {
        let board = Self::default();
        board.write(|status| status.version = env!("CARGO_PKG_VERSION"));
        board
    }

    /// Changes some of it. A panic elsewhere while writing leaves readable numbers behind, so poison is ignored.
    pub(crate) fn write(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn read(&self) -> Status {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn plugin(&self, name: &str, change: impl FnOnce(&mut PluginStatus)) {
        self.write(|status| {
            if let Some(plugin) = status.plugins.get_mut(name) {
                change(plugin);
            }
        });
    }

    /// Moves a plugin into a state; keeps `since` when it was there already.
    pub(crate) fn plugin_state(&self, name: &str, state: &str, cause: Option<String>) {
        self.write(|status| {
            let plugin = status.plugins.entry(name.to_owned()).or_default();
            if plugin.state != state {
                state.clone_into(&mut plugin.state);
                plugin.since = now();
            }
            plugin.cause = cause;
        });
    }

    /// A retry worked: the plugin runs again, unless it was parked or stopped meanwhile.
    pub(crate) fn recovered(&self, name: &str) {
        self.plugin(name, |plugin| {
            if plugin.state == "retrying" {
                "running".clone_into(&mut plugin.state);
                plugin.since = now();
                (plugin.cause, plugin.next_attempt_ms, plugin.attempt) = (None, None, 0);
            }
        });
    }

    pub(crate) fn read_to(&self, lsn: Lsn) {
        self.write(|status| {
            if status.positions.read_lsn.advance(lsn) {
                status.positions.read = lsn.to_string();
                status.positions.relag();
            }
        });
    }

    pub(crate) fn acknowledged(&self, lsn: Lsn) {
        self.write(|status| {
            status.positions.read_lsn.advance(lsn);
            if status.positions.acknowledged_lsn.advance(lsn) || status.positions.acknowledged.is_empty() {
                status.positions.acknowledged = lsn.to_string();
                status.positions.read = status.positions.read_lsn.to_string();
            }
            status.positions.relag();
        });
    }
}

impl Positions {
    fn relag(&mut self) {
        self.lag_bytes = self.read_lsn.bytes_since(self.acknowledged_lsn);
        metrics::gauge!("walgate_lag_bytes").set(self.lag_bytes as f64);
    }
}

impl Status {
    /// Ready: the stream is read and every required plugin runs.
    pub(crate) fn ready(&self) -> bool {
        self.phase == Phase::Streaming
            && self.plugins.values().filter(|plugin| plugin.required).all(|plugin| plugin.state == "running")
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The page for a terminal, from the JSON that a running process answers.
pub(crate) fn page(status: &serde_json::Value) -> String {
    let text = |path: &str| match status.pointer(path) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let mut out = format!("walgate {}: {}\n", text("/version"), text("/phase"));
    if status.get("halt").is_some_and(|halt| !halt.is_null()) {
        out.push_str(&format!("halted    {}: {}\n", text("/halt/name"), text("/halt/detail")));
    }
    out.push_str(&format!(
        "source    database {}, slot {}, Postgres {}, timeline {}\n",
        text("/source/database"),
        text("/source/slot"),
        text("/source/server_major"),
        text("/source/timeline")
    ));
    if text("/source/last_error") != "-" {
        out.push_str(&format!("          {} attempts: {}\n", text("/source/attempts"), text("/source/last_error")));
    }
    if text("/state_error") != "-" {
        out.push_str(&format!("state     {}\n", text("/state_error")));
    }
    out.push_str(&format!(
        "position  read {}, acknowledged {}, {} bytes apart\n",
        text("/positions/read"),
        text("/positions/acknowledged"),
        text("/positions/lag_bytes")
    ));
    for (name, _) in status.get("plugins").and_then(serde_json::Value::as_object).into_iter().flatten() {
        let of = |field: &str| text(&format!("/plugins/{}/{field}", name.replace('~', "~0").replace('/', "~1")));
        let optional = if of("required") == "false" { " (optional)" } else { "" };
        out.push_str(&format!(
            "plugin    {name}{optional}: {}, {} rows in {} batches, durable to {}\n",
            of("state"),
            of("rows"),
            of("batches"),
            of("cursor")
        ));
        if of("cause") != "-" {
            out.push_str(&format!("          {}\n", of("cause")));
        }
    }
    out
}
