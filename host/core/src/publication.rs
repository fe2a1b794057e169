//! What a publication sends beyond all grants, and the statement that would keep it inside Postgres.
//!
//! Holds: one pure function over facts. Refuses to know where the facts come from (`pg_publication_tables`, `pg_attribute`,
//! `pg_index`) and who is told. It never proposes what would stop writes at the source: a column list must cover the replica
//! identity, and a row filter may only look at columns of it that have built-in types.

use crate::grant::filter::quoted_name;
use crate::grant::{Grant, TableGrant};

/// The first major version with column lists and row filters.
const LISTS_AND_FILTERS: u32 = 15;

/// How a publication names its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One by one.
    Tables,
    /// All of the database or of schemas: what is named cannot be narrowed.
    Sweeping,
}

/// A publication as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// How it names its tables.
    pub scope: Scope,
    /// Its tables.
    pub tables: Vec<PublishedTable>,
}

/// A table of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// Its schema.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// All its columns, in order.
    pub columns: Vec<PublishedColumn>,
    /// Its row filter, as `pg_publication_tables` prints it.
    pub filter: Option<String>,
}

/// A column of a published table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedColumn {
    /// Its name.
    pub name: String,
    /// Whether the publication sends it.
    pub sent: bool,
    /// Part of the replica identity; every column under identity full.
    pub identity: bool,
    /// Its type is not built in, and row filters of publications may not look at it.
    pub user_type: bool,
}

/// What is sent of a table beyond all grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beyond {
    /// All of it: no grant names the table.
    Table,
    /// Columns and rows.
    Part {
        /// Columns that no grant names.
        columns: Vec<String>,
        /// Columns that no grant names and that a column list could not leave out: they are part of the replica identity.
        identity: Vec<String>,
        /// Rows that every grant filters away, of a table without a row filter in the publication.
        rows: bool,
    },
}

/// One table of which more is sent than is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableExcess {
    /// Its schema.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What is too much.
    pub beyond: Beyond,
}

/// What a publication sends beyond all grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// The tables concerned.
    pub tables: Vec<TableExcess>,
    /// The statement that would stop as much of it as this server can; none when it can stop nothing. For a sweeping
    /// publication it makes a new one, to be named in `[source]` instead. Holds the values of the operator's row filters.
    pub statement: Option<String>,
}

