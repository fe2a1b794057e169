//! `walgate plugin`: list the directory, look into a component, make a component from a core module. What is about
//! versions is in `generations.rs`.
//!
//! Holds: what is shown. Refuses to know wasmtime. `inspect` and `build` need no configuration.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;
use walgate_plugin::Engine;

use super::{generations, plugin_check, plugin_state};
use crate::config::Config;
use crate::exit::{Failure, chain};
use crate::plugins;
use crate::printer::{Printer, moment, one_line};

#[derive(Subcommand)]
pub(super) enum Command {
    /// List the plugin directory: what runs, when walgate does, and what would run, what would not, and why.
    List,
    /// Say what would happen with plugins: their mode, and all that they would be given. Needs no database; without a
    /// walgate.toml it takes nothing from there.
    Check {
        /// A plugin directory, or the folder of one plugin.
        dir: PathBuf,
    },
    /// Look at what plugins keep in their state.
    #[command(subcommand)]
    State(plugin_state::Command),
    /// List the versions of a plugin that ran, oldest first.
    Generations {
        /// The plugin.
        plugin: String,
    },
    /// Put an earlier version back into the plugin directory, from the copies in plugins.cache_dir. A running walgate takes it
    /// up by itself.
    Rollback {
        /// The plugin.
        plugin: String,
        /// The generation to go back to; without it the last other one that was not rolled back.
        #[arg(long)]
        to: Option<u64>,
    },
    /// Let versions that failed and were rolled back run again.
    Unblock {
        /// The plugin.
        plugin: String,
    },
    /// Print what a component is and asks for: as a plugin.toml to start from, or everything with --json.
    Inspect {
        /// The component.
        file: PathBuf,
    },
    /// Make a component from a core module that was built against the contract.
    Build {
        /// The core module, as a compiler for WebAssembly leaves it.
        module: PathBuf,
        /// Where the component goes.
        #[arg(short, long, default_value = "plugin.wasm")]
        output: PathBuf,
    },
}

#[derive(Serialize)]
struct Listed {
    name: String,
    state: &'static str,
    cause: Option<String>,
    version: Option<String>,
    tables: Vec<String>,
    /// What the running walgate says of it, if one runs.
    now: Option<Now>,
}

/// A plugin in a running walgate.
#[derive(Clone, Serialize, serde::Deserialize)]
pub(super) struct Now {
    pub(super) state: String,
    cause: Option<String>,
    /// Seconds from 1970.
    since: u64,
    generation: u64,
    candidate: Option<String>,
}

#[derive(Serialize)]
struct Inspected {
    file: PathBuf,
    size: u64,
    sha256: String,
    contract: String,
    name: String,
    version: String,
    imports: Vec<String>,
    capabilities: Vec<String>,
    tables: Vec<Asked>,
    plugin_toml: String,
}

#[derive(Serialize)]
struct Asked {
    schema: String,
    name: String,
    columns: Vec<String>,
    optional_columns: Vec<String>,
}

pub(super) async fn plugin(command: Command, config: &Path, printer: Printer) -> Result<(), Failure> {
    match command {
        Command::List => list(&Config::read(config)?, printer).await,
        Command::Check { dir } => plugin_check::check(&dir, config, printer).await,
        Command::State(command) => plugin_state::state(command, &Config::read(config)?, printer).await,
        Command::Generations { plugin } => generations::list(&Config::read(config)?, &plugin, printer).await,
        Command::Rollback { plugin, to } => generations::rollback(&Config::read(config)?, &plugin, to, printer).await,
        Command::Unblock { plugin } => generations::unblock(&Config::read(config)?, &plugin, printer).await,
        Command::Inspect { file } => inspect(file, printer).await,
        Command::Build { module, output } => build(&module, &output, printer),
    }
}

