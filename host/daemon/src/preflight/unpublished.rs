//! Which granted tables does no publication carry?
//!
//! Holds: the question. Refuses to decide whether that is an error: tables can be published later.

use walgate_core::grant::Grant;
use walgate_wire::{Connection, WireError};

use crate::config::Config;

/// The granted tables that no publication carries now: nothing of them will come.
pub(crate) async fn unpublished(
    connection: &mut Connection,
    config: &Config,
    grant: &Grant,
) -> Result<Vec<String>, WireError> {
    let names: Vec<String> = config.publications.iter().map(|name| walgate_wire::literal(name)).collect();
    let sql = format!(
        "SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname IN ({})",
        names.join(", ")
    );
    let rows = connection.query(&sql).await?;
    let published =
        |schema: &str, name: &str| rows.iter().any(|row| row.get(0) == Some(schema) && row.get(1) == Some(name));
    let missing = grant.tables.iter().filter(|table| !published(&table.namespace, &table.name));
    Ok(missing.map(|table| format!("{}.{}", table.namespace, table.name)).collect())
}
