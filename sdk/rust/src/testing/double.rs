//! The host's side of every import, on the thread of the test.
//!
//! Holds: what is granted, what is committed, what is staged, and functions with the signatures of the generated
//! bindings. Refuses to know sinks and batches (see [`super::Run`]). Read next: [`crate::host`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::run::{Logged, Query};
use crate::bindings::walgate::host::replica::Lookup;
use crate::host::Fault;
use crate::host::http::{Request, Response};
use crate::{Cells, Operation, RowSet};

/// Which call of the sink is running: it decides whether writes are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// No call, `describe` or `close`.
    #[default]
    Outside,
    /// `open` or `relation_changed`: state and outputs are taken, rows are not.
    Before,
    /// `deliver` or `flush`.
    Inside,
}

/// A fault that the next matching call answers.
#[derive(Debug, Clone)]
pub(super) struct Injected {
    pub(super) call: String,
    pub(super) code: String,
    pub(super) retryable: bool,
}

/// How a test answers lookups.
pub(super) type Answer = Box<dyn Fn(Query<'_>) -> Lookup>;

/// How a test answers requests.
pub(super) type Server = Box<dyn Fn(&Request) -> Result<Response, Fault>>;

/// Everything the double knows.
#[derive(Default)]
pub(super) struct World {
    pub(super) phase: Phase,
    pub(super) granted: BTreeSet<String>,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) secrets: BTreeMap<String, String>,
    pub(super) state: BTreeMap<String, Vec<u8>>,
    pub(super) staged_state: BTreeMap<String, Option<Vec<u8>>>,
    pub(super) outputs: BTreeMap<String, Vec<u8>>,
    pub(super) staged_outputs: Vec<(String, Vec<u8>)>,
    pub(super) rows: Vec<Vec<RowSet>>,
    pub(super) staged_rows: Vec<Vec<RowSet>>,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) observations: BTreeMap<String, Vec<f64>>,
    pub(super) logs: Vec<Logged>,
    pub(super) faults: VecDeque<Injected>,
    pub(super) replica: Option<Answer>,
    pub(super) requests: Vec<Request>,
    pub(super) server: Option<Server>,
}

impl World {
    /// What the staged calls wrote becomes durable.
    pub(super) fn commit(&mut self) {
        for (key, value) in std::mem::take(&mut self.staged_state) {
            match value {
                Some(value) => self.state.insert(key, value),
                None => self.state.remove(&key),
            };
        }
        for (name, data) in std::mem::take(&mut self.staged_outputs) {
            self.outputs.entry(name).or_default().extend(data);
        }
        self.rows.append(&mut self.staged_rows);
    }

    /// What the staged calls wrote never happened.
    pub(super) fn roll_back(&mut self) {
        self.staged_state.clear();
        self.staged_outputs.clear();
        self.staged_rows.clear();
    }

    /// The code and hope of the fault that a call answers, if it does.
    fn refusal(&mut self, call: &str, capability: &str, writes: bool) -> Option<(String, bool)> {
        if !self.granted.contains(capability) {
            return Some(("not-granted".to_owned(), false));
        }
        if writes && self.phase == Phase::Outside {
            return Some(("outside-delivery".to_owned(), false));
        }
        self.injected(call)
    }

    /// The same for rows.
    fn rows_refusal(&mut self, sets: &[RowSet]) -> Option<(String, bool)> {
        let every = self.granted.contains("rows:*");
        let granted = |set: &RowSet| every || self.granted.contains(&format!("rows:{}", set.target));
        if !self.granted.iter().any(|word| word.starts_with("rows:")) || !sets.iter().all(granted) {
            return Some(("not-granted".to_owned(), false));
        }
        if self.phase != Phase::Inside {
            return Some(("outside-delivery".to_owned(), false));
        }
        if malformed(sets) {
            return Some(("invalid-rows".to_owned(), false));
        }
        self.injected("rows.apply")
    }

    fn injected(&mut self, call: &str) -> Option<(String, bool)> {
        let at = self.faults.iter().position(|fault| fault.call == call)?;
        self.faults.remove(at).map(|fault| (fault.code, fault.retryable))
    }
}

