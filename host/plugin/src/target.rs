//! `[grant.rows.NAME]`: the tables of Postgres a plugin may write rows to.
//!
//! Holds: one target, its section of plugin.toml, and its checks. Refuses to know what a target looks like today and how
//! rows are applied (the store), and what a plugin stages (see `capability/rows.rs`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use walgate_core::grant::Operations;

use crate::description::{EVERY_TARGET, target_name};
use crate::manifest::{ColumnsWord, Wrong, operations};

/// The name in plugin.toml of the database that holds the checkpoints.
const STATE_DATABASE: &str = "state";

/// The schema of the host's own tables in the state database: a plugin that wrote there could forge a checkpoint.
const OWN_SCHEMA: &str = "walgate";

/// A table, or every table of a schema, that a plugin may write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsTarget {
    /// The name of `[databases.NAME]` in walgate.toml; none for the state database.
    pub database: Option<String>,
    /// Its schema, exactly as Postgres spells it.
    pub schema: String,
    /// Its name, exactly as Postgres spells it. None only for the target `*`: there the plugin names the table.
    pub table: Option<String>,
    /// The columns it may write; none for all.
    pub columns: Option<Vec<String>>,
    /// The columns rows are found by; none for the primary key of the target.
    pub key: Option<Vec<String>>,
    /// What it may do there.
    pub operations: Operations,
}

impl RowsTarget {
    /// Whether it may write a column of that name.
    pub fn writes(&self, column: &str) -> bool {
        self.columns.as_ref().is_none_or(|names| names.iter().any(|name| name == column))
    }
}

/// What a plugin means by `name`, and the name of the section that says so: its own, else `*`.
pub(crate) fn find<'a>(targets: &'a BTreeMap<String, RowsTarget>, name: &str) -> Option<(&'a str, &'a RowsTarget)> {
    // What stands in for a table's name under `*` has to be one; `*` itself is none.
    let sections = if target_name(name) { [name, EVERY_TARGET] } else { return None };
    sections.iter().find_map(|section| targets.get_key_value(*section)).map(|(name, target)| (name.as_str(), target))
}

