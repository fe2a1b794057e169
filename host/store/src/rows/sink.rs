//! The writer of one plugin's rows.
//!
//! Holds: its connection, what it knows of the session behind it, and the order inside a transaction: position, rows,
//! position. Refuses to know how rows become statements. Invariant: rows and position commit together or not at all.
//! Read next: [`super::plan`], [`super::apply`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_postgres::types::Type;
use tokio_postgres::{Config, Error as PgError, Transaction};
use walgate_core::rows::RowCall;
use walgate_core::{Cursor, Lineage};

use super::apply::Writer;
use super::error::{At, Kind, RowsError, may_pass_one_by_one};
use super::far::{self, Far, Stored};
use super::near;
use super::plan::{Pace, plan, targets};
use super::shape::{Failure, Shape};
use super::stage::Stages;
use super::target::RowsTargets;
use crate::commit::{Checkpoint, OutputLength, PluginCursor, StateWrite};
use crate::connection::Connection;
use crate::letter::NewDeadLetter;

/// Where the targets are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsPlace {
    /// The state database: rows commit with the plugin's cursor, state and output lengths of schema `walgate`.
    State {
        /// The pipeline.
        pipeline: String,
        /// The history that cursors belong to.
        lineage: Lineage,
        /// The fencing epoch of this process.
        epoch: u64,
    },
    /// Another database: rows commit with a copy of the position in schema `walgate_target` there.
    Far {
        /// The pipeline. Its name has to be one of its kind among all that write to that database.
        pipeline: String,
        /// The token of the history that positions belong to.
        lineage: String,
        /// The fencing epoch of this process.
        epoch: u64,
    },
}

/// What one commit writes.
#[derive(Clone, PartialEq)]
pub struct RowsWork {
    /// Where the plugin stands after it.
    pub cursor: PluginCursor,
    /// The cursor lies beyond the last one. A work that does not move it (a dead letter that is delivered again) is told
    /// from its own repetition by `again` and by the letters that it takes.
    pub moves: bool,
    /// The answer to this very work was lost before: it may be committed already.
    pub again: bool,
    /// The rows, call by call.
    pub calls: Vec<RowCall>,
    /// State writes in the order they were made. Not for a far database, which has no place for them: there they belong
    /// into the checkpoint that follows.
    pub state: Vec<StateWrite>,
    /// Output lengths, likewise.
    pub outputs: Vec<OutputLength>,
    /// Changes laid aside, likewise.
    pub dead_letters: Vec<NewDeadLetter>,
    /// Letters that were taken after all, likewise.
    pub redriven: Vec<i64>,
    /// Letters that were refused again, likewise.
    pub refused_again: Vec<i64>,
}

/// What one commit did, as the server counted it. All zero when the work was there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowsDone {
    /// Rows inserted or changed; several changes of one row count once.
    pub upserted: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Tables emptied.
    pub truncated: u64,
    /// Rows that an update with unchanged values should have found and did not: nothing was written for them.
    pub missed: u64,
}

/// Writes the rows of one plugin. Owns a connection, which it opens again after a loss.
///
/// The connection has to be a session of its own: temporary tables do not survive a pooler in transaction mode. What
/// triggers of a target do is done with the search path `pg_catalog`, as under logical replication.
pub struct RowsSink {
    connection: Connection,
    plugin: String,
    targets: RowsTargets,
    place: RowsPlace,
    known: Known,
}

/// What is known of the session and its database. It is worth something only while the session bears its mark.
#[derive(Default)]
struct Known {
    mark: String,
    shapes: HashMap<String, Arc<Shape>>,
    stages: Stages,
}

/// Set on a session before its first rows. How text is read must not depend on the role's own settings. Rows are found
/// by the index of the key: a plan made for an empty temporary table knows nothing of the table beside it.
const SETTINGS: &str = "DISCARD TEMP; SET DateStyle = ISO; SET IntervalStyle = postgres; SET xmloption = content; \
     SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// A commit that was stopped.
struct Stopped {
    error: RowsError,
    one_by_one: bool,
}

