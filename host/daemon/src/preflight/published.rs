//! What the publications send, as the catalogs of the source have it.
//!
//! Holds: the question. Refuses to judge (see [`walgate_core::publication`]).

use walgate_core::publication::{Publication, PublishedColumn, PublishedTable, Scope};
use walgate_wire::{Connection, WireError};

use crate::config::Config;

/// The publications of the configuration with their tables and all columns of those.
pub(crate) async fn published(connection: &mut Connection, config: &Config) -> Result<Vec<Publication>, WireError> {
    let names: Vec<String> = config.publications.iter().map(|name| walgate_wire::literal(name)).collect();
    let sql = format!(
        "SELECT p.pubname, p.puballtables OR EXISTS (
                    SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid),
                t.schemaname, t.tablename, t.rowfilter, a.attname, a.attname = ANY (t.attnames),
                c.relreplident = 'f' OR coalesce((
                    SELECT a.attnum = ANY (i.indkey::int2[]) FROM pg_catalog.pg_index i
                     WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                                                      WHEN 'i' THEN i.indisreplident ELSE false END), false),
                a.atttypid >= 16384
           FROM pg_catalog.pg_publication p
           LEFT JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
           LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
           LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
           LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          WHERE p.pubname IN ({})
          ORDER BY p.pubname, t.schemaname, t.tablename, a.attnum",
        names.join(", ")
    );
    let mut publications: Vec<Publication> = Vec::new();
    for row in connection.query(&sql).await? {
        let text = |index| row.get(index).unwrap_or_default().to_owned();
        let truth = |index| row.get(index) == Some("t");
        if publications.last().is_none_or(|last| last.name != text(0)) {
            let scope = if truth(1) { Scope::Sweeping } else { Scope::Tables };
            publications.push(Publication { name: text(0), scope, tables: Vec::new() });
        }
        let Some(publication) = publications.last_mut().filter(|_| row.get(3).is_some()) else { continue };
        let (namespace, name) = (text(2), text(3));
        if publication.tables.last().is_none_or(|last| (&last.namespace, &last.name) != (&namespace, &name)) {
            let filter = row.get(4).map(str::to_owned);
            publication.tables.push(PublishedTable { namespace, name, columns: Vec::new(), filter });
        }
        if let Some(table) = publication.tables.last_mut().filter(|_| row.get(5).is_some()) {
            let column = PublishedColumn { name: text(5), sent: truth(6), identity: truth(7), user_type: truth(8) };
            table.columns.push(column);
        }
    }
    Ok(publications)
}
