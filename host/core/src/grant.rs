//! What a plugin may see: asked by the plugin, allowed by the operator, effective only where both agree.
//!
//! Holds: requests, grants, and their intersection. Refuses to know the syntax of plugin.toml and of WIT (the plugin
//! crate translates both), and which columns a table has today (the minimizer learns that from the stream).
//! Read next: [`rules`] for how what is granted is handed over.

pub mod filter;
pub mod rules;
pub mod syntax;

use crate::batch::Operation;

use rules::{OnMissing, Rules};

/// A set of row operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operations(u8);

impl Operations {
    /// Every operation.
    pub const ALL: Operations = Operations(0b1_1111);
    /// No operation.
    pub const NONE: Operations = Operations(0);

    #[inline]
    const fn bit(operation: Operation) -> u8 {
        match operation {
            Operation::Read => 1,
            Operation::Insert => 2,
            Operation::Update => 4,
            Operation::Delete => 8,
            Operation::Truncate => 16,
        }
    }

    /// With one more operation.
    #[must_use]
    pub const fn with(self, operation: Operation) -> Self {
        Self(self.0 | Self::bit(operation))
    }

    /// Whether the operation is in the set.
    #[inline]
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & Self::bit(operation) != 0
    }

    /// What both sets have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// True for [`Operations::NONE`].
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The operation of that name, as plugin.toml and `describe` spell it.
    pub fn parse(name: &str) -> Option<Operation> {
        match name {
            "read" => Some(Operation::Read),
            "insert" => Some(Operation::Insert),
            "update" => Some(Operation::Update),
            "delete" => Some(Operation::Delete),
            "truncate" => Some(Operation::Truncate),
            _ => None,
        }
    }
}

/// Columns by name, or all but some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// Exactly these.
    Only(Vec<String>),
    /// All that the table has, without these.
    AllExcept(Vec<String>),
}

impl Columns {
    /// Whether a column of that name is in the set. Equality of names, never a pattern.
    #[inline]
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Only(names) => names.iter().any(|n| n == name),
            Self::AllExcept(names) => !names.iter().any(|n| n == name),
        }
    }
}

/// A table and what the operator allows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableGrant {
    /// Its schema, exactly as Postgres spells it.
    pub namespace: String,
    /// Its name, exactly as Postgres spells it.
    pub name: String,
    /// The columns that may be handed over.
    pub columns: Columns,
    /// Columns that must be in the stream: a grant that cannot be met is an error, not a silent gap.
    pub required: Vec<String>,
    /// The operations that may be handed over.
    pub operations: Operations,
    /// Under `AllExcept`: whether a column that appears while the plugin runs is handed over as well.
    pub allow_new_columns: bool,
    /// How it is handed over.
    pub rules: Rules,
}

/// A table a plugin asks for in `describe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRequest {
    /// Its schema, or `*` together with a `*` name: every granted table.
    pub namespace: String,
    /// Its name, or `*`.
    pub name: String,
    /// Columns it cannot work without; `*` alone asks for every granted one.
    pub columns: Vec<String>,
    /// Columns it uses when they are granted.
    pub optional_columns: Vec<String>,
    /// Operations it wants; all when the plugin named none.
    pub operations: Operations,
}

impl TableRequest {
    fn asks_every_table(&self) -> bool {
        self.namespace == "*" && self.name == "*"
    }

    fn asks_every_column(&self) -> bool {
        self.columns.iter().any(|c| c == "*")
    }
}

/// A required thing that the operator did not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ungranted {
    /// No grant names the table.
    #[error("the plugin needs table {namespace:?}.{name:?}, which plugin.toml does not grant")]
    Table {
        /// Its schema.
        namespace: String,
        /// Its name.
        name: String,
        /// The columns it asks for.
        columns: Vec<String>,
    },
    /// The table is granted without this column.
    #[error("the plugin needs column {column:?} of {namespace:?}.{name:?}, which plugin.toml does not grant")]
    Column {
        /// Schema of the table.
        namespace: String,
        /// Name of the table.
        name: String,
        /// The column.
        column: String,
    },
    /// Nothing of what it asks for is granted.
    #[error("the plugin asks for every granted table, and plugin.toml grants none")]
    Nothing,
}

