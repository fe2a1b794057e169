//! What the process is doing, as people and machines may see it.
//!
//! Holds: names, positions, counts, codes and causes; never a value. Stages write their own fields, the API and
//! `walgate status` read a copy. Refuses to know how it is shown.

mod page;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use walgate_core::Lsn;

use crate::halt::Halt;

pub(crate) use page::page;

/// What the pipeline as a whole is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Connecting, loading plugins.
    #[default]
    Starting,
    /// Another process holds the slot's lease; this one waits to take over.
    Standby,
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
    /// Bytes of log between what the slot has confirmed and the end of the log; `None` until the source was asked.
    pub(crate) confirmed_lag_bytes: Option<u64>,
    /// Bytes of log that the slot keeps on the source; `None` until it was asked, and when the slot is lost.
    pub(crate) restart_lag_bytes: Option<u64>,
    /// `reserved`, `extended`, `unreserved`, `lost`, or `unknown` for a word of a newer server.
    pub(crate) wal_status: Option<String>,
    /// Bytes that may still be written before the slot is in danger, less than none when it is; `None` without
    /// `max_slot_wal_keep_size`.
    pub(crate) safe_wal_bytes: Option<i64>,
    /// What may keep the slot's restart position back, or would delay the creation of a slot; the worst first.
    pub(crate) blockers: Vec<Blocker>,
    /// Why the source could not be asked the last time; the lags and blockers are then those of the time before.
    pub(crate) monitor_error: Option<String>,
    /// `None` when no heartbeat is configured.
    pub(crate) heartbeat: Option<HeartbeatStatus>,
}

/// The heartbeats of this process.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct HeartbeatStatus {
    pub(crate) written: u64,
    pub(crate) failed: u64,
    /// Why the last one was not written.
    pub(crate) last_error: Option<String>,
}

/// Something on the source that has been open for a while: who and how long, never what it does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Blocker {
    /// `transaction`, `prepared` (its name is withheld: it is the application's own text), or `replication slot NAME`.
    pub(crate) kind: String,
    /// The server process, when there is one.
    pub(crate) pid: Option<i32>,
    pub(crate) application_name: Option<String>,
    /// As in `pg_stat_activity`; `None` when the role may not see it.
    pub(crate) state: Option<String>,
    /// How long its transaction is open; `None` when the role may not see it, and for slots.
    pub(crate) age_seconds: Option<u64>,
    /// It has a transaction id: only then does it hold a restart position back, or the creation of a slot up. What has
    /// only a snapshot holds back the removal of dead rows.
    pub(crate) has_xid: bool,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kind == "prepared" { "prepared transaction" } else { &self.kind })?;
        if let Some(pid) = self.pid {
            write!(f, " of process {pid}")?;
        }
        if let Some(name) = &self.application_name {
            write!(f, ", application {name:?}")?;
        }
        if let Some(state) = &self.state {
            write!(f, ", {state}")?;
        }
        if let Some(age) = self.age_seconds {
            write!(f, ", open for {age} s")?;
        }
        if self.has_xid { Ok(()) } else { f.write_str(", snapshot only") }
    }
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
    /// What could be acknowledged, while that waits for a standby that a failover would promote.
    pub(crate) held_for_standbys: Option<String>,
    /// The plugin that reading waits for: what waits for it in memory is at its bound.
    pub(crate) reading_waits_for: Option<String>,
    #[serde(skip)]
    read_lsn: Lsn,
    #[serde(skip)]
    acknowledged_lsn: Lsn,
}

/// The states of a plugin.
pub(crate) const STATES: [&str; 12] = [
    "awaiting-grant",
    "compiling",
    "draining",
    "opening",
    "parked",
    "probation",
    "quarantined",
    "rejected",
    "retrying",
    "running",
    "stopped",
    "unknown",
];

