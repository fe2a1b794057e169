//! Carries calls of the contract to a sink. What `export_sink!` expands to uses this; authors do not.
//!
//! Holds: one sink and the relations it has been told about. Refuses to know where it runs: the exports of a component
//! and the test double drive the same [`Session`]. Read next: [`crate::Sink`].

use std::rc::Rc;

use crate::bindings::exports::walgate::cdc::sink as raw;
use crate::relation::Relations;
use crate::{Batch, Failure, Sink};

/// One instance of a plugin: its sink once it is open, and what it knows.
pub struct Session<S> {
    sink: Option<S>,
    relations: Relations,
}

impl<S: Sink> Session<S> {
    /// An instance that has not been opened.
    pub const fn new() -> Self {
        Self { sink: None, relations: Relations::new() }
    }

    fn sink(&mut self) -> Result<&mut S, Failure> {
        self.sink.as_mut().ok_or_else(|| Failure::halt("not-open"))
    }

    /// `open`.
    pub fn open(&mut self, context: &raw::Context) -> Result<Option<raw::Position>, Failure> {
        let opened = S::open(context)?;
        self.sink = Some(opened.sink);
        Ok(opened.position)
    }

    /// `relation-changed`. A declined shape is not remembered: no row of it may follow.
    pub fn relation_changed(
        &mut self,
        current: raw::Relation,
        previous: Option<&raw::Relation>,
    ) -> Result<raw::Verdict, Failure> {
        let verdict = self.sink()?.relation_changed(&current, previous)?;
        if verdict != raw::Verdict::Decline {
            self.relations.insert(current.id, Rc::new(current));
        }
        Ok(verdict)
    }

    /// `deliver`.
    pub fn deliver(&mut self, batch: raw::Batch) -> Result<crate::Receipt, Failure> {
        let batch = Batch::new(batch, &self.relations)
            .map_err(|malformed| Failure::halt("malformed-batch").message(malformed.to_string()))?;
        self.sink()?.deliver(&batch)
    }

    /// `flush`. Nothing to do before `open`.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.sink.as_mut().map_or(Ok(()), Sink::flush)
    }

    /// `close`.
    pub fn close(&mut self) {
        if let Some(sink) = self.sink.as_mut() {
            sink.close();
        }
    }
}

impl<S: Sink> Default for Session<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the one session of a component lives. Implemented by `export_sink!`.
pub trait Instance {
    /// The sink that is exported.
    type Sink: Sink;

    /// Runs a call on the session. The host makes one call at a time, so it is never borrowed twice.
    fn with<R>(call: impl FnOnce(&mut Session<Self::Sink>) -> R) -> R;
}

impl<I: Instance> raw::Guest for I {
    fn describe() -> raw::Description {
        drop_panic_text();
        I::Sink::describe().into_raw()
    }

    fn open(context: raw::Context) -> Result<Option<raw::Position>, raw::Failure> {
        drop_panic_text();
        I::with(|session| session.open(&context)).map_err(Failure::into_raw)
    }

    fn relation_changed(current: raw::Relation, previous: Option<raw::Relation>) -> Result<raw::Verdict, raw::Failure> {
        I::with(|session| session.relation_changed(current, previous.as_ref())).map_err(Failure::into_raw)
    }

    fn deliver(batch: raw::Batch) -> Result<raw::Receipt, raw::Failure> {
        I::with(|session| session.deliver(batch)).map(crate::Receipt::into_raw).map_err(Failure::into_raw)
    }

    fn flush() -> Result<(), raw::Failure> {
        I::with(Session::flush).map_err(Failure::into_raw)
    }

    fn close() {
        I::with(Session::close);
    }
}

/// A panic text may quote a row, so it must not reach standard error, where a target has one.
fn drop_panic_text() {
    std::panic::set_hook(Box::new(|_| {}));
}
