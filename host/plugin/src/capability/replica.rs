//! `walgate:host/replica`: linked, and denied to everyone until catalogs exist. A denial is "nothing can be said", which is
//! not the same as "absent".

use crate::bindings::v0_1::walgate::host::replica::{Host, Lookup};
use crate::capability::{HostState, NOT_GRANTED};
use crate::description::Capabilities;

impl Host for HostState {
    fn by_key(&mut self, _: String, _: String) -> Lookup {
        denied(self)
    }

    fn by_field(&mut self, _: String, _: String, _: String) -> Lookup {
        denied(self)
    }
}

fn denied(host: &mut HostState) -> Lookup {
    host.deny("replica", &Capabilities::default());
    Lookup::SourceUnavailable(NOT_GRANTED.to_owned())
}
