//! `walgate plugin state`: which keys a plugin keeps, and one value into a file.
//!
//! Holds: what is shown, which is names and sizes. A value may hold rows, so it is printed nowhere: it goes to a new file that
//! nobody else can read. Refuses to know what a key means.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use clap::Subcommand;
use serde::Serialize;

use crate::config::Config;
use crate::connect;
use crate::exit::Failure;
use crate::printer::{Printer, one_line};

#[derive(Subcommand)]
pub(super) enum Command {
    /// List the keys of a plugin's state and their sizes. Prints no value.
    List {
        /// The plugin.
        plugin: String,
    },
    /// Write the value of one key into a new file that only you can read.
    Export {
        /// The plugin.
        plugin: String,
        /// The key, as the list shows it.
        key: String,
        /// The file; it must not exist yet.
        #[arg(long)]
        to: PathBuf,
    },
}

#[derive(Serialize)]
struct Listed {
    key: String,
    bytes: u64,
}

#[derive(Serialize)]
struct Exported {
    file: PathBuf,
    bytes: usize,
}

pub(super) async fn state(command: Command, config: &Config, printer: Printer) -> Result<(), Failure> {
    let (Command::List { plugin } | Command::Export { plugin, .. }) = &command;
    if !walgate_plugin::is_plugin_name(plugin) {
        return Err(Failure::usage("a plugin name is 1 to 40 of a-z, 0-9 and -; see: walgate plugin list"));
    }
    let mut reader = connect::state_reader(&config.state).await?;
    match command {
        Command::List { plugin } => {
            let keys = reader.state_keys(&config.slot, &plugin).await.map_err(connect::state_failure)?;
            let keys: Vec<Listed> = keys.into_iter().map(|key| Listed { key: key.key, bytes: key.bytes }).collect();
            printer.show(&keys, || {
                if keys.is_empty() {
                    return format!("{plugin} keeps no state");
                }
                keys.iter().map(|key| format!("{} ({} bytes)\n", one_line(&key.key), key.bytes)).collect()
            });
        }
        Command::Export { plugin, key, to } => {
            let value = reader.state_value(&config.slot, &plugin, &key).await.map_err(connect::state_failure)?;
            let Some(value) = value else {
                return Err(Failure::usage(format!(
                    "{plugin} has no such key; see: walgate plugin state list {plugin}"
                )));
            };
            let mut options = std::fs::OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(&to);
            file.and_then(|mut file| file.write_all(&value).and_then(|()| file.sync_all()))
                .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", to.display())))?;
            let exported = Exported { file: to, bytes: value.len() };
            printer.show(&exported, || format!("{}: {} bytes", exported.file.display(), exported.bytes));
        }
    }
    Ok(())
}
