//! `walgate:host/output`: bytes appended to named outputs, staged until the delivery that made them is committed.

use crate::bindings::v0_1::walgate::host::output::{Fault, Host};
use crate::capability::{HostState, NOT_GRANTED, OUTSIDE_DELIVERY, OVER_LIMIT, within};
use crate::description::{Capabilities, output_name};

/// What is staged, per name.
#[derive(Default)]
pub(crate) struct Outputs {
    staged: Vec<(String, Vec<u8>)>,
    bytes: usize,
}

impl Outputs {
    /// Nearly always empty, see `state.rs`.
    pub(crate) fn savepoint(&self) -> Vec<(String, Vec<u8>)> {
        self.staged.clone()
    }

    pub(crate) fn roll_back(&mut self, to: Vec<(String, Vec<u8>)>) {
        self.bytes = to.iter().map(|(_, data)| data.len()).sum();
        self.staged = to;
    }

    pub(crate) fn take(&mut self) -> Vec<(String, Vec<u8>)> {
        self.bytes = 0;
        std::mem::take(&mut self.staged)
    }

    fn append(&mut self, name: String, mut data: Vec<u8>) {
        self.bytes += data.len();
        match self.staged.iter_mut().find(|(known, _)| *known == name) {
            Some((_, staged)) => staged.append(&mut data),
            None => self.staged.push((name, data)),
        }
    }
}

impl Host for HostState {
    fn append(&mut self, name: String, data: Vec<u8>) -> Result<(), Fault> {
        if !self.granted.outputs.contains(&name) {
            deny(self, &name);
            return Err(fault(NOT_GRANTED));
        }
        if !self.phase.can_stage() {
            return Err(fault(OUTSIDE_DELIVERY));
        }
        let total = self.output.bytes.saturating_add(data.len());
        if !within(total, self.policy.limits.output_bytes_per_call) {
            return Err(fault(OVER_LIMIT));
        }
        self.output.append(name, data);
        Ok(())
    }
}

/// The name is the guest's own text at call time, and could be a value: it is printed only when plugin.toml has it.
fn deny(host: &mut HostState, name: &str) {
    let printable = output_name(name) && host.policy.capabilities.outputs.contains(name);
    let name = if printable { name } else { "NAME" };
    host.deny("output", &Capabilities { outputs: [name.to_owned()].into(), ..Capabilities::default() });
}

fn fault(code: &str) -> Fault {
    Fault { code: code.to_owned(), retryable: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Phase, test_state};
    use crate::limits::Limits;
    use crate::manifest::Policy;
    use crate::test_guest::logged;

    fn host(limit: u64) -> HostState {
        let limits = Limits { output_bytes_per_call: limit, ..Limits::default() };
        let outputs = ["a".to_owned(), "b".to_owned()].into();
        let mut host =
            test_state(Policy { limits, ..Policy::default() }, Capabilities { outputs, ..Capabilities::default() });
        host.begin(Phase::Deliver);
        host
    }

    fn append(host: &mut HostState, name: &str, data: &[u8]) -> Result<(), String> {
        Host::append(host, name.into(), data.into()).map_err(|f| f.code)
    }

    #[test]
    fn appends_in_order_per_name_and_drops_a_failed_call() {
        let mut host = host(100);
        for (name, data) in [("a", "1"), ("b", "x"), ("a", "2")] {
            append(&mut host, name, data.as_bytes()).unwrap();
        }
        let expect = vec![("a".to_owned(), b"12".to_vec()), ("b".to_owned(), b"x".to_vec())];
        assert_eq!(host.take_staged().outputs, expect);
        let before = host.begin(Phase::Deliver);
        append(&mut host, "a", b"lost").unwrap();
        host.roll_back(before);
        assert!(host.take_staged().is_empty());
    }

    #[test]
    fn bytes_are_limited_until_they_are_handed_over() {
        let mut host = host(4);
        append(&mut host, "a", b"123").unwrap();
        assert_eq!(append(&mut host, "b", b"12"), Err(OVER_LIMIT.into()));
        append(&mut host, "b", b"1").unwrap();
        host.take_staged();
        append(&mut host, "b", b"1234").unwrap();
        host.begin(Phase::Close);
        assert_eq!(append(&mut host, "b", b""), Err(OUTSIDE_DELIVERY.into()));
    }

    #[test]
    fn an_ungranted_name_is_denied_and_not_repeated() {
        let mut host = host(4);
        let text = logged(|| assert_eq!(append(&mut host, "alice-example-com", b"1"), Err(NOT_GRANTED.into())));
        assert!(text.contains("[grant.output.NAME]") && !text.contains("alice"), "{text}");
    }
}
