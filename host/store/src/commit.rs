//! The one write on the hot path: everything a delivered batch changed, in one transaction.
//!
//! Holds: the checkpoint, the proof of its commit, the call of `walgate.commit_checkpoint`. Refuses to know how a batch
//! was delivered and who is told. Invariant: only a commit that returned makes a [`Durable`].
//! Read next: `migrations/002_commit_checkpoint.sql`, [`crate::retrying`].

use std::collections::BTreeMap;

use walgate_core::{Cursor, Lineage, Lsn};

use crate::columns::{Hidden, to_bigint, to_pg};
use crate::connection::{PgOrStore, Session};
use crate::error::{Kind, StoreError};
use crate::output::OutputMark;

/// Proof that a position is safe in the state database; the only thing the source may be told from.
///
/// It has no public constructor and cannot be copied: see the crate page.
#[derive(Debug, PartialEq, Eq)]
pub struct Durable {
    acked: Lsn,
}

impl Durable {
    /// The position that was committed as acknowledged.
    pub fn acked(&self) -> Lsn {
        self.acked
    }
}

/// Where a plugin stands after a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginCursor {
    /// Its name.
    pub plugin: String,
    /// Everything up to here is durable at the plugin.
    pub cursor: Cursor,
    /// The generation that did the work.
    pub generation: u64,
}

/// One write of a plugin to its own map. No `Debug`: keys and values may hold row values.
#[derive(Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// The plugin.
    pub plugin: String,
    /// The key.
    pub key: String,
    /// The value, or `None` to delete the key.
    pub value: Option<Vec<u8>>,
}

/// How far an output of a plugin was made durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLength {
    /// The plugin.
    pub plugin: String,
    /// The name of the output in its grant.
    pub name: String,
    /// What [`crate::Output::sync`] answered.
    pub mark: OutputMark,
}

/// What moves together, or not at all. Only what changed has to be named.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// The position the source may be told afterwards. The caller answers for it being covered by all cursors.
    pub acked: Lsn,
    /// Cursors, each plugin once. Each must have been started with [`crate::Store::start_plugin`].
    pub cursors: Vec<PluginCursor>,
    /// State writes in the order they were made; of several to one key the last counts.
    pub state: Vec<StateWrite>,
    /// Output lengths, each output once.
    pub outputs: Vec<OutputLength>,
}

const DOING: &str = "committing a checkpoint";

const SQL: &str = "SELECT walgate.commit_checkpoint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
                   $16, $17, $18, $19)";

pub(crate) async fn run(
    session: &mut Session,
    pipeline: &str,
    lineage: &Lineage,
    checkpoint: &Checkpoint,
) -> Result<Durable, StoreError> {
    let cursors = Cursors::of(checkpoint)?;
    let state = State::of(checkpoint);
    let outputs = Outputs::of(checkpoint)?;
    let committed = session
        .execute_commit(
            DOING,
            SQL,
            &[
                &pipeline,
                &lineage.system_id,
                &i64::from(lineage.timeline),
                &lineage.database,
                &lineage.slot,
                &to_pg(lineage.slot_created_at),
                &to_pg(checkpoint.acked),
                &cursors.plugins,
                &cursors.ends,
                &cursors.commits,
                &cursors.ordinals,
                &cursors.generations,
                &state.plugins,
                &state.keys,
                &state.values,
                &outputs.plugins,
                &outputs.names,
                &outputs.sequences,
                &outputs.lengths,
            ],
        )
        .await;
    match committed {
        Ok(()) => Ok(Durable { acked: checkpoint.acked }),
        Err(PgOrStore::Store(error)) => Err(error),
        Err(PgOrStore::Pg(error)) => Err(refusal(pipeline, checkpoint.acked, &error)),
    }
}

/// Reads the states that the function raises; their message is a plugin name by its own contract.
fn refusal(pipeline: &str, acked: Lsn, error: &tokio_postgres::Error) -> StoreError {
    let Some(db) = error.as_db_error() else { return StoreError::server(DOING, error) };
    let pipeline = pipeline.to_owned();
    let plugin = || db.message().to_owned();
    match db.code().code() {
        "WG001" => Kind::LineageChanged { pipeline }.into(),
        "WG002" => Kind::AckRegress { pipeline, to: acked }.into(),
        "WG003" => Kind::CursorRegress { pipeline, plugin: plugin() }.into(),
        "WG004" => Kind::CursorMissing { pipeline, plugin: plugin() }.into(),
        "WG005" => Kind::NamedTwice { pipeline }.into(),
        "WG006" => Kind::OutputRegress { pipeline }.into(),
        _ => StoreError::server(DOING, error),
    }
}

/// The cursors as one array a column.
struct Cursors<'a> {
    plugins: Vec<&'a str>,
    ends: Vec<tokio_postgres::types::PgLsn>,
    commits: Vec<tokio_postgres::types::PgLsn>,
    ordinals: Vec<i64>,
    generations: Vec<i64>,
}

impl<'a> Cursors<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Result<Self, StoreError> {
        let all = &checkpoint.cursors;
        Ok(Self {
            plugins: all.iter().map(|c| c.plugin.as_str()).collect(),
            ends: all.iter().map(|c| to_pg(c.cursor.end)).collect(),
            commits: all.iter().map(|c| to_pg(c.cursor.commit)).collect(),
            ordinals: all.iter().map(|c| i64::from(c.cursor.ordinal)).collect(),
            generations: all.iter().map(|c| to_bigint(c.generation, "a generation")).collect::<Result<_, _>>()?,
        })
    }
}

/// The state writes as one array a column, each key once.
struct State<'a> {
    plugins: Vec<&'a str>,
    keys: Hidden<Vec<&'a [u8]>>,
    values: Hidden<Vec<Option<&'a [u8]>>>,
}

impl<'a> State<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let last: BTreeMap<(&str, &str), Option<&[u8]>> =
            checkpoint.state.iter().map(|w| ((w.plugin.as_str(), w.key.as_str()), w.value.as_deref())).collect();
        Self {
            plugins: last.keys().map(|(plugin, _)| *plugin).collect(),
            keys: Hidden(last.keys().map(|(_, key)| key.as_bytes()).collect()),
            values: Hidden(last.into_values().collect()),
        }
    }
}

/// The output lengths as one array a column.
struct Outputs<'a> {
    plugins: Vec<&'a str>,
    names: Vec<&'a str>,
    sequences: Vec<i64>,
    lengths: Vec<i64>,
}

impl<'a> Outputs<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Result<Self, StoreError> {
        let all = &checkpoint.outputs;
        Ok(Self {
            plugins: all.iter().map(|o| o.plugin.as_str()).collect(),
            names: all.iter().map(|o| o.name.as_str()).collect(),
            sequences: all.iter().map(|o| to_bigint(o.mark.sequence, "a sequence")).collect::<Result<_, _>>()?,
            lengths: all.iter().map(|o| to_bigint(o.mark.length, "a length")).collect::<Result<_, _>>()?,
        })
    }
}
