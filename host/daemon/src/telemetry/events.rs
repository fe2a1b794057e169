//! What the pipeline tells the outside: one function an event, which writes its log line and counts it in one place.
//!
//! Holds: the words, levels and keys of events. What happens for every transaction or message is only counted.
//! Refuses to know why it happened. Read next: `catalog.rs` for the metrics, `allow.rs` for the keys.

use walgate_core::Lsn;

use crate::halt::{Halt, HaltClass};
use crate::status::LETTERS;

// The source.

/// A stream began.
pub(crate) fn connected(slot: &str, from: Lsn) {
    metrics::counter!("walgate_wire_connections_total").increment(1);
    metrics::gauge!("walgate_slot_active").set(1.0);
    tracing::info!(slot, from = %from, "streaming");
}

/// A stream ended without being asked to. The kind is what `WireError::halt_name` says of a fault that passes, or
/// `hang_up` when it was ended from here.
pub(crate) fn disconnected(kind: &'static str, why: &str) {
    metrics::counter!("walgate_wire_disconnects_total", "kind" => kind).increment(1);
    metrics::gauge!("walgate_slot_active").set(0.0);
    tracing::warn!(kind, "the connection to the source is lost: {why}");
}

/// The server invalidated the slot; the halt says why.
pub(crate) fn slot_invalidated(slot: &str) {
    metrics::gauge!("walgate_slot_active").set(0.0);
    tracing::error!(slot, "the server invalidated the slot: log that was not read yet is gone");
}

/// Bytes came from the source.
pub(crate) fn received(bytes: u64) {
    metrics::counter!("walgate_wire_bytes_total").increment(bytes);
}

/// Committed transactions were read.
pub(crate) fn transactions_read(transactions: u64) {
    metrics::counter!("walgate_transactions_total").increment(transactions);
}

/// Logical messages were read.
pub(crate) fn messages_read(messages: u64) {
    metrics::counter!("walgate_messages_total").increment(messages);
}

/// A heartbeat was written, so that a quiet database does not hold the log of a busy cluster.
pub(crate) fn heartbeat_written() {
    metrics::counter!("walgate_heartbeats_total").increment(1);
    tracing::debug!("heartbeat written");
}

/// A heartbeat could not be written. Counted each time; whoever calls logs the first.
pub(crate) fn heartbeat_failed() {
    metrics::counter!("walgate_heartbeat_failures_total").increment(1);
}

// The state database.

/// A checkpoint was committed: with data, or only to follow an idle stream.
pub(crate) fn checkpoint_advanced(acked: Lsn, idle: bool) {
    let kind = if idle { "idle" } else { "data" };
    metrics::counter!("walgate_checkpoints_total", "kind" => kind).increment(1);
    tracing::debug!(kind, to = %acked, "checkpoint committed");
}

/// A write to the state database failed and is repeated. The store logs the cause.
pub(crate) fn store_retrying(attempt: u32, max_retries: u32) {
    metrics::counter!("walgate_state_retries_total").increment(1);
    tracing::debug!(attempt, max_retries, "a checkpoint is tried again");
}

/// A write to the state database was given up, which halts the pipeline.
pub(crate) fn store_failed(class: HaltClass) {
    metrics::counter!("walgate_state_failures_total").increment(1);
    tracing::error!(class = class.name(), "a checkpoint cannot be written");
}

// Plugins.

/// A plugin has taken a batch.
pub(crate) fn delivered(plugin: &str, rows: u64, to: Lsn) {
    metrics::counter!("walgate_rows_delivered_total", "plugin" => plugin.to_owned()).increment(rows);
    metrics::counter!("walgate_batches_delivered_total", "plugin" => plugin.to_owned()).increment(1);
    tracing::debug!(plugin, rows, to = %to, "batch delivered");
}

/// A delivery failed and is repeated.
pub(crate) fn delivery_retried(plugin: &str, code: &str, attempt: u32, error: &str) {
    metrics::counter!("walgate_delivery_retries_total", "plugin" => plugin.to_owned()).increment(1);
    tracing::warn!(plugin, code, attempt, "delivery failed and is repeated: {error}");
}

/// An instance ended by a trap, a deadline or a broken answer. What follows from it is logged.
pub(crate) fn instance_ended(plugin: &str) {
    metrics::counter!("walgate_instances_ended_total", "plugin" => plugin.to_owned()).increment(1);
}

/// An instance gave way to a fresh one between two batches. The kind is what `Worn::name` says.
pub(crate) fn recycled(plugin: &str, kind: &'static str) {
    metrics::counter!("walgate_instances_recycled_total", "plugin" => plugin.to_owned(), "kind" => kind).increment(1);
    tracing::info!(plugin, kind, "the instance has served its time, and a fresh one takes its place");
}

/// A batch of that many transactions was halved, to find what the plugin cannot take.
pub(crate) fn bisected(plugin: &str, transactions: u64) {
    metrics::counter!("walgate_batches_bisected_total", "plugin" => plugin.to_owned()).increment(1);
    tracing::info!(plugin, transactions, "the batch is halved to find what the plugin cannot take");
}

/// Changes became a dead letter, and the plugin goes on behind them.
pub(crate) fn dead_lettered(plugin: &str, class: &str, code: &str, rows: u64) {
    let kind = LETTERS.iter().copied().find(|kind| *kind == class).unwrap_or("rejected");
    metrics::counter!("walgate_dead_letters_total", "plugin" => plugin.to_owned(), "kind" => kind).increment(1);
    tracing::warn!(plugin, kind, code, rows, "changes were put aside as a dead letter");
}