/// All sections, checked.
pub(crate) fn targets(sections: BTreeMap<String, RowsSection>) -> Result<BTreeMap<String, RowsTarget>, Wrong> {
    let targets = sections
        .into_iter()
        .map(|(name, section)| Ok((name.clone(), section.check(&name)?)))
        .collect::<Result<BTreeMap<_, _>, Wrong>>()?;
    let databases: BTreeSet<&str> =
        targets.values().map(|target| target.database.as_deref().unwrap_or(STATE_DATABASE)).collect();
    if databases.len() > 1 {
        let names = databases.into_iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let message = format!(
            "names targets in the databases {names}, which cannot commit together; split the plugin: one for each database"
        );
        return Err(Wrong::new("grant.rows", message));
    }
    Ok(targets)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowsSection {
    database: Option<String>,
    schema: String,
    table: Option<String>,
    columns: Option<ColumnsWord>,
    key: Option<Vec<String>>,
    operations: Option<Vec<String>>,
}

impl RowsSection {
    fn check(self, name: &str) -> Result<RowsTarget, Wrong> {
        let key = |key: &str| format!("grant.rows.{name:?}{key}");
        let every = name == EVERY_TARGET;
        if !every && !target_name(name) {
            return Err(Wrong::new(key(""), "has a bad name; use 1 to 63 bytes without control characters, or \"*\""));
        }
        if every && self.table.is_some() {
            let message = "stands only in a section with a name of its own: \"*\" is every table of the schema";
            return Err(Wrong::new(key(" table"), message));
        }
        let own = [(" database", &self.database), (" schema", &Some(self.schema.clone())), (" table", &self.table)];
        for (what, text) in own {
            if text.as_ref().is_some_and(|text| !target_name(text)) {
                return Err(Wrong::new(key(what), "must be a name of 1 to 63 bytes without control characters"));
            }
        }
        let database = self.database.filter(|database| database != STATE_DATABASE);
        if database.is_none() && self.schema == OWN_SCHEMA {
            return Err(Wrong::new(key(" schema"), "must not be \"walgate\": the checkpoints are kept there"));
        }
        let columns = match self.columns {
            None | Some(ColumnsWord::All) => None,
            Some(ColumnsWord::Only(names)) => Some(column_names(names, key(" columns"))?),
        };
        let keys = self.key.map(|names| column_names(names, key(" key"))).transpose()?;
        let unwritable = |columns: &Vec<String>| keys.iter().flatten().any(|name| !columns.contains(name));
        if columns.as_ref().is_some_and(unwritable) {
            return Err(Wrong::new(
                key(" key"),
                "names a column that `columns` does not; rows are found by what is written",
            ));
        }
        Ok(RowsTarget {
            database,
            schema: self.schema,
            table: if every { None } else { Some(self.table.unwrap_or_else(|| name.to_owned())) },
            columns,
            key: keys,
            operations: operations(self.operations.as_deref(), || key(" operations"))?,
        })
    }
}

/// At least one name, each once, each one that a column can have.
fn column_names(names: Vec<String>, key: String) -> Result<Vec<String>, Wrong> {
    let distinct: BTreeSet<&String> = names.iter().collect();
    if names.is_empty() || distinct.len() < names.len() || !names.iter().all(|name| target_name(name)) {
        return Err(Wrong::new(key, "must name at least one column, each once, in 1 to 63 bytes"));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use walgate_core::batch::Operation;

    use super::*;
    use crate::manifest::{Manifest, ManifestError};

    fn parse(text: &str) -> Result<Manifest, ManifestError> {
        Manifest::parse(Path::new("plugin.toml"), text)
    }

    #[test]
    fn every_key_is_read_and_every_default_is_the_widest() {
        let manifest = parse(
            "[grant.rows.orders]\ndatabase = \"lake\"\nschema = \"mirror\"\ntable = \"Orders\"\ncolumns = [\"id\", \"note\"]\n\
             key = [\"id\"]\noperations = [\"insert\"]\n[grant.rows.\"Order Lines\"]\ndatabase = \"lake\"\nschema = \"mirror\"\n\
             [grant.rows.\"*\"]\ndatabase = \"lake\"\nschema = \"rest\"\ncolumns = \"*\"\n",
        )
        .unwrap();
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let orders = RowsTarget {
            database: Some("lake".into()),
            schema: "mirror".into(),
            table: Some("Orders".into()),
            columns: names(&["id", "note"]),
            key: names(&["id"]),
            operations: Operations::NONE.with(Operation::Insert),
        };
        assert!(orders.writes("id") && !orders.writes("ID"));
        assert_eq!(manifest.rows["orders"], orders);
        let widest = RowsTarget { columns: None, key: None, operations: Operations::ALL, ..orders };
        let lines = RowsTarget { table: Some("Order Lines".into()), ..widest.clone() };
        assert!(lines.writes("anything"));
        assert_eq!(manifest.rows_target("Order Lines"), Some(&lines));
        let rest = RowsTarget { schema: "rest".into(), table: None, ..widest };
        assert_eq!(manifest.rows_target("elsewhere"), Some(&rest));
        assert_eq!(manifest.rows_target("*"), None);
        assert_eq!(manifest.rows_database(), Some(Some("lake")));
        let granted = ["orders", "Order Lines", "*"].map(str::to_owned).into();
        assert_eq!(manifest.capabilities.rows, granted);
        assert_eq!(manifest.policy("p").rows, manifest.rows);
    }

    #[test]
    fn without_a_name_the_database_is_the_state_database() {
        let state =
            parse("[grant.rows.a]\nschema = \"m\"\n[grant.rows.b]\ndatabase = \"state\"\nschema = \"m\"").unwrap();
        assert_eq!((state.rows_database(), state.rows["b"].database.as_ref()), (Some(None), None));
        assert_eq!(parse("").unwrap().rows_database(), None);
    }

    #[test]
    fn refusals_name_the_section_and_the_fix() {
        let check = |text: &str, words: &[&str]| {
            let error = parse(text).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{word:?} is missing in: {error}");
            }
        };
        let orders = |rest: &str| format!("[grant.rows.orders]\nschema = \"m\"\n{rest}");
        check("[grant.rows.orders]\n", &["schema"]);
        check(&orders("colums = \"*\""), &[":3:", "colums", "`columns`"]);
        check(&orders("columns = []"), &["\"orders\" columns", "at least one"]);
        check(&orders("columns = [\"a\", \"a\"]"), &["\"orders\" columns", "each once"]);
        check(&orders("key = []"), &["\"orders\" key", "at least one"]);
        check(&orders("key = [\"id\"]\ncolumns = [\"a\"]"), &["\"orders\" key", "`columns`"]);
        check(&orders("operations = [\"upsert\"]"), &["\"orders\" operations", "truncate"]);
        check(&orders("table = \"\""), &["\"orders\" table", "1 to 63 bytes"]);
        check(&orders("database = \"\""), &["\"orders\" database", "1 to 63 bytes"]);
        check("[grant.rows.orders]\nschema = \"a\\nb\"", &["\"orders\" schema", "control"]);
        check("[grant.rows.orders]\nschema = \"walgate\"", &["\"orders\" schema", "checkpoints"]);
        parse("[grant.rows.orders]\nschema = \"walgate\"\ndatabase = \"far\"").unwrap();
        check("[grant.rows.\"*\"]\nschema = \"m\"\ntable = \"t\"", &["\"*\" table", "every table"]);
        check("[grant.rows.\"\"]\nschema = \"m\"", &["bad name"]);
        let two = "[grant.rows.a]\nschema = \"m\"\n[grant.rows.b]\nschema = \"m\"\ndatabase = \"far\"";
        check(two, &["grant.rows", "\"far\", \"state\"", "split the plugin"]);
    }
}
