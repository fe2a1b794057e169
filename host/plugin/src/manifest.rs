//! plugin.toml: what the operator allows one plugin, strictly read.
//!
//! Holds: the file format, its checks, and the typed result. Refuses to know what the plugin asks for (see `grant.rs`).
//! Unknown keys are errors, and no error ever repeats a value of `[settings]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};
use walgate_core::grant::{Columns, Grant, Operations, TableGrant};

use crate::description::{Capabilities, output_name};
use crate::error::Class;
use crate::limits::{LimitRange, Limits};

/// Largest plugin.toml, in bytes. Thousands of grants fit.
const MAX_BYTES: u64 = 1 << 20;

/// A plugin.toml that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than any grant needs.
    #[error("{} is larger than {limit} bytes; split what it grants over several plugins", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// It is not the TOML that plugin.toml is made of.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there and what is allowed.
        message: String,
    },
    /// A key has a value that makes no sense.
    #[error("{}: {key} {message}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, with its section.
        key: String,
        /// What is allowed.
        message: String,
    },
}

impl ManifestError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// What stops when a plugin cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The pipeline.
    #[default]
    Halt,
    /// This plugin only.
    Park,
}

/// What becomes of the guest's own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Diagnostics {
    /// Dropped: it may hold row values.
    #[default]
    None,
    /// Logged, for development.
    GuestText,
}

/// Where a named output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A file, cut back to its checkpointed length at a restart.
    File {
        /// Its path; one that is relative in plugin.toml counts from the folder of that file.
        path: PathBuf,
        /// Rotate above this many MiB, if set.
        rotate_mib: Option<u64>,
    },
    /// Standard output of the process.
    Stdout,
}

/// The settings of one plugin. Values never print.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All pairs, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Settings {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A checked plugin.toml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Whether this plugin's position holds back the acknowledgement.
    pub required: bool,
    /// What stops when it cannot go on.
    pub on_failure: OnFailure,
    /// Attempts of one batch before `on_failure` decides.
    pub max_attempts: u32,
    /// What becomes of its text.
    pub diagnostics: Diagnostics,
    /// Tables and messages it may see.
    pub allowed: Grant,
    /// Interfaces it may use.
    pub capabilities: Capabilities,
    /// Where its outputs go, by name.
    pub outputs: BTreeMap<String, Output>,
    /// Its settings.
    pub settings: Settings,
    /// Its limits.
    pub limits: Limits,
}

/// What a worker enforces at call time.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// The name of the plugin, for log lines.
    pub plugin: String,
    /// Interfaces the operator allows; the plugin gets those it asks for.
    pub capabilities: Capabilities,
    /// Its settings.
    pub settings: Settings,
    /// Its limits.
    pub limits: Limits,
    /// What becomes of its text.
    pub diagnostics: Diagnostics,
}

