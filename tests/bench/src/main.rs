//! `walgate-bench`: walgate against `pg_recvlogical` and other readers, on the very same log.
//!
//! Holds: the order of a benchmark. Every side reads its own copy of one slot, the sides alternate, and every figure is a
//! ratio inside one round: the machine may be shared, a time in seconds means nothing on another day.
//! Never knows: how walgate does its work. It never fails because of a ratio.
//! Read next: `workload.rs` (what is read), `pass.rs` (what one run gives), `report.rs` (what is printed).

mod bare;
mod commits;
mod counting;
mod figures;
mod latency;
mod options;
mod pass;
mod process;
mod profile;
mod recvlogical;
mod report;
mod sandbox;
mod source;
mod throughput;
mod walgate_run;
mod walstream;
mod workload;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use options::Options;
use report::Report;
use source::Source;
use walgate_run::Runner;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    match bench(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> Result<()> {
    let source = Source::start(options.major()?).await?;
    let mut runner = Runner::new()?;
    let mut report = Report::new(source.version().await?, options.rounds());
    let peer = walstream::find(options).unwrap_or_else(|error| {
        note(&format!("SKIPPED: the reference pg_walstream: {error:#}"));
        report.skipped(format!("pg_walstream: {error:#}"));
        None
    });
    for workload in options.workloads() {
        report.add(throughput::measure(&source, &mut runner, peer.as_deref(), &workload, options).await?);
        // What was measured so far is worth keeping when a later workload fails.
        write_json(options, &report)?;
    }
    if !options.no_latency {
        for transport in options.transports() {
            report.add_latency(latency::measure(&source, &runner, transport, options).await?);
        }
    }
    write_json(options, &report)?;
    println!("{report}");
    Ok(())
}

fn write_json(options: &Options, report: &Report) -> Result<()> {
    let Some(path) = &options.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(&report.json()).context("the report cannot be written as JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// One line about what is going on, apart from the table.
fn note(line: &str) {
    eprintln!("bench: {line}");
}
