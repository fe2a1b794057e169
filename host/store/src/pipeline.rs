//! The row of a pipeline: the history it reads from, how far it may acknowledge, and the cursors of its plugins.
//!
//! Holds: load, adopt, follow, forget, list. Refuses to know how a slot is inspected: the caller compares.
//! Read next: [`crate::plugin`].

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Error as PgError, Row};
use walgate_core::{Cursor, Lineage, Lsn};

use crate::columns::{from_bigint, from_pg, to_pg};
use crate::connection::Session;
use crate::error::{Kind, StoreError};
use crate::store::Store;

/// How changes inside a transaction are counted. Stored with every pipeline; a cursor of another scheme could cover a
/// row that was never delivered, so it is refused. Raise it when what consumes an ordinal changes.
pub const ORDINAL_SCHEME: i32 = 1;

const LOADING: &str = "loading a pipeline";

/// What a restart needs to know of a pipeline. All of it is of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineRow {
    /// The history its positions belong to.
    pub lineage: Lineage,
    /// The furthest position the source may have been told. A slot that is ahead of it was moved by someone else.
    pub acked: Lsn,
    /// How far each plugin has come, by its name.
    pub cursors: BTreeMap<String, Cursor>,
    /// The generation of each plugin that wrote its cursor last.
    pub generations: BTreeMap<String, u64>,
    /// When the acknowledged position was last written, by the clock of the state database.
    pub updated_at: SystemTime,
    /// The timeline the source is expected on: that of the lineage, or the one that [`Store::follow_timeline`] noted last.
    pub timeline: u32,
    /// The publications the pipeline reads, as recorded last; none when they never were.
    pub publications: Option<Vec<String>>,
}

impl Store {
    /// The pipeline, or `None` when it never ran here.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator when the tables are not ours, or when the cursors count changes
    /// by another [`ORDINAL_SCHEME`].
    pub async fn load(&mut self, pipeline: &str) -> Result<Option<PipelineRow>, StoreError> {
        load(self.connection.session().await?, pipeline).await
    }

    /// Makes the pipeline row if there is none: the durable row that has to exist before the first acknowledgement.
    /// A row of the same lineage stays as it is, its acknowledged position included.
    ///
    /// # Errors
    /// Operator `checkpoint_store(lineage_changed)` when a row of another lineage exists, `fenced` when another process
    /// took over.
    pub async fn adopt(&mut self, pipeline: &str, lineage: &Lineage, acked: Lsn) -> Result<(), StoreError> {
        let sql = "INSERT INTO walgate.pipelines
                       (pipeline, system_id, timeline, database, slot, slot_created, acked, ordinal_scheme)
                   VALUES ($1, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (pipeline) DO NOTHING";
        let further: [&(dyn ToSql + Sync); 7] = [
            &lineage.system_id,
            &i64::from(lineage.timeline),
            &lineage.database,
            &lineage.slot,
            &to_pg(lineage.slot_created_at),
            &to_pg(acked),
            &ORDINAL_SCHEME,
        ];
        self.write_fenced("adopting a pipeline", pipeline, sql, &further).await?;
        let stored = load(self.connection.session().await?, pipeline).await?;
        let stored = stored.ok_or_else(|| Kind::LineageChanged { pipeline: pipeline.to_owned() })?;
        let differs = differences(&stored.lineage, lineage);
        if differs.is_empty() {
            Ok(())
        } else {
            Err(Kind::LineageConflict { pipeline: pipeline.to_owned(), differs }.into())
        }
    }

    /// Deletes everything stored of a pipeline: cursors, plugin state and output lengths too. Answers whether there was
    /// anything. Fencing epochs go on rising.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn forget(&mut self, pipeline: &str) -> Result<bool, StoreError> {
        let sql = "DELETE FROM walgate.pipelines WHERE pipeline = $1";
        let gone = self.write_fenced("forgetting a pipeline", pipeline, sql, &[]).await?;
        Ok(gone > 0)
    }

    /// Notes that the source was promoted: later starts expect this timeline. The lineage and its token stay as they are,
    /// because positions mean what they meant.
    ///
    /// # Errors
    /// Operator `checkpoint_store(lineage_changed)` when the pipeline has no row, `fenced` when another process took over.
    pub async fn follow_timeline(&mut self, pipeline: &str, timeline: u32) -> Result<(), StoreError> {
        let sql = "UPDATE walgate.pipelines SET current_timeline = $3 WHERE pipeline = $1";
        let moved = self.write_fenced("following a timeline", pipeline, sql, &[&i64::from(timeline)]).await?;
        present(pipeline, moved)
    }