impl Manifest {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// See [`ManifestError`].
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        use std::io::Read;
        let failed = |source| ManifestError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        // One byte more than allowed tells a file that is cut from one that fits: half a grant can allow more than all of it.
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(ManifestError::TooLarge { path: path.to_owned(), limit: MAX_BYTES });
        }
        Self::parse(path, &text)
    }

    /// Checks a text; `path` only names it in errors.
    ///
    /// # Errors
    /// See [`ManifestError`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ManifestError> {
        let file: File = toml::from_str(text).map_err(|error| ManifestError::Syntax {
            path: path.to_owned(),
            line: error.span().map_or(1, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1),
            // Without the excerpt that `Display` adds: it may show a setting.
            message: error.message().to_owned(),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        file.check(folder).map_err(|Wrong(key, message)| ManifestError::Value { path: path.to_owned(), key, message })
    }

    /// What the worker of a plugin of that name enforces.
    pub fn policy(&self, plugin: &str) -> Policy {
        Policy {
            plugin: plugin.to_owned(),
            capabilities: self.capabilities.clone(),
            settings: self.settings.clone(),
            limits: self.limits.clone(),
            diagnostics: self.diagnostics,
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PluginSection {
    required: bool,
    on_failure: OnFailure,
    max_attempts: u32,
    diagnostics: Diagnostics,
}

impl Default for PluginSection {
    fn default() -> Self {
        Self { required: true, on_failure: OnFailure::Halt, max_attempts: 5, diagnostics: Diagnostics::None }
    }
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct GrantSection {
    table: Vec<TableSection>,
    capabilities: Vec<Word>,
    messages: Vec<String>,
    output: BTreeMap<String, OutputSection>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Log,
    Metrics,
    State,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableSection {
    schema: String,
    name: String,
    columns: ColumnsWord,
    except: Option<Vec<String>>,
    operations: Option<Vec<String>>,
    new_columns: Option<NewColumns>,
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum NewColumns {
    Withhold,
    Allow,
}

enum ColumnsWord {
    All,
    Only(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputSection {
    kind: OutputKind,
    path: Option<PathBuf>,
    rotate_mib: Option<u64>,
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum OutputKind {
    File,
    Stdout,
}

struct Setting(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    plugin: PluginSection,
    #[serde(default)]
    grant: GrantSection,
    #[serde(default)]
    settings: BTreeMap<String, Setting>,
    #[serde(default)]
    limits: Limits,
}

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(value) => Ok(Self(value)),
            // The stock error would repeat the value.
            _ => Err(de::Error::custom("a setting must be a string in quotes")),
        }
    }
}

impl<'de> Deserialize<'de> for ColumnsWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = || de::Error::custom("columns must be \"*\" or a list of column names");
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(all) if all == "*" => Ok(Self::All),
            toml::Value::Array(names) => names
                .into_iter()
                .map(|name| match name {
                    toml::Value::String(name) if name != "*" => Ok(name),
                    _ => Err(expected()),
                })
                .collect::<Result<_, _>>()
                .map(Self::Only),
            _ => Err(expected()),
        }
    }
}

/// A key and what is wrong with it.
struct Wrong(String, String);

impl Wrong {
    fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self(key.into(), message.into())
    }
}

impl File {
    fn check(self, folder: &Path) -> Result<Manifest, Wrong> {
        self.limits.validate().map_err(|LimitRange { key, min, max }| {
            Wrong::new(format!("limits.{key}"), format!("must lie between {min} and {max}"))
        })?;
        if !(1..=1000).contains(&self.plugin.max_attempts) {
            return Err(Wrong::new("plugin.max_attempts", "must lie between 1 and 1000"));
        }
        let GrantSection { table, capabilities, messages, output } = self.grant;
        let outputs = output
            .into_iter()
            .map(|(name, section)| Ok((name.clone(), section.check(&name, folder)?)))
            .collect::<Result<BTreeMap<_, _>, Wrong>>()?;
        let mut granted = Capabilities { outputs: outputs.keys().cloned().collect(), ..Capabilities::default() };
        for word in capabilities {
            match word {
                Word::Log => granted.log = true,
                Word::Metrics => granted.metrics = true,
                Word::State => granted.state = true,
            }
        }
        Ok(Manifest {
            required: self.plugin.required,
            on_failure: self.plugin.on_failure,
            max_attempts: self.plugin.max_attempts,
            diagnostics: self.plugin.diagnostics,
            allowed: Grant { tables: tables(table)?, message_prefixes: messages },
            capabilities: granted,
            outputs,
            settings: self.settings.into_iter().map(|(name, Setting(value))| (name, value)).collect(),
            limits: self.limits,
        })
    }
}

fn tables(sections: Vec<TableSection>) -> Result<Vec<TableGrant>, Wrong> {
    let mut tables: Vec<TableGrant> = Vec::with_capacity(sections.len());
    for section in sections {
        let table = section.check()?;
        if tables.iter().any(|t| t.namespace == table.namespace && t.name == table.name) {
            let key = format!("grant.table {:?}.{:?}", table.namespace, table.name);
            return Err(Wrong::new(key, "is granted twice; make it one section"));
        }
        tables.push(table);
    }
    Ok(tables)
}

impl TableSection {
    fn check(self) -> Result<TableGrant, Wrong> {
        let key = |key: &str| format!("grant.table {:?}.{:?} {key}", self.schema, self.name);
        let all = matches!(self.columns, ColumnsWord::All);
        if !all && self.except.is_some() {
            return Err(Wrong::new(key("except"), "stands only beside columns = \"*\""));
        }
        if !all && self.new_columns.is_some() {
            return Err(Wrong::new(key("new_columns"), "stands only beside columns = \"*\""));
        }
        let operations = match &self.operations {
            None => Operations::ALL,
            Some(names) => names.iter().try_fold(Operations::NONE, |set, name| {
                Operations::parse(name).map(|operation| set.with(operation)).ok_or_else(|| {
                    Wrong::new(key("operations"), "must be of read, insert, update, delete and truncate")
                })
            })?,
        };
        Ok(TableGrant {
            allow_new_columns: self.new_columns == Some(NewColumns::Allow),
            columns: match self.columns {
                ColumnsWord::All => Columns::AllExcept(self.except.unwrap_or_default()),
                ColumnsWord::Only(names) => Columns::Only(names),
            },
            // What must be there is what the plugin asks for; the effective grant fills this in.
            required: Vec::new(),
            operations,
            namespace: self.schema,
            name: self.name,
        })
    }
}

impl OutputSection {
    fn check(self, name: &str, folder: &Path) -> Result<Output, Wrong> {
        let key = |key: &str| format!("grant.output.{name}{key}");
        if !output_name(name) {
            return Err(Wrong::new(key(""), "has a bad name; use up to 40 of a-z, 0-9, - and _"));
        }
        match (self.kind, self.path, self.rotate_mib) {
            (OutputKind::Stdout, None, None) => Ok(Output::Stdout),
            (OutputKind::Stdout, _, _) => {
                Err(Wrong::new(key(""), "of kind \"stdout\" takes neither path nor rotate_mib"))
            }
            (OutputKind::File, Some(path), rotate_mib) if path.file_name().is_some() => {
                if rotate_mib.is_some_and(|mib| !(1..=1_048_576).contains(&mib)) {
                    return Err(Wrong::new(key(".rotate_mib"), "must lie between 1 and 1048576"));
                }
                Ok(Output::File { path: folder.join(path), rotate_mib })
            }
            (OutputKind::File, _, _) => Err(Wrong::new(key(".path"), "must name a file for kind \"file\"")),
        }
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
