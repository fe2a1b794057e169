//! Speaks contract 0.1.0: moves the host's types across, and checks every answer.
//!
//! Holds: the calls, and the translation both ways. Refuses to know deadlines and traps (see `instance.rs`).
//!
//! A batch is lent, not copied: its buffers move into the generated types for the call and move back after it, so the
//! host reuses them and the only copy is the one into guest memory.

use std::collections::BTreeSet;

use walgate_core::batch::{Batch, Column, Group, LogicalMessage, Operation, Transaction, Values};
use walgate_core::grant::{Operations, TableRequest};
use walgate_core::relation::{ProjectedColumn, ProjectedRelation};
use walgate_core::{Cursor, Lsn};
use wasmtime::Store;
use wasmtime::component::{Component, HasSelf, Linker};

use super::{Answer, Speak};
use crate::bindings::v0_1::exports::walgate::cdc::sink as wit_sink;
use crate::bindings::v0_1::walgate::cdc::{change as wit, outcome as wit_outcome};
pub(crate) use crate::bindings::v0_1::{SinkPlugin as Guest, SinkPluginPre};
use crate::capability::HostState;
use crate::description::Description;
use crate::manifest::{Diagnostics, Policy};
use crate::outcome::{
    CallError, Disposition, Failure, Garbage, OpenContext, Receipt, Rejection, Verdict, checked_code,
};

/// Longest pause a plugin may ask for. Longer than this it should halt, so that a person sees it.
const MAX_RETRY_AFTER_MS: u32 = 300_000;

/// Caps on a description: names in Postgres have 63 bytes, tables 1,600 columns.
const MAX_NAME_BYTES: usize = 255;
const MAX_TABLES: usize = 1_000;
const MAX_COLUMNS: usize = 1_600;
const MAX_CAPABILITIES: usize = 64;
const MAX_SCHEMA_BYTES: usize = 64 << 10;

/// Bytes of guest text kept in a failure, under `guest-text` only.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// A component of this version, linked.
pub(crate) type Linked = SinkPluginPre<HostState>;

pub(crate) fn link(mut linker: Linker<HostState>, component: &Component) -> wasmtime::Result<Linked> {
    Guest::add_to_linker::<HostState, HasSelf<HostState>>(&mut linker, |host| host)?;
    SinkPluginPre::new(linker.instantiate_pre(component)?)
}

impl Speak for Guest {
    async fn describe(&self, store: &mut Store<HostState>) -> Answer<Description> {
        let answer = self.walgate_cdc_sink().call_describe(store).await?;
        Ok(description(answer).map_err(CallError::Garbage))
    }

    async fn open(&self, store: &mut Store<HostState>, told: &OpenContext, policy: &Policy) -> Answer<Option<Cursor>> {
        let answer = self.walgate_cdc_sink().call_open(store, &context(told, policy)).await?;
        Ok(accepted(answer, policy).and_then(|position| cursor(position).map_err(CallError::Garbage)))
    }

    async fn relation_changed(
        &self,
        store: &mut Store<HostState>,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
        policy: &Policy,
    ) -> Answer<Verdict> {
        let (current, previous) = (relation(current), previous.map(relation));
        let answer = self.walgate_cdc_sink().call_relation_changed(store, &current, previous.as_ref()).await?;
        Ok(accepted(answer, policy).map(verdict))
    }

    async fn deliver(&self, store: &mut Store<HostState>, batch: &mut Batch, policy: &Policy) -> Answer<Receipt> {
        let loan = Loan::of(batch);
        let answer = self.walgate_cdc_sink().call_deliver(store, &loan.lent).await?;
        Ok(accepted(answer, policy).and_then(|told| receipt(told, &loan.lent).map_err(CallError::Garbage)))
    }

    async fn flush(&self, store: &mut Store<HostState>, policy: &Policy) -> Answer<()> {
        Ok(accepted(self.walgate_cdc_sink().call_flush(store).await?, policy))
    }

    async fn close(&self, store: &mut Store<HostState>) -> Answer<()> {
        self.walgate_cdc_sink().call_close(store).await.map(Ok)
    }
}

