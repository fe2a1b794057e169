//! `walgate:cdc/rows`: linked, and denied to everyone until plugin.toml can grant a target.

use crate::bindings::v0_1::walgate::cdc::rows::{Fault, Host, RowSet};
use crate::capability::{HostState, NOT_GRANTED};
use crate::description::Capabilities;

impl Host for HostState {
    fn apply(&mut self, _: Vec<RowSet>) -> Result<u64, Fault> {
        self.deny("rows", &Capabilities::default());
        Err(Fault { code: NOT_GRANTED.to_owned(), retryable: false })
    }
}
