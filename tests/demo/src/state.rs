//! What Postgres knows of walgate: its tables in the state schema, and where the slot stands.
//!
//! Holds: reading and writing it down for the judges. Refuses to judge, and changes nothing.
//! Read next: `run.rs`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tokio_postgres::Client;
use walgate_core::Lsn;

use crate::shop::SLOT;
use crate::tally::Tally;

/// Every table of the state schema, and what to select so that bytes show as text.
const TABLES: &str = "
    SELECT c.relname::text, string_agg(
        format(CASE a.atttypid WHEN 'bytea'::regtype THEN 'encode(%I, ''escape'')' ELSE '%I::text' END, a.attname),
        ', ' ORDER BY a.attnum)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE n.nspname = 'walgate' AND c.relkind IN ('r', 'p') GROUP BY 1 ORDER BY 1";

/// Writes every row of every table of the state schema into files of a folder; answers how many tables there are.
pub(crate) async fn dump(client: &Client, folder: &Path) -> Result<usize> {
    let tables = client.query(TABLES, &[]).await.context("cannot list the tables of the state schema")?;
    for table in &tables {
        let (name, columns): (String, String) = (table.try_get(0)?, table.try_get(1)?);
        let sql = format!("SELECT concat_ws(' | ', {columns}) FROM walgate.\"{name}\"");
        let rows = client.query(&sql, &[]).await.with_context(|| format!("cannot read walgate.{name}"))?;
        let lines: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        let path = folder.join(format!("{name}.txt"));
        fs::write(&path, lines?.join("\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(tables.len())
}

/// What `counter-rust` has counted, as its state says.
pub(crate) async fn counted(client: &Client) -> Result<Tally> {
    const TOTALS: &str =
        "SELECT convert_from(value, 'UTF8') FROM walgate.plugin_state WHERE plugin = 'counter-rust' AND key = 'totals'";
    let row = client.query_one(TOTALS, &[]).await.context("counter-rust has left no totals in its state")?;
    Tally::of_counter(row.try_get(0)?).context("the totals of counter-rust have an unknown form")
}

/// How far the server has been told that it may free its log.
pub(crate) async fn confirmed(client: &Client) -> Result<Lsn> {
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let row = client.query_one(sql, &[&SLOT]).await.context("the slot is gone")?;
    let text: Option<&str> = row.try_get(0)?;
    text.context("the slot has no position")?.parse().context("confirmed_flush_lsn")
}
