//! The handle of one plugin, and the thread that owns its instance.
//!
//! Holds: the bounded mailbox and what becomes of a caller that went away. Refuses to know wasmtime: what answers is a
//! [`Body`], a guest (`instance.rs`) or, for measuring the cost of the sandbox, a native sink (`native.rs`).
//!
//! One thread a plugin and not a task: a guest computes for as long as its deadline allows, and must do so without holding a
//! thread that others need.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::relation::ProjectedRelation;

use crate::capability::metrics::{Metrics, MetricsSnapshot};
use crate::component::Component;
use crate::description::Description;
use crate::error::Class;
use crate::instance::GuestBody;
use crate::manifest::Policy;
use crate::native::{NativeBody, NativeSink};
use crate::outcome::{CallError, Delivery, OpenContext, Receipt, Staged, Verdict};
use crate::wear::{Sign, Worn};

/// Calls waiting in the mailbox. One: the pipeline prepares the next batch while the plugin has this one, and no more may
/// pile up in memory.
const MAILBOX: usize = 1;

/// The thread of a plugin could not be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "the thread of plugin {plugin:?} could not be started; raise the limits of threads and open files of the process"
)]
pub struct StartError {
    /// The plugin.
    pub plugin: String,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}

impl StartError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// What runs on a plugin's thread. Calls come one at a time.
pub(crate) trait Body: Send + 'static {
    fn describe(&mut self) -> Result<Description, CallError>;
    fn open(&mut self, context: OpenContext) -> Result<Option<Cursor>, CallError>;
    fn relation_changed(
        &mut self,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
    ) -> Result<Verdict, CallError>;
    /// Leaves the batch as it was.
    fn deliver(&mut self, batch: &mut Batch) -> Result<(Receipt, Staged), CallError>;
    fn flush(&mut self) -> Result<Staged, CallError>;
    fn close(&mut self) -> Result<(), CallError>;
    /// Drops the instance, if there is one.
    fn abandon(&mut self);
}

type Reply<T> = oneshot::Sender<Result<T, CallError>>;

enum Job {
    Describe(Reply<Description>),
    Open(OpenContext, Reply<Option<Cursor>>),
    RelationChanged(Box<(ProjectedRelation, Option<ProjectedRelation>)>, Reply<Verdict>),
    Deliver(Batch, oneshot::Sender<Delivery>),
    Flush(Reply<Staged>),
    Close(Reply<()>),
}

/// A running plugin. The thread ends, and with it the instance, when the handle is dropped and the call in hand is over.
///
/// Calls are taken one at a time, in order; each is bounded by the plugin's deadlines. A caller that drops the future of a
/// call in hand ends the instance: nobody knows what that call did, so `open` has to come first again. Staged changes are
/// handed over exactly once, with the delivery or flush that succeeded; the caller commits them together with the
/// checkpoint, or opens the plugin again from what was committed.
#[derive(Debug)]
pub struct Worker {
    mailbox: mpsc::Sender<Job>,
    metrics: Arc<Metrics>,
    worn: Arc<Sign>,
}