fn accepted<T>(answer: Result<T, wit_outcome::Failure>, policy: &Policy) -> Result<T, CallError> {
    answer.map_err(|told| CallError::Refused(failure(told, policy)))
}

fn context(context: &OpenContext, policy: &Policy) -> wit_sink::Context {
    wit_sink::Context {
        plugin: context.plugin.clone(),
        generation: context.generation,
        pipeline: context.pipeline.clone(),
        lineage: context.lineage.clone(),
        epoch: context.epoch,
        settings: policy.settings.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    }
}

fn relation(relation: &ProjectedRelation) -> wit::Relation {
    wit::Relation {
        id: relation.id,
        namespace: relation.namespace.clone(),
        name: relation.name.clone(),
        version: wit::SchemaVersion {
            commit_lsn: relation.version.commit.get(),
            message_lsn: relation.version.message.get(),
        },
        identity: relation.identity.name().to_owned(),
        columns: relation.columns.iter().map(column_info).collect(),
    }
}

fn column_info(column: &ProjectedColumn) -> wit::ColumnInfo {
    wit::ColumnInfo {
        name: column.name.clone(),
        type_name: column.type_name.clone(),
        type_oid: column.type_oid,
        type_modifier: column.type_modifier,
        key_position: column.key_position,
        treatment: column.treatment.clone(),
    }
}

/// A batch in the form the guest is called with. It takes its buffers back however the call ends.
struct Loan<'a> {
    batch: &'a mut Batch,
    lent: wit::Batch,
}

impl<'a> Loan<'a> {
    fn of(batch: &'a mut Batch) -> Self {
        let lent = lend(batch);
        Self { batch, lent }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        give_back(self.batch, &mut self.lent);
    }
}

/// Moves the buffers of a batch. `batch` keeps its shape, with empty buffers, until [`give_back`].
fn lend(batch: &mut Batch) -> wit::Batch {
    wit::Batch {
        id: std::mem::take(&mut batch.id),
        attempt: batch.attempt,
        snapshot: None,
        transactions: batch.transactions.iter().map(transaction).collect(),
        groups: batch.groups.iter_mut().map(lend_group).collect(),
        messages: batch.messages.iter_mut().map(lend_message).collect(),
    }
}

/// Moves the buffers back to where [`lend`] took them from.
fn give_back(batch: &mut Batch, lent: &mut wit::Batch) {
    use std::mem::take;
    batch.id = take(&mut lent.id);
    for (group, lent) in batch.groups.iter_mut().zip(lent.groups.drain(..)) {
        group.ordinals = lent.ordinals;
        give_back_columns(&mut group.after, lent.after);
        give_back_columns(&mut group.before, lent.before);
    }
    for (message, lent) in batch.messages.iter_mut().zip(lent.messages.drain(..)) {
        message.prefix = lent.prefix;
        message.content = lent.content;
    }
}

fn transaction(transaction: &Transaction) -> wit::Transaction {
    wit::Transaction {
        xid: transaction.xid,
        commit_lsn: transaction.commit.get(),
        end_lsn: transaction.end.get(),
        commit_time_us: transaction.commit_time_us,
        origin: transaction.origin.clone(),
        first_ordinal: transaction.first_ordinal,
        change_count: transaction.change_count,
        source_ordinal: transaction.source_ordinal,
        part: transaction.part,
        last_part: transaction.last_part,
    }
}

fn lend_group(group: &mut Group) -> wit::ChangeGroup {
    wit::ChangeGroup {
        relation: group.relation,
        operation: match group.operation {
            Operation::Read => wit::Operation::Read,
            Operation::Insert => wit::Operation::Insert,
            Operation::Update => wit::Operation::Update,
            Operation::Delete => wit::Operation::Delete,
            Operation::Truncate => wit::Operation::Truncate,
        },
        ordinals: std::mem::take(&mut group.ordinals),
        after: group.after.iter_mut().map(lend_column).collect(),
        before: group.before.iter_mut().map(lend_column).collect(),
    }
}