impl RowsSink {
    /// Connects, without TLS when `tls` is `None` or the host is a socket file. Nothing is looked up yet.
    ///
    /// # Errors
    /// Retry when the server does not answer, Operator when it refuses.
    pub async fn connect(
        config: Config,
        tls: Option<rustls::ClientConfig>,
        plugin: &str,
        targets: RowsTargets,
        place: RowsPlace,
    ) -> Result<Self, RowsError> {
        let connection = Connection::open(config, tls, false).await.map_err(|error| match place {
            RowsPlace::State { .. } => error.into(),
            RowsPlace::Far { .. } => RowsError::connection(&error),
        })?;
        Ok(Self { connection, plugin: plugin.to_owned(), targets, place, known: Known::default() })
    }

    /// Far: brings the schema `walgate_target` to this version, raises the stored epoch, so that a lower one can never
    /// write again, and answers the stored position. State: answers `None`, because the cursor is in the state database.
    ///
    /// # Errors
    /// Operator `fenced` when a higher epoch is stored, `rows_target` when the schema cannot be made or is of another
    /// version; Retry when the database does not answer.
    pub async fn open(&mut self) -> Result<Option<Cursor>, RowsError> {
        let Self { connection, plugin, place, .. } = self;
        let RowsPlace::Far { pipeline, lineage, epoch } = &*place else { return Ok(None) };
        let far = Far { pipeline, lineage, plugin, epoch: *epoch };
        let opened = transact(connection, place, async |transaction| {
            far::migrate(transaction).await.map_err(Failure::Rows)?;
            far.open(transaction).await.map_err(Failure::Rows)
        });
        opened.await.map_err(|stopped| stopped.error)
    }

    /// Looks whether the targets that are known by name exist and are as they have to be. Changes nothing, and needs no
    /// [`RowsSink::open`].
    ///
    /// # Errors
    /// Operator `rows_target` for the first that is not; Retry when the database does not answer.
    pub async fn look(&mut self) -> Result<(), RowsError> {
        let Self { connection, plugin, targets, place, .. } = self;
        let looked = transact(connection, place, async |transaction| {
            for (name, table) in &targets.named {
                Shape::load(transaction, plugin, name, table).await?;
            }
            let Some(rest) = &targets.rest else { return Ok(()) };
            let at = At { plugin: plugin.clone(), doing: "looking for a schema", ..At::default() };
            let sql = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
            let found = transaction.query_typed_one(sql, &[(&rest.schema, Type::TEXT)]).await;
            if found.and_then(|row| row.try_get(0)).map_err(|error| Failure::Server(at, error))? {
                return Ok(());
            }
            let (plugin, schema) = (plugin.clone(), rest.schema.clone());
            Err(Kind::NoSchema { plugin, schema }.into())
        });
        looked.await.map_err(|stopped| stopped.error)
    }

    /// Writes the work: everything or nothing.
    ///
    /// Repeating a commit whose answer was lost is harmless: where the stored position is the work's own or a later one,
    /// nothing is written.
    ///
    /// Rows of a table are folded to what is left to do for each key. Where a target checks more than its key at once
    /// (another unique key, a foreign key) and refuses that, the work is tried again row by row, in its own order. So it is from
    /// the start where a foreign key changes rows by itself (`ON DELETE CASCADE`).
    ///
    /// # Errors
    /// Operator `rows_refused` when the data is refused, see [`RowsError::refusal`]; Operator `rows_target` when a target
    /// is not as it has to be; Operator `fenced` when another process took over; Retry when the database does not
    /// answer; for rows in the state database also what [`crate::Store::commit`] may answer.
    pub async fn commit(&mut self, work: &RowsWork) -> Result<RowsDone, RowsError> {
        if work.cursor.plugin != self.plugin {
            let (plugin, named) = (self.plugin.clone(), work.cursor.plugin.clone());
            return Err(Kind::OtherPlugin { plugin, named }.into());
        }
        match self.attempt(work, Pace::Folded).await {
            Err(stopped) if stopped.one_by_one => {
                tracing::debug!(plugin = self.plugin, "rows are tried again one by one");
                self.attempt(work, Pace::OneByOne).await.map_err(|stopped| stopped.error)
            }
            outcome => outcome.map_err(|stopped| stopped.error),
        }
    }

    async fn attempt(&mut self, work: &RowsWork, pace: Pace) -> Result<RowsDone, Stopped> {
        let Self { connection, plugin, targets, place, known } = self;
        let done = transact(connection, place, async |transaction| {
            Attempt { transaction, plugin, targets, place, known, pace }.run(work).await
        })
        .await;
        match &done {
            Ok(_) => known.stages.committed(),
            // What the transaction made is gone, and a shape may be what was wrong.
            Err(_) => *known = Known::default(),
        }
        done
    }
}

