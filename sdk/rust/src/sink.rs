//! The trait a plugin implements, and what it says about itself.
//!
//! Holds: [`Sink`] with its defaults, the description builder, and the macro that exports a sink. Refuses to know how
//! calls arrive (see `guest.rs`). Read next: `wit/v0.1/sink.wit`, which says when each call comes and may repeat.

use crate::bindings::exports::walgate::cdc::sink as raw;
use crate::{Batch, Failure, Operation, Position, Receipt, Relation};

pub use raw::{Context, Verdict};

/// A plugin that carries changes somewhere.
///
/// Order of calls on one instance: `describe`, `open`, then `relation_changed` and `deliver` in any mixture, `flush`,
/// `close`; one at a time. After a panic or a missed deadline the instance is gone: a fresh one is opened and the same
/// batch is delivered to it, so nothing that matters may live in `self` alone.
pub trait Sink: Sized + 'static {
    /// What the plugin is and asks for. Pure: every host call is denied here.
    fn describe() -> Description;

    /// Makes the sink, once per instance. A sink that stores its own position answers it with [`Opened::at`] and is then
    /// never sent what it has.
    fn open(context: &Context) -> Result<Opened<Self>, Failure>;

    /// A relation is about to appear, or appears in a new shape. Comes before the batch that needs it.
    fn relation_changed(&mut self, current: &Relation, previous: Option<&Relation>) -> Result<Verdict, Failure> {
        let _ = (current, previous);
        Ok(Verdict::Accept)
    }

    /// Writes one batch. Batches come in commit order; the host repeats one after a crash, a trap, a missed deadline or
    /// a retry, with the same [`Batch::id`].
    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure>;

    /// Makes everything taken so far durable. Only called when receipts said [`Receipt::accepted`], and before a stop.
    fn flush(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The last call on a clean stop.
    fn close(&mut self) {}
}

/// A sink that has opened, with the position it stores itself, if it does.
pub struct Opened<S> {
    pub(crate) sink: S,
    pub(crate) position: Option<Position>,
}

impl<S> Opened<S> {
    /// The host keeps the position.
    pub fn new(sink: S) -> Self {
        Self { sink, position: None }
    }

    /// The sink keeps the position, and this is it. One of another lineage stops the pipeline: compare
    /// [`Context::lineage`] with the one stored beside the position first.
    pub fn at(sink: S, position: Position) -> Self {
        Self { sink, position: Some(position) }
    }
}

impl<S> From<S> for Opened<S> {
    fn from(sink: S) -> Self {
        Self::new(sink)
    }
}

/// What the plugin is and what it asks for. Asking grants nothing: plugin.toml decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    raw: raw::Description,
}

impl Description {
    /// The name of the plugin and its version, usually `env!("CARGO_PKG_VERSION")`.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        let raw = raw::Description {
            name: name.into(),
            version: version.into(),
            tables: Vec::new(),
            capabilities: Vec::new(),
            settings_schema: String::new(),
        };
        Self { raw }
    }

    /// Asks for a table.
    #[must_use]
    pub fn table(mut self, request: TableRequest) -> Self {
        self.raw.tables.push(request.raw);
        self
    }

    /// Asks for a capability: `log`, `metrics`, `state`, `http`, `output:NAME`, `rows:TARGET`, ….
    #[must_use]
    pub fn capability(mut self, name: impl Into<String>) -> Self {
        self.raw.capabilities.push(name.into());
        self
    }

    /// A JSON Schema of the settings.
    #[must_use]
    pub fn settings_schema(mut self, schema: impl Into<String>) -> Self {
        self.raw.settings_schema = schema.into();
        self
    }

    /// The record of the contract.
    pub(crate) fn into_raw(self) -> raw::Description {
        self.raw
    }
}

/// A table the plugin wants to read.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRequest {
    raw: raw::TableRequest,
}

impl TableRequest {
    /// One table, by the exact names of its schema and itself, with no column yet.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let raw = raw::TableRequest {
            namespace: namespace.into(),
            name: name.into(),
            columns: Vec::new(),
            optional_columns: Vec::new(),
            operations: Vec::new(),
        };
        Self { raw }
    }

    /// Every table of the grant, with every granted column.
    pub fn all() -> Self {
        Self::new("*", "*").column("*")
    }

    /// A column the plugin cannot work without; `*` asks for every granted one.
    #[must_use]
    pub fn column(mut self, name: impl Into<String>) -> Self {
        self.raw.columns.push(name.into());
        self
    }

    /// A column used when it is granted.
    #[must_use]
    pub fn optional(mut self, name: impl Into<String>) -> Self {
        self.raw.optional_columns.push(name.into());
        self
    }

    /// An operation the plugin wants; with none named it asks for all.
    #[must_use]
    pub fn operation(mut self, operation: Operation) -> Self {
        self.raw.operations.push(operation.name().to_owned());
        self
    }
}

/// Exports a [`Sink`] as the component's `sink` interface. Once per plugin, at the top level of its `lib.rs`.
///
/// On a native target it only checks the type, so that unit tests link.
#[macro_export]
macro_rules! export_sink {
    ($sink:ty) => {
        const _: () = {
            #[allow(dead_code, reason = "the check is that it compiles")]
            fn is_a_sink() -> $crate::Description {
                <$sink as $crate::Sink>::describe()
            }
        };

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Exported;

            ::std::thread_local! {
                static SESSION: ::std::cell::RefCell<$crate::guest::Session<$sink>> =
                    const { ::std::cell::RefCell::new($crate::guest::Session::new()) };
            }

            impl $crate::guest::Instance for Exported {
                type Sink = $sink;

                fn with<R>(call: impl FnOnce(&mut $crate::guest::Session<$sink>) -> R) -> R {
                    SESSION.with(|session| call(&mut session.borrow_mut()))
                }
            }

    $crate::bindings::export_bindings!(Exported with_types_in $crate::bindings);
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_holds_what_was_asked() {
        let table = TableRequest::new("public", "t").column("id").optional("note").operation(Operation::Insert);
        let raw = Description::new("n", "1.0.0").table(table).capability("state").settings_schema("{}").into_raw();
        assert_eq!((raw.name.as_str(), raw.version.as_str()), ("n", "1.0.0"));
        assert_eq!(raw.tables[0].columns, ["id"]);
        assert_eq!(raw.tables[0].optional_columns, ["note"]);
        assert_eq!(raw.tables[0].operations, ["insert"]);
        assert_eq!(raw.capabilities, ["state"]);
        assert_eq!(raw.settings_schema, "{}");
        let all = Description::new("n", "1").table(TableRequest::all()).into_raw();
        assert_eq!((all.tables[0].namespace.as_str(), all.tables[0].name.as_str()), ("*", "*"));
    }
}
