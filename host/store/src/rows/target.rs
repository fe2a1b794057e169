//! Which tables a plugin may write, and under which names.
//!
//! Holds: the operator's grant of targets, and the SQL spelling of names. Refuses to know the catalogs: whether a table
//! exists, and what it looks like, is the shape's to say. Read next: [`super::shape`].

use std::collections::BTreeMap;

/// One table a plugin may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsTable {
    /// Its schema, exactly as the catalog spells it.
    pub schema: String,
    /// Its name, likewise.
    pub table: String,
    /// The columns that may be written, besides the key; `None` is all of them.
    pub columns: Option<Vec<String>>,
    /// The columns that tell rows apart, in place of the primary key; a unique index must back them. An empty list says
    /// that there is no key: the table takes inserts only, also when it has a primary key of its own making.
    pub key: Option<Vec<String>>,
}

/// Every table of one schema: the name that the plugin uses is the table's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsRest {
    /// The schema.
    pub schema: String,
    /// As [`RowsTable::columns`], for each of its tables.
    pub columns: Option<Vec<String>>,
    /// As [`RowsTable::key`], for each of its tables.
    pub key: Option<Vec<String>>,
}

/// Targets by the name the plugin uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowsTargets {
    /// Tables with a name of their own.
    pub named: BTreeMap<String, RowsTable>,
    /// Where any other name is looked up.
    pub rest: Option<RowsRest>,
}

impl RowsTargets {
    /// The table that the plugin means by a name, if it may write it.
    pub(crate) fn resolve(&self, name: &str) -> Option<RowsTable> {
        self.named.get(name).cloned().or_else(|| {
            let rest = self.rest.as_ref()?;
            Some(RowsTable {
                schema: rest.schema.clone(),
                table: name.to_owned(),
                columns: rest.columns.clone(),
                key: rest.key.clone(),
            })
        })
    }
}

/// A name as SQL spells it: in quotes, quotes doubled, so that case, dots and keywords are nothing special.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A name inside a schema as SQL spells it.
pub(crate) fn qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", quoted(schema), quoted(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_its_own_goes_before_the_rest() {
        let table = |schema: &str, table: &str| RowsTable {
            schema: schema.into(),
            table: table.into(),
            columns: None,
            key: None,
        };
        let mut targets = RowsTargets::default();
        targets.named.insert("a".into(), table("own", "x"));
        assert_eq!(targets.resolve("a"), Some(table("own", "x")));
        assert_eq!(targets.resolve("b"), None);
        targets.rest = Some(RowsRest { schema: "all".into(), columns: None, key: None });
        assert_eq!(targets.resolve("a"), Some(table("own", "x")));
        assert_eq!(targets.resolve("b"), Some(table("all", "b")));
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        assert_eq!(qualified("a.b", "C\"; DROP"), "\"a.b\".\"C\"\"; DROP\"");
    }
}
