//! Where asking and allowing meet: the effective grant, the lines that are missing, and a plugin.toml to start from.
//!
//! Holds: the intersection for a whole plugin and the prose of plugin.toml. Refuses to know how columns are chosen within
//! a table (see `walgate_core::grant`).

use std::fmt::Write;

use walgate_core::batch::Operation;
use walgate_core::grant::{Columns, Grant, Operations, TableRequest, Ungranted};

use crate::description::{AskError, Capabilities, Description, HTTP};
use crate::error::Class;
use crate::http::grant::starter_lines;
use crate::manifest::Manifest;
use crate::mode::Mode;
use crate::schema::{self, SchemaError};

/// What a plugin really has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effective {
    /// Tables, columns, operations and messages.
    pub grant: Grant,
    /// Host interfaces.
    pub capabilities: Capabilities,
}

/// A plugin that cannot start under its plugin.toml. The text ends with the lines to add.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// It asks for something no plugin.toml can grant.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// A required table or column is not granted.
    #[error("{ungranted}; to allow it:\n{lines}")]
    Table {
        /// What is missing.
        ungranted: Ungranted,
        /// The lines of plugin.toml.
        lines: String,
    },
    /// `[settings]` is not what the plugin needs.
    #[error(transparent)]
    Settings(#[from] SchemaError),
    /// A host interface is not granted.
    #[error("the plugin needs host interfaces that plugin.toml does not grant; to allow them:\n{lines}")]
    Capabilities {
        /// What is missing.
        missing: Capabilities,
        /// The lines of plugin.toml.
        lines: String,
    },
}

impl GrantError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

impl Manifest {
    /// Asked and allowed, for tables and host interfaces.
    ///
    /// # Errors
    /// When a required thing is not allowed; the error prints what to add.
    pub fn effective(&self, asked: &Description) -> Result<Effective, GrantError> {
        let wanted = Capabilities::parse(&asked.capabilities)?;
        let missing = wanted.without(&self.capabilities);
        if !missing.is_empty() {
            let lines = capability_lines(&self.capabilities, &missing);
            return Err(GrantError::Capabilities { missing, lines });
        }
        schema::check(&asked.settings_schema, &self.settings)?;
        let grant = Grant::effective(&asked.tables, &self.allowed)
            .map_err(|ungranted| GrantError::Table { lines: self.lines_for(&ungranted), ungranted })?;
        Ok(Effective { grant, capabilities: wanted.intersection(&self.capabilities) })
    }

    /// A plugin.toml that grants exactly what a plugin asks for, to be read and cut down by a person.
    pub fn starter(asked: &Description) -> String {
        let mut text = format!(
            "# Grants for plugin {:?}, version {:?}, as it asks for them. Remove what it should not have.\n",
            asked.name, asked.version
        );
        for line in [asked_mode(asked), OTHER_MODES.to_owned()] {
            let _ = writeln!(text, "# {line}");
        }
        text.push_str("\n[plugin]\nrequired = true\non_failure = \"halt\"\nmax_attempts = 5\n");
        let wanted = asked.capabilities.iter().filter_map(|word| Capabilities::parse(std::slice::from_ref(word)).ok());
        let wanted = wanted.fold(Capabilities::default(), |all, one| all.union(&one));
        let _ = write!(text, "\n{}", capability_lines(&Capabilities::default(), &wanted));
        for word in &asked.capabilities {
            if let Err(error) = Capabilities::parse(std::slice::from_ref(word)) {
                let _ = writeln!(text, "# {error}");
            }
        }
        for table in &asked.tables {
            let _ = write!(text, "\n{}", starter_table(table));
        }
        if !asked.settings_schema.is_empty() {
            text.push_str("\n# The plugin publishes a schema of its settings; each is a string.\n[settings]\n");
        }
        text
    }

    fn lines_for(&self, ungranted: &Ungranted) -> String {
        match ungranted {
            Ungranted::Table { namespace, name, columns } => table_lines(namespace, name, columns),
            Ungranted::Column { namespace, name, column } => self.column_lines(namespace, name, column),
            Ungranted::Nothing => table_lines("SCHEMA", "TABLE", &["*".to_owned()]),
        }
    }

