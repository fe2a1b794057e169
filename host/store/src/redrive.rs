//! Delivering dead letters again, in the order of the source.
//!
//! Holds: marking, and what is due. Refuses to know the delivery: the checkpoint that follows it says what became of each
//! letter ([`crate::Checkpoint::redriven`], [`crate::Checkpoint::refused_again`]).
//! Invariant: of one plugin, no letter is due while an older one that shares a table with it waits, directly or through
//! letters in between. Read next: [`crate::loss`].

use std::collections::HashSet;

use crate::error::{Kind, StoreError};
use crate::letter::{COLUMNS, DeadLetter, column, read};
use crate::store::Store;

/// How many letters are answered at once.
const MAX_LETTERS: usize = 1_000;

/// Bytes of images answered at once, unless the first letter alone has more.
const MAX_BYTES: u64 = 32 << 20;

/// How many of the older letters an error names.
const NAMED: i64 = 20;

impl Store {
    /// Marks letters to be delivered again: of one plugin or of all, those with the given ids or all. Answers how many
    /// of them are marked now; an id that is not there counts for nothing, it may have been delivered meanwhile.
    ///
    /// Runs beside the process that leads, so it carries no epoch.
    ///
    /// # Errors
    /// Operator `dead_letters(order)` when an older letter of the same plugin that shares a table stays unmarked; it names
    /// the older ids, and nothing is marked. Retry when the database does not answer.
    pub async fn request_redrive(
        &mut self,
        pipeline: &str,
        plugin: Option<&str>,
        ids: Option<&[i64]>,
    ) -> Result<u64, StoreError> {
        // For each plugin and table the newest letter that is wanted: everything older must be wanted or marked already.
        let sql = "WITH wanted AS MATERIALIZED (
                       SELECT id, plugin, tables FROM walgate.dead_letters
                        WHERE pipeline = $1 AND ($2::text IS NULL OR plugin = $2)
                          AND ($3::bigint[] IS NULL OR id = ANY ($3)) FOR UPDATE),
                   reach AS (
                       SELECT w.plugin, t.name, max(w.id) AS id FROM wanted w, unnest(w.tables) AS t(name) GROUP BY 1, 2),
                   older AS MATERIALIZED (
                       SELECT DISTINCT o.id FROM walgate.dead_letters o, unnest(o.tables) AS t(name), reach r
                        WHERE o.pipeline = $1 AND o.requested_at IS NULL
                          AND r.plugin = o.plugin AND r.name = t.name AND o.id < r.id
                          AND o.id NOT IN (SELECT id FROM wanted)),
                   marked AS (
                       UPDATE walgate.dead_letters d SET requested_at = coalesce(d.requested_at, now())
                        WHERE d.id IN (SELECT id FROM wanted) AND NOT EXISTS (SELECT FROM older) RETURNING 1)
                   SELECT (SELECT count(*) FROM marked), (SELECT count(*) FROM older),
                          ARRAY(SELECT id FROM older ORDER BY id LIMIT $4)";
        let session = self.connection.session().await?;
        let row = session.query_one("marking dead letters", sql, &[&pipeline, &plugin, &ids, &NAMED]).await?;
        let (marked, older): (i64, i64) = (column(&row, 0)?, column(&row, 1)?);
        if older > 0 {
            let named: Vec<i64> = column(&row, 2)?;
            let mut ids = named.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            if older > NAMED {
                ids.push_str(&format!(" and {} more", older - NAMED));
            }
            return Err(Kind::OlderLetters { pipeline: pipeline.to_owned(), ids }.into());
        }
        crate::columns::from_bigint(marked, "count")
    }

    /// The marked letters of a plugin that are due, with their images, in the order of their ids: at most 1000, and at
    /// most 32 MiB of images unless the first alone has more.
    ///
    /// A marked letter is held back while an older one that shares a table waits unmarked, which happens when that one was
    /// refused again. Of the letters of one answer the caller keeps the order itself: after a refusal the later
    /// ones that share a table are not delivered.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn requested_letters(
        &mut self,
        pipeline: &str,
        plugin: &str,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, StoreError> {
        const DOING: &str = "reading requested dead letters";
        let session = self.connection.session().await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM walgate.dead_letters
              WHERE pipeline = $1 AND plugin = $2
                AND id <= (SELECT max(id) FROM walgate.dead_letters
                            WHERE pipeline = $1 AND plugin = $2 AND requested_at IS NOT NULL)
              ORDER BY id"
        );
        let rows = session.query(DOING, &sql, &[&pipeline, &plugin]).await?;
        let ids = due(&rows.iter().map(read).collect::<Result<Vec<_>, _>>()?);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {COLUMNS}, image FROM walgate.dead_letters WHERE pipeline = $1 AND id = ANY ($2) ORDER BY id"
        );
        let rows = session.query(DOING, &sql, &[&pipeline, &ids]).await?;
        rows.iter().map(|row| Ok((read(row)?, column(row, 15)?))).collect()
    }
}

/// The ids of the letters that may be delivered now, within the bounds of one delivery. `letters` are all of one plugin, in
/// order.
pub fn due(letters: &[DeadLetter]) -> Vec<i64> {
    let mut waiting: HashSet<&str> = HashSet::new();
    let mut due = Vec::new();
    let mut bytes = 0_u64;
    for letter in letters {
        if !letter.requested || letter.tables.iter().any(|table| waiting.contains(table.as_str())) {
            waiting.extend(letter.tables.iter().map(String::as_str));
            continue;
        }
        bytes = bytes.saturating_add(letter.bytes);
        if due.len() == MAX_LETTERS || (bytes > MAX_BYTES && !due.is_empty()) {
            break;
        }
        due.push(letter.id);
    }
    due
}
