//! Rows on their way into a table: copied in binary form into a temporary one, then written by one statement a group.
//!
//! Holds: the temporary tables and prepared statements of one session, and the encoding of rows as they are sent.
//! Refuses to know why a row is written. A temporary table has columns of the kinds of the values, not of the target:
//! the cast to the target's type is the server's work, by its own rules.
//! Invariant: nothing of one transaction is seen by the statements of another; the tables empty at each commit.
//! Read next: [`super::apply`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use tokio_postgres::{Error as PgError, Statement, Transaction};

use super::cell::Cell;

/// Temporary tables that a session keeps; above it, the session begins anew. Each holds locks while it is used, and is
/// emptied at every commit that uses any.
const MOST_STAGES: usize = 64;

/// Prepared statements that a session keeps.
const MOST_STATEMENTS: usize = 512;

/// A temporary table.
pub(super) struct Stage {
    /// As SQL spells it.
    pub(super) name: String,
    copy: Statement,
    /// It has rows of the open transaction.
    used: bool,
}

/// The temporary tables of one session.
#[derive(Default)]
pub(super) struct Stages {
    by_definition: HashMap<String, Stage>,
    statements: HashMap<String, Statement>,
}

impl Stages {
    /// Whether the session should begin anew instead of making more of them.
    pub(super) fn is_full(&self) -> bool {
        self.by_definition.len() > MOST_STAGES || self.statements.len() > MOST_STATEMENTS
    }

    /// A commit emptied them all.
    pub(super) fn committed(&mut self) {
        for stage in self.by_definition.values_mut() {
            stage.used = false;
        }
    }

    /// An empty temporary table with these columns.
    pub(super) async fn empty(
        &mut self,
        transaction: &Transaction<'_>,
        definitions: &str,
    ) -> Result<&mut Stage, PgError> {
        let number = self.by_definition.len();
        let stage = match self.by_definition.entry(definitions.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let name = format!("pg_temp.walgate_rows_{number}");
                let create = format!("CREATE TABLE {name} ({definitions}) ON COMMIT DELETE ROWS");
                transaction.batch_execute(&create).await?;
                let copy = transaction.prepare(&format!("COPY {name} FROM STDIN BINARY")).await?;
                place.insert(Stage { name, copy, used: false })
            }
        };
        if std::mem::replace(&mut stage.used, true) {
            transaction.batch_execute(&format!("TRUNCATE {}", stage.name)).await?;
        }
        Ok(stage)
    }

    /// A statement, prepared once a session.
    pub(super) async fn statement(
        &mut self,
        transaction: &Transaction<'_>,
        text: String,
    ) -> Result<Statement, PgError> {
        match self.statements.entry(text) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => {
                let statement = transaction.prepare(place.key()).await?;
                Ok(place.insert(statement).clone())
            }
        }
    }
}

impl Stage {
    /// Begins to fill it, with rows of so many fields.
    pub(super) async fn fill(&self, transaction: &Transaction<'_>, fields: usize) -> Result<Filling, PgError> {
        Filling::begin(transaction, &self.copy, fields).await
    }
}

/// Rows being copied.
pub(super) struct Filling {
    writer: Pin<Box<BinaryCopyInWriter>>,
}

impl Filling {
    /// Begins a copy of rows with so many fields.
    pub(super) async fn begin(transaction: &Transaction<'_>, copy: &Statement, fields: usize) -> Result<Self, PgError> {
        let sink = transaction.copy_in(copy).await?;
        // A cell encodes itself; the driver only counts the types.
        let types = vec![Type::BYTEA; fields];
        Ok(Self { writer: Box::pin(BinaryCopyInWriter::new(sink, &types)) })
    }

    /// Sends one row. The driver counts on as many cells as were announced.
    pub(super) async fn row<'a>(&mut self, cells: impl ExactSizeIterator<Item = Cell<'a>>) -> Result<(), PgError> {
        self.writer.as_mut().write_raw(cells).await
    }

    /// Ends the copy and answers how many rows there are now.
    pub(super) async fn finish(mut self) -> Result<u64, PgError> {
        self.writer.as_mut().finish().await
    }
}