    /// The `columns` (or `except`) line of that table as it would have to read.
    fn column_lines(&self, namespace: &str, name: &str, column: &str) -> String {
        let place = format!("# in [[grant.table]] of {}.{}\n", quoted(namespace), quoted(name));
        match self.allowed.table(namespace, name).map(|table| &table.columns) {
            Some(Columns::AllExcept(names)) => {
                let rest: Vec<String> = names.iter().filter(|n| *n != column).cloned().collect();
                format!("{place}except = {}\n", list(&rest))
            }
            Some(Columns::Only(names)) => {
                let all: Vec<String> = names.iter().cloned().chain([column.to_owned()]).collect();
                format!("{place}columns = {}\n", list(&all))
            }
            None => table_lines(namespace, name, &[column.to_owned()]),
        }
    }
}

/// The delivery mode under a starter, which keeps outputs in files and rows in the state database.
pub(crate) fn asked_mode(asked: &Description) -> String {
    let http = asked.capabilities.iter().any(|word| word == HTTP);
    let mode = if http { Mode::HostCheckpointed } else { Mode::HostTransactional };
    format!("Delivery mode: {} unless `open` answers a position.", mode.name())
}

const OTHER_MODES: &str = "Requests over HTTP, an output of kind \"stdout\", or rows in another database beside state or an output, makes it \
                           host-checkpointed: the end may repeat after a crash.";

fn starter_table(table: &TableRequest) -> String {
    if table.namespace == "*" && table.name == "*" {
        return format!(
            "# The plugin takes every table you grant; repeat this for each.\n{}",
            table_lines("SCHEMA", "TABLE", &table.columns)
        );
    }
    let mut columns = table.columns.clone();
    columns.extend(table.optional_columns.iter().filter(|c| !table.columns.contains(c)).cloned());
    let mut text = table_lines(&table.namespace, &table.name, &columns);
    if !table.optional_columns.is_empty() {
        let _ = writeln!(text, "# It works without: {}", list(&table.optional_columns));
    }
    text
}

fn table_lines(namespace: &str, name: &str, columns: &[String]) -> String {
    let columns = if columns.iter().any(|c| c == "*") { quoted("*") } else { list(columns) };
    format!("[[grant.table]]\nschema = {}\nname = {}\ncolumns = {columns}\n", quoted(namespace), quoted(name))
}

/// The `capabilities` line with what is there and what is missing, then a section for each missing output and target, and
/// for http.
pub(crate) fn capability_lines(have: &Capabilities, missing: &Capabilities) -> String {
    let mut text = String::new();
    let words = have.union(missing).words();
    if !missing.words().is_empty() {
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let _ = writeln!(text, "[grant]\ncapabilities = {}", list(&words));
    }
    for output in &missing.outputs {
        let _ = writeln!(text, "[grant.output.{output}]\nkind = \"file\"\npath = \"/absolute/path/{output}\"");
    }
    for target in &missing.rows {
        let _ = writeln!(text, "[grant.rows.{}]\nschema = \"SCHEMA\"", key(target));
    }
    if missing.http {
        text.push_str(&starter_lines());
    }
    text
}

/// The `operations` line of a target as it would have to read.
pub(crate) fn operation_lines(target: &str, operations: Operations) -> String {
    let all = [Operation::Read, Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];
    let names = all.into_iter().filter(|operation| operations.contains(*operation)).map(|o| o.name().to_owned());
    format!("[grant.rows.{}]\noperations = {}\n", key(target), list(&names.collect::<Vec<_>>()))
}

/// The `columns` line of a target, with a word in place of the column that is missing.
pub(crate) fn column_lines(target: &str, columns: &[String]) -> String {
    let columns: Vec<String> = columns.iter().cloned().chain(["COLUMN".to_owned()]).collect();
    format!("[grant.rows.{}]\ncolumns = {}\n", key(target), list(&columns))
}

