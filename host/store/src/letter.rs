//! Dead letters: what a plugin refused, kept with its image so that it can be delivered again.
//!
//! Holds: the letter as it is written and as it is read. Refuses to know what is in an image and why it was refused.
//! Letters belong to the name of a pipeline and of a plugin: [`Store::forget`] leaves them, because they may be the only
//! copy of what they hold; who wants them gone drops them first, with [`Store::drop_letters`], which is counted.
//! Read next: [`crate::redrive`], [`crate::loss`].

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::{PgLsn, ToSql};
use walgate_core::Lsn;

use crate::columns::{Hidden, from_bigint, from_pg, to_bigint, to_pg};
use crate::commit::Checkpoint;
use crate::connection::Session;
use crate::error::StoreError;
use crate::store::{Store, StoreReader};

/// A letter to keep. No `Debug`: the image may hold row values.
#[derive(Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The plugin that refused.
    pub plugin: String,
    /// Its generation.
    pub generation: u64,
    /// The batch it refused, or refused a part of.
    pub batch_id: String,
    /// The commit LSN of the first transaction in the letter.
    pub commit: Lsn,
    /// The end LSN of the last one.
    pub end: Lsn,
    /// The ordinal of the first change in its source transaction.
    pub source_ordinal: u32,
    /// Who has to act: a word of the host.
    pub class: String,
    /// The code of the refusal. No text of a guest and no value.
    pub code: String,
    /// The tables it has rows of, as `schema.table`: what the order of redrive is kept by.
    pub tables: Vec<String>,
    /// How many rows are in the image.
    pub rows: u32,
    /// The rows, in a form of the caller's.
    pub image: Vec<u8>,
}

/// A kept letter, without its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number; of one pipeline they rise in the order in which letters were kept.
    pub id: i64,
    /// The plugin that refused.
    pub plugin: String,
    /// The generation of the plugin that refused first.
    pub generation: u64,
    /// The batch it was in.
    pub batch_id: String,
    /// The commit LSN of its first transaction.
    pub commit: Lsn,
    /// The end LSN of its last one.
    pub end: Lsn,
    /// The ordinal of its first change in the source transaction.
    pub source_ordinal: u32,
    /// Who has to act.
    pub class: String,
    /// The code of the first refusal.
    pub code: String,
    /// The tables it has rows of, as `schema.table`.
    pub tables: Vec<String>,
    /// How many rows it has.
    pub rows: u32,
    /// The size of the image in bytes.
    pub bytes: u64,
    /// When it was kept, by the clock of the state database.
    pub created_at: SystemTime,
    /// How often it was refused, the first time included.
    pub attempts: u32,
    /// Whether it is marked to be delivered again.
    pub requested: bool,
}

impl DeadLetter {
    /// The statement with which someone who may read the state database sees the rows of the letter.
    pub fn image_query(id: i64) -> String {
        format!("SELECT convert_from(image, 'UTF8') FROM walgate.dead_letters WHERE id = {id}")
    }
}

impl Store {
    /// The size of all images of a pipeline, in bytes.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn dead_letter_bytes(&mut self, pipeline: &str) -> Result<u64, StoreError> {
        bytes(self.connection.session().await?, pipeline).await
    }

    /// How many letters of a plugin wait.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn dead_letter_count(&mut self, pipeline: &str, plugin: &str) -> Result<u64, StoreError> {
        let session = self.connection.session().await?;
        let sql = "SELECT count(*) FROM walgate.dead_letters WHERE pipeline = $1 AND plugin = $2";
        let row = session.query_one(READING, sql, &[&pipeline, &plugin]).await?;
        from_bigint(row.try_get(0).map_err(|error| StoreError::server(READING, &error))?, "count")
    }
}

impl StoreReader {
    /// The letters of a pipeline, or of one of its plugins, in the order of their ids; none where walgate never ran.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn dead_letters(&mut self, pipeline: &str, plugin: Option<&str>) -> Result<Vec<DeadLetter>, StoreError> {
        if !self.has_table(TABLE).await? {
            return Ok(Vec::new());
        }
        let session = self.connection.session().await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM walgate.dead_letters
              WHERE pipeline = $1 AND ($2::text IS NULL OR plugin = $2) ORDER BY id"
        );
        session.query(READING, &sql, &[&pipeline, &plugin]).await?.iter().map(read).collect()
    }

    /// One letter, if it is there.
    ///
    /// # Errors
    /// As [`StoreReader::dead_letters`].
    pub async fn dead_letter(&mut self, pipeline: &str, id: i64) -> Result<Option<DeadLetter>, StoreError> {
        if !self.has_table(TABLE).await? {
            return Ok(None);
        }
        let session = self.connection.session().await?;
        let sql = format!("SELECT {COLUMNS} FROM walgate.dead_letters WHERE pipeline = $1 AND id = $2");
        session.query(READING, &sql, &[&pipeline, &id]).await?.first().map(read).transpose()
    }

    /// The size of all images of a pipeline, in bytes; 0 where walgate never ran.
    ///
    /// # Errors
    /// As [`StoreReader::dead_letters`].
    pub async fn dead_letter_bytes(&mut self, pipeline: &str) -> Result<u64, StoreError> {
        if !self.has_table(TABLE).await? {
            return Ok(0);
        }
        bytes(self.connection.session().await?, pipeline).await
    }
}

