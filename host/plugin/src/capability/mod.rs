//! The host side of one instance: what its grant allows, what it staged, and how much of its call it has used.
//!
//! Holds: [`HostState`], the data of every store, and the rule that denies by default at call time. One file per interface
//! implements it. Refuses to know which rows are being delivered.
//!
//! All interfaces are linked for every plugin, because Python and JavaScript components import the whole world whether
//! they use it or not. Whether a call is served is decided when it is made.

pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod replica;
pub(crate) mod row_set;
pub(crate) mod rows;
pub(crate) mod secrets;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod stdio;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use crate::bindings::v0_1::walgate;
use crate::description::Capabilities;
use crate::grant::capability_lines;
use crate::http::{Client, Hooks};
use crate::limits::{Limiter, size};
use crate::manifest::{Diagnostics, Policy};
use crate::outcome::Staged;

/// Open handles (pollables, streams) a guest may hold; each is some hundred bytes of host memory.
const MAX_HANDLES: usize = 10_000;

/// Bytes of one set of HTTP headers that a guest makes, as they lie in memory. Servers take 8 to 64 KiB of them.
const MAX_HEADER_BYTES: usize = 128 << 10;

/// The fault of every interface that is not granted.
const NOT_GRANTED: &str = "not-granted";
/// The fault of a call over a limit.
const OVER_LIMIT: &str = "over-limit";
/// The fault of a write that no delivery could carry.
const OUTSIDE_DELIVERY: &str = "outside-delivery";

/// Which call of the contract is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Describe,
    Open,
    RelationChanged,
    Deliver,
    Flush,
    Close,
}

impl Phase {
    /// Whether something staged now will reach a checkpoint: with this delivery or flush, or with the next.
    fn can_stage(self) -> bool {
        !matches!(self, Self::Describe | Self::Close)
    }
}

/// What an instance may use.
pub(crate) struct Grants {
    pub(crate) capabilities: Capabilities,
    pub(crate) state: BTreeMap<String, Vec<u8>>,
    /// What sends its requests; none where they are denied.
    pub(crate) http: Option<Arc<Client>>,
}

/// The data of one store.
pub(crate) struct HostState {
    policy: Arc<Policy>,
    granted: Capabilities,
    phase: Phase,
    /// Interfaces whose denial has been logged; once each per instance.
    denied: BTreeSet<&'static str>,
    log: log::Budget,
    state: state::StateMap,
    output: output::Outputs,
    rows: rows::RowCalls,
    metrics: Arc<metrics::Metrics>,
    stdio: Arc<stdio::Meter>,
    pub(crate) limiter: Limiter,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    http_hooks: Hooks,
    table: ResourceTable,
}

/// What a call would have to undo when it fails.
pub(crate) struct Savepoint {
    state: state::Savepoint,
    output: Vec<(String, Vec<u8>)>,
    rows: rows::Savepoint,
}

impl HostState {
    pub(crate) fn new(policy: Arc<Policy>, metrics: Arc<metrics::Metrics>, grants: Grants) -> Self {
        let stdio = Arc::new(stdio::Meter::new(&policy));
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        Self {
            granted: grants.capabilities,
            phase: Phase::Describe,
            denied: BTreeSet::new(),
            log: log::Budget::default(),
            state: state::StateMap::new(grants.state),
            output: output::Outputs::default(),
            rows: rows::RowCalls::default(),
            wasi: empty_wasi(&policy, &stdio),
            limiter: Limiter::new(&policy.limits),
            http: http_context(),
            http_hooks: Hooks::new(Arc::clone(&policy), grants.http),
            policy,
            metrics,
            stdio,
            table,
        }
    }

    /// Called before every call.
    pub(crate) fn begin(&mut self, phase: Phase) -> Savepoint {
        self.phase = phase;
        self.limiter.begin_call();
        self.http_hooks.begin(phase);
        self.log = log::Budget::default();
        self.stdio.begin_call();
        Savepoint { state: self.state.savepoint(), output: self.output.savepoint(), rows: self.rows.savepoint() }
    }

    /// Called after every call that the instance survived, to report what the caps dropped.
    pub(crate) fn finish(&mut self) {
        let lines = self.log.dropped();
        let bytes = self.stdio.dropped_bytes();
        if lines > 0 || bytes > 0 {
            tracing::warn!(plugin = %self.policy.plugin, lines, bytes, "plugin output over its limit was dropped");
        }
    }

    /// Drops what the failed call staged.
    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        self.state.roll_back(to.state);
        self.output.roll_back(to.output);
        self.rows.roll_back(to.rows);
    }

    /// Hands over everything staged and makes it the state that later calls read.
    pub(crate) fn take_staged(&mut self) -> Staged {
        Staged { state: self.state.commit(), outputs: self.output.take(), rows: self.rows.take() }
    }

    fn guest_text(&self) -> bool {
        self.policy.diagnostics == Diagnostics::GuestText
    }

    /// Notes a denial: the first of an interface is logged with the lines that would allow it. `describe` always runs
    /// without grants, so a denial there says nothing.
    fn deny(&mut self, interface: &'static str, missing: &Capabilities) {
        if !missing.is_empty() {
            let allow = capability_lines(&self.granted, missing);
            self.deny_until(interface, &allow);
        } else if self.first_denial(interface) {
            let plugin = &self.policy.plugin;
            tracing::warn!(%plugin, interface, "denied: this version of walgate cannot grant it to a plugin");
        }
    }

    /// The same with the lines themselves.
    fn deny_until(&mut self, interface: &'static str, allow: &str) {
        if self.first_denial(interface) {
            let plugin = &self.policy.plugin;
            tracing::warn!(%plugin, interface, %allow, "denied: the plugin must ask for it in describe, and plugin.toml must say");
        }
    }

    fn first_denial(&mut self, interface: &'static str) -> bool {
        self.phase != Phase::Describe && self.denied.insert(interface)
    }
}

/// No preopens, environment, arguments or sockets; closed input; output that is counted and dropped. Clocks and random
/// numbers work.
fn empty_wasi(policy: &Policy, stdio: &Arc<stdio::Meter>) -> WasiCtx {
    let mut wasi = WasiCtx::builder();
    wasi.stdout(stdio::Sink::new(stdio, "stdout"))
        .stderr(stdio::Sink::new(stdio, "stderr"))
        .max_random_size(policy.limits.host_call_bytes)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    wasi.build()
}

fn http_context() -> WasiHttpCtx {
    let mut http = WasiHttpCtx::new();
    http.set_field_size_limit(MAX_HEADER_BYTES);
    http
}

impl WasiHttpView for HostState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, hooks: &mut self.http_hooks, table: &mut self.table }
    }
}

impl WasiView for HostState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

// Interfaces of types only; the bindings still want a host for them.
impl walgate::cdc::change::Host for HostState {}
impl walgate::cdc::outcome::Host for HostState {}

/// A cap of the limits against a length.
fn within(len: usize, limit: u64) -> bool {
    len <= size(limit)
}

#[cfg(test)]
pub(crate) fn test_state(policy: Policy, capabilities: Capabilities) -> HostState {
    let metrics = Arc::new(metrics::Metrics::new(policy.limits.metric_names));
    HostState::new(Arc::new(policy), metrics, Grants { capabilities, state: BTreeMap::new(), http: None })
}
