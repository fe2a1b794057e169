//! Write walgate sinks in Rust.
//!
//! A sink is a WebAssembly component that receives committed transactions of a Postgres database and carries them
//! somewhere. The host hands over columns, because those cross the boundary in bulk; this crate gives rows back in
//! commit order ([`Batch::rows`]), the columns themselves for speed ([`Batch::groups`]), typed cells ([`Row::get`]),
//! the calls of the host ([`host`]), and a double of the host so that a plugin is tested with plain `cargo test`
//! ([`testing`]).
//!
//! # Example
//!
//! A sink that writes one line a customer that appears, and its test:
//!
//! ```
//! use walgate_sdk::{
//!     Batch, Change, Context, Description, Failure, Opened, Operation, Receipt, Sink, TableRequest, export_sink, host,
//! };
//!
//! struct Welcome;
//!
//! impl Sink for Welcome {
//!     fn describe() -> Description {
//!         let customers = TableRequest::new("public", "customers").column("id").column("name");
//!         Description::new("welcome", env!("CARGO_PKG_VERSION"))
//!             .table(customers.operation(Operation::Insert))
//!             .capability("output:letters")
//!             .capability("log")
//!     }
//!
//!     fn open(_context: &Context) -> Result<Opened<Self>, Failure> {
//!         Ok(Opened::new(Welcome))
//!     }
//!
//!     fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
//!         for change in batch.rows() {
//!             let Change::Row(row) = change else { continue };
//!             let id = row.get::<i64>("id")?;
//!             match row.get::<Option<&str>>("name")? {
//!                 Some(name) => host::output::append("letters", format!("{id}: welcome, {name}\n").as_bytes())?,
//!                 None => host::log::warn("no-name", "a customer without a name"),
//!             }
//!         }
//!         // The host commits the output together with its checkpoint, so the batch is as durable as that.
//!         Ok(Receipt::durable())
//!     }
//! }
//!
//! export_sink!(Welcome);
//!
//! // In a real plugin this is a `#[test]`.
//! use walgate_sdk::{cells, testing::{BatchBuilder, Host, Table}};
//!
//! let customers = Table::new("public", "customers").key("id", "int8").column("name", "text");
//! let batch = BatchBuilder::new("b-1")
//!     .transaction(0x16_B374D848)
//!     .insert(&customers, cells![7i64, "Ada"])
//!     .insert(&customers, cells![8i64, NULL])
//!     .build();
//!
//! let mut run = Host::new().grant_asked::<Welcome>().open::<Welcome>()?;
//! assert!(run.deliver(&batch)?.is_durable());
//! assert_eq!(run.output("letters"), "7: welcome, Ada\n");
//! assert_eq!(run.log_codes(), ["no-name"]);
//! # Ok::<(), Failure>(())
//! ```
//!
//! # A plugin crate
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib", "rlib"]   # the component, and something that unit tests can link
//!
//! [profile.release]
//! lto = true
//! panic = "abort"
//! strip = true
//! ```
//!
//! Build it for `wasm32-unknown-unknown` and make the module a component with `walgate plugin build`.
//!
//! # Panics
//!
//! A panic ends the instance: the host opens a fresh one and delivers the same batch again, a bounded number of times.
//! Its text is dropped, because it may quote a row. Answer a [`Failure`] for everything you can foresee.

// The generated bindings name this crate by its outside name, because `export_sink!` expands them in other crates.
extern crate self as walgate_sdk;

mod batch;
#[doc(hidden)]
pub mod bindings;
mod calendar;
mod column;
#[doc(hidden)]
pub mod guest;
pub mod host;
mod outcome;
mod relation;
mod row;
mod rows;
mod sink;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
mod value;

pub use batch::{Batch, Group};
pub use calendar::{Date, Time, Timestamp, TimestampText, Uuid};
pub use column::{BytesColumn, Column, ColumnValues, NOT_SENT, NULL, TextColumn, UNCHANGED, VALUE};
pub use outcome::{Disposition, Failure, Receipt};
pub use relation::{ColumnInfo, Operation, Position, Relation, SchemaVersion, SnapshotChunk, Transaction};
pub use row::{Change, Changes, Image, Message, Row};
pub use rows::{Cells, MixedCells, RowSet, Values};
pub use sink::{Context, Description, Opened, Sink, TableRequest, Verdict};
pub use value::{Cell, CellError, FromCell, Value};
#[doc(hidden)]
pub use wit_bindgen;
