//! Rows of plugins, written to tables of Postgres in one transaction with the plugin's position.
//!
//! Holds: the way from columns that a plugin staged to statements on granted tables, and the position beside them.
//! Refuses to know plugins as running things, and who may call. Invariant: the result is what applying every row in
//! order would give, exactly once. No value is in any error, log or `Debug`: values are encoded where they are sent.
//!
//! A work goes one way: [`plan`] puts its rows in order and cuts them into steps; [`key`] tells keys apart; [`fold`]
//! leaves for each key what is left to do; [`group`] gathers rows that one statement can write; [`stage`] copies them to
//! the server, where [`statement`] casts and writes them; a row alone goes as parameters of its statement. [`shape`] is
//! what a table looks like, [`view`] one set of rows seen through it, [`cell`] one value. Read next: [`sink`].

mod apply;
mod cell;
mod error;
mod far;
mod fold;
mod group;
mod key;
mod mask;
mod near;
mod plan;
mod shape;
mod sink;
mod stage;
mod statement;
mod target;
mod view;

pub use error::RowsError;
pub use sink::{RowsDone, RowsPlace, RowsSink, RowsWork};
pub use target::{RowsRest, RowsTable, RowsTargets};
