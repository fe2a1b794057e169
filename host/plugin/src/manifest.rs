//! plugin.toml: what the operator allows one plugin, strictly read.
//!
//! Holds: the file format, its checks, and the typed result. Refuses to know what the plugin asks for (see `grant.rs`).
//! Unknown keys are errors, and no error ever repeats a value of `[settings]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};
use walgate_core::grant::{Grant, Operations};

use crate::cadence::{self, CheckpointEvery, CheckpointSection, Flush, FlushSection, Retry};
use crate::description::Capabilities;
use crate::error::Class;
use crate::http::access::HttpAccess;
use crate::http::grant::{self as http_grant, HttpGrant, HttpSection};
use crate::limits::{LimitRange, Limits};
use crate::output::{Output, OutputSection};
use crate::settings::{Setting, Settings};
use crate::table::{TableSection, tables};
use crate::target::{self, RowsSection, RowsTarget};

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
    /// Nothing: the batch goes to the dead letters and delivery goes on.
    DeadLetter,
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

/// A checked plugin.toml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Whether this plugin's position holds back the acknowledgement.
    pub required: bool,
    /// What stops when it cannot go on.
    pub on_failure: OnFailure,
    /// How often a failed call is made again before `on_failure` decides.
    pub retry: Retry,
    /// When it is flushed, if it answers `durable = false`.
    pub flush: Flush,
    /// How often its position is stored while the host checkpoints it; none: after every delivered batch.
    pub checkpoint: Option<CheckpointEvery>,
    /// The digest that its component has to have, in lower-case hexadecimal; none: any.
    pub sha256: Option<String>,
    /// It ends when its files are gone from the directory; else it goes on until the host stops.
    pub ends_without_files: bool,
    /// What becomes of its text.
    pub diagnostics: Diagnostics,
    /// Tables and messages it may see.
    pub allowed: Grant,
    /// The secret that is the key of its hashes, by its name in walgate.toml, `[secrets.NAME]`. Given whenever a column is
    /// hashed.
    pub hash_key: Option<String>,
    /// Interfaces it may use.
    pub capabilities: Capabilities,
    /// Where its outputs go, by name.
    pub outputs: BTreeMap<String, Output>,
    /// Where it may write rows, by the plugin's name for it; `*` stands for every table of a schema. All in one database.
    pub rows: BTreeMap<String, RowsTarget>,
    /// Where it may send requests over HTTP.
    pub http: Vec<HttpGrant>,
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
    /// Where it may write rows, as in [`Manifest::rows`].
    pub rows: BTreeMap<String, RowsTarget>,
    /// Where it may send requests over HTTP, with the secrets that go along.
    pub http: HttpAccess,
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
        Self::parse(path, &Self::text(path)?)
    }

    /// The text of a file, if it has the size of one.
    ///
    /// # Errors
    /// When it cannot be read, or is too large.
    pub fn text(path: &Path) -> Result<String, ManifestError> {
        use std::io::Read;
        let failed = |source| ManifestError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        // One byte more than allowed tells a file that is cut from one that fits: half a grant can allow more than all of it.
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(ManifestError::TooLarge { path: path.to_owned(), limit: MAX_BYTES });
        }
        Ok(text)
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
            message: without_value(error.message()),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        file.check(folder).map_err(|Wrong(key, message)| ManifestError::Value { path: path.to_owned(), key, message })
    }

    /// The database of its targets: none without targets, `Some(None)` for the state database, else a name of
    /// `[databases.NAME]`.
    pub fn rows_database(&self) -> Option<Option<&str>> {
        self.rows.values().next().map(|target| target.database.as_deref())
    }

    /// The target that a plugin means by this name, by its own section or that of `*`. Under `*` the name is the table's.
    pub fn rows_target(&self, name: &str) -> Option<&RowsTarget> {
        target::find(&self.rows, name).map(|(_, target)| target)
    }

    /// What the worker of a plugin of that name enforces. Nothing can be reached over HTTP under it, because secrets are not ours to
    /// read: whoever does sets [`Policy::http`].
    pub fn policy(&self, plugin: &str) -> Policy {
        Policy {
            plugin: plugin.to_owned(),
            capabilities: self.capabilities.clone(),
            rows: self.rows.clone(),
            http: HttpAccess::default(),
            settings: self.settings.clone(),
            limits: self.limits.clone(),
            diagnostics: self.diagnostics,
        }
    }
}