/// How many dead letters of a plugin wait.
pub(crate) fn dead_letters_waiting(plugin: &str, letters: u64) {
    metrics::gauge!("walgate_dead_letters", "plugin" => plugin.to_owned()).set(letters as f64);
}

/// Dead letters were older than they are kept, and are gone without having been taken.
pub(crate) fn dead_letters_expired(plugin: &str, letters: u64) {
    let kind = "expired";
    let lost = metrics::counter!("walgate_dead_letters_lost_total", "plugin" => plugin.to_owned(), "kind" => kind);
    lost.increment(letters);
    tracing::warn!(plugin, kind, letters, "dead letters are gone, and their changes are lost to the plugin");
}

/// The plugin has taken dead letters after all.
pub(crate) fn redriven(plugin: &str, letters: u64) {
    metrics::counter!("walgate_redriven_total", "plugin" => plugin.to_owned()).increment(letters);
    tracing::info!(plugin, letters, "dead letters were taken");
}

/// The host wrote rows for the plugin; `missed` updates found no row and could not make one.
pub(crate) fn rows_applied(plugin: &str, rows: u64, missed: u64) {
    metrics::counter!("walgate_rows_applied_total", "plugin" => plugin.to_owned()).increment(rows);
    metrics::counter!("walgate_rows_missed_total", "plugin" => plugin.to_owned()).increment(missed);
}

/// The plugin was told of a new shape of a table, by its name with the schema.
pub(crate) fn schema_changed(plugin: &str, table: &str) {
    metrics::counter!("walgate_schema_changes_total", "plugin" => plugin.to_owned()).increment(1);
    tracing::info!(plugin, table, "the plugin was told of a new shape of the table");
}

/// Another generation took over.
pub(crate) fn swapped(plugin: &str, generation: u64, pause: std::time::Duration) {
    metrics::counter!("walgate_swaps_total", "plugin" => plugin.to_owned()).increment(1);
    metrics::gauge!("walgate_generation", "plugin" => plugin.to_owned()).set(generation as f64);
    let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    tracing::info!(plugin, generation, pause_us, "another generation has taken over");
}

/// A candidate does not run; the generation at work goes on.
pub(crate) fn candidate_rejected(plugin: &str, cause: &str) {
    metrics::counter!("walgate_candidates_rejected_total", "plugin" => plugin.to_owned()).increment(1);
    tracing::error!(plugin, "the new version is not started, what runs goes on: {cause}");
}

/// A generation failed on probation, and the one before it came back.
pub(crate) fn rolled_back(plugin: &str, generation: u64, cause: &str) {
    metrics::counter!("walgate_rollbacks_total", "plugin" => plugin.to_owned()).increment(1);
    tracing::error!(plugin, generation, "the new version failed and the one before it is back: {cause}");
}

/// A plugin is parked until an operator acts.
pub(crate) fn parked(plugin: &str, class: HaltClass, why: &str) {
    metrics::gauge!("walgate_parked", "plugin" => plugin.to_owned()).set(1.0);
    tracing::error!(plugin, class = class.name(), "plugin parked, the others go on: {why}");
}

/// Bytes of the source's log that a parked plugin keeps.
pub(crate) fn parked_pins(plugin: &str, bytes: u64) {
    metrics::gauge!("walgate_parked_wal_bytes", "plugin" => plugin.to_owned()).set(bytes as f64);
}

/// Bytes that were read and wait for the plugin.
pub(crate) fn in_flight(plugin: &str, bytes: u64) {
    metrics::gauge!("walgate_inflight_bytes", "plugin" => plugin.to_owned()).set(bytes as f64);
}

/// Reading waits for the plugin.
pub(crate) fn reading_paused(plugin: &str) {
    metrics::gauge!("walgate_reading_paused").set(1.0);
    tracing::debug!(plugin, "reading pauses until the plugin has caught up");
}

/// Reading goes on.
pub(crate) fn reading_resumed() {
    metrics::gauge!("walgate_reading_paused").set(0.0);
    tracing::debug!("reading goes on");
}

// Who leads, and how it ends.

/// This process leads the pipeline under that fencing epoch.
pub(crate) fn took_over(epoch: u64) {
    metrics::gauge!("walgate_leader").set(1.0);
    metrics::gauge!("walgate_epoch").set(epoch as f64);
    tracing::info!(epoch, "this process leads the pipeline");
}

/// Another process leads the pipeline.
pub(crate) fn standing_by() {
    metrics::gauge!("walgate_leader").set(0.0);
    tracing::info!("another process leads the pipeline: standing by");
}

/// Another process has taken over; nothing that this one writes under its epoch counts any more.
pub(crate) fn fenced(epoch: u64) {
    metrics::gauge!("walgate_leader").set(0.0);
    tracing::error!(epoch, "another process has taken the pipeline over, and this one can no longer write");
}

/// The source was promoted from one timeline to another, and the stream goes on there.
pub(crate) fn promoted(from: u32, to: u32) {
    tracing::warn!(from_timeline = from, to_timeline = to, "the source was promoted; the stream goes on");
}

/// The pipeline has halted.
pub(crate) fn halted(halt: &Halt) {
    metrics::gauge!("walgate_halted").set(1.0);
    metrics::gauge!("walgate_halted", "class" => halt.class.name()).set(1.0);
    tracing::error!(class = halt.class.name(), plugin = halt.plugin, "{halt}");
}

#[cfg(test)]
mod tests;

/// How many plugins are in each state.
pub(crate) fn plugins(states: &[(&'static str, usize)]) {
    for (state, count) in states {
        metrics::gauge!("walgate_plugins", "kind" => *state).set(*count as f64);
    }
}
