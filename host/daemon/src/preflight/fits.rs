//! Do grants fit the tables as they are now?
//!
//! Holds: the relations as the stream would announce them, from the catalogs. Refuses to judge: the same rules do that which
//! judge the stream (see [`walgate_core::minimize::fits`]).

use walgate_core::assemble::{Relation, StreamColumn};
use walgate_core::grant::Grant;
use walgate_core::minimize::{HashKey, MinimizeError, fits};
use walgate_core::relation::{ReplicaIdentity, SchemaVersion};
use walgate_core::value::{Kind, builtin_type_name};
use walgate_wire::{Connection, WireError};

use crate::config::Config;

/// The object ids below are those of built-in types, whose names the stream does not tell.
const FIRST_NORMAL_OID: u32 = 16384;

/// What would stop a plugin at the first row of a published table. Log from before a change of a table is still read as it
/// was written.
pub(crate) async fn misfits(
    connection: &mut Connection,
    config: &Config,
    grant: &Grant,
    hash_key: Option<&HashKey>,
) -> Result<Vec<MinimizeError>, WireError> {
    let mut found = Vec::new();
    for relation in relations(connection, config).await? {
        if let Some(table) = grant.table(&relation.namespace, &relation.name) {
            found.extend(fits(table, &relation, hash_key.cloned()).err());
        }
    }
    Ok(found)
}

/// The published tables with the columns that are sent of them.
async fn relations(connection: &mut Connection, config: &Config) -> Result<Vec<Relation>, WireError> {
    let names: Vec<String> = config.publications.iter().map(|name| walgate_wire::literal(name)).collect();
    let sql = format!(
        "SELECT DISTINCT ON (c.oid, a.attnum)
                c.oid, n.nspname, c.relname, c.relreplident, a.attname, a.atttypid, a.atttypmod,
                c.relreplident = 'f' OR coalesce((
                    SELECT a.attnum = ANY (i.indkey::int2[]) FROM pg_catalog.pg_index i
                     WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                                                      WHEN 'i' THEN i.indisreplident ELSE false END), false),
                (WITH RECURSIVE b (base, name) AS (
                     SELECT y.typbasetype, y.typname FROM pg_catalog.pg_type y WHERE y.oid = a.atttypid
                     UNION ALL
                     SELECT y.typbasetype, y.typname FROM b JOIN pg_catalog.pg_type y ON y.oid = b.base)
                 SELECT name FROM b WHERE base = 0)
           FROM pg_catalog.pg_publication_tables t
           JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
           JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
           JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = ANY (t.attnames)
          WHERE t.pubname IN ({}) ORDER BY c.oid, a.attnum",
        names.join(", ")
    );
    let mut relations: Vec<Relation> = Vec::new();
    for row in connection.query(&sql).await? {
        let text = |index| row.get(index).unwrap_or_default().to_owned();
        let number = |index| text(index).parse::<u32>().unwrap_or_default();
        let id = number(0);
        if relations.last().is_none_or(|last| last.id != id) {
            let identity = match row.get(3) {
                Some("f") => ReplicaIdentity::Full,
                Some("i") => ReplicaIdentity::Index,
                Some("n") => ReplicaIdentity::Nothing,
                _ => ReplicaIdentity::Default,
            };
            let (namespace, name, version) = (text(1), text(2), SchemaVersion::default());
            relations.push(Relation { id, namespace, name, identity, columns: Vec::new(), version });
        }
        let type_oid = number(5);
        let (type_name, kind) = if type_oid < FIRST_NORMAL_OID {
            (builtin_type_name(type_oid).to_owned(), Kind::of_oid(type_oid))
        } else {
            (text(8), Kind::of_catalog_name(&text(8)))
        };
        if let Some(relation) = relations.last_mut() {
            relation.columns.push(StreamColumn {
                name: text(4),
                type_oid,
                type_modifier: text(6).parse().unwrap_or(-1),
                key: row.get(7) == Some("t"),
                type_name,
                kind,
            });
        }
    }
    Ok(relations)
}