/// A key of TOML: bare where it can be.
fn key(name: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !name.is_empty() && name.bytes().all(bare) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

fn list(names: &[String]) -> String {
    format!("[{}]", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "))
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn manifest(text: &str) -> Manifest {
        Manifest::parse(Path::new("plugin.toml"), text).unwrap()
    }

    fn asks(table: &str, columns: &[&str], capabilities: &[&str]) -> Description {
        let own = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        Description {
            name: "test".into(),
            version: "1".into(),
            tables: vec![TableRequest {
                namespace: "public".into(),
                name: table.into(),
                columns: own(columns),
                optional_columns: own(&["note"]),
                operations: Operations::ALL,
            }],
            capabilities: own(capabilities),
            settings_schema: String::new(),
        }
    }

    /// The printed lines must do what they say: added to the file, they let the plugin start.
    #[track_caller]
    fn check_fix(text: &str, asked: &Description, fixed: impl Fn(&str) -> String) {
        let lines = match manifest(text).effective(asked).unwrap_err() {
            GrantError::Table { lines, .. } | GrantError::Capabilities { lines, .. } => lines,
            error => panic!("{error}"),
        };
        let fixed = fixed(&lines);
        manifest(&fixed).effective(asked).unwrap_or_else(|e| panic!("still refused: {e}\n{fixed}"));
    }

    #[test]
    fn the_lines_printed_are_the_lines_missing() {
        check_fix("", &asks("we\"ird", &["a", "b"], &[]), |lines| lines.into());
        check_fix("", &asks("t", &["*"], &[]), |lines| lines.into());
        let table = "[[grant.table]]\nschema = \"public\"\nname = \"t\"\n";
        let with = |columns: &str| format!("{table}{columns}\n");
        check_fix(&with("columns = [\"a\"]"), &asks("t", &["a", "b"], &[]), |lines| with(lines));
        check_fix(&with("columns = \"*\"\nexcept = [\"b\", \"c\"]"), &asks("t", &["b"], &[]), |lines| {
            with(&format!("columns = \"*\"\n{lines}"))
        });
        let state = "[grant]\ncapabilities = [\"log\"]\n";
        let rest = with("columns = \"*\"");
        check_fix(&format!("{rest}{state}"), &asks("t", &["a"], &["log", "state", "output:out"]), |lines| {
            assert!(lines.contains("capabilities = [\"log\", \"state\"]"), "{lines}");
            format!("{rest}{lines}")
        });
        for targets in [&["rows:orders", "rows:Order Lines"][..], &["rows:*"], &["http"]] {
            check_fix(&rest, &asks("t", &["a"], targets), |lines| format!("{rest}{lines}"));
        }
        // Any target is enough for a plugin that takes every granted one.
        let one = format!("{rest}[grant.rows.orders]\nschema = \"m\"\n");
        let effective = manifest(&one).effective(&asks("t", &["a"], &["rows:*"])).unwrap();
        assert_eq!(effective.capabilities.rows, ["orders".to_owned()].into());
    }

    #[test]
    fn granted_is_asked_and_allowed() {
        let text = "[[grant.table]]\nschema = \"public\"\nname = \"t\"\ncolumns = [\"a\", \"b\", \"c\"]\n\
                    [grant]\ncapabilities = [\"log\", \"state\"]\n[grant.output.x]\nkind = \"stdout\"\n";
        let effective = manifest(text).effective(&asks("t", &["a"], &["log"])).unwrap();
        assert_eq!(effective.capabilities.words(), ["log"]);
        assert!(effective.capabilities.outputs.is_empty());
        assert_eq!(effective.grant.tables[0].columns, Columns::Only(vec!["a".into()]));
    }

    #[test]
    fn a_starter_grants_exactly_what_is_asked() {
        let asked = asks("t", &["a"], &["log", "output:out", "rows:we\"ird \\ täble", "rows:orders", "rows:*"]);
        let starter = Manifest::starter(&asked);
        let effective = manifest(&starter).effective(&asked).unwrap();
        assert_eq!(effective.grant.tables[0].columns, Columns::Only(vec!["a".into(), "note".into()]));
        assert_eq!(effective.capabilities, Capabilities::parse(&asked.capabilities).unwrap());
        assert!(
            starter.contains("[grant.rows.orders]\nschema = \"SCHEMA\"") && starter.contains(&asked_mode(&asked)),
            "{starter}"
        );
        // What the starter says of the mode is true of it.
        assert_eq!(Mode::of(&effective.capabilities, &manifest(&starter), false), Mode::HostTransactional);
        let later = Manifest::starter(&asks("t", &["a"], &["replica:x"]));
        assert!(later.contains("# the plugin asks for capability \"replica:x\""), "{later}");
        manifest(&later);
        let asked = asks("t", &["a"], &["http"]);
        let starter = Manifest::starter(&asked);
        let effective = manifest(&starter).effective(&asked).unwrap();
        assert_eq!(Mode::of(&effective.capabilities, &manifest(&starter), false), Mode::HostCheckpointed);
        let mode = asked_mode(&asked);
        assert!(mode.contains("host-checkpointed") && starter.contains(&mode), "{starter}");
        assert!(starter.contains("[[grant.http]]\nurl = "), "{starter}");
    }

    #[test]
    fn unknown_capabilities_are_refused_by_name() {
        let error = manifest("").effective(&asks("t", &[], &["raw-sockets"])).unwrap_err();
        assert!(error.to_string().contains("raw-sockets"), "{error}");
    }
}