fn lend_message(message: &mut LogicalMessage) -> wit::Message {
    wit::Message {
        ordinal: message.ordinal,
        transactional: message.transactional,
        prefix: std::mem::take(&mut message.prefix),
        content: std::mem::take(&mut message.content),
    }
}

fn lend_column(column: &mut Column) -> wit::Column {
    use std::mem::take;
    wit::Column {
        index: column.index,
        presence: column.presence.as_mut().map(take),
        values: match &mut column.values {
            Values::Boolean(v) => wit::Values::Boolean(take(v)),
            Values::Int16(v) => wit::Values::Int16(take(v)),
            Values::Int32(v) => wit::Values::Int32(take(v)),
            Values::Int64(v) => wit::Values::Int64(take(v)),
            Values::Float32(v) => wit::Values::Float32(take(v)),
            Values::Float64(v) => wit::Values::Float64(take(v)),
            Values::DateDays(v) => wit::Values::DateDays(take(v)),
            Values::TimeUs(v) => wit::Values::TimeUs(take(v)),
            Values::TimestampUs(v) => wit::Values::TimestampUs(take(v)),
            Values::Uuid(v) => wit::Values::Uuid(take(v)),
            Values::Bytes(v) => {
                wit::Values::Bytes(wit::ByteValues { ends: take(&mut v.ends), data: take(&mut v.data) })
            }
            Values::Text(v) => wit::Values::Text(wit::TextValues { ends: take(&mut v.ends), data: take(&mut v.data) }),
        },
    }
}

fn give_back_columns(columns: &mut [Column], lent: Vec<wit::Column>) {
    for (column, lent) in columns.iter_mut().zip(lent) {
        column.presence = lent.presence;
        match (&mut column.values, lent.values) {
            (Values::Boolean(v) | Values::Uuid(v), wit::Values::Boolean(l) | wit::Values::Uuid(l)) => *v = l,
            (Values::Int16(v), wit::Values::Int16(l)) => *v = l,
            (Values::Int32(v) | Values::DateDays(v), wit::Values::Int32(l) | wit::Values::DateDays(l)) => *v = l,
            (
                Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v),
                wit::Values::Int64(l) | wit::Values::TimeUs(l) | wit::Values::TimestampUs(l),
            ) => *v = l,
            (Values::Float32(v), wit::Values::Float32(l)) => *v = l,
            (Values::Float64(v), wit::Values::Float64(l)) => *v = l,
            (Values::Bytes(v), wit::Values::Bytes(l)) => (v.ends, v.data) = (l.ends, l.data),
            (Values::Text(v), wit::Values::Text(l)) => (v.ends, v.data) = (l.ends, l.data),
            // `lend_column` made the pair, so the cases are equal.
            _ => debug_assert!(false, "a column came back as another kind"),
        }
    }
}

fn cursor(position: Option<wit::Position>) -> Result<Option<Cursor>, Garbage> {
    let Some(position) = position else { return Ok(None) };
    let (end, commit) = (Lsn::new(position.end_lsn), Lsn::new(position.commit_lsn));
    let between = position.ordinal == 0 && commit.is_zero();
    let within = position.ordinal > 0 && commit >= end;
    if between || within {
        Ok(Some(Cursor { end, commit, ordinal: position.ordinal }))
    } else {
        Err(Garbage(
            "open: a position has a commit-lsn exactly when its ordinal is not 0, at or after its end-lsn".into(),
        ))
    }
}

fn verdict(verdict: wit_sink::Verdict) -> Verdict {
    match verdict {
        wit_sink::Verdict::Accept => Verdict::Accept,
        wit_sink::Verdict::Resync => Verdict::Resync,
        wit_sink::Verdict::Decline => Verdict::Decline,
    }
}

fn failure(failure: wit_outcome::Failure, policy: &Policy) -> Failure {
    let keep = policy.diagnostics == Diagnostics::GuestText;
    Failure {
        disposition: match failure.disposition {
            wit_outcome::Disposition::Retry => Disposition::Retry,
            wit_outcome::Disposition::Reject => Disposition::Reject,
            wit_outcome::Disposition::Halt => Disposition::Halt,
        },
        code: checked_code(failure.code),
        retry_after_ms: failure.retry_after_ms.map(|ms| ms.min(MAX_RETRY_AFTER_MS)),
        message: keep.then(|| shortened(failure.message)),
    }
}

