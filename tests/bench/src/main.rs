//! `walgate-bench`: walgate against `pg_recvlogical`, the apply worker and itself, on the very same log.
//!
//! Holds: the order of a benchmark. Every side reads its own copy of one slot, the sides alternate, and every figure is a
//! ratio inside one round: the machine may be shared, a time in seconds means nothing on another day.
//! Never knows: how walgate does its work. It never fails because of a ratio.
//! Read next: `workload.rs` (what is read), `pass.rs` (what one run gives), `throughput.rs`, `mirror.rs`, `modes.rs`,
//! `languages.rs` (the sides), `report.rs` (what is printed).

mod bare;
mod commits;
mod comparison;
mod counting;
mod figures;
mod languages;
mod latency;
mod layout;
mod mirror;
mod modes;
mod options;
mod pass;
mod process;
mod profile;
mod recvlogical;
mod report;
mod sandbox;
mod site;
mod source;
mod subscription;
mod swap;
mod target;
mod throughput;
mod walgate_run;
mod walstream;
mod workload;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use options::{Options, Part};
use report::Report;
use source::{Source, Transport};
use target::Target;
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
    let runner = Runner::new()?;
    let mut report = Report::new(source.version().await?, options.rounds());
    if options.wants(Part::Streaming) {
        streaming(&source, &runner, options, &mut report).await?;
    }
    if options.wants(Part::Mirror) || options.wants(Part::Modes) {
        compare(&source, &runner, options, &mut report).await?;
    }
    if options.wants(Part::Languages) {
        languages(&source, &runner, options, &mut report).await?;
    }
    if options.wants(Part::Latency) {
        for transport in options.transports() {
            report.add_latency(latency::measure(&source, &runner, transport, options).await?);
        }
    }
    if options.wants(Part::Swap) {
        runner.compile("counter-rust")?;
        report.add_swaps(swap::measure(&source, &runner, options).await?);
    }
    write_json(options, &report)?;
    println!("{report}");
    Ok(())
}

async fn streaming(source: &Source, runner: &Runner, options: &Options, report: &mut Report) -> Result<()> {
    let peer = walstream::find(options).unwrap_or_else(|error| {
        note(&format!("SKIPPED: the reference pg_walstream: {error:#}"));
        report.skipped(format!("pg_walstream: {error:#}"));
        None
    });
    runner.compile("counter-rust")?;
    for workload in options.workloads(Part::Streaming) {
        report.add(throughput::measure(source, runner, peer.as_deref(), &workload, options).await?);
        // What was measured so far is worth keeping when a later workload fails.
        write_json(options, report)?;
    }
    Ok(())
}

/// The parts with a server of their own that flushes. One way to the source is enough for them.
async fn compare(source: &Source, runner: &Runner, options: &Options, report: &mut Report) -> Result<()> {
    let (target, transport) = (Target::start(source.major()).await?, options.transport.unwrap_or(Transport::Tcp));
    if options.wants(Part::Mirror) {
        runner.compile(mirror::GUEST)?;
        for workload in options.workloads(Part::Mirror) {
            let compared = mirror::measure(source, &target, runner, &workload, transport, options).await;
            report.add_comparison(&mirror::PART, compared.with_context(|| format!("mirror of {}", workload.name))?);
            write_json(options, report)?;
        }
    }
    if options.wants(Part::Modes) {
        modes::GUESTS.into_iter().try_for_each(|guest| runner.compile(guest))?;
        for workload in options.workloads(Part::Modes) {
            let compared = modes::measure(source, &target, runner, &workload, transport, options).await;
            report.add_comparison(&modes::PART, compared.with_context(|| format!("modes on {}", workload.name))?);
            write_json(options, report)?;
        }
    }
    Ok(())
}

/// One way to the source is enough.
async fn languages(source: &Source, runner: &Runner, options: &Options, report: &mut Report) -> Result<()> {
    let transport = options.transport.unwrap_or(Transport::Tcp);
    let guests = languages::guests(runner, |missing| {
        note(&format!("SKIPPED: {missing}"));
        report.skipped(missing);
    })?;
    for workload in options.workloads(Part::Languages) {
        let compared = languages::measure(source, runner, &guests, &workload, transport, options).await;
        let compared = compared.with_context(|| format!("languages on {}", workload.name))?;
        report.add_comparison(&languages::PART, compared);
        write_json(options, report)?;
    }
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