/// One transaction; any failure leaves nothing behind.
async fn transact<T>(
    connection: &mut Connection,
    place: &RowsPlace,
    work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, Failure>,
) -> Result<T, Stopped> {
    let far = matches!(place, RowsPlace::Far { .. });
    let lost = |error: crate::StoreError| Stopped {
        error: if far { RowsError::connection(&error) } else { error.into() },
        one_by_one: false,
    };
    let session = connection.session().await.map_err(lost)?;
    let mut stopped = None;
    let outcome = session
        .transaction("writing rows", async |transaction| match work(transaction).await {
            Ok(value) => Ok(Some(value)),
            Err(failure) => {
                stopped = Some(failure.read());
                // The failure is ours to tell; to the session the transaction just ends.
                transaction.batch_execute("ROLLBACK").await?;
                Ok(None)
            }
        })
        .await;
    match (stopped, outcome) {
        (Some(stopped), _) => Err(stopped),
        (None, Ok(Some(value))) => Ok(value),
        (None, Ok(None)) => Err(Stopped { error: Kind::Range { what: "a work" }.into(), one_by_one: false }),
        (None, Err(error)) => Err(lost(error)),
    }
}

impl Failure {
    fn read(self) -> Stopped {
        match self {
            Self::Server(at, error) => {
                Stopped { error: RowsError::server(&at, &error), one_by_one: may_pass_one_by_one(&error) }
            }
            Self::Rows(error) => Stopped { error, one_by_one: false },
        }
    }
}

/// One attempt at a work inside a transaction.
struct Attempt<'s, 'c> {
    transaction: &'s Transaction<'c>,
    plugin: &'s str,
    targets: &'s RowsTargets,
    place: &'s RowsPlace,
    known: &'s mut Known,
    pace: Pace,
}

impl Attempt<'_, '_> {
    async fn run(&mut self, work: &RowsWork) -> Result<RowsDone, Failure> {
        let stored = self.lock().await.map_err(Failure::Rows)?;
        let reached = stored.as_ref().map(|stored| stored.cursor).unwrap_or_default();
        let beyond = if work.moves { reached >= work.cursor.cursor } else { reached > work.cursor.cursor };
        if beyond || self.took_its_letters(work).await? {
            return Ok(RowsDone::default());
        }
        let names = targets(&work.calls);
        let mut done = RowsDone::default();
        if !names.is_empty() {
            self.prepare(stored.and_then(|stored| stored.mark)).await?;
            done = self.write(&work.calls, &names).await?;
            walgate_failpoint::hit("apply.in_transaction");
        }
        self.checkpoint(work).await.map_err(Failure::Rows)?;
        Ok(done)
    }

    /// Whether the rows of the letters that the work takes were written before: by its own commit, whose answer was lost,
    /// or by one after which the process ended before the letters were forgotten.
    async fn took_its_letters(&self, work: &RowsWork) -> Result<bool, Failure> {
        let letters = work.redriven.as_slice();
        if letters.is_empty() || work.moves {
            return Ok(false);
        }
        match self.place {
            RowsPlace::State { .. } if !work.again => Ok(false),
            RowsPlace::State { .. } => near::are_gone(self.transaction, letters).await.map_err(Failure::Rows),
            RowsPlace::Far { pipeline, lineage, epoch } => {
                let far = Far { pipeline, lineage, plugin: self.plugin, epoch: *epoch };
                far.has_taken(self.transaction, letters).await.map_err(Failure::Rows)
            }
        }
    }

    async fn lock(&self) -> Result<Option<Stored>, RowsError> {
        match self.place {
            RowsPlace::State { pipeline, lineage, epoch } => {
                near::lock(self.transaction, pipeline, lineage, self.plugin, *epoch).await
            }
            RowsPlace::Far { pipeline, lineage, epoch } => {
                let far = Far { pipeline, lineage, plugin: self.plugin, epoch: *epoch };
                far.lock(self.transaction).await.map(Some)
            }
        }
    }