impl Worker {
    /// Starts the thread of a plugin. Nothing of the plugin runs before the first call.
    ///
    /// # Errors
    /// When the system has no thread or event queue left.
    pub fn start(component: Component, policy: Policy) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new(policy.limits.metric_names));
        let plugin = policy.plugin.clone();
        let worn = Arc::<Sign>::default();
        let body = GuestBody::new(component, Arc::new(policy), Arc::clone(&metrics), Arc::clone(&worn));
        body.and_then(|body| Self::spawn(&plugin, body, metrics, worn)).map_err(|source| StartError { plugin, source })
    }

    /// Runs a sink compiled into the host on the same thread and mailbox, so that the cost of the sandbox can be measured
    /// as the difference. For the bench only: nothing isolates it.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub fn native(sink: Box<dyn NativeSink>) -> Result<Self, StartError> {
        let plugin = "native".to_owned();
        let metrics = Arc::new(Metrics::new(0));
        Self::spawn(&plugin, NativeBody::new(sink), metrics, Arc::default())
            .map_err(|source| StartError { plugin, source })
    }

    fn spawn(plugin: &str, body: impl Body, metrics: Arc<Metrics>, worn: Arc<Sign>) -> std::io::Result<Self> {
        let (mailbox, jobs) = mpsc::channel(MAILBOX);
        std::thread::Builder::new().name(format!("plugin-{plugin}")).spawn(move || serve(body, jobs))?;
        Ok(Self { mailbox, metrics, worn })
    }

    /// Asks the plugin what it is and wants, on an instance of its own without any grant. Answered from memory after the
    /// first time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn describe(&self) -> Result<Description, CallError> {
        self.ask(Job::Describe).await
    }

    /// Makes a fresh instance and opens it; an instance that was open is dropped without `close`. Answers the plugin's own
    /// durable position, if it keeps one.
    ///
    /// # Errors
    /// See [`CallError`]; after any of them there is no instance.
    pub async fn open(&self, context: OpenContext) -> Result<Option<Cursor>, CallError> {
        self.ask(|reply| Job::Open(context, reply)).await
    }

    /// Tells the plugin a relation's shape, before the first batch that uses it.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn relation_changed(
        &self,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
    ) -> Result<Verdict, CallError> {
        let shapes = Box::new((current.clone(), previous.cloned()));
        self.ask(|reply| Job::RelationChanged(shapes, reply)).await
    }

    /// Delivers one batch and hands it back, whatever came of it.
    pub async fn deliver(&self, batch: Batch) -> Delivery {
        let (reply, answer) = oneshot::channel();
        let gone = |batch| Delivery { batch, outcome: Err(CallError::Gone), staged: Staged::default() };
        match self.mailbox.send(Job::Deliver(batch, reply)).await {
            Ok(()) => answer.await.unwrap_or_else(|_| gone(Batch::default())),
            Err(mpsc::error::SendError(Job::Deliver(batch, _))) => gone(batch),
            Err(_) => gone(Batch::default()),
        }
    }

    /// Makes everything taken so far durable; hands over what was staged for it.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn flush(&self) -> Result<Staged, CallError> {
        self.ask(Job::Flush).await
    }

    /// The last call of an instance. Whatever it answers, the instance is gone afterwards.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn close(&self) -> Result<(), CallError> {
        self.ask(Job::Close).await
    }

    /// The plugin's metrics, over all its instances.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.metrics.snapshot()
    }

    /// Whether the instance should give way to a fresh one before the next batch: it has taken what `recycle_calls` says, or
    /// has more memory than `recycle_memory_mib`. True of the last delivery that was answered; none without an instance.
    pub fn worn(&self) -> Option<Worn> {
        self.worn.get()
    }

    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(job(reply)).await.map_err(|_| CallError::Gone)?;
        answer.await.unwrap_or(Err(CallError::Gone))
    }
}

/// The loop of the thread: ends when the handle is gone.
fn serve(mut body: impl Body, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.blocking_recv() {
        let heard = match job {
            Job::Describe(reply) => {
                // Pure, and on an instance of its own: an answer nobody hears changes nothing.
                let _ = reply.send(body.describe());
                true
            }
            Job::Open(context, reply) => reply.send(body.open(context)).is_ok(),
            Job::RelationChanged(shapes, reply) => {
                reply.send(body.relation_changed(&shapes.0, shapes.1.as_ref())).is_ok()
            }
            Job::Deliver(batch, reply) => reply.send(deliver(&mut body, batch)).is_ok(),
            Job::Flush(reply) => reply.send(body.flush()).is_ok(),
            Job::Close(reply) => reply.send(body.close()).is_ok(),
        };
        if !heard {
            body.abandon();
        }
    }
}

fn deliver(body: &mut impl Body, mut batch: Batch) -> Delivery {
    match body.deliver(&mut batch) {
        Ok((receipt, staged)) => Delivery { batch, outcome: Ok(receipt), staged },
        Err(error) => Delivery { batch, outcome: Err(error), staged: Staged::default() },
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