/// The tables a plugin really sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// One entry a table.
    pub tables: Vec<TableGrant>,
    /// Prefixes of logical messages it receives, by equality.
    pub message_prefixes: Vec<String>,
}

impl Grant {
    /// Asked and allowed. Fails on the first required thing that is not allowed.
    pub fn effective(asked: &[TableRequest], allowed: &Grant) -> Result<Grant, Ungranted> {
        let mut tables: Vec<TableGrant> = Vec::new();
        for request in asked {
            if request.asks_every_table() {
                if allowed.tables.is_empty() {
                    return Err(Ungranted::Nothing);
                }
                for table in &allowed.tables {
                    merge(&mut tables, narrow(request, table)?);
                }
            } else {
                let table = allowed.table(&request.namespace, &request.name).ok_or_else(|| Ungranted::Table {
                    namespace: request.namespace.clone(),
                    name: request.name.clone(),
                    columns: request.columns.clone(),
                })?;
                merge(&mut tables, narrow(request, table)?);
            }
        }
        Ok(Grant { tables, message_prefixes: allowed.message_prefixes.clone() })
    }

    /// The grant for a table, by equality of both names.
    pub fn table(&self, namespace: &str, name: &str) -> Option<&TableGrant> {
        self.tables.iter().find(|t| t.namespace == namespace && t.name == name)
    }
}

fn narrow(request: &TableRequest, table: &TableGrant) -> Result<TableGrant, Ungranted> {
    let missing = request.columns.iter().find(|column| *column != "*" && !table.columns.contains(column));
    if let Some(column) = missing {
        return Err(Ungranted::Column {
            namespace: table.namespace.clone(),
            name: table.name.clone(),
            column: column.clone(),
        });
    }
    let columns = if request.asks_every_column() {
        table.columns.clone()
    } else {
        let granted = request.columns.iter().chain(&request.optional_columns);
        Columns::Only(granted.filter(|c| table.columns.contains(c)).cloned().collect())
    };
    // Named by the plugin as required, or by the operator for a plugin that takes whatever is granted.
    let mut required: Vec<String> = request.columns.iter().filter(|c| *c != "*").cloned().collect();
    match &table.columns {
        Columns::Only(names) if request.asks_every_column() && table.rules.on_missing == OnMissing::Halt => {
            required.extend(names.iter().cloned());
        }
        Columns::Only(_) => {}
        // Under a wildcard a misspelled treatment would let the column through in plain that it is meant for.
        Columns::AllExcept(_) => required.extend(table.rules.treatments.keys().cloned()),
    }
    Ok(TableGrant { columns, required, operations: request.operations.intersection(table.operations), ..table.clone() })
}