/// Whether the real host would answer `invalid-rows`.
fn malformed(sets: &[RowSet]) -> bool {
    let mut ordinals = BTreeSet::new();
    sets.iter().any(|set| {
        let rows = set.ordinals.len();
        let removes = matches!(set.operation, Operation::Delete | Operation::Truncate);
        let repeats = |cells: &[Cells]| cells.iter().map(|one| &one.name).collect::<BTreeSet<_>>().len() < cells.len();
        !set.ordinals.is_sorted_by(|earlier, later| earlier < later)
            || !set.ordinals.iter().all(|ordinal| ordinals.insert(*ordinal))
            || (removes && !set.after.is_empty())
            || repeats(&set.after)
            || repeats(&set.before)
            || set.after.iter().chain(&set.before).any(|cells| cells.defect(rows).is_some())
    })
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

/// Looks at or changes the double of this thread.
pub(super) fn with<R>(look: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with(|world| look(&mut world.borrow_mut()))
}

pub(crate) mod log {
    use crate::bindings::walgate::host::log::Level;
    use crate::testing::Logged;

    pub(crate) fn write(level: Level, code: &str, message: &str) {
        super::with(|world| {
            if world.refusal("log.write", "log", false).is_none() {
                world.logs.push(Logged { level, code: code.to_owned(), message: message.to_owned() });
            }
        });
    }
}

pub(crate) mod metrics {
    pub(crate) fn count(name: &str, delta: u64) {
        super::with(|world| {
            if world.refusal("metrics.count", "metrics", false).is_none() {
                let counter = world.counters.entry(name.to_owned()).or_default();
                *counter = counter.wrapping_add(delta);
            }
        });
    }

    pub(crate) fn observe(name: &str, value: f64) {
        super::with(|world| {
            if world.refusal("metrics.observe", "metrics", false).is_none() && value.is_finite() {
                world.observations.entry(name.to_owned()).or_default().push(value);
            }
        });
    }
}

pub(crate) mod state {
    use crate::bindings::walgate::host::state::Fault;

    fn answer(call: &str, writes: bool) -> Result<(), Fault> {
        match super::with(|world| world.refusal(call, "state", writes)) {
            Some((code, retryable)) => Err(Fault { code, retryable }),
            None => Ok(()),
        }
    }

    pub(crate) fn get(key: &str) -> Result<Option<Vec<u8>>, Fault> {
        answer("state.get", false)?;
        Ok(super::with(|world| match world.staged_state.get(key) {
            Some(staged) => staged.clone(),
            None => world.state.get(key).cloned(),
        }))
    }

    pub(crate) fn set(key: &str, value: &[u8]) -> Result<(), Fault> {
        answer("state.set", true)?;
        super::with(|world| world.staged_state.insert(key.to_owned(), Some(value.to_vec())));
        Ok(())
    }

    pub(crate) fn delete(key: &str) -> Result<(), Fault> {
        answer("state.delete", true)?;
        super::with(|world| world.staged_state.insert(key.to_owned(), None));
        Ok(())
    }
}

pub(crate) mod output {
    use crate::bindings::walgate::host::output::Fault;

    pub(crate) fn append(name: &str, data: &[u8]) -> Result<(), Fault> {
        super::with(|world| match world.refusal("output.append", &format!("output:{name}"), true) {
            Some((code, retryable)) => Err(Fault { code, retryable }),
            None => {
                world.staged_outputs.push((name.to_owned(), data.to_vec()));
                Ok(())
            }
        })
    }
}

pub(crate) mod settings {
    pub(crate) fn get(name: &str) -> Option<String> {
        super::with(|world| world.settings.get(name).cloned())
    }
}

pub(crate) mod secrets {
    use crate::bindings::walgate::host::secrets::Fault;

    pub(crate) fn reveal(name: &str) -> Result<String, Fault> {
        let fault = || Fault { code: "not-granted".to_owned() };
        super::with(|world| world.secrets.get(name).cloned().ok_or_else(fault))
    }
}

pub(crate) mod replica {
    use crate::bindings::walgate::host::replica::Lookup;
    use crate::testing::Query;

    pub(crate) fn by_key(catalog: &str, key: &str) -> Lookup {
        ask(Query { catalog, field: None, value: key })
    }

    pub(crate) fn by_field(catalog: &str, field: &str, value: &str) -> Lookup {
        ask(Query { catalog, field: Some(field), value })
    }

    fn ask(query: Query<'_>) -> Lookup {
        super::with(|world| match &world.replica {
            Some(answer) => answer(query),
            None => Lookup::SourceUnavailable("not-granted".to_owned()),
        })
    }
}

pub(crate) mod rows {
    use crate::bindings::walgate::cdc::rows::{Fault, RowSet};

    /// Recorded, not applied: the double keeps no Postgres. Columns and operations of a grant are not narrowed here.
    pub(crate) fn apply(sets: &[RowSet]) -> Result<u64, Fault> {
        super::with(|world| match world.rows_refusal(sets) {
            Some((code, retryable)) => Err(Fault { code, retryable }),
            None => {
                world.staged_rows.push(sets.to_vec());
                Ok(sets.iter().map(|set| set.ordinals.len() as u64).sum())
            }
        })
    }
}

pub(crate) mod http {
    use crate::host::Fault;
    use crate::host::http::{Request, Response, fault, parts};

    /// Recorded, then answered by the test. Where a grant ends is not known here.
    pub(crate) fn send(request: &Request) -> Result<Response, Fault> {
        if parts(&request.url).is_none() {
            return Err(fault("invalid-request", false));
        }
        super::with(|world| {
            if !world.granted.contains("http") {
                return Err(fault("not-granted", false));
            }
            if let Some((code, retryable)) = world.injected("http.send") {
                return Err(fault(&code, retryable));
            }
            world.requests.push(request.clone());
            world.server.as_ref().map_or_else(|| Err(fault("http-refused", true)), |answer| answer(request))
        })
    }
}
