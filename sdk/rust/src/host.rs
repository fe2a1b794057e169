//! What the host does for a plugin: log, metrics, state, outputs, settings, secrets, lookups, rows, requests over HTTP.
//!
//! Holds: one function a call, with one fault type for all. Refuses to know what is granted: the host answers that at
//! call time. In a native test the same functions reach the double of [`crate::testing`]. Read next:
//! `wit/v0.1/deps/host/host.wit`, which says what each call means, costs and is limited by.

#[cfg(target_arch = "wasm32")]
use crate::bindings::walgate::{cdc::rows as rows_backend, host as backend};
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::double::{self as backend, rows as rows_backend};

pub mod http;
#[cfg(target_arch = "wasm32")]
mod http_wasi;

/// The host did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} answered {code}")]
pub struct Fault {
    /// The call, such as `state.set`.
    pub call: &'static str,
    /// `not-granted`, `over-limit`, `outside-delivery`, `unavailable`, …. Never carries a value.
    pub code: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
}

/// The setting of that name in plugin.toml.
pub fn setting(name: &str) -> Option<String> {
    backend::settings::get(name)
}

/// The secret of that name, if the grant marks it `reveal`. Prefer injection by the host.
pub fn secret(name: &str) -> Result<String, Fault> {
    backend::secrets::reveal(name).map_err(|fault| Fault { call: "secrets.reveal", code: fault.code, retryable: false })
}

/// Lines for the operator. The code is always kept, the message only under `diagnostics = "guest-text"`.
pub mod log {
    use super::backend::log::write;
    use crate::bindings::walgate::host::log::Level;

    /// For following single steps while a plugin is written.
    pub fn trace(code: &str, message: &str) {
        write(Level::Trace, code, message);
    }

    /// For finding a fault.
    pub fn debug(code: &str, message: &str) {
        write(Level::Debug, code, message);
    }

    /// Something worth knowing happened.
    pub fn info(code: &str, message: &str) {
        write(Level::Info, code, message);
    }

    /// Something an operator may want to act on.
    pub fn warn(code: &str, message: &str) {
        write(Level::Warn, code, message);
    }

    /// Something failed.
    pub fn error(code: &str, message: &str) {
        write(Level::Error, code, message);
    }
}

/// Numbers for the operator, shown as `walgate_plugin_<name>`.
pub mod metrics {
    use super::backend;

    /// Adds to a counter.
    pub fn count(name: &str, delta: u64) {
        backend::metrics::count(name, delta);
    }

    /// Records one observation of a distribution.
    pub fn observe(name: &str, value: f64) {
        backend::metrics::observe(name, value);
    }
}

/// A small durable map that commits together with the checkpoint of the batch that wrote it.
pub mod state {
    use super::{Fault, backend};

    /// The value of a key, staged writes included.
    pub fn get(key: &str) -> Result<Option<Vec<u8>>, Fault> {
        backend::state::get(key).map_err(|fault| super::state_fault("state.get", fault))
    }

    /// Sets a key.
    pub fn set(key: &str, value: &[u8]) -> Result<(), Fault> {
        backend::state::set(key, value).map_err(|fault| super::state_fault("state.set", fault))
    }

    /// Removes a key; fine also when there is none.
    pub fn delete(key: &str) -> Result<(), Fault> {
        backend::state::delete(key).map_err(|fault| super::state_fault("state.delete", fault))
    }
}

/// Append-only outputs kept by the host; what a delivery appends commits with its checkpoint.
pub mod output {
    use super::{Fault, backend};

    /// Appends to the output of that name.
    pub fn append(name: &str, data: &[u8]) -> Result<(), Fault> {
        backend::output::append(name, data).map_err(|fault| Fault {
            call: "output.append",
            code: fault.code,
            retryable: fault.retryable,
        })
    }
}

/// Lookups in a catalog replica kept by the host. Three answers that must not be merged.
pub mod replica {
    use super::backend;
    pub use crate::bindings::walgate::host::replica::{FoundRow, Lookup};

    /// The live row of a key.
    pub fn by_key(catalog: &str, key: &str) -> Lookup {
        backend::replica::by_key(catalog, key)
    }

