//! Driving a sink as the host drives it.
//!
//! Holds: the grants of a test and one open instance. Refuses to hide what the host would do: a failed delivery loses
//! what it staged, a garbage receipt fails the test. Read next: [`super::BatchBuilder`].

#![expect(clippy::panic, reason = "a test double fails the test that misuses it, or that the real host would refuse")]

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::rc::Rc;

use super::TestBatch;
use super::double::{self, Injected, Phase, World};
use crate::bindings::walgate::host::{log::Level, replica::Lookup};
use crate::guest::Session;
use crate::host::Fault;
use crate::host::http::{Request, Response};
use crate::{Context, Description, Failure, Position, Receipt, Relation, RowSet, Sink, Verdict};

/// What the host grants and holds before a sink opens.
#[derive(Default)]
pub struct Host {
    world: World,
}

/// One line the sink logged.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// Its level.
    pub level: Level,
    /// Its code.
    pub code: String,
    /// Its text, which the real host drops by default.
    pub message: String,
}

/// A lookup in a catalog replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    /// The catalog.
    pub catalog: &'a str,
    /// The field, none for a lookup by key.
    pub field: Option<&'a str>,
    /// The key or the value of the field.
    pub value: &'a str,
}

impl Host {
    /// A host that grants nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Grants a capability: `log`, `metrics`, `state`, `http`, `output:NAME`, `rows:NAME` or `rows:*`.
    #[must_use]
    pub fn grant(mut self, capability: &str) -> Self {
        self.world.granted.insert(capability.to_owned());
        self
    }

    /// Grants everything the sink asks for in `describe`.
    #[must_use]
    pub fn grant_asked<S: Sink>(mut self) -> Self {
        self.world.granted.extend(S::describe().into_raw().capabilities);
        self
    }