/// Compares a publication with the effective grants of all plugins that read it.
pub fn excess(publication: &Publication, grants: &[&Grant], major: u32) -> Excess {
    let narrows = major >= LISTS_AND_FILTERS;
    let (mut tables, mut kept, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    let mut stops = false;
    for table in &publication.tables {
        let granted: Vec<&TableGrant> =
            grants.iter().filter_map(|grant| grant.table(&table.namespace, &table.name)).collect();
        let beyond = if granted.is_empty() { Some(Beyond::Table) } else { table.beyond(&granted) };
        match &beyond {
            Some(Beyond::Table) => {
                stops = true;
                dropped.push(table.place());
            }
            _ if narrows => {
                let (entry, narrower) = table.entry(&granted);
                stops |= narrower;
                kept.push(entry);
            }
            _ => kept.push(table.place()),
        }
        tables.extend(beyond.map(|beyond| TableExcess {
            namespace: table.namespace.clone(),
            name: table.name.clone(),
            beyond,
        }));
    }
    let statement = stops.then(|| publication.statement(&kept, &dropped)).flatten();
    Excess { tables, statement }
}

impl Publication {
    fn statement(&self, kept: &[String], dropped: &[String]) -> Option<String> {
        let name = quoted_name(&self.name);
        match (self.scope, kept) {
            (Scope::Tables, []) => Some(format!("ALTER PUBLICATION {name} DROP TABLE {}", dropped.join(", "))),
            (Scope::Tables, _) => Some(format!("ALTER PUBLICATION {name} SET TABLE {}", kept.join(", "))),
            (Scope::Sweeping, []) => None,
            (Scope::Sweeping, _) => {
                let name = quoted_name(&format!("{}_granted", self.name));
                Some(format!("CREATE PUBLICATION {name} FOR TABLE {}", kept.join(", ")))
            }
        }
    }
}

impl PublishedTable {
    fn place(&self) -> String {
        format!("{}.{}", quoted_name(&self.namespace), quoted_name(&self.name))
    }

    fn beyond(&self, granted: &[&TableGrant]) -> Option<Beyond> {
        let surplus = self.columns.iter().filter(|column| column.sent && !is_used(granted, column));
        let (identity, columns): (Vec<_>, Vec<_>) = surplus.partition(|column| column.identity);
        let names =
            |columns: Vec<&PublishedColumn>| columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
        let rows = self.filter.is_none() && granted.iter().all(|grant| grant.rules.filter.is_some());
        let (columns, identity) = (names(columns), names(identity));
        let any = rows || !columns.is_empty() || !identity.is_empty();
        any.then_some(Beyond::Part { columns, identity, rows })
    }

    /// The table as a narrowed publication names it, and whether that sends less than now.
    fn entry(&self, granted: &[&TableGrant]) -> (String, bool) {
        let needed = |column: &&PublishedColumn| column.identity || is_used(granted, column);
        let list: Vec<&PublishedColumn> = self.columns.iter().filter(|column| column.sent).filter(needed).collect();
        let sent = self.columns.iter().filter(|column| column.sent).count();
        let mut entry = self.place();
        // Without a list a column that is added later is sent, too: the publication had none, and gets none for nothing.
        if !list.is_empty() && list.len() < self.columns.len() {
            let names: Vec<String> = list.iter().map(|column| quoted_name(&column.name)).collect();
            entry = format!("{entry} ({})", names.join(", "));
        }
        let filter = self.filter.clone().or_else(|| self.filter_of(granted));
        if let Some(filter) = &filter {
            entry = format!("{entry} WHERE ({filter})");
        }
        let narrower = !list.is_empty() && list.len() < sent || self.filter.is_none() && filter.is_some();
        (entry, narrower)
    }

    /// What every grant filters away may stay, if Postgres takes the filter.
    fn filter_of(&self, granted: &[&TableGrant]) -> Option<String> {
        let fits = |name: &String| {
            self.columns.iter().any(|column| column.name == *name && column.identity && !column.user_type)
        };
        let filters: Option<Vec<_>> = granted.iter().map(|grant| grant.rules.filter.as_ref()).collect();
        let filters = filters?;
        let mut conditions: Vec<String> = Vec::new();
        for filter in &filters {
            if !filter.columns().iter().all(fits) {
                return None;
            }
            let condition = filter.sql();
            if !conditions.contains(&condition) {
                conditions.push(condition);
            }
        }
        match conditions.as_slice() {
            [only] => Some(only.clone()),
            _ => Some(conditions.iter().map(|condition| format!("({condition})")).collect::<Vec<_>>().join(" OR ")),
        }
    }
}

/// Whether a grant hands the column over or looks at it.
fn is_used(granted: &[&TableGrant], column: &PublishedColumn) -> bool {
    let looks = |grant: &TableGrant| grant.rules.filter.as_ref().is_some_and(|f| f.columns().contains(&column.name));
    granted.iter().any(|grant| grant.columns.contains(&column.name) || looks(grant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::filter::Filter;
    use crate::grant::rules::Rules;
    use crate::grant::{Columns, Operations};

    fn column(name: &str, identity: bool) -> PublishedColumn {
        PublishedColumn { name: name.to_owned(), sent: true, identity, user_type: false }
    }

    fn table(name: &str, columns: &[PublishedColumn]) -> PublishedTable {
        PublishedTable { namespace: "public".into(), name: name.into(), columns: columns.to_vec(), filter: None }
    }

    fn orders() -> PublishedTable {
        table(
            "orders",
            &[column("tenant", true), column("id", true), column("note", false), column("Card \"no\"", false)],
        )
    }

    fn grant(columns: &[&str], filter: Option<&str>) -> Grant {
        let table = TableGrant {
            namespace: "public".to_owned(),
            name: "orders".to_owned(),
            columns: Columns::Only(columns.iter().map(|name| (*name).to_owned()).collect()),
            required: Vec::new(),
            operations: Operations::ALL,
            allow_new_columns: false,
            rules: Rules { filter: filter.map(|text| Filter::parse(text).unwrap()), ..Rules::default() },
        };
        Grant { tables: vec![table], message_prefixes: Vec::new() }
    }

    #[track_caller]
    fn check(tables: &[PublishedTable], grants: &[Grant], major: u32, expect: Option<&str>) -> Vec<TableExcess> {
        let publication = Publication { name: "p".to_owned(), scope: Scope::Tables, tables: tables.to_vec() };
        let found = excess(&publication, &grants.iter().collect::<Vec<_>>(), major);
        assert_eq!(found.statement.as_deref(), expect);
        found.tables
    }

    #[test]
    fn columns_beyond_the_union_of_grants_are_left_out() {
        let grants = [grant(&["id"], None), grant(&["id", "note"], None)];
        let found = check(
            &[orders()],
            &grants,
            15,
            Some(r#"ALTER PUBLICATION "p" SET TABLE "public"."orders" ("tenant", "id", "note")"#),
        );
        let beyond = Beyond::Part { columns: vec!["Card \"no\"".into()], identity: vec!["tenant".into()], rows: false };
        assert_eq!(found[0].beyond, beyond);
        // Before 15 nothing can be done about columns, and it is said all the same.
        assert_eq!(check(&[orders()], &grants, 14, None).len(), 1);
    }

    #[test]
    fn a_table_nobody_is_granted_is_dropped() {
        let other = table("Other", &[column("id", true)]);
        let all = [grant(&["tenant", "id", "note", "Card \"no\""], None)];
        for major in [14, 18] {
            let statement = r#"ALTER PUBLICATION "p" SET TABLE "public"."orders""#;
            let found = check(&[orders(), other.clone()], &all, major, Some(statement));
            assert!(matches!(&found[..], [TableExcess { beyond: Beyond::Table, .. }]), "{found:?}");
        }
        check(std::slice::from_ref(&other), &all, 18, Some(r#"ALTER PUBLICATION "p" DROP TABLE "public"."Other""#));
        assert_eq!(check(&[orders()], &all, 18, None), []);
    }

    #[test]
    fn rows_are_filtered_only_where_every_grant_filters() {
        let all = ["tenant", "id", "note", "Card \"no\""];
        let seven = grant(&all, Some("tenant = 7"));
        let eight = grant(&all, Some("tenant = 8 and id > 1"));
        let prefix = r#"ALTER PUBLICATION "p" SET TABLE "public"."orders" WHERE "#;
        check(&[orders()], &[seven.clone(), seven.clone()], 15, Some(&format!("{prefix}(\"tenant\" = '7')")));
        let both = format!("{prefix}((\"tenant\" = '7') OR ((\"tenant\" = '8') AND (\"id\" > '1')))");
        check(&[orders()], &[seven.clone(), eight], 15, Some(&both));
        assert_eq!(check(&[orders()], &[seven, grant(&all, None)], 15, None), []);
    }

    #[test]
    fn nothing_is_proposed_that_stops_writes_at_the_source() {
        let all = ["tenant", "id", "note", "Card \"no\""];
        // Outside the identity, the server would refuse updates.
        let rows = check(&[orders()], &[grant(&all, Some("note = 'x'"))], 15, None);
        assert!(matches!(&rows[0].beyond, Beyond::Part { rows: true, .. }), "{rows:?}");
        let mut own = orders();
        own.columns[0].user_type = true;
        check(&[own], &[grant(&all, Some("tenant = 'x'"))], 15, None);
        // Under identity full every column is needed.
        let full = table("orders", &orders().columns.iter().map(|c| column(&c.name, true)).collect::<Vec<_>>());
        let found = check(&[full], &[grant(&["id"], None)], 15, None);
        assert!(matches!(&found[0].beyond, Beyond::Part { identity, .. } if identity.len() == 3), "{found:?}");
    }

    #[test]
    fn what_the_publication_filters_already_stays() {
        let mut orders = orders();
        orders.filter = Some("(tenant = 1)".to_owned());
        orders.columns[3].sent = false;
        let all = ["tenant", "id", "note"];
        assert_eq!(check(&[orders.clone()], &[grant(&all, None)], 15, None), []);
        check(
            &[orders],
            &[grant(&["id"], Some("tenant = 7"))],
            15,
            Some(r#"ALTER PUBLICATION "p" SET TABLE "public"."orders" ("tenant", "id") WHERE ((tenant = 1))"#),
        );
    }

    #[test]
    fn a_sweeping_publication_is_replaced() {
        let publication = Publication { name: "all".into(), scope: Scope::Sweeping, tables: vec![orders()] };
        let found = excess(&publication, &[&grant(&["id"], None)], 16);
        let expect = r#"CREATE PUBLICATION "all_granted" FOR TABLE "public"."orders" ("tenant", "id")"#;
        assert_eq!(found.statement.as_deref(), Some(expect));
        assert_eq!(excess(&publication, &[], 16).statement, None);
    }
}
