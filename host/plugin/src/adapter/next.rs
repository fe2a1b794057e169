//! Speaks a contract that no release has, so that tests prove that one file is all another version takes.
//!
//! Holds: what `bindings/next.wit` does otherwise than v0.1, behind the same face.

use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::relation::ProjectedRelation;
use wasmtime::Store;
use wasmtime::component::{Component, HasSelf, Linker};

use super::{Answer, Speak};
use crate::bindings::next::exports::walgate::cdc::sink as wit;
use crate::bindings::next::walgate::host::metrics;
pub(crate) use crate::bindings::next::{SinkPlugin as Guest, SinkPluginPre};
use crate::capability::HostState;
use crate::description::Description;
use crate::manifest::Policy;
use crate::outcome::{CallError, Disposition, Failure, OpenContext, Receipt, Verdict, checked_code};

/// A component of this version, linked.
pub(crate) type Linked = SinkPluginPre<HostState>;

pub(crate) fn link(mut linker: Linker<HostState>, component: &Component) -> wasmtime::Result<Linked> {
    Guest::add_to_linker::<HostState, HasSelf<HostState>>(&mut linker, |host| host)?;
    SinkPluginPre::new(linker.instantiate_pre(component)?)
}

impl metrics::Host for HostState {
    fn count(&mut self, name: String) {
        crate::bindings::v0_1::walgate::host::metrics::Host::count(self, name, 1);
    }
}

impl Speak for Guest {
    async fn describe(&self, store: &mut Store<HostState>) -> Answer<Description> {
        let (name, version) = self.walgate_cdc_sink().call_describe(store).await?;
        let (tables, capabilities) = (Vec::new(), vec!["metrics".to_owned()]);
        Ok(Ok(Description { name, version, tables, capabilities, settings_schema: String::new() }))
    }

    async fn open(&self, store: &mut Store<HostState>, told: &OpenContext, _: &Policy) -> Answer<Option<Cursor>> {
        Ok(accepted(self.walgate_cdc_sink().call_open(store, &told.plugin).await?).map(|()| None))
    }

    /// It has no such call: every shape is fine.
    async fn relation_changed(
        &self,
        _: &mut Store<HostState>,
        _: &ProjectedRelation,
        _: Option<&ProjectedRelation>,
        _: &Policy,
    ) -> Answer<Verdict> {
        Ok(Ok(Verdict::Accept))
    }

    async fn deliver(&self, store: &mut Store<HostState>, batch: &mut Batch, _: &Policy) -> Answer<Receipt> {
        let transactions: Vec<wit::Transaction> = batch
            .transactions
            .iter()
            .map(|one| wit::Transaction { commit_lsn: one.commit.get(), end_lsn: one.end.get() })
            .collect();
        let answer = self.walgate_cdc_sink().call_deliver(store, &batch.id, &transactions, batch.rows as u64).await?;
        Ok(accepted(answer).map(|receipt| Receipt { durable: receipt == wit::Receipt::Durable, rejected: Vec::new() }))
    }

    async fn flush(&self, store: &mut Store<HostState>, _: &Policy) -> Answer<()> {
        Ok(accepted(self.walgate_cdc_sink().call_flush(store).await?))
    }

    async fn close(&self, _: &mut Store<HostState>) -> Answer<()> {
        Ok(Ok(()))
    }
}

fn accepted<T>(answer: Result<T, String>) -> Result<T, CallError> {
    answer.map_err(|code| {
        let disposition = Disposition::Halt;
        CallError::Refused(Failure { disposition, code: checked_code(code), retry_after_ms: None, message: None })
    })
}