/// Why changes were put aside: the class of a dead letter, wherever it is told. The last one is of rows that a plugin named
/// itself, and `rows-refused` of what their target did not take.
pub(crate) const LETTERS: [&str; 8] =
    ["deadline", "garbage", "halted", "refused", "rejected", "trapped", "rows-refused", "rejected-rows"];

/// One plugin.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PluginStatus {
    /// One of [`STATES`].
    pub(crate) state: String,
    /// Why it is in that state, when there is a why.
    pub(crate) cause: Option<String>,
    /// Seconds from 1970 when it got into that state.
    pub(crate) since: u64,
    /// It holds the acknowledgement. False for one that has no place in the stream yet.
    pub(crate) required: bool,
    pub(crate) version: String,
    pub(crate) generation: u64,
    /// Everything up to here is durable.
    pub(crate) cursor: String,
    #[serde(skip)]
    pub(crate) cursor_lsn: Lsn,
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
    /// How its deliveries become durable.
    pub(crate) mode: String,
    /// Bytes of log between what was read and its cursor.
    pub(crate) lag_bytes: u64,
    /// Bytes of log that the source keeps because of this plugin.
    pub(crate) pinned_wal_bytes: u64,
    /// Bytes of values that wait for it in memory.
    pub(crate) inflight_bytes: u64,
    /// Dead letters that wait for an operator.
    pub(crate) dead_letters: u64,
    /// The code of its last failure that was tried again.
    pub(crate) last_error_code: Option<String>,
    /// What became of a new version that does not run: `compiling`, or `rejected` and `rolled-back` with the cause.
    pub(crate) candidate: Option<String>,
    /// Microseconds in which nothing was delivered while the last generation took over.
    pub(crate) last_swap_pause_us: Option<u64>,
    /// Seconds from 1970 until which its version has to prove itself.
    pub(crate) probation_until: Option<u64>,
}

/// What this process is to the others that wait for the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// It holds the lease.
    Leader,
    /// It waits for the lease.
    Standby,
}

/// Who reads the slot, among the processes that could.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LeaderStatus {
    pub(crate) role: Role,
    /// Rises with every change of the leader.
    pub(crate) epoch: u64,
    /// Who holds the lease, by the name it gave itself.
    pub(crate) holder: String,
}

/// All of it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Status {
    pub(crate) version: &'static str,
    pub(crate) phase: Phase,
    /// `None` until the lease was looked at.
    pub(crate) leader: Option<LeaderStatus>,
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

