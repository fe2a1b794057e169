//! One plugin's instances, one at a time: instantiated, called under a deadline, ended when it misbehaves.
//!
//! Holds: the store, the deadlines, and the classification of every way a call ends. Refuses to know who asks (see
//! [`crate::Worker`]). Blocking: everything here runs on the plugin's own thread, so a guest that loops starves nobody.
//!
//! A call is bounded twice: an epoch deadline ends guest code, a timer ends a host call that waits. Neither alone covers
//! both, because a looping guest never lets the timer run and a waiting one executes no loop head.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::relation::ProjectedRelation;
use wasmtime::{Store, Trap};

use crate::adapter::{Answer, Guest, Speak};
use crate::capability::metrics::Metrics;
use crate::capability::{Grants, HostState, Phase};
use crate::component::Component;
use crate::description::{Capabilities, Description};
use crate::engine::ticks;
use crate::http::Client;
use crate::limits::size;
use crate::manifest::Policy;
use crate::outcome::{CallError, DeadlineIn, Garbage, OpenContext, Receipt, Staged, TrapCause, Verdict};
use crate::wear::{Sign, Wear};
use crate::worker::Body;

/// The longest `describe` may take, whatever its limits say: it is pure, and tools wait for it.
const DESCRIBE_DEADLINE: Duration = Duration::from_secs(5);

/// How much longer than its deadline a call may wait in the host, so that a guest that computes is always ended by its
/// epoch, which tells more.
const GRACE: Duration = Duration::from_millis(50);

/// Turns of the runtime in which what was told to end does so. It takes two.
const MOST_TURNS: usize = 100;

/// wasmtime's words for errors whose types it keeps private. Pinned by tests.
const HOST_CALL_BYTES_WORDS: &str = "fuel allocated for hostcalls";
const RESOURCE_LIMIT_WORDS: &str = "resource limit exceeded";
const OUT_OF_BOUNDS_WORDS: &str = "out of bounds";

/// What runs on the thread of a guest plugin.
pub(crate) struct GuestBody {
    component: Component,
    policy: Arc<Policy>,
    metrics: Arc<Metrics>,
    runtime: Runtime,
    /// The one client of the plugin, shared by its instances; none where no request is granted.
    http: Option<Arc<Client>>,
    description: Option<Description>,
    instance: Option<Instance>,
    worn: Arc<Sign>,
}

struct Instance {
    store: Store<HostState>,
    guest: Guest,
    wear: Wear,
}

impl GuestBody {
    pub(crate) fn new(
        component: Component,
        policy: Arc<Policy>,
        metrics: Arc<Metrics>,
        worn: Arc<Sign>,
    ) -> std::io::Result<Self> {
        // WASI clocks and pollables need the timer; sockets are denied but their tables ask for the driver.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let http = (!policy.http.is_empty()).then(|| Arc::new(Client::new(&policy)));
        Ok(Self { component, policy, metrics, runtime, http, description: None, instance: None, worn })
    }

    fn instantiate(&self, grants: Grants) -> Result<Instance, CallError> {
        let state = HostState::new(Arc::clone(&self.policy), Arc::clone(&self.metrics), grants);
        let mut store = Store::new(self.component.linked().engine(), state);
        store.limiter(|host| &mut host.limiter);
        store.set_hostcall_fuel(size(self.policy.limits.host_call_bytes));
        let limit = self.policy.limits.open_deadline();
        let linked = self.component.linked();
        let guest = bounded(&self.runtime, &mut store, limit, async |store| linked.instantiate(store).await.map(Ok))?;
        Ok(Instance { store, guest, wear: Wear::default() })
    }

    /// Asked for on an instance of its own, without any grant, and kept: the answer depends on the file alone.
    fn described(&mut self) -> Result<&Description, CallError> {
        if self.description.is_none() {
            let nothing = Grants { capabilities: Capabilities::default(), state: Default::default(), http: None };
            let mut instance = self.instantiate(nothing)?;
            instance.store.data_mut().begin(Phase::Describe);
            let guest = &instance.guest;
            let limit = self.policy.limits.open_deadline().min(DESCRIBE_DEADLINE);
            let told = bounded(&self.runtime, &mut instance.store, limit, async |store| guest.describe(store).await)?;
            self.description = Some(told);
        }
        self.description.as_ref().ok_or(CallError::Gone)
    }

    /// Calls the open instance. Any error but a refusal ends it; every error drops what the call staged.
    fn call<T>(
        &mut self,
        phase: Phase,
        call: impl AsyncFnOnce(&Guest, &mut Store<HostState>, &Policy) -> Answer<T>,
    ) -> Result<T, CallError> {
        let mut instance = self.instance.take().ok_or(CallError::Gone)?;
        let before = instance.store.data_mut().begin(phase);
        let limit =
            if phase == Phase::Open { self.policy.limits.open_deadline() } else { self.policy.limits.call_deadline() };
        let (guest, policy) = (&instance.guest, &self.policy);
        let answer = bounded(&self.runtime, &mut instance.store, limit, async |store| call(guest, store, policy).await);
        if answer.as_ref().is_err_and(CallError::ends_instance) {
            drop(instance);
            self.end_requests();
            return answer;
        }
        let host = instance.store.data_mut();
        host.finish();
        if answer.is_err() {
            host.roll_back(before);
        }
        self.instance = Some(instance);
        answer
    }

    /// Counts a delivery, if the instance is still there after it.
    fn wear_down(&mut self) {
        let worn = self.instance.as_mut().and_then(|instance| {
            let memory = instance.store.data().limiter.memory_used();
            instance.wear.delivered(memory, &self.policy.limits)
        });
        self.worn.set(worn);
    }