async fn list(config: &Config, printer: Printer) -> Result<(), Failure> {
    let directory = plugins::load(config).await?;
    let loaded = directory.loaded.iter().map(|plugin| Listed {
        name: plugin.name.clone(),
        state: "ready",
        cause: None,
        version: Some(plugin.description.version.clone()),
        tables: plugin.grant.tables.iter().map(|table| format!("{}.{}", table.namespace, table.name)).collect(),
        now: None,
    });
    let others = directory.not_running.iter().map(|plugin| Listed {
        name: plugin.name.clone(),
        state: plugin.state,
        cause: Some(plugin.cause.clone()),
        version: None,
        tables: Vec::new(),
        now: None,
    });
    let mut listed: Vec<Listed> = loaded.chain(others).collect();
    let mut running = super::status::plugins(config.listen).await;
    listed.iter_mut().for_each(|plugin| plugin.now = running.remove(&plugin.name));
    listed.extend(running.into_iter().map(|(name, now)| gone(config, name, now)));
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    printer.show(&listed, || {
        if listed.is_empty() {
            return format!("{} has no plugins", config.plugins.dir.display());
        }
        listed.iter().map(line).collect()
    });
    Ok(())
}

/// What runs, and has no files any more.
fn gone(config: &Config, name: String, now: Now) -> Listed {
    let cause = format!("it is not in {} any more, see on_missing in its plugin.toml", config.plugins.dir.display());
    Listed { name, state: "missing", cause: Some(cause), version: None, tables: Vec::new(), now: Some(now) }
}

fn line(plugin: &Listed) -> String {
    let mut text = on_disk(plugin);
    if let Some(now) = &plugin.now {
        let cause = now.cause.as_ref().map(|cause| format!(": {}", indented(cause))).unwrap_or_default();
        let generation = if now.generation == 0 { String::new() } else { format!(", generation {}", now.generation) };
        text.push_str(&format!("    now {} since {}{generation}{cause}\n", now.state, moment(now.since)));
        if let Some(candidate) = &now.candidate {
            text.push_str(&format!("    candidate {}\n", indented(candidate)));
        }
    }
    text
}

/// A cause may end with lines to add somewhere.
fn indented(cause: &str) -> String {
    cause.replace('\n', "\n      ")
}

fn on_disk(plugin: &Listed) -> String {
    match (&plugin.cause, &plugin.version) {
        (Some(cause), _) => format!("{}: {}: {cause}\n", one_line(&plugin.name), plugin.state),
        (None, version) => format!(
            "{} {}: {}, {}\n",
            plugin.name,
            version.as_deref().unwrap_or(""),
            plugin.state,
            plugin.tables.join(" ")
        ),
    }
}

async fn inspect(file: PathBuf, printer: Printer) -> Result<(), Failure> {
    let engine = Engine::new(None).map_err(|error| Failure::usage(chain(&error)))?;
    let found = walgate_plugin::inspect(&engine, &file).await.map_err(|error| Failure::usage(chain(&error)))?;
    let inspected = Inspected {
        size: found.size,
        sha256: found.sha256,
        contract: found.contract.name().to_owned(),
        name: found.description.name,
        version: found.description.version,
        imports: found.imports,
        capabilities: found.description.capabilities,
        tables: found
            .description
            .tables
            .into_iter()
            .map(|table| Asked {
                schema: table.namespace,
                name: table.name,
                columns: table.columns,
                optional_columns: table.optional_columns,
            })
            .collect(),
        plugin_toml: found.starter,
        file,
    };
    printer.show(&inspected, || {
        let imports: String = inspected.imports.iter().map(|import| format!("#   {import}\n")).collect();
        format!(
            "# {}: {} bytes, sha256 {}\n# contract {}, imports:\n{imports}{}",
            inspected.file.display(),
            inspected.size,
            inspected.sha256,
            inspected.contract,
            inspected.plugin_toml
        )
    });
    Ok(())
}

#[derive(Serialize)]
struct Built {
    output: PathBuf,
    bytes: usize,
}

fn build(module: &Path, output: &Path, printer: Printer) -> Result<(), Failure> {
    let core = std::fs::read(module)
        .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", module.display())))?;
    let component = walgate_plugin::encode_module(&core)
        .map_err(|error| Failure::usage(format!("{}: {}", module.display(), chain(&error))))?;
    // Written beside the target and renamed, so that a directory that is being watched never sees half a file.
    let half = output.with_extension("wasm.tmp");
    std::fs::write(&half, &component)
        .and_then(|()| std::fs::rename(&half, output))
        .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", output.display())))?;
    let built = Built { output: output.to_owned(), bytes: component.len() };
    printer.show(&built, || format!("{}: {} bytes", built.output.display(), built.bytes));
    Ok(())
}
