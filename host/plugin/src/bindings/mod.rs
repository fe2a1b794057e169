//! What `bindgen!` makes of the contract, one file per released version. No logic lives here.
//!
//! Read next: `adapter_v0_1.rs`, which moves the host's own types in and out of these.

pub(crate) mod v0_1;