/// A value of the wrong type is repeated by the library, and may be a setting that slipped into another section.
fn without_value(message: &str) -> String {
    let repeats = ["invalid type: ", "invalid value: "].iter().any(|start| message.starts_with(start));
    match message.rsplit_once(", expected ") {
        Some((_, expected)) if repeats => format!("wrong type or value, expected {expected}"),
        _ => message.to_owned(),
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PluginSection {
    required: bool,
    on_failure: OnFailure,
    max_attempts: u32,
    backoff_ms: u64,
    max_backoff_ms: u64,
    on_missing: OnMissing,
    diagnostics: Diagnostics,
    sha256: Option<String>,
}

/// What follows when the files are gone from the directory.
#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum OnMissing {
    Keep,
    Stop,
}

impl Default for PluginSection {
    fn default() -> Self {
        Self {
            required: true,
            on_failure: OnFailure::Halt,
            max_attempts: 5,
            backoff_ms: 100,
            max_backoff_ms: 30_000,
            on_missing: OnMissing::Keep,
            diagnostics: Diagnostics::None,
            sha256: None,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct GrantSection {
    table: Vec<TableSection>,
    capabilities: Vec<Word>,
    messages: Vec<String>,
    hash_key: Option<String>,
    output: BTreeMap<String, OutputSection>,
    rows: BTreeMap<String, RowsSection>,
    http: Vec<HttpSection>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Log,
    Metrics,
    State,
}

/// `"*"` or a list of names.
pub(crate) enum ColumnsWord {
    All,
    Only(Vec<String>),
}

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
    #[serde(default)]
    flush: FlushSection,
    checkpoint: Option<CheckpointSection>,
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
pub(crate) struct Wrong(String, String);

impl Wrong {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self(key.into(), message.into())
    }
}

impl File {
    fn check(self, folder: &Path) -> Result<Manifest, Wrong> {
        self.limits.validate().map_err(|LimitRange { key, min, max }| {
            Wrong::new(format!("limits.{key}"), format!("must lie between {min} and {max}"))
        })?;
        let retry = cadence::retry(self.plugin.max_attempts, self.plugin.backoff_ms, self.plugin.max_backoff_ms)?;
        let sha256 = self.plugin.sha256.map(|digest| digest.to_ascii_lowercase());
        if sha256.as_deref().is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return Err(Wrong::new(
                "plugin.sha256",
                "must have 64 hexadecimal digits, as `walgate plugin inspect` prints them",
            ));
        }
        let GrantSection { table, capabilities, messages, hash_key, output, rows, http } = self.grant;
        if hash_key.as_deref().is_some_and(|name| !secret_name(name)) {
            return Err(Wrong::new(
                "grant.hash_key",
                "must name a [secrets.NAME] of walgate.toml: 1 to 40 of a-z, 0-9, - and _",
            ));
        }
        let outputs = output
            .into_iter()
            .map(|(name, section)| Ok((name.clone(), section.check(&name, folder)?)))
            .collect::<Result<BTreeMap<_, _>, Wrong>>()?;
        let rows = target::targets(rows)?;
        let http = http_grant::grants(http)?;
        let mut granted = Capabilities {
            outputs: outputs.keys().cloned().collect(),
            rows: rows.keys().cloned().collect(),
            http: !http.is_empty(),
            ..Capabilities::default()
        };
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
            retry,
            flush: self.flush.check()?,
            checkpoint: self.checkpoint.map(CheckpointSection::check).transpose()?,
            sha256,
            ends_without_files: self.plugin.on_missing == OnMissing::Stop,
            diagnostics: self.plugin.diagnostics,
            allowed: Grant { tables: tables(table, hash_key.is_some())?, message_prefixes: messages },
            hash_key,
            capabilities: granted,
            outputs,
            rows,
            http,
            settings: self.settings.into_iter().map(|(name, Setting(value))| (name, value)).collect(),
            limits: self.limits,
        })
    }
}

/// Whether a secret may have this name in walgate.toml.
pub(crate) fn secret_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    (1..=40).contains(&name.len()) && name.bytes().all(allowed)
}

/// All when the file names none.
pub(crate) fn operations(names: Option<&[String]>, key: impl Fn() -> String) -> Result<Operations, Wrong> {
    let Some(names) = names else { return Ok(Operations::ALL) };
    names.iter().try_fold(Operations::NONE, |set, name| {
        Operations::parse(name)
            .map(|operation| set.with(operation))
            .ok_or_else(|| Wrong::new(key(), "must be of read, insert, update, delete and truncate"))
    })
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
