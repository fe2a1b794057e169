//! The demo: a shop in a throwaway Postgres, walgate with two plugins, a crash in the middle, and proof of what came out.
//!
//! Holds: flags, signals, the temporary folder and the exit code. Refuses to know the steps.
//! Read next: `run.rs`, the round itself; `ledger.rs` and `leak.rs`, the two judges.

mod gate;
mod leak;
mod ledger;
mod report;
mod run;
mod shop;
mod state;
mod stay;
mod tally;
mod workload;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use report::Progress;

/// Shows walgate at work on a throwaway Postgres: a small shop, two plugins that may not see email and phone, a SIGKILL
/// in the middle of a transaction of 100,000 rows, a new version of a plugin under load. Counts what was lost, repeated or
/// leaked.
#[derive(Parser)]
#[command(name = "cargo xtask demo")]
pub(crate) struct Options {
    /// End after one round; exit 0 only if nothing was lost, repeated or leaked. Without it the demo stays up.
    #[arg(long)]
    once: bool,
    /// Print the result as JSON, and nothing else, to stdout.
    #[arg(long)]
    json: bool,
    /// Keep the folder with configuration, plugins, outputs and logs, and print where it is.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime.context("the runtime cannot be started").and_then(|runtime| runtime.block_on(demo(&options)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            report::problem(&error);
            ExitCode::FAILURE
        }
    }
}

/// Runs all of it below one folder; answers whether nothing was lost, repeated or leaked.
async fn demo(options: &Options) -> Result<bool> {
    let progress = Progress::start();
    let mut folder =
        tempfile::Builder::new().prefix("walgate-demo-").tempdir().context("cannot make a temporary folder")?;
    folder.disable_cleanup(options.keep);
    if options.keep {
        progress.say(&format!("everything is kept in {}", folder.path().display()));
    }
    // The harness keeps the output of running processes in temporary folders; below ours they go with it.
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).context("cannot make a folder for scratch files")?;
    tempfile::env::override_temp_dir(&scratch)
        .map_err(|other| anyhow!("temporary files already go to {}", other.display()))?;
    work(options, folder.path(), progress).await
}

async fn work(options: &Options, folder: &Path, progress: Progress) -> Result<bool> {
    // Dropping the round half-way ends the server and walgate, so an interrupt needs no other clean-up.
    let done = tokio::select! {
        done = run::round(folder, progress) => done?,
        signal = interrupted() => bail!("stopped by {} before the round was finished", signal?),
    };
    done.report.print(options.json)?;
    let clean = done.report.is_clean();
    if !options.once {
        stay::stay(done, progress).await?;
    }
    Ok(clean)
}

/// Waits for ctrl-C or SIGTERM and names it.
async fn interrupted() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for ctrl-C")?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "ctrl-C",
    })
}
