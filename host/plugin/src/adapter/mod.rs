//! The versions of the contract, side by side: one file each, all behind one face.
//!
//! Holds: what every version has to be able to do, and the choice of the one a component was built for, which is read from
//! its names before anything of it runs (see [`crate::contract`]). Refuses to know instances, deadlines and traps (see
//! `instance.rs`). To release another version: its folder in `wit/`, its bindings, its file here, a variant in each enum.

pub(crate) mod v0_1;

#[cfg(test)]
mod next;

use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::relation::ProjectedRelation;
use wasmtime::Store;
use wasmtime::component::{Component, Linker};

use crate::capability::HostState;
use crate::contract::ContractVersion;
use crate::description::Description;
use crate::engine::Engine;
use crate::manifest::Policy;
use crate::outcome::{CallError, OpenContext, Receipt, Verdict};

/// How a call ended: outside, what ended the instance; inside, what the guest answered, checked.
pub(crate) type Answer<T> = wasmtime::Result<Result<T, CallError>>;

/// An instance that is spoken to in its version.
pub(crate) trait Speak {
    async fn describe(&self, store: &mut Store<HostState>) -> Answer<Description>;

    async fn open(
        &self,
        store: &mut Store<HostState>,
        context: &OpenContext,
        policy: &Policy,
    ) -> Answer<Option<Cursor>>;

    async fn relation_changed(
        &self,
        store: &mut Store<HostState>,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
        policy: &Policy,
    ) -> Answer<Verdict>;

    /// The batch is lent: it has its buffers again when this ends, and when it is dropped before its end.
    async fn deliver(&self, store: &mut Store<HostState>, batch: &mut Batch, policy: &Policy) -> Answer<Receipt>;

    async fn flush(&self, store: &mut Store<HostState>, policy: &Policy) -> Answer<()>;

    async fn close(&self, store: &mut Store<HostState>) -> Answer<()>;
}

/// A component whose imports are all answered, in the version it was built for.
#[derive(Clone)]
pub(crate) enum Linked {
    V0_1(v0_1::Linked),
    #[cfg(test)]
    Next(next::Linked),
}

impl Linked {
    /// Everything is linked, nothing is granted: each call asks the instance's own grant.
    pub(crate) fn new(engine: &Engine, component: &Component, version: ContractVersion) -> wasmtime::Result<Self> {
        let mut linker = Linker::<HostState>::new(engine.wasmtime());
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
        Ok(match version {
            ContractVersion::V0_1 => Self::V0_1(v0_1::link(linker, component)?),
            #[cfg(test)]
            ContractVersion::Next => Self::Next(next::link(linker, component)?),
        })
    }

    pub(crate) fn engine(&self) -> &wasmtime::Engine {
        match self {
            Self::V0_1(linked) => linked.engine(),
            #[cfg(test)]
            Self::Next(linked) => linked.engine(),
        }
    }

    pub(crate) async fn instantiate(&self, store: &mut Store<HostState>) -> wasmtime::Result<Guest> {
        Ok(match self {
            Self::V0_1(linked) => Guest::V0_1(linked.instantiate_async(store).await?),
            #[cfg(test)]
            Self::Next(linked) => Guest::Next(linked.instantiate_async(store).await?),
        })
    }
}

/// An instance, in the version it was built for.
pub(crate) enum Guest {
    V0_1(v0_1::Guest),
    #[cfg(test)]
    Next(next::Guest),
}

/// The same call, whatever the version.
macro_rules! spoken {
    ($self:ident, $guest:ident => $call:expr) => {
        match $self {
            Guest::V0_1($guest) => $call,
            #[cfg(test)]
            Guest::Next($guest) => $call,
        }
    };
}

impl Speak for Guest {
    async fn describe(&self, store: &mut Store<HostState>) -> Answer<Description> {
        spoken!(self, guest => guest.describe(store).await)
    }

    async fn open(
        &self,
        store: &mut Store<HostState>,
        context: &OpenContext,
        policy: &Policy,
    ) -> Answer<Option<Cursor>> {
        spoken!(self, guest => guest.open(store, context, policy).await)
    }

    async fn relation_changed(
        &self,
        store: &mut Store<HostState>,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
        policy: &Policy,
    ) -> Answer<Verdict> {
        spoken!(self, guest => guest.relation_changed(store, current, previous, policy).await)
    }

    async fn deliver(&self, store: &mut Store<HostState>, batch: &mut Batch, policy: &Policy) -> Answer<Receipt> {
        spoken!(self, guest => guest.deliver(store, batch, policy).await)
    }

    async fn flush(&self, store: &mut Store<HostState>, policy: &Policy) -> Answer<()> {
        spoken!(self, guest => guest.flush(store, policy).await)
    }

    async fn close(&self, store: &mut Store<HostState>) -> Answer<()> {
        spoken!(self, guest => guest.close(store).await)
    }
}

#[cfg(test)]
mod tests;