    /// Records the publications a pipeline reads, so that a start with others is noticed.
    ///
    /// # Errors
    /// Operator `checkpoint_store(lineage_changed)` when the pipeline has no row, `fenced` when another process took over.
    pub async fn set_publications(&mut self, pipeline: &str, publications: &[String]) -> Result<(), StoreError> {
        let sql = "UPDATE walgate.pipelines SET publications = $3 WHERE pipeline = $1";
        let moved = self.write_fenced("recording publications", pipeline, sql, &[&publications]).await?;
        present(pipeline, moved)
    }
}

fn present(pipeline: &str, rows: u64) -> Result<(), StoreError> {
    if rows == 0 { Err(Kind::LineageChanged { pipeline: pipeline.to_owned() }.into()) } else { Ok(()) }
}

/// Whether the schema was ever made here.
pub(crate) async fn exists(session: &mut Session) -> Result<bool, StoreError> {
    const DOING: &str = "looking for the schema";
    let row = session.query_one(DOING, "SELECT to_regclass('walgate.pipelines') IS NOT NULL", &[]).await?;
    row.try_get(0).map_err(|error| StoreError::server(DOING, &error))
}

/// The names of all pipelines; none when the schema was never made.
pub(crate) async fn list(session: &mut Session) -> Result<Vec<String>, StoreError> {
    const DOING: &str = "listing pipelines";
    if !exists(session).await? {
        return Ok(Vec::new());
    }
    let rows = session.query(DOING, "SELECT pipeline FROM walgate.pipelines ORDER BY pipeline", &[]).await?;
    let names = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, PgError>>();
    names.map_err(|error| StoreError::server(DOING, &error))
}

/// One statement, so that the row and the cursors are of one snapshot.
pub(crate) async fn load(session: &mut Session, pipeline: &str) -> Result<Option<PipelineRow>, StoreError> {
    let rows = session
        .query(
            LOADING,
            "SELECT p.system_id, p.timeline, p.database, p.slot, p.slot_created, p.acked, p.ordinal_scheme, p.updated_at,
                    c.plugin, c.end_lsn, c.commit_lsn, c.ordinal, c.generation,
                    coalesce(p.current_timeline, p.timeline), p.publications
               FROM walgate.pipelines p LEFT JOIN walgate.checkpoints c USING (pipeline)
              WHERE p.pipeline = $1",
            &[&pipeline],
        )
        .await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let mut loaded = read_pipeline(first, pipeline)?;
    for row in &rows {
        if let Some(plugin) = column::<Option<String>>(row, 8)? {
            loaded.cursors.insert(plugin.clone(), read_cursor(row, 9)?);
            loaded.generations.insert(plugin, from_bigint(column(row, 12)?, "generation")?);
        }
    }
    Ok(Some(loaded))
}

fn read_pipeline(row: &Row, pipeline: &str) -> Result<PipelineRow, StoreError> {
    let stored: i32 = column(row, 6)?;
    if stored != ORDINAL_SCHEME {
        return Err(Kind::OrdinalScheme { pipeline: pipeline.to_owned(), stored, known: ORDINAL_SCHEME }.into());
    }
    Ok(PipelineRow {
        lineage: Lineage {
            system_id: column(row, 0)?,
            timeline: from_bigint(column(row, 1)?, "timeline")?,
            database: column(row, 2)?,
            slot: column(row, 3)?,
            slot_created_at: from_pg(column(row, 4)?),
        },
        acked: from_pg(column(row, 5)?),
        cursors: BTreeMap::new(),
        generations: BTreeMap::new(),
        updated_at: column(row, 7)?,
        timeline: from_bigint(column(row, 13)?, "current_timeline")?,
        publications: column(row, 14)?,
    })
}

/// Reads `end_lsn, commit_lsn, ordinal` from three neighbouring columns.
pub(crate) fn read_cursor(row: &Row, first: usize) -> Result<Cursor, StoreError> {
    Ok(Cursor {
        end: from_pg(column::<PgLsn>(row, first)?),
        commit: from_pg(column::<PgLsn>(row, first + 1)?),
        ordinal: from_bigint(column(row, first + 2)?, "ordinal")?,
    })
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| StoreError::server(LOADING, &error))
}

/// Names and both sides of what two lineages do not share; empty when they are one.
fn differences(stored: &Lineage, now: &Lineage) -> String {
    let pairs = [
        ("system identifier", stored.system_id.clone(), now.system_id.clone()),
        ("timeline", stored.timeline.to_string(), now.timeline.to_string()),
        ("database", stored.database.clone(), now.database.clone()),
        ("slot", stored.slot.clone(), now.slot.clone()),
        ("slot creation point", stored.slot_created_at.to_string(), now.slot_created_at.to_string()),
    ];
    let differing = pairs.into_iter().filter(|(_, stored, now)| stored != now);
    differing.map(|(name, stored, now)| format!("{name} {stored} stored, {now} now")).collect::<Vec<_>>().join("; ")
}
