//! Runs plugins: sandboxed WebAssembly components behind one call at a time.
//!
//! Holds: the engine and its clock, the cache of compiled code, the contract check, the host side of every interface,
//! limits, plugin.toml, the plugin directory, and the worker that owns an instance. The only crate that names wasmtime.
//! Never knows: Postgres, sockets, where state and outputs are kept. What a plugin stages is handed to the caller, who
//! commits it together with the checkpoint.
//!
//! How a plugin comes to run:
//!
//! ```text
//! directory::scan → Manifest::read → Component::load → Worker::start → describe → Manifest::effective → open → deliver …
//!                                    (contract, cache)                              (asked and allowed)
//! ```
//!
//! Three outcomes of a call never mix, see [`CallError`]: the plugin *refused* (it saw the failure coming), it *trapped*
//! or ran out of time (the instance is gone), or it answered *garbage* (the instance is gone, too).
//! Read in this order: [`Engine`], [`Component`], [`Manifest`], [`Worker`], then `capability/`.

mod adapter_v0_1;
mod aot;
mod bindings;
mod capability;
mod component;
mod contract;
mod description;
mod directory;
mod encode;
mod engine;
mod error;
mod grant;
mod inspect;
mod instance;
mod limits;
mod manifest;
mod native;
mod outcome;
mod worker;

#[cfg(test)]
mod test_guest;

pub use aot::CacheError;
pub use capability::metrics::{MetricsSnapshot, Summary};
pub use component::{Component, LoadError, MAX_COMPONENT_BYTES};
pub use contract::{ContractError, ContractVersion, KNOWN_VERSIONS};
pub use description::{AskError, Capabilities, Description};
pub use directory::{Found, FoundState, Refusal, ScanError, scan};
pub use encode::{EncodeError, encode_module};
pub use engine::{Engine, EngineError, TICK};
pub use error::Class;
pub use grant::{Effective, GrantError};
pub use inspect::{InspectError, Inspection, inspect};
pub use limits::Limits;
pub use manifest::{Diagnostics, Manifest, ManifestError, OnFailure, Output, Policy, Settings};
pub use native::NativeSink;
pub use outcome::{
    CallError, DeadlineIn, Delivery, Disposition, Failure, OpenContext, Receipt, Rejection, Staged, TrapCause, Verdict,
};
pub use worker::{StartError, Worker};
