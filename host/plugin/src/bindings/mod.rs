//! What `bindgen!` makes of the contract, one file per released version. No logic lives here.
//!
//! Read next: `adapter/`, which moves the host's own types in and out of these.

#[cfg(test)]
pub(crate) mod next;
pub(crate) mod v0_1;