/// Two requests for one table add up: each half is allowed on its own, so their union is.
fn merge(tables: &mut Vec<TableGrant>, add: TableGrant) {
    let Some(have) = tables.iter_mut().find(|t| t.namespace == add.namespace && t.name == add.name) else {
        tables.push(add);
        return;
    };
    have.operations = Operations(have.operations.0 | add.operations.0);
    have.required.extend(add.required);
    have.columns = match (std::mem::replace(&mut have.columns, Columns::Only(Vec::new())), add.columns) {
        (Columns::Only(mut a), Columns::Only(b)) => {
            a.extend(b.into_iter().filter(|c| !a.contains(c)).collect::<Vec<_>>());
            Columns::Only(a)
        }
        // A part by name of a wildcard grant adds nothing to the wildcard.
        (all @ Columns::AllExcept(_), _) | (_, all @ Columns::AllExcept(_)) => all,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: Columns) -> TableGrant {
        TableGrant {
            namespace: "public".into(),
            name: "t".into(),
            columns,
            required: Vec::new(),
            operations: Operations::ALL,
            allow_new_columns: false,
            rules: Rules::default(),
        }
    }

    fn request(name: &str, columns: &[&str], optional: &[&str]) -> TableRequest {
        TableRequest {
            namespace: if name == "*" { "*".into() } else { "public".into() },
            name: name.into(),
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            optional_columns: optional.iter().map(|c| (*c).to_owned()).collect(),
            operations: Operations::ALL,
        }
    }

    fn only(names: &[&str]) -> Columns {
        Columns::Only(names.iter().map(|c| (*c).to_owned()).collect())
    }

    #[track_caller]
    fn check(asked: TableRequest, allowed: Columns, expect: Result<Columns, &str>) {
        let allowed = Grant { tables: vec![table(allowed)], message_prefixes: vec![] };
        match (Grant::effective(&[asked], &allowed), expect) {
            (Ok(grant), Ok(columns)) => assert_eq!(grant.tables[0].columns, columns),
            (Err(error), Err(word)) => assert!(error.to_string().contains(word), "{error}"),
            (got, want) => panic!("got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn effective_is_asked_and_allowed() {
        check(request("t", &["a"], &["b", "c"]), only(&["a", "b"]), Ok(only(&["a", "b"])));
        check(request("t", &["*"], &[]), only(&["a"]), Ok(only(&["a"])));
        check(request("*", &["*"], &[]), only(&["a"]), Ok(only(&["a"])));
        check(request("t", &["a", "x"], &[]), only(&["a"]), Err("\"x\""));
        check(request("u", &["a"], &[]), only(&["a"]), Err("\"u\""));
        let all = Columns::AllExcept(vec!["secret".into()]);
        check(request("t", &["*"], &[]), all.clone(), Ok(all.clone()));
        check(request("t", &["secret"], &[]), all, Err("\"secret\""));
    }

    #[track_caller]
    fn requires(asked: TableRequest, allowed: TableGrant, expect: &[&str]) {
        let allowed = Grant { tables: vec![allowed], message_prefixes: vec![] };
        assert_eq!(Grant::effective(&[asked], &allowed).unwrap().tables[0].required, expect);
    }

    #[test]
    fn a_treated_column_of_a_wildcard_must_be_there() {
        let treatments = [("email".to_owned(), rules::Treatment::Hashed)].into();
        let rules = Rules { treatments, ..Rules::default() };
        let all = TableGrant { rules: rules.clone(), ..table(Columns::AllExcept(vec![])) };
        requires(request("t", &["*"], &[]), all.clone(), &["email"]);
        requires(request("t", &["id"], &[]), all, &["id", "email"]);
        requires(request("t", &["id"], &[]), TableGrant { rules, ..table(only(&["id", "email"])) }, &["id"]);
    }

    #[test]
    fn what_may_be_missing_is_not_required() {
        let omit = Rules { on_missing: OnMissing::Omit, ..Rules::default() };
        requires(request("*", &["*"], &[]), table(only(&["a", "b"])), &["a", "b"]);
        requires(request("*", &["*"], &[]), TableGrant { rules: omit.clone(), ..table(only(&["a", "b"])) }, &[]);
        requires(request("t", &["a"], &[]), TableGrant { rules: omit, ..table(only(&["a", "b"])) }, &["a"]);
    }

    #[test]
    fn operations_are_intersected() {
        let mut asked = request("t", &["*"], &[]);
        asked.operations = Operations::NONE.with(Operation::Insert).with(Operation::Update);
        let mut granted = table(only(&["a"]));
        granted.operations = Operations::NONE.with(Operation::Update).with(Operation::Delete);
        let allowed = Grant { tables: vec![granted], message_prefixes: vec![] };
        let effective = Grant::effective(&[asked], &allowed).unwrap();
        assert_eq!(effective.tables[0].operations, Operations::NONE.with(Operation::Update));
    }
}