fn shortened(mut text: String) -> String {
    let end = (0..=MAX_MESSAGE_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

/// A receipt whose rejections name changes that `batch` has, each once.
fn receipt(receipt: wit_outcome::Receipt, batch: &wit::Batch) -> Result<Receipt, Garbage> {
    let mut seen = BTreeSet::new();
    for rejection in &receipt.rejected {
        if !has(batch, rejection.ordinal) {
            return Err(Garbage("deliver: the receipt rejects an ordinal that the batch does not have".into()));
        }
        if !seen.insert(rejection.ordinal) {
            return Err(Garbage("deliver: the receipt rejects one ordinal twice".into()));
        }
    }
    let mut rejected: Vec<Rejection> = receipt
        .rejected
        .into_iter()
        .map(|rejection| Rejection { ordinal: rejection.ordinal, code: checked_code(rejection.code) })
        .collect();
    rejected.sort_unstable_by_key(|rejection| rejection.ordinal);
    Ok(Receipt { durable: receipt.durable, rejected })
}

/// Only for rejections, which are rare; ordinals rise within a group.
fn has(batch: &wit::Batch, ordinal: u32) -> bool {
    batch.groups.iter().any(|group| group.ordinals.binary_search(&ordinal).is_ok())
        || batch.messages.iter().any(|message| message.ordinal == ordinal)
}

fn description(asked: wit_sink::Description) -> Result<Description, Garbage> {
    let bounds = [
        ("tables", asked.tables.len(), MAX_TABLES),
        ("capabilities", asked.capabilities.len(), MAX_CAPABILITIES),
        ("bytes of settings-schema", asked.settings_schema.len(), MAX_SCHEMA_BYTES),
    ];
    if let Some((what, found, max)) = bounds.into_iter().find(|(_, found, max)| found > max) {
        return Err(Garbage(format!("describe: {found} {what}, at most {max} are allowed")));
    }
    let own = [("name", &asked.name), ("version", &asked.version)];
    for (what, text) in own.into_iter().chain(asked.capabilities.iter().map(|word| ("capability", word))) {
        name(what, text)?;
    }
    let tables = asked.tables.into_iter().enumerate().map(|(at, table)| table_request(at, table));
    Ok(Description {
        name: asked.name,
        version: asked.version,
        tables: tables.collect::<Result<_, _>>()?,
        capabilities: asked.capabilities,
        settings_schema: asked.settings_schema,
    })
}

fn table_request(at: usize, table: wit_sink::TableRequest) -> Result<TableRequest, Garbage> {
    if table.columns.len() + table.optional_columns.len() > MAX_COLUMNS {
        return Err(Garbage(format!("describe: table request {at} names more than {MAX_COLUMNS} columns")));
    }
    let columns = table.columns.iter().chain(&table.optional_columns);
    for text in [&table.namespace, &table.name].into_iter().chain(columns) {
        name("table request", text)?;
    }
    let operations = match table.operations.as_slice() {
        [] => Operations::ALL,
        words => words
            .iter()
            .try_fold(Operations::NONE, |set, word| Operations::parse(word).map(|operation| set.with(operation)))
            .ok_or_else(|| Garbage(format!("describe: table request {at} names an unknown operation")))?,
    };
    Ok(TableRequest {
        namespace: table.namespace,
        name: table.name,
        columns: table.columns,
        optional_columns: table.optional_columns,
        operations,
    })
}

/// Names are printed to people and into plugin.toml, so they are bounded and plain.
fn name(what: &str, text: &str) -> Result<(), Garbage> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(Garbage(format!(
            "describe: a {what} has a name that is empty, longer than {MAX_NAME_BYTES} bytes or not printable"
        )));
    }
    Ok(())
}

#[cfg(test)]
#[path = "v0_1_tests.rs"]
mod tests;
