//! `walgate:host/state`: a small durable map, read from memory, written to an overlay that commits with the checkpoint.
//!
//! Invariant: what a call reads is `base` under `staged`; `keys` and `bytes` always describe that sum.

use std::collections::BTreeMap;

use crate::bindings::v0_1::walgate::host::state::{Fault, Host};
use crate::capability::{HostState, NOT_GRANTED, OUTSIDE_DELIVERY, OVER_LIMIT, within};
use crate::description::Capabilities;
use crate::limits::Limits;

/// The map of one instance.
pub(crate) struct StateMap {
    base: BTreeMap<String, Vec<u8>>,
    staged: BTreeMap<String, Option<Vec<u8>>>,
    keys: usize,
    bytes: usize,
}

/// The overlay before a call. Nearly always empty: only what `open` and `relation-changed` wrote waits for a delivery.
pub(crate) struct Savepoint {
    staged: BTreeMap<String, Option<Vec<u8>>>,
    keys: usize,
    bytes: usize,
}

impl StateMap {
    pub(crate) fn new(base: BTreeMap<String, Vec<u8>>) -> Self {
        let keys = base.len();
        let bytes = base.iter().map(|(key, value)| key.len() + value.len()).sum();
        Self { base, staged: BTreeMap::new(), keys, bytes }
    }

    pub(crate) fn savepoint(&self) -> Savepoint {
        Savepoint { staged: self.staged.clone(), keys: self.keys, bytes: self.bytes }
    }

    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        (self.staged, self.keys, self.bytes) = (to.staged, to.keys, to.bytes);
    }

    /// Moves the overlay into the map and returns it, so that it can be stored.
    pub(crate) fn commit(&mut self) -> Vec<(String, Option<Vec<u8>>)> {
        let changes: Vec<_> = std::mem::take(&mut self.staged).into_iter().collect();
        for (key, value) in &changes {
            match value {
                Some(value) => self.base.insert(key.clone(), value.clone()),
                None => self.base.remove(key),
            };
        }
        changes
    }

    fn get(&self, key: &str) -> Option<&Vec<u8>> {
        match self.staged.get(key) {
            Some(staged) => staged.as_ref(),
            None => self.base.get(key),
        }
    }

    /// False when a limit would be passed; then nothing changed.
    fn set(&mut self, key: String, value: Vec<u8>, limits: &Limits) -> bool {
        let (mut keys, mut bytes) = self.without(&key);
        keys += 1;
        bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
        let fits = within(key.len(), limits.state_key_bytes)
            && within(value.len(), limits.state_value_bytes)
            && within(keys, limits.state_keys)
            && within(bytes, limits.state_total_bytes);
        if fits {
            (self.keys, self.bytes) = (keys, bytes);
            self.staged.insert(key, Some(value));
        }
        fits
    }

    fn delete(&mut self, key: String) {
        (self.keys, self.bytes) = self.without(&key);
        // A key the base never had needs no tombstone, so deleting at random cannot fill the overlay.
        if self.base.contains_key(&key) {
            self.staged.insert(key, None);
        } else {
            self.staged.remove(&key);
        }
    }

    /// Keys and bytes if that key were not there.
    fn without(&self, key: &str) -> (usize, usize) {
        match self.get(key) {
            Some(old) => (self.keys.saturating_sub(1), self.bytes.saturating_sub(key.len() + old.len())),
            None => (self.keys, self.bytes),
        }
    }
}

impl Host for HostState {
    fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, Fault> {
        permit(self)?;
        Ok(self.state.get(&key).cloned())
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), Fault> {
        permit_write(self)?;
        if self.state.set(key, value, &self.policy.limits) { Ok(()) } else { Err(fault(OVER_LIMIT)) }
    }

    fn delete(&mut self, key: String) -> Result<(), Fault> {
        permit_write(self)?;
        self.state.delete(key);
        Ok(())
    }
}

fn permit(host: &mut HostState) -> Result<(), Fault> {
    if host.granted.state {
        return Ok(());
    }
    host.deny("state", &Capabilities { state: true, ..Capabilities::default() });
    Err(fault(NOT_GRANTED))
}

fn permit_write(host: &mut HostState) -> Result<(), Fault> {
    permit(host)?;
    if host.phase.can_stage() { Ok(()) } else { Err(fault(OUTSIDE_DELIVERY)) }
}

