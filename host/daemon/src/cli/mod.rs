//! The command line: what a person can ask, and how the process ends.
//!
//! Holds: arguments, help, the runtime, exit codes. One file a command. Refuses to know how anything is done.

mod check;
mod dead_letter;
mod explain;
mod generations;
mod plugin;
mod plugin_check;
mod plugin_state;
mod run;
mod slot;
mod source;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::panics;
use crate::printer::Printer;

/// Threads of the runtime, which runs the flow, the lanes, the checkpoint and the API. The socket and each plugin have
/// threads of their own, so nothing here waits for a peer or a guest; with more than one, each chunk wakes two.
const RUNTIME_THREADS: usize = 1;

/// The gate between a Postgres write-ahead log and sandboxed WebAssembly plugins.
///
/// walgate reads one logical replication slot and hands each plugin only the tables, columns and operations that its
/// plugin.toml grants. The slot advances only after the plugins' data and walgate's own checkpoint are durable.
#[derive(Parser)]
#[command(version, about, long_about, after_long_help = EXAMPLES, propagate_version = true)]
struct Arguments {
    /// The configuration file.
    #[arg(short, long, global = true, default_value = "walgate.toml", env = "WALGATE_CONFIG")]
    config: PathBuf,
    /// Answer as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
A first start, from nothing:

  1. In Postgres:   ALTER SYSTEM SET wal_level = logical;   and restart it
                    CREATE PUBLICATION shop FOR TABLE customers, orders;
  2. walgate.toml:  [source]
                    url = \"postgres://walgate@127.0.0.1:5432/shop\"
                    slot = \"walgate\"
                    publications = [\"shop\"]
                    [plugins]
                    dir = \"plugins\"
  3. walgate plugin inspect plugins/my-sink/plugin.wasm > plugins/my-sink/plugin.toml    and edit it
  4. walgate slot create
  5. walgate check  and then  walgate run

Exit codes: 0 stopped as asked, 2 bad usage or configuration, 3 halted and needs an operator, 4 something it depends on is
unavailable.";

#[derive(Subcommand)]
enum Command {
    /// Read the slot and feed the plugins until told to stop (SIGTERM or ctrl-C finish what is in flight).
    Run,
    /// Say whether `run` would start: configuration, source, slot, state, plugins. Changes nothing but the plugin cache.
    Check,
    /// Show what a running walgate is doing, or where a stopped one stands.
    Status,
    /// Show what the publications send beyond what any plugin is granted, and the statement that would stop it.
    Source,
    /// Look at changes that plugins could not take, have them tried again, or give them up.
    #[command(subcommand)]
    DeadLetter(dead_letter::Command),
    /// Create, drop or list replication slots.
    #[command(subcommand)]
    Slot(slot::Command),
    /// Look at plugins, or make one from a core module.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Say what a halt means and what to do about it. Without a name: all of them, one a line.
    Explain {
        /// The name of the halt, as the message and `walgate status` have it.
        name: Option<String>,
    },
}

/// Parses the arguments, runs the command, and turns the outcome into an exit code.
pub fn main() -> ExitCode {
    panics::print_places_only();
    let arguments = Arguments::parse();
    let printer = Printer::new(arguments.json);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(RUNTIME_THREADS).enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(dispatch(arguments, printer));
            // A write that blocks, to a pipe that nobody reads for example, must not keep the process from ending.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(Failure::unavailable(format!("the runtime cannot be started: {error}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                printer.problem(&failure.message);
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

async fn dispatch(arguments: Arguments, printer: Printer) -> Result<(), Failure> {
    match arguments.command {
        Command::Run => run::run(Config::read(&arguments.config)?).await,
        Command::Check => check::check(&Config::read(&arguments.config)?, printer).await,
        Command::Status => status::status(&Config::read(&arguments.config)?, printer).await,
        Command::Source => source::source(&Config::read(&arguments.config)?, printer).await,
        Command::DeadLetter(command) => {
            dead_letter::dead_letter(command, &Config::read(&arguments.config)?, printer).await
        }
        Command::Slot(command) => slot::slot(command, &Config::read(&arguments.config)?, printer).await,
        Command::Plugin(command) => plugin::plugin(command, &arguments.config, printer).await,
        Command::Explain { name } => explain::explain(name.as_deref(), printer),
    }
}

/// A check that found something is a failure with the same exit code that `run` would end with.
fn worst(failures: &[Failure]) -> Option<Exit> {
    [Exit::Usage, Exit::Halted, Exit::Unavailable].into_iter().find(|exit| failures.iter().any(|f| f.exit == *exit))
}