    async fn checkpoint(&self, work: &RowsWork) -> Result<(), RowsError> {
        match self.place {
            RowsPlace::State { pipeline, lineage, epoch } => {
                let checkpoint = Checkpoint {
                    cursors: vec![work.cursor.clone()],
                    state: work.state.clone(),
                    outputs: work.outputs.clone(),
                    dead_letters: work.dead_letters.clone(),
                    redriven: work.redriven.clone(),
                    refused_again: work.refused_again.clone(),
                    ..Checkpoint::default()
                };
                near::write(self.transaction, pipeline, lineage, *epoch, &checkpoint).await
            }
            RowsPlace::Far { pipeline, lineage, epoch } => {
                let far = Far { pipeline, lineage, plugin: self.plugin, epoch: *epoch };
                if !work.redriven.is_empty() {
                    far.takes(self.transaction, &work.redriven).await?;
                }
                far.write(self.transaction, work.cursor.cursor).await
            }
        }
    }

    /// Makes the session ready for rows: once, unless the mark tells that it is another one.
    async fn prepare(&mut self, mark: Option<String>) -> Result<(), Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let at = At { plugin: self.plugin.to_owned(), doing: "preparing the session", ..At::default() };
        let server = |error| Failure::Server(at.clone(), error);
        let ready = !self.known.mark.is_empty() && mark.as_ref() == Some(&self.known.mark);
        if !ready || self.known.stages.is_full() {
            *self.known = Known { mark: NEXT.fetch_add(1, Ordering::Relaxed).to_string(), ..Known::default() };
            self.transaction.batch_execute(SETTINGS).await.map_err(server)?;
            self.transaction
                .query_typed("SELECT set_config('walgate.rows', $1, false)", &[(&self.known.mark, Type::TEXT)])
                .await
                .map_err(server)?;
        }
        Ok(())
    }

    async fn write(&mut self, calls: &[RowCall], names: &[&str]) -> Result<RowsDone, Failure> {
        let shapes = self.shapes(names).await?;
        if shapes.iter().any(|shape| shape.cascades) {
            self.pace = Pace::OneByOne;
        }
        let (mut tables, steps) = match plan(calls, names, &shapes, self.pace) {
            // The table may have a new column since it was looked at.
            Err(Kind::NoColumn { .. } | Kind::NoKey { .. }) => {
                self.known.shapes.clear();
                plan(calls, names, &self.shapes(names).await?, self.pace)?
            }
            planned => planned?,
        };
        settle(self.transaction, "SET CONSTRAINTS ALL DEFERRED", self.plugin, &shapes).await?;
        let stages = &mut self.known.stages;
        let mut writer = Writer { transaction: self.transaction, stages, done: RowsDone::default() };
        writer.truncate(&tables).await?;
        for step in &steps {
            let Some(table) = tables.get_mut(step.table) else { continue };
            writer.step(table, step).await?;
        }
        let done = writer.done;
        // What was deferred is checked here, where a refusal still has a place, and not by the commit.
        settle(self.transaction, "SET CONSTRAINTS ALL IMMEDIATE", self.plugin, &shapes).await?;
        Ok(done)
    }

    async fn shapes(&mut self, names: &[&str]) -> Result<Vec<Arc<Shape>>, Failure> {
        let mut shapes = Vec::with_capacity(names.len());
        for name in names {
            let shape = match self.known.shapes.get(*name) {
                Some(shape) => shape.clone(),
                None => {
                    let Some(table) = self.targets.resolve(name) else {
                        let (plugin, target) = (self.plugin.to_owned(), (*name).to_owned());
                        return Err(Kind::NotGranted { plugin, target }.into());
                    };
                    let shape = Shape::load(self.transaction, self.plugin, name, &table).await?;
                    self.known.shapes.entry((*name).to_owned()).or_insert(shape).clone()
                }
            };
            shapes.push(shape);
        }
        Ok(shapes)
    }
}

/// Changes when constraints are checked. A failure belongs to the table that the server names, if it is one of ours.
async fn settle(transaction: &Transaction<'_>, text: &str, plugin: &str, shapes: &[Arc<Shape>]) -> Result<(), Failure> {
    const DOING: &str = "checking deferred constraints";
    transaction.batch_execute(text).await.map_err(|error: PgError| {
        let named = error.as_db_error().and_then(|db| Some(super::target::qualified(db.schema()?, db.table()?)));
        let shape = named.and_then(|named| shapes.iter().find(|shape| shape.table == named));
        let nowhere = || At { plugin: plugin.to_owned(), doing: DOING, ..At::default() };
        Failure::Server(shape.map_or_else(nowhere, |shape| shape.at(DOING)), error)
    })
}
