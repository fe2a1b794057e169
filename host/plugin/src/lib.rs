//! Runs plugins: sandboxed WebAssembly components behind one call at a time.
//!
//! Holds: the engine and its clock, the cache of compiled code, the contract check, the host side of every interface,
//! limits, requests over HTTP, plugin.toml, the plugin directory, and the worker that owns an instance. The only crate that names wasmtime.
//! Never knows: Postgres, where secrets, state and outputs are kept. What a plugin stages is handed to the caller, who
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
//! Read in this order: [`Engine`], [`Component`], [`Manifest`], [`Worker`], then `capability/` and `http/`.

mod adapter;
mod aot;
mod bindings;
mod cadence;
mod capability;
mod component;
mod contract;
mod description;
mod directory;
mod encode;
mod engine;
mod error;
mod grant;
mod http;
mod inspect;
mod instance;
mod limits;
mod manifest;
mod mode;
mod native;
mod outcome;
mod output;
mod provenance;
mod schema;
mod settings;
mod table;
mod target;
mod wear;
mod worker;

#[cfg(test)]
mod test_guest;

pub use aot::CacheError;
pub use cadence::{CheckpointEvery, Flush, Retry};
pub use capability::metrics::{MetricsSnapshot, Summary};
pub use component::{Component, LoadError, MAX_COMPONENT_BYTES};
pub use contract::{ContractError, ContractVersion, KNOWN_VERSIONS};
pub use description::{AskError, Capabilities, Description};
pub use directory::{Found, FoundState, Refusal, ScanError, good_name as is_plugin_name, scan};
pub use encode::{EncodeError, encode_module};
pub use engine::{Engine, EngineError, TICK};
pub use error::Class;
pub use grant::{Effective, GrantError};
pub use http::access::HttpAccess;
pub use http::grant::HttpGrant;
pub use inspect::{InspectError, Inspection, inspect};
pub use limits::Limits;
pub use manifest::{Diagnostics, Manifest, ManifestError, OnFailure, Policy};
pub use mode::Mode;
pub use native::NativeSink;
pub use outcome::{
    CallError, DeadlineIn, Delivery, Disposition, Failure, OpenContext, Receipt, Rejection, Staged, TrapCause, Verdict,
};
pub use output::Output;
pub use provenance::{ProvenanceError, TrustedKeys, check_pin, signature_of};
pub use schema::SchemaError;
pub use settings::Settings;
pub use target::RowsTarget;
pub use wear::Worn;
pub use worker::{StartError, Worker};