/// What is said of a candidate while it is made ready.
pub(crate) const COMPILING: &str = "compiling";

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
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (read, acknowledged) = (status.positions.read_lsn, status.positions.acknowledged_lsn);
        // Reading may be far behind the end of the log, because it waits for this very plugin.
        let written = acknowledged.get().saturating_add(status.source.confirmed_lag_bytes.unwrap_or_default());
        let end = read.max(Lsn::new(written));
        for plugin in status.plugins.values_mut().filter(|plugin| !plugin.cursor_lsn.is_zero()) {
            plugin.lag_bytes = read.bytes_since(plugin.cursor_lsn);
            // One that stands before what was acknowledged has lost its log already, and keeps none.
            let keeps = plugin.required && plugin.cursor_lsn >= acknowledged;
            plugin.pinned_wal_bytes = if keeps { end.bytes_since(plugin.cursor_lsn) } else { 0 };
        }
        status
    }

    /// The same for those who look from outside: a plugin that runs on probation says so. Inside it runs.
    pub(crate) fn shown(&self) -> Status {
        let mut status = self.read();
        let now = now();
        for plugin in status.plugins.values_mut() {
            plugin.probation_until = plugin.probation_until.filter(|until| *until > now);
            if plugin.probation_until.is_some() && plugin.state == "running" {
                "probation".clone_into(&mut plugin.state);
            }
        }
        status
    }

    /// How many plugins are in each of [`STATES`].
    pub(crate) fn states(&self) -> [(&'static str, usize); STATES.len()] {
        let status = self.shown();
        STATES.map(|state| {
            let known = |plugin: &&PluginStatus| STATES.contains(&plugin.state.as_str());
            let is = |plugin: &&PluginStatus| plugin.state == state || state == "unknown" && !known(plugin);
            (state, status.plugins.values().filter(is).count())
        })
    }

    /// A version entered that may go back within this time.
    pub(crate) fn on_probation(&self, name: &str, window: Duration) {
        self.plugin(name, |plugin| plugin.probation_until = Some(now().saturating_add(window.as_secs())));
    }

    /// What became of a new version.
    pub(crate) fn candidate(&self, name: &str, candidate: Option<String>) {
        self.plugin(name, |plugin| plugin.candidate = candidate);
    }

    /// It took over, unless it is known by now that it went back.
    pub(crate) fn entered(&self, name: &str) {
        self.plugin(name, |plugin| plugin.candidate = plugin.candidate.take().filter(|said| said != COMPILING));
    }

    /// What is durable of a plugin.
    pub(crate) fn cursor(&self, name: &str, cursor: Lsn) {
        self.plugin(name, |plugin| {
            plugin.cursor = cursor.to_string();
            plugin.cursor_lsn = cursor;
        });
    }

    /// The required plugins that do not run, each with the log that the source keeps for it.
    pub(crate) fn pinned(&self) -> Vec<(String, u64)> {
        let idle = |state: &str| !matches!(state, "running" | "retrying" | "opening" | "stopped");
        let status = self.read();
        let pinning = status.plugins.into_iter().filter(|(_, plugin)| plugin.required && idle(&plugin.state));
        pinning.map(|(name, plugin)| (name, plugin.pinned_wal_bytes)).collect()
    }

    /// Another process leads, under that epoch and name when it is known; this one waits.
    pub(crate) fn standing_by(&self, leader: Option<(u64, String)>) {
        let (epoch, holder) = leader.unwrap_or_default();
        self.write(|status| {
            status.phase = Phase::Standby;
            status.leader = Some(LeaderStatus { role: Role::Standby, epoch, holder });
        });
    }

    /// This process leads under that epoch.
    pub(crate) fn leads(&self, epoch: u64, holder: &str) {
        let holder = holder.to_owned();
        self.write(|status| {
            status.phase = Phase::Starting;
            status.leader = Some(LeaderStatus { role: Role::Leader, epoch, holder });
        });
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

    /// The files of a plugin that does not run are gone. It is no more, unless it was there at the start and the source keeps
    /// log for it: that ends with the process, so that a folder which is away by mistake costs nothing.
    pub(crate) fn gone(&self, name: &str, was_there: bool) {
        self.write(|status| match status.plugins.get_mut(name) {
            Some(held) if was_there && held.required && !held.cursor_lsn.is_zero() => {
                held.cause = Some(
                    "its files are gone, and the source keeps its log until walgate is started again; put them back, or \
                     start walgate again to let go of it"
                        .to_owned(),
                );
            }
            _ => drop(status.plugins.remove(name)),
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

    /// What could be acknowledged but for the standbys; none when nothing waits for them.
    pub(crate) fn held_for_standbys(&self, durable: Option<Lsn>) {
        self.write(|status| status.positions.held_for_standbys = durable.map(|durable| durable.to_string()));
    }

    /// The plugin that reading waits for; none when it goes on.
    pub(crate) fn reading_waits(&self, plugin: Option<&str>) {
        self.write(|status| status.positions.reading_waits_for = plugin.map(str::to_owned));
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
        metrics::gauge!("walgate_lag_bytes", "kind" => "read").set(self.lag_bytes as f64);
    }
}

impl Status {
    /// Ready: the stream is read, checkpoints are written, and every required plugin runs.
    pub(crate) fn ready(&self) -> bool {
        self.phase == Phase::Streaming
            && self.state_error.is_none()
            && self.plugins.values().filter(|plugin| plugin.required).all(|plugin| plugin.state == "running")
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
