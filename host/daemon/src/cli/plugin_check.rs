//! `walgate plugin check DIR`: what a plugin directory would do, without a database and without running anything.
//!
//! Holds: what is shown. Every plugin is loaded as a start would load it, and described. Refuses to know what tables there
//! are: whether a granted one exists and is published is what `walgate check` asks.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use walgate_core::batch::Operation;
use walgate_core::grant::rules::Treatment;
use walgate_core::grant::{Columns, Operations, TableGrant};
use walgate_plugin::{Mode, OnFailure, Output};

use crate::config::Config;
use crate::exit::Failure;
use crate::pipeline::Files;
use crate::plugins::{Loaded, Loader};
use crate::printer::{Printer, one_line};

#[derive(Serialize)]
struct Checked {
    name: String,
    /// `would-run`, `awaiting-grant` or `rejected`.
    state: &'static str,
    cause: Option<String>,
    would: Option<Would>,
}

/// What it would be given.
#[derive(Serialize)]
struct Would {
    version: String,
    mode: String,
    required: bool,
    on_failure: &'static str,
    interfaces: Vec<&'static str>,
    tables: Vec<Table>,
    messages: Vec<String>,
    outputs: Vec<String>,
    rows: Vec<String>,
    http: Vec<String>,
}

#[derive(Serialize)]
struct Table {
    name: String,
    columns: String,
    operations: Vec<&'static str>,
    filtered: bool,
}

/// `config` counts where it exists: it names trusted keys and secrets.
pub(super) async fn check(dir: &Path, config: &Path, printer: Printer) -> Result<(), Failure> {
    let config = if config.exists() { Some(Config::read(config)?) } else { None };
    // The folder of one plugin is looked at in its directory, where its name counts.
    let real = std::fs::canonicalize(dir)
        .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", dir.display())))?;
    let single = real.join("plugin.wasm").exists();
    let only = real.file_name().filter(|_| single).map(|name| name.to_string_lossy().into_owned());
    let root = if single { real.parent().unwrap_or(&real) } else { &real };
    let directory = Loader::offline(root, config.as_ref())?.only(only.as_deref()).await?;
    let mut files = Files::default();
    let mut checked: Vec<Checked> = directory
        .loaded
        .iter()
        .map(|plugin| {
            let name = plugin.name.clone();
            match files.take(&plugin.name, &plugin.manifest.outputs) {
                Ok(()) => Checked { name, state: "would-run", cause: None, would: Some(would(plugin)) },
                Err(halt) => Checked { name, state: "rejected", cause: Some(halt.detail), would: None },
            }
        })
        .collect();
    checked.extend(directory.not_running.into_iter().map(|plugin| Checked {
        name: plugin.name,
        state: plugin.state,
        cause: Some(plugin.cause),
        would: None,
    }));
    checked.sort_by(|a, b| a.name.cmp(&b.name));
    printer.show(&checked, || {
        if checked.is_empty() {
            return format!("{} has no plugins", dir.display());
        }
        checked.iter().map(text).collect()
    });
    match checked.iter().filter(|plugin| plugin.would.is_none()).count() {
        0 => Ok(()),
        count => Err(Failure::usage(format!("{count} of {} would not run", checked.len()))),
    }
}

fn would(plugin: &Loaded) -> Would {
    let manifest = &plugin.manifest;
    Would {
        version: plugin.description.version.clone(),
        mode: format!("{}, unless `open` answers a position", Mode::of(&plugin.capabilities, manifest, false).name()),
        required: manifest.required,
        on_failure: match manifest.on_failure {
            OnFailure::Halt => "halt",
            OnFailure::Park => "park",
            OnFailure::DeadLetter => "dead-letter",
        },
        interfaces: plugin.capabilities.words(),
        http: manifest.http.iter().filter(|_| plugin.capabilities.http).map(ToString::to_string).collect(),
        tables: plugin.grant.tables.iter().map(table).collect(),
        messages: plugin.grant.message_prefixes.clone(),
        outputs: manifest
            .outputs
            .iter()
            .map(|(name, output)| match output {
                Output::File { path, .. } if path.parent().is_some_and(Path::is_dir) => {
                    format!("{name}: file {}", path.display())
                }
                Output::File { path, .. } => {
                    format!("{name}: file {}, whose folder does not exist here: create it, or it halts", path.display())
                }
                Output::Stdout => format!("{name}: standard output"),
            })
            .collect(),
        rows: manifest
            .rows
            .iter()
            .map(|(name, target)| {
                let database = target.database.as_deref().unwrap_or("state");
                format!("{name}: schema {:?} of database {database}", target.schema)
            })
            .collect(),
    }
}

fn table(grant: &TableGrant) -> Table {
    let treated = |name: &String| match grant.rules.treatments.get(name) {
        None | Some(Treatment::Plain) => name.clone(),
        Some(treatment) => format!("{name} ({treatment})"),
    };
    let columns = match &grant.columns {
        Columns::Only(names) => names.iter().map(treated).collect::<Vec<_>>().join(", "),
        Columns::AllExcept(hidden) => {
            let mut text = "every column".to_owned();
            if !hidden.is_empty() {
                let _ = write!(text, " but {}", hidden.join(", "));
            }
            let treated: Vec<String> =
                grant.rules.treatments.iter().map(|(name, treatment)| format!("{name} {treatment}")).collect();
            if !treated.is_empty() {
                let _ = write!(text, ", with {}", treated.join(", "));
            }
            text
        }
    };
    Table {
        name: format!("{}.{}", grant.namespace, grant.name),
        columns,
        operations: operations(grant.operations),
        filtered: grant.rules.filter.is_some(),
    }
}

fn operations(granted: Operations) -> Vec<&'static str> {
    let all = [Operation::Read, Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];
    all.into_iter().filter(|operation| granted.contains(*operation)).map(Operation::name).collect()
}

fn text(plugin: &Checked) -> String {
    let Some(would) = &plugin.would else {
        return format!(
            "{}: {}: {}\n",
            one_line(&plugin.name),
            plugin.state,
            plugin.cause.as_deref().unwrap_or_default()
        );
    };
    let required = if would.required { "required" } else { "optional" };
    let mut text = format!(
        "{} {}: would run, {required}, on failure {}\n  mode {}\n",
        plugin.name,
        one_line(&would.version),
        would.on_failure,
        would.mode
    );
    for table in &would.tables {
        let filtered = if table.filtered { ", rows that pass its filter" } else { "" };
        let _ = writeln!(
            text,
            "  table {}: {}; {}{filtered}",
            one_line(&table.name),
            one_line(&table.columns),
            table.operations.join(" ")
        );
    }
    for (what, all) in
        [("messages", &would.messages), ("output", &would.outputs), ("rows", &would.rows), ("http", &would.http)]
    {
        all.iter().for_each(|one| {
            let _ = writeln!(text, "  {what} {}", one_line(one));
        });
    }
    if !would.interfaces.is_empty() {
        let _ = writeln!(text, "  interfaces {}", would.interfaces.join(" "));
    }
    text
}