    /// The one live row whose field has that value.
    pub fn by_field(catalog: &str, field: &str, value: &str) -> Lookup {
        backend::replica::by_field(catalog, field, value)
    }
}

/// Rows into a granted Postgres target, inside the host's own transaction.
///
/// ```
/// use walgate_sdk::{
///     Batch, Cell, Cells, Context, Description, Failure, Opened, Operation, Receipt, RowSet, Sink, TableRequest, Value,
///     export_sink, host,
/// };
///
/// struct Copy;
///
/// impl Sink for Copy {
///     fn describe() -> Description {
///         Description::new("copy", "0.1.0").table(TableRequest::all()).capability("rows:orders").capability("rows:ledger")
///     }
///
///     fn open(_: &Context) -> Result<Opened<Self>, Failure> {
///         Ok(Copy.into())
///     }
///
///     fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
///         // As it is, under the names of its own columns.
///         let sets: Vec<_> = batch.groups().map(|group| RowSet::of_group("orders", group, group.relation())).collect();
///         host::rows::apply(&sets)?;
///         // Something else: one line a batch.
///         let count = Cell::Value(Value::Int64(batch.row_count() as i64));
///         let line = RowSet::new("ledger", Operation::Insert)
///             .ordinals([0])
///             .after(Cells::collect("batch", [Cell::Value(Value::Text(batch.id()))])?)
///             .after(Cells::collect("rows", [count])?);
///         host::rows::apply(&[line])?;
///         Ok(Receipt::durable())
///     }
/// }
///
/// export_sink!(Copy);
///
/// use walgate_sdk::{cells, testing::{BatchBuilder, Host, Table}};
///
/// let orders = Table::new("public", "orders").key("id", "int8");
/// let batch = BatchBuilder::new("b-1").transaction(1).insert(&orders, cells![7i64]).build();
/// let mut run = Host::new().grant_asked::<Copy>().open::<Copy>()?;
/// run.deliver(&batch)?;
/// let targets: Vec<_> = run.rows().iter().flatten().map(|set| set.target.clone()).collect();
/// assert_eq!(targets, ["orders", "ledger"]);
/// # Ok::<(), Failure>(())
/// ```
pub mod rows {
    use super::{Fault, rows_backend};
    pub use crate::bindings::walgate::cdc::change::{ByteValues, TextValues, Values};
    pub use crate::rows::{Cells, RowSet};
    use crate::{Operation, Relation};

    /// Stages all sets, merged by ordinal, so that the result is what row by row application would give; answers how many
    /// rows were staged. Only [`crate::Sink::deliver`] and [`crate::Sink::flush`] may. A call is taken whole or not at all.
    ///
    /// # Errors
    /// `not-granted` (target, operation or column), `outside-delivery`, `over-limit`, `invalid-rows`.
    pub fn apply(sets: &[RowSet]) -> Result<u64, Fault> {
        rows_backend::apply(sets).map_err(|fault| Fault {
            call: "rows.apply",
            code: fault.code,
            retryable: fault.retryable,
        })
    }

    /// Whether the grant lets this plugin write the columns of `relation` to a target, by any operation on rows. May be asked in
    /// any call but `describe`, so a sink can decline a table in [`crate::Sink::relation_changed`], before its first row.
    pub fn is_granted(target: &str, relation: &Relation) -> bool {
        // Grants are looked at first, and a set without rows changes nothing, wherever it is applied.
        let columns = || relation.columns.iter().map(|column| Cells::new(&column.name, Values::Int16(Vec::new())));
        // A truncate names no column, so it says nothing about them.
        [Operation::Insert, Operation::Read, Operation::Update, Operation::Delete].into_iter().any(|operation| {
            let mut set = RowSet::new(target, operation);
            let side = if operation == Operation::Delete { &mut set.before } else { &mut set.after };
            side.extend(columns());
            !rows_backend::apply(&[set]).is_err_and(|fault| fault.code == "not-granted")
        })
    }
}

fn state_fault(call: &'static str, fault: crate::bindings::walgate::host::state::Fault) -> Fault {
    Fault { call, code: fault.code, retryable: fault.retryable }
}