    /// Sees to it that requests of an instance that is gone have ended, sockets included: their tasks were told to end, and do so
    /// when the runtime next turns, which may be long after.
    fn end_requests(&self) {
        let Some(http) = self.http.as_ref().filter(|http| http.is_busy()) else { return };
        self.runtime.block_on(async {
            for _ in 0..MOST_TURNS {
                tokio::task::yield_now().await;
                if !http.is_busy() {
                    break;
                }
            }
            // Connections end one turn after what used them.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        });
    }

    fn staged(&mut self) -> Staged {
        self.instance.as_mut().map(|instance| instance.store.data_mut().take_staged()).unwrap_or_default()
    }
}

impl Body for GuestBody {
    fn describe(&mut self) -> Result<Description, CallError> {
        self.described().cloned()
    }

    fn open(&mut self, mut context: OpenContext) -> Result<Option<Cursor>, CallError> {
        self.abandon();
        let asked = Capabilities::parse(&self.described()?.capabilities)
            .map_err(|error| CallError::Garbage(Garbage(format!("describe: {error}"))))?;
        let capabilities = asked.intersection(&self.policy.capabilities);
        let http = self.http.clone().filter(|_| capabilities.http);
        let state = std::mem::take(&mut context.state);
        self.instance = Some(self.instantiate(Grants { capabilities, state, http })?);
        let answer = self.call(Phase::Open, async |guest, store, policy| guest.open(store, &context, policy).await);
        if answer.is_err() {
            self.abandon();
        }
        answer
    }

    fn relation_changed(
        &mut self,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
    ) -> Result<Verdict, CallError> {
        self.call(Phase::RelationChanged, async |guest, store, policy| {
            guest.relation_changed(store, current, previous, policy).await
        })
    }

    fn deliver(&mut self, batch: &mut Batch) -> Result<(Receipt, Staged), CallError> {
        tracing::debug!(plugin = self.policy.plugin, rows = batch.rows, to = %batch.reaches.end, "plugin called");
        let answer = self.call(Phase::Deliver, async |guest, store, policy| guest.deliver(store, batch, policy).await);
        self.wear_down();
        Ok((answer?, self.staged()))
    }

    fn flush(&mut self) -> Result<Staged, CallError> {
        self.call(Phase::Flush, async |guest, store, policy| guest.flush(store, policy).await)?;
        Ok(self.staged())
    }

    fn close(&mut self) -> Result<(), CallError> {
        let answer = self.call(Phase::Close, async |guest, store, _| guest.close(store).await);
        self.abandon();
        answer
    }

    fn abandon(&mut self) {
        if self.instance.take().is_some() {
            self.end_requests();
        }
        self.worn.set(None);
    }
}

/// Runs one call to its end or its deadline, and says in the host's words how it ended. What the call holds is dropped with
/// it.
fn bounded<T>(
    runtime: &Runtime,
    store: &mut Store<HostState>,
    limit: Duration,
    call: impl AsyncFnOnce(&mut Store<HostState>) -> Answer<T>,
) -> Result<T, CallError> {
    store.set_epoch_deadline(ticks(limit));
    let timed = async { tokio::time::timeout(limit + GRACE, call(&mut *store)).await };
    // A panic of a host function passes through the guest up to here. The store is dropped with everything it left.
    match catch_unwind(AssertUnwindSafe(|| runtime.block_on(timed))) {
        Ok(Ok(Ok(answer))) => answer,
        Ok(Ok(Err(error))) => Err(classify(&error, store.data(), limit)),
        Ok(Err(_)) => Err(deadline(limit, DeadlineIn::HostCall)),
        Err(_) => Err(CallError::Trapped(TrapCause::HostPanic)),
    }
}

fn deadline(limit: Duration, place: DeadlineIn) -> CallError {
    CallError::Deadline { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), place }
}

/// The cause alone; the error's text may name functions and hold guest text, so it goes no further.
fn classify(error: &wasmtime::Error, host: &HostState, limit: Duration) -> CallError {
    let trap = error.downcast_ref::<Trap>();
    if trap == Some(&Trap::Interrupt) {
        return deadline(limit, DeadlineIn::Guest);
    }
    // A refused growth is why the guest gave up, whatever it did next.
    if host.limiter.refused_memory() {
        return CallError::Trapped(TrapCause::MemoryLimit);
    }
    if host.limiter.refused_table() {
        return CallError::Trapped(TrapCause::TableLimit);
    }
    CallError::Trapped(match trap {
        Some(trap) => cause_of_trap(trap),
        None => cause_of_error(error),
    })
}

fn cause_of_trap(trap: &Trap) -> TrapCause {
    match trap {
        Trap::UnreachableCodeReached => TrapCause::Unreachable,
        Trap::StackOverflow => TrapCause::StackOverflow,
        Trap::MemoryOutOfBounds
        | Trap::TableOutOfBounds
        | Trap::ArrayOutOfBounds
        | Trap::StringOutOfBounds
        | Trap::ListOutOfBounds => TrapCause::OutOfBounds,
        Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger => TrapCause::Arithmetic,
        Trap::AllocationTooLarge => TrapCause::MemoryLimit,
        _ => TrapCause::Other,
    }
}

fn cause_of_error(error: &wasmtime::Error) -> TrapCause {
    if error.downcast_ref::<wasmtime_wasi::I32Exit>().is_some() {
        return TrapCause::Exited;
    }
    let says = |words: &str| error.chain().any(|cause| cause.to_string().contains(words));
    if says(HOST_CALL_BYTES_WORDS) {
        TrapCause::HostCallBytes
    } else if says(RESOURCE_LIMIT_WORDS) {
        TrapCause::TableLimit
    } else if says(OUT_OF_BOUNDS_WORDS) {
        TrapCause::OutOfBounds
    } else {
        TrapCause::Other
    }
}
