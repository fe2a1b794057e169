//! A sink compiled into the host, on the same thread and mailbox as a guest. For measuring what the sandbox costs.

use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::grant::{Operations, TableRequest};
use walgate_core::relation::ProjectedRelation;

use crate::description::Description;
use crate::outcome::{CallError, OpenContext, Receipt, Staged, Verdict};
use crate::worker::Body;

/// What a native sink does with batches. It keeps no state in the host and no position of its own.
pub trait NativeSink: Send + 'static {
    /// As `relation-changed` of the contract.
    fn relation_changed(&mut self, current: &ProjectedRelation, previous: Option<&ProjectedRelation>) -> Verdict;

    /// As `deliver` of the contract.
    fn deliver(&mut self, batch: &Batch) -> Receipt;
}

/// Asks for every column of every granted table.
pub(crate) struct NativeBody {
    sink: Box<dyn NativeSink>,
}

impl NativeBody {
    pub(crate) fn new(sink: Box<dyn NativeSink>) -> Self {
        Self { sink }
    }
}

impl Body for NativeBody {
    fn describe(&mut self) -> Result<Description, CallError> {
        let every = || "*".to_owned();
        Ok(Description {
            name: "native".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tables: vec![TableRequest {
                namespace: every(),
                name: every(),
                columns: vec![every()],
                optional_columns: Vec::new(),
                operations: Operations::ALL,
            }],
            capabilities: Vec::new(),
            settings_schema: String::new(),
        })
    }

    fn open(&mut self, _: OpenContext) -> Result<Option<Cursor>, CallError> {
        Ok(None)
    }

    fn relation_changed(
        &mut self,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
    ) -> Result<Verdict, CallError> {
        Ok(self.sink.relation_changed(current, previous))
    }

    fn deliver(&mut self, batch: &mut Batch) -> Result<(Receipt, Staged), CallError> {
        Ok((self.sink.deliver(batch), Staged::default()))
    }

    fn flush(&mut self) -> Result<Staged, CallError> {
        Ok(Staged::default())
    }

    fn close(&mut self) -> Result<(), CallError> {
        Ok(())
    }

    fn abandon(&mut self) {}
}