    /// Gives a setting.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.world.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Grants a secret.
    #[must_use]
    pub fn secret(mut self, name: &str, value: &str) -> Self {
        self.world.secrets.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Gives a value of the plugin's state from an earlier run.
    #[must_use]
    pub fn state(mut self, key: &str, value: &[u8]) -> Self {
        self.world.state.insert(key.to_owned(), value.to_vec());
        self
    }

    /// Answers lookups in catalog replicas.
    #[must_use]
    pub fn replica(mut self, answer: impl Fn(Query<'_>) -> Lookup + 'static) -> Self {
        self.world.replica = Some(Box::new(answer));
        self
    }

    /// Answers requests over HTTP; without this, nobody listens anywhere.
    #[must_use]
    pub fn http(mut self, answer: impl Fn(&Request) -> Result<Response, Fault> + 'static) -> Self {
        self.world.server = Some(Box::new(answer));
        self
    }

    /// What the sink says about itself, with every call denied as in the real host.
    pub fn describe<S: Sink>() -> Description {
        let before = double::with(std::mem::take);
        let description = S::describe();
        double::with(|world| *world = before);
        description
    }

    /// Opens the sink.
    pub fn open<S: Sink>(self) -> Result<Run<S>, Failure> {
        double::with(|world| *world = self.world);
        Run::open(1)
    }
}

/// One open instance of a sink.
///
/// Dropping it forgets everything the double held on this thread.
pub struct Run<S: Sink> {
    session: Session<S>,
    told: BTreeMap<u32, Relation>,
    position: Option<Position>,
    epoch: u64,
    /// The double is the thread's, so a run stays on it.
    on_this_thread: PhantomData<Rc<()>>,
}

impl<S: Sink> Run<S> {
    fn open(epoch: u64) -> Result<Self, Failure> {
        let context = Context {
            plugin: "under-test".to_owned(),
            generation: 1,
            pipeline: "test".to_owned(),
            lineage: "test-lineage".to_owned(),
            epoch,
            settings: double::with(|world| world.settings.clone()).into_iter().collect(),
        };
        let mut session = Session::new();
        let position = inside(Phase::Before, || session.open(&context))?;
        Ok(Self { session, told: BTreeMap::new(), position, epoch, on_this_thread: PhantomData })
    }

    /// The position the sink stores itself, if `open` answered one.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// Tells the sink about a relation, as the host does before the batch that needs it.
    pub fn relation_changed(&mut self, current: &Relation) -> Result<Verdict, Failure> {
        let previous = self.told.insert(current.id, current.clone());
        inside(Phase::Before, || self.session.relation_changed(current.clone(), previous.as_ref()))
    }

    /// Tells the sink about relations it does not know in this shape, then delivers. On a failure, and only then, what
    /// the delivery wrote to state, outputs and rows is lost. Panics on a receipt that the host would call garbage, and when
    /// the sink declines a relation.
    #[track_caller]
    pub fn deliver(&mut self, batch: &TestBatch) -> Result<Receipt, Failure> {
        for relation in &batch.relations {
            if self.told.get(&relation.id) != Some(relation) {
                let verdict = self.relation_changed(relation)?;
                assert!(verdict != Verdict::Decline, "the sink declined {}", relation.full_name());
            }
        }
        let receipt = inside(Phase::Inside, || self.session.deliver(batch.raw.clone()))?;
        check_receipt(&receipt, batch);
        Ok(receipt)
    }

    /// Asks the sink to make everything durable.
    pub fn flush(&mut self) -> Result<(), Failure> {
        inside(Phase::Inside, || self.session.flush())
    }

    /// The last call. Writes to state and outputs are refused here.
    pub fn close(&mut self) {
        self.session.close();
    }

    /// Throws the instance away as after a crash and opens a fresh one with what was committed.
    pub fn restart(self) -> Result<Self, Failure> {
        let epoch = self.epoch + 1;
        let mut world = double::with(std::mem::take);
        world.roll_back();
        drop(self);
        double::with(|fresh| *fresh = world);
        Self::open(epoch)
    }

    /// Makes the next call of that name answer a fault: `state.get`, `state.set`, `state.delete`,
    /// `output.append`, `rows.apply` or `http.send`.
    pub fn fail_next(&mut self, call: &str, code: &str, retryable: bool) {
        let fault = Injected { call: call.to_owned(), code: code.to_owned(), retryable };
        double::with(|world| world.faults.push_back(fault));
    }

    /// The committed content of an output. Panics when it is not UTF-8.
    #[track_caller]
    pub fn output(&self, name: &str) -> String {
        let bytes = double::with(|world| world.outputs.get(name).cloned()).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_else(|_| panic!("output {name:?} is not UTF-8"))
    }

    /// The rows of every committed call of `rows.apply`, in order.
    pub fn rows(&self) -> Vec<Vec<RowSet>> {
        double::with(|world| world.rows.clone())
    }

    /// The requests that were sent, in order. What has left stays, also when a call failed.
    pub fn requests(&self) -> Vec<Request> {
        double::with(|world| world.requests.clone())
    }

    /// The committed value of a key.
    pub fn state(&self, key: &str) -> Option<Vec<u8>> {
        double::with(|world| world.state.get(key).cloned())
    }

    /// A counter, 0 when it was never counted.
    pub fn counter(&self, name: &str) -> u64 {
        double::with(|world| world.counters.get(name).copied()).unwrap_or_default()
    }

    /// The observations of a distribution.
    pub fn observations(&self, name: &str) -> Vec<f64> {
        double::with(|world| world.observations.get(name).cloned()).unwrap_or_default()
    }

    /// The lines the sink logged.
    pub fn logs(&self) -> Vec<Logged> {
        double::with(|world| world.logs.clone())
    }

    /// The codes of the lines the sink logged.
    pub fn log_codes(&self) -> Vec<String> {
        self.logs().into_iter().map(|line| line.code).collect()
    }
}

impl<S: Sink> Drop for Run<S> {
    fn drop(&mut self) {
        double::with(|world| *world = World::default());
    }
}

/// Runs a call of the sink: it may write, and what it wrote counts only when it succeeds.
fn inside<R>(phase: Phase, call: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    double::with(|world| world.phase = phase);
    let result = call();
    double::with(|world| {
        world.phase = Phase::Outside;
        match result {
            Ok(_) => world.commit(),
            Err(_) => world.roll_back(),
        }
    });
    result
}

#[track_caller]
fn check_receipt(receipt: &Receipt, batch: &TestBatch) {
    let mut seen = BTreeSet::new();
    for (ordinal, code) in receipt.rejected() {
        assert!(batch.has_ordinal(ordinal), "the receipt rejects ordinal {ordinal}, which the batch does not have");
        assert!(seen.insert(ordinal), "the receipt rejects ordinal {ordinal} twice");
        let well_formed = (1..=40).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        assert!(well_formed, "the code of a rejection must match [a-z0-9-]{{1,40}}");
    }
}
