//! Which versions of a plugin a pipeline has run, and which of them it does not run again.
//!
//! Holds: the numbers of generations by fingerprint, the mark of one that was rolled back, and of one that has proven itself. Refuses to know what a
//! fingerprint is made of. Read next: `migrations/006_generations.sql`.

use std::time::SystemTime;

use tokio_postgres::Error as PgError;

use crate::columns::{from_bigint, to_bigint};
use crate::error::StoreError;
use crate::store::{Store, StoreReader};

/// A version of a plugin, as it is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Its number: counts up from 1 for each plugin.
    pub number: u64,
    /// What tells it from others.
    pub fingerprint: String,
    /// What the plugin calls this version.
    pub version: String,
    /// When it was opened last; one that never could be did not run.
    pub opened_at: Option<SystemTime>,
    /// Why it was rolled back, if it was.
    pub blocked: Option<String>,
    /// It was through its probation once.
    pub proven: bool,
}

/// The version that ran last beside the one of this fingerprint, and was not rolled back.
pub fn ran_before<'k>(known: &'k [Generation], fingerprint: Option<&str>) -> Option<&'k Generation> {
    let others = known.iter().filter(|one| one.opened_at.is_some() && fingerprint != Some(&one.fingerprint));
    others.filter(|one| one.blocked.is_none()).max_by_key(|one| one.opened_at)
}

/// A generation that is about to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// Its number.
    pub number: u64,
    /// It was through its probation before.
    pub proven: bool,
}

impl Store {
    /// A generation is about to run. One that never ran gets the next number.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn enter_generation(
        &mut self,
        pipeline: &str,
        plugin: &str,
        fingerprint: &str,
        version: &str,
    ) -> Result<Entered, StoreError> {
        const DOING: &str = "entering a generation";
        let epoch = self.epoch_column(pipeline)?;
        let sql = "WITH held AS MATERIALIZED (SELECT walgate.hold_epoch($1, $5))
                   INSERT INTO walgate.generations AS g (pipeline, plugin, generation, fingerprint, version)
                   SELECT $1, $2, coalesce((SELECT max(generation) FROM walgate.generations
                                             WHERE pipeline = $1 AND plugin = $2), 0) + 1, $3, $4 FROM held
                   ON CONFLICT (pipeline, plugin, fingerprint)
                   DO UPDATE SET version = excluded.version
                   RETURNING generation, proven";
        let session = self.connection.session().await?;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&pipeline, &plugin, &fingerprint, &version, &epoch];
        let row = session.query_one(DOING, sql, &parameters).await.map_err(|error| error.or_fenced(pipeline))?;
        let read = || Ok((row.try_get(0)?, row.try_get(1)?));
        let (number, proven) = read().map_err(|error: PgError| StoreError::server(DOING, &error))?;
        Ok(Entered { number: from_bigint(number, "generation")?, proven })
    }

    /// Marks a generation that was rolled back, so that no later start runs it: with the reason, in names and codes.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn block_generation(
        &mut self,
        pipeline: &str,
        plugin: &str,
        number: u64,
        reason: &str,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE walgate.generations SET (blocked, proven) = ($5, false)
                    WHERE pipeline = $1 AND plugin = $3 AND generation = $4";
        let number = to_bigint(number, "a generation")?;
        self.write_fenced("blocking a generation", pipeline, sql, &[&plugin, &number, &reason]).await?;
        Ok(())
    }

    /// Marks a generation that was opened, and runs from now on.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn opened_generation(&mut self, pipeline: &str, plugin: &str, number: u64) -> Result<(), StoreError> {
        let sql = "UPDATE walgate.generations SET opened_at = clock_timestamp()
                    WHERE pipeline = $1 AND plugin = $3 AND generation = $4";
        let number = to_bigint(number, "a generation")?;
        self.write_fenced("keeping that a generation runs", pipeline, sql, &[&plugin, &number]).await?;
        Ok(())
    }

    /// Marks a generation that was through its probation: from now on it is trusted as much as any other.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn prove_generation(&mut self, pipeline: &str, plugin: &str, number: u64) -> Result<(), StoreError> {
        let sql = "UPDATE walgate.generations SET proven = true
                    WHERE pipeline = $1 AND plugin = $3 AND generation = $4 AND blocked IS NULL";
        let number = to_bigint(number, "a generation")?;
        self.write_fenced("proving a generation", pipeline, sql, &[&plugin, &number]).await?;
        Ok(())
    }

    /// Takes the marks off: an operator wants them tried again.
    ///
    /// # Errors
    /// Retry when the database does not answer; Operator `fenced` when another process took over.
    pub async fn unblock_generations(&mut self, pipeline: &str, plugin: &str) -> Result<(), StoreError> {
        let sql = "UPDATE walgate.generations SET blocked = NULL
                    WHERE pipeline = $1 AND plugin = $3 AND blocked IS NOT NULL";
        self.write_fenced("unblocking generations", pipeline, sql, &[&plugin]).await?;
        Ok(())
    }

    /// Every generation of a plugin, oldest first.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn generations(&mut self, pipeline: &str, plugin: &str) -> Result<Vec<Generation>, StoreError> {
        let rows = self.connection.session().await?.query(DOING, LIST, &[&pipeline, &plugin]).await?;
        rows.iter().map(read).collect()
    }
}

impl StoreReader {
    /// Every generation of a plugin, oldest first; none where walgate never ran.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn generations(&mut self, pipeline: &str, plugin: &str) -> Result<Vec<Generation>, StoreError> {
        if !self.has_table("walgate.generations").await? {
            return Ok(Vec::new());
        }
        let rows = self.connection.session().await?.query(DOING, LIST, &[&pipeline, &plugin]).await?;
        rows.iter().map(read).collect()
    }
}

const DOING: &str = "listing generations";
const LIST: &str = "SELECT generation, fingerprint, version, opened_at, blocked, proven FROM walgate.generations
                     WHERE pipeline = $1 AND plugin = $2 ORDER BY generation";

fn read(row: &tokio_postgres::Row) -> Result<Generation, StoreError> {
    let read = || {
        let number: i64 = row.try_get(0)?;
        Ok((number, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?, row.try_get(5)?))
    };
    let (number, fingerprint, version, opened_at, blocked, proven) =
        read().map_err(|error: PgError| StoreError::server(DOING, &error))?;
    Ok(Generation { number: from_bigint(number, "generation")?, fingerprint, version, opened_at, blocked, proven })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_ran_last_and_stays_trusted_is_before() {
        let generation = |number: u64, opened: Option<u64>, blocked: bool| Generation {
            number,
            fingerprint: format!("f{number}"),
            version: String::new(),
            opened_at: opened.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
            blocked: blocked.then(|| "why".to_owned()),
            proven: false,
        };
        // The second ran again after the third; the fourth never could be opened; the fifth was rolled back.
        let known = [
            generation(1, Some(10), false),
            generation(2, Some(50), false),
            generation(3, Some(40), false),
            generation(4, None, false),
            generation(5, Some(60), true),
        ];
        let before = |fingerprint| ran_before(&known, fingerprint).map(|one| one.number);
        assert_eq!([before(None), before(Some("f5")), before(Some("f2"))], [Some(2), Some(2), Some(3)]);
        assert_eq!(ran_before(&known[3..], None), None);
    }
}
