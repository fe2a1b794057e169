//! `walgate:host/secrets`: linked, and denied to everyone until plugin.toml can grant a secret.

use crate::bindings::v0_1::walgate::host::secrets::{Fault, Host};
use crate::capability::{HostState, NOT_GRANTED};
use crate::description::Capabilities;

impl Host for HostState {
    fn reveal(&mut self, _: String) -> Result<String, Fault> {
        self.deny("secrets", &Capabilities::default());
        Err(Fault { code: NOT_GRANTED.to_owned() })
    }
}