/// None of these faults goes away by repeating the call.
fn fault(code: &str) -> Fault {
    Fault { code: code.to_owned(), retryable: false }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capability::{Phase, test_state};
    use crate::manifest::Policy;
    use crate::outcome::Staged;

    fn host(limits: Limits) -> HostState {
        let mut host =
            test_state(Policy { limits, ..Policy::default() }, Capabilities { state: true, ..Capabilities::default() });
        host.begin(Phase::Deliver);
        host
    }

    fn set(host: &mut HostState, key: &str, value: &[u8]) -> Result<(), String> {
        Host::set(host, key.into(), value.into()).map_err(|f| f.code)
    }

    fn get(host: &mut HostState, key: &str) -> Option<Vec<u8>> {
        Host::get(host, key.into()).unwrap()
    }

    #[test]
    fn reads_its_own_writes_and_forgets_those_of_a_failed_call() {
        let mut host = host(Limits::default());
        set(&mut host, "a", b"1").unwrap();
        assert_eq!(get(&mut host, "a"), Some(b"1".to_vec()));
        let staged = host.take_staged();
        assert_eq!(staged.state, [("a".to_owned(), Some(b"1".to_vec()))]);
        assert_eq!(host.take_staged(), Staged::default());

        let before = host.begin(Phase::Deliver);
        set(&mut host, "a", b"2").unwrap();
        set(&mut host, "b", b"2").unwrap();
        Host::delete(&mut host, "a".into()).unwrap();
        assert_eq!(get(&mut host, "a"), None);
        host.roll_back(before);
        assert_eq!((get(&mut host, "a"), get(&mut host, "b")), (Some(b"1".to_vec()), None));
        assert_eq!(host.take_staged(), Staged::default());
    }

    #[test]
    fn what_open_wrote_travels_with_the_next_delivery_and_survives_its_failure() {
        let mut host = host(Limits::default());
        host.begin(Phase::Open);
        set(&mut host, "opened", b"1").unwrap();
        let before = host.begin(Phase::Deliver);
        set(&mut host, "delivered", b"1").unwrap();
        host.roll_back(before);
        assert_eq!(host.take_staged().state, [("opened".to_owned(), Some(b"1".to_vec()))]);
    }

    #[test]
    fn every_limit_refuses_and_changes_nothing() {
        let limits = Limits {
            state_keys: 2,
            state_key_bytes: 3,
            state_value_bytes: 4,
            state_total_bytes: 8,
            ..Limits::default()
        };
        let mut host = host(limits);
        assert_eq!(set(&mut host, "long", b""), Err(OVER_LIMIT.into()));
        assert_eq!(set(&mut host, "k", b"12345"), Err(OVER_LIMIT.into()));
        set(&mut host, "k", b"1234").unwrap();
        assert_eq!(set(&mut host, "l", b"1234"), Err(OVER_LIMIT.into()));
        set(&mut host, "l", b"12").unwrap();
        assert_eq!(set(&mut host, "m", b""), Err(OVER_LIMIT.into()));
        Host::delete(&mut host, "k".into()).unwrap();
        set(&mut host, "m", b"1234").unwrap();
        assert_eq!(get(&mut host, "k"), None);
    }

    #[test]
    fn denied_without_a_grant_and_closed_to_writes_outside_a_delivery() {
        let mut denied = test_state(Policy::default(), Capabilities::default());
        denied.begin(Phase::Deliver);
        assert_eq!(Host::get(&mut denied, "a".into()).unwrap_err().code, NOT_GRANTED);
        assert_eq!(set(&mut denied, "a", b""), Err(NOT_GRANTED.into()));
        let mut host = host(Limits::default());
        host.begin(Phase::Close);
        assert_eq!(get(&mut host, "a"), None);
        assert_eq!(set(&mut host, "a", b""), Err(OUTSIDE_DELIVERY.into()));
    }

    proptest! {
        /// Against a plain map: reads, totals, and that the staged changes rebuild it.
        #[test]
        fn behaves_like_a_map(calls in proptest::collection::vec(
            proptest::collection::vec(("[abc]{1,2}", proptest::option::of(0usize..4)), 0..6), 0..12),
            outcomes in proptest::collection::vec(any::<bool>(), 12))
        {
            let limits = Limits::default();
            let mut map = StateMap::new(BTreeMap::new());
            let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            let mut stored: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            for (writes, good) in calls.into_iter().zip(outcomes) {
                let (before, model_before) = (map.savepoint(), model.clone());
                for (key, length) in writes {
                    match length {
                        Some(length) => {
                            prop_assert!(map.set(key.clone(), vec![7; length], &limits));
                            model.insert(key, vec![7; length]);
                        }
                        None => {
                            map.delete(key.clone());
                            model.remove(&key);
                        }
                    }
                }
                if good {
                    for (key, value) in map.commit() {
                        match value {
                            Some(value) => stored.insert(key, value),
                            None => stored.remove(&key),
                        };
                    }
                    prop_assert_eq!(&stored, &model);
                } else {
                    map.roll_back(before);
                    model = model_before;
                }
                prop_assert_eq!(map.keys, model.len());
                prop_assert_eq!(map.bytes, model.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>());
                for key in ["a", "b", "ab", "cc"] {
                    prop_assert_eq!(map.get(key), model.get(key));
                }
            }
        }
    }
}