const TABLE: &str = "walgate.dead_letters";
const READING: &str = "reading dead letters";

/// What [`read`] reads, in its order. The image is not among it.
pub(crate) const COLUMNS: &str = "id, plugin, generation, batch_id, commit_lsn, end_lsn, source_ordinal, class, code, \
     tables, rows, bytes, created_at, attempts, requested_at IS NOT NULL";

/// Reads a row that begins with [`COLUMNS`].
pub(crate) fn read(row: &Row) -> Result<DeadLetter, StoreError> {
    Ok(DeadLetter {
        id: column(row, 0)?,
        plugin: column(row, 1)?,
        generation: from_bigint(column(row, 2)?, "generation")?,
        batch_id: column(row, 3)?,
        commit: from_pg(column(row, 4)?),
        end: from_pg(column(row, 5)?),
        source_ordinal: from_bigint(column(row, 6)?, "source_ordinal")?,
        class: column(row, 7)?,
        code: column(row, 8)?,
        tables: column(row, 9)?,
        rows: from_bigint(column(row, 10)?, "rows")?,
        bytes: from_bigint(column(row, 11)?, "bytes")?,
        created_at: column(row, 12)?,
        attempts: from_bigint(column(row, 13)?, "attempts")?,
        requested: column(row, 14)?,
    })
}

pub(crate) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| StoreError::server(READING, &error))
}

async fn bytes(session: &mut Session, pipeline: &str) -> Result<u64, StoreError> {
    let sql = "SELECT coalesce(sum(bytes), 0)::bigint FROM walgate.dead_letters WHERE pipeline = $1";
    from_bigint(column(&session.query_one(READING, sql, &[&pipeline]).await?, 0)?, "bytes")
}

/// What a checkpoint changes of the letters, as one array a column.
pub(crate) struct Letters<'a> {
    taken: &'a [i64],
    refused: &'a [i64],
    plugins: Vec<&'a str>,
    generations: Vec<i64>,
    batches: Vec<&'a str>,
    commits: Vec<PgLsn>,
    ends: Vec<PgLsn>,
    ordinals: Vec<i64>,
    classes: Vec<&'a str>,
    codes: Vec<&'a str>,
    rows: Vec<i64>,
    images: Hidden<Vec<&'a [u8]>>,
    table_letters: Vec<i64>,
    table_names: Vec<&'a str>,
}

impl<'a> Letters<'a> {
    /// None when the checkpoint is not about letters.
    pub(crate) fn of(checkpoint: &'a Checkpoint) -> Result<Option<Self>, StoreError> {
        let Checkpoint { dead_letters: new, redriven, refused_again, .. } = checkpoint;
        if new.is_empty() && redriven.is_empty() && refused_again.is_empty() {
            return Ok(None);
        }
        let numbered = (1_i64..).zip(new);
        let tables =
            numbered.flat_map(|(number, letter)| letter.tables.iter().map(move |name| (number, name.as_str())));
        let (table_letters, table_names) = tables.unzip();
        Ok(Some(Self {
            taken: redriven,
            refused: refused_again,
            plugins: new.iter().map(|l| l.plugin.as_str()).collect(),
            generations: new.iter().map(|l| to_bigint(l.generation, "a generation")).collect::<Result<_, _>>()?,
            batches: new.iter().map(|l| l.batch_id.as_str()).collect(),
            commits: new.iter().map(|l| to_pg(l.commit)).collect(),
            ends: new.iter().map(|l| to_pg(l.end)).collect(),
            ordinals: new.iter().map(|l| i64::from(l.source_ordinal)).collect(),
            classes: new.iter().map(|l| l.class.as_str()).collect(),
            codes: new.iter().map(|l| l.code.as_str()).collect(),
            rows: new.iter().map(|l| i64::from(l.rows)).collect(),
            images: Hidden(new.iter().map(|l| l.image.as_slice()).collect()),
            table_letters,
            table_names,
        }))
    }

    /// The parameters of `walgate.commit_letters` after the pipeline.
    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 14] {
        [
            &self.taken,
            &self.refused,
            &self.plugins,
            &self.generations,
            &self.batches,
            &self.commits,
            &self.ends,
            &self.ordinals,
            &self.classes,
            &self.codes,
            &self.rows,
            &self.images,
            &self.table_letters,
            &self.table_names,
        ]
    }
}
