//! The one write on the hot path: everything a delivered batch changed, in one transaction.
//!
//! Holds: the checkpoint, the proof of its commit, the call of `walgate.commit_checkpoint`. Refuses to know how a batch
//! was delivered and who is told. Invariant: only a commit that returned makes a [`Durable`].
//! Read next: `migrations/004_leaders_and_fencing.sql`, [`crate::retrying`].

use std::collections::BTreeMap;

use tokio_postgres::types::{PgLsn, ToSql};
use walgate_core::{Cursor, Lineage, Lsn};

use crate::columns::{Hidden, to_bigint, to_pg};
use crate::connection::{PgOrStore, Session};
use crate::error::{Kind, StoreError};
use crate::letter::{Letters, NewDeadLetter};
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
    /// Letters to keep, in the order of the source.
    pub dead_letters: Vec<NewDeadLetter>,
    /// Ids of letters that were delivered again and taken: they are deleted.
    pub redriven: Vec<i64>,
    /// Ids of marked letters that were delivered again and refused: counted, and unmarked.
    pub refused_again: Vec<i64>,
}

const DOING: &str = "committing a checkpoint";

const SQL: &str = "SELECT walgate.commit_checkpoint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
                   $16, $17, $18, $19, $20)";

/// The same with letters: one statement too, so one transaction and one round trip.
const SQL_WITH_LETTERS: &str = "SELECT walgate.commit_checkpoint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
     $14, $15, $16, $17, $18, $19, $20), walgate.commit_letters($1, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, \
     $31, $32, $33, $34)";

pub(crate) async fn run(
    session: &mut Session,
    pipeline: &str,
    lineage: &Lineage,
    epoch: Option<u64>,
    checkpoint: &Checkpoint,
) -> Result<Durable, StoreError> {
    let call = Call::of(pipeline, lineage, epoch, checkpoint, Some(checkpoint.acked))?;
    match session.execute_commit(DOING, call.sql(), &call.parameters()).await {
        Ok(()) => Ok(Durable { acked: checkpoint.acked }),
        Err(PgOrStore::Store(error)) => Err(error),
        Err(PgOrStore::Pg(error)) => Err(refusal(pipeline, checkpoint, Some(checkpoint.acked), &error)),
    }
}

/// The same as a part of a larger transaction: what else it wrote commits with the checkpoint, or not at all. `acked`
/// stands in for the position of `checkpoint`, which is not looked at; none leaves the stored one.
///
/// After an error the transaction can only be rolled back. A wait for an answer is bounded by the server's own timeout
/// alone, so the caller sets a deadline around the whole transaction.
#[allow(dead_code, reason = "the writer of rows calls it")]
pub(crate) async fn run_in(
    transaction: &tokio_postgres::Transaction<'_>,
    pipeline: &str,
    lineage: &Lineage,
    epoch: Option<u64>,
    checkpoint: &Checkpoint,
    acked: Option<Lsn>,
) -> Result<(), StoreError> {
    let call = Call::of(pipeline, lineage, epoch, checkpoint, acked)?;
    match transaction.query(call.sql(), &call.parameters()).await {
        Ok(_) => Ok(()),
        Err(error) => Err(refusal(pipeline, checkpoint, acked, &error)),
    }
}

/// Reads the states that the functions raise. Their message is a plugin name, and is taken for one only when it is: a
/// trigger of someone else may raise the same states with any text.
fn refusal(pipeline: &str, checkpoint: &Checkpoint, acked: Option<Lsn>, error: &tokio_postgres::Error) -> StoreError {
    let Some(db) = error.as_db_error() else { return StoreError::server(DOING, error) };
    let pipeline = pipeline.to_owned();
    let named = checkpoint.cursors.iter().find(|cursor| cursor.plugin == db.message());
    let plugin = || named.map(|cursor| cursor.plugin.clone()).unwrap_or_default();
    match db.code().code() {
        "WG001" => Kind::LineageChanged { pipeline }.into(),
        "WG002" => Kind::AckRegress { pipeline, to: acked.unwrap_or_default() }.into(),
        "WG003" => Kind::CursorRegress { pipeline, plugin: plugin() }.into(),
        "WG004" => Kind::CursorMissing { pipeline, plugin: plugin() }.into(),
        "WG005" => Kind::NamedTwice { pipeline }.into(),
        "WG006" => Kind::OutputRegress { pipeline }.into(),
        _ => StoreError::server(DOING, error).or_fenced(&pipeline),
    }
}

/// The parameters of the function, as it takes them.
struct Call<'a> {
    pipeline: &'a str,
    lineage: &'a Lineage,
    timeline: i64,
    slot_created: PgLsn,
    acked: Option<PgLsn>,
    cursors: Cursors<'a>,
    state: State<'a>,
    outputs: Outputs<'a>,
    epoch: Option<i64>,
    letters: Option<Letters<'a>>,
}

impl<'a> Call<'a> {
    fn of(
        pipeline: &'a str,
        lineage: &'a Lineage,
        epoch: Option<u64>,
        checkpoint: &'a Checkpoint,
        acked: Option<Lsn>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            pipeline,
            lineage,
            timeline: i64::from(lineage.timeline),
            slot_created: to_pg(lineage.slot_created_at),
            acked: acked.map(to_pg),
            cursors: Cursors::of(checkpoint)?,
            state: State::of(checkpoint),
            outputs: Outputs::of(checkpoint)?,
            epoch: epoch.map(|epoch| to_bigint(epoch, "an epoch")).transpose()?,
            letters: Letters::of(checkpoint)?,
        })
    }

    fn sql(&self) -> &'static str {
        if self.letters.is_some() { SQL_WITH_LETTERS } else { SQL }
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![
            &self.pipeline,
            &self.lineage.system_id,
            &self.timeline,
            &self.lineage.database,
            &self.lineage.slot,
            &self.slot_created,
            &self.acked,
            &self.cursors.plugins,
            &self.cursors.ends,
            &self.cursors.commits,
            &self.cursors.ordinals,
            &self.cursors.generations,
            &self.state.plugins,
            &self.state.keys,
            &self.state.values,
            &self.outputs.plugins,
            &self.outputs.names,
            &self.outputs.sequences,
            &self.outputs.lengths,
            &self.epoch,
        ];
        parameters.extend(self.letters.iter().flat_map(Letters::parameters));
        parameters
    }
}

/// The cursors as one array a column.
struct Cursors<'a> {
    plugins: Vec<&'a str>,
    ends: Vec<PgLsn>,
    commits: Vec<PgLsn>,
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
