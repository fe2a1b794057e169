//! What it costs that plugins are checkpointed in different ways: the same log, the state on a server that flushes.
//!
//! Holds: which sides there are and in which order they run. The guests append one line a row, so they are compared with
//! each other, too: what they take beyond the counting plugin is not only the checkpoints. Never knows: how a mode works.
//! Read next: `walgate_run.rs`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use walgate_harness::Walgate;

use crate::comparison::{Comparison, Ratio};
use crate::note;
use crate::options::Options;
use crate::pass::Pass;
use crate::report::Compared;
use crate::site::{Setup, grants};
use crate::source::{Source, Stretch, Transport};
use crate::target::Target;
use crate::walgate_run::{Runner, until_acknowledged};
use crate::workload::Workload;

/// The guests.
pub(crate) const GUESTS: [&str; 3] = ["counter-rust", "output-lines", "flush-later"];

const COUNTER: &str = "counter";
/// Lines and cursor commit together.
const FILE: &str = "output file";
/// A checkpoint a batch.
const STDOUT: &str = "stdout";
/// A checkpoint every thousand transactions.
const STDOUT_1000: &str = "stdout, every 1000";
/// Taken first, made durable by a flush.
const FLUSH: &str = "accepted, flushed";

/// The part of the report.
pub(crate) const PART: Compared = Compared {
    part: "modes",
    about: "Time until everything is acknowledged, from the walsender's first appearance, the state database with fsync on. The\n\
            counter keeps a state; the others append a line a row to a file or to standard output. A flush, and a checkpoint\n\
            every 1000 transactions, come a second after the last row at the latest, and the second is in the time:",
};

/// Measures a workload.
pub(crate) async fn measure(
    source: &Source,
    state: &Target,
    runner: &Runner,
    workload: &Workload,
    transport: Transport,
    options: &Options,
) -> Result<Comparison> {
    note(&format!("modes, workload {}: {}", workload.name, workload.about));
    let stretch =
        source.fill(workload).await.with_context(|| format!("workload {} cannot be written", workload.name))?;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds() {
        let mut round = Vec::new();
        for side in [COUNTER, FILE, STDOUT, STDOUT_1000, FLUSH] {
            let pass = run(source, state, runner, &stretch, transport, side).await.with_context(|| side.to_owned())?;
            round.push((side, pass));
        }
        let times: Vec<String> =
            round.iter().map(|(side, pass)| format!("{side} {:.2} s", pass.streaming.as_secs_f64())).collect();
        note(&format!("  round {number}: {}", times.join(", ")));
        rounds.push(round);
    }
    source.forget(&stretch).await?;
    let against = |against| move |side| Ratio { side, against, goal: None };
    let ratios = [FILE, STDOUT, STDOUT_1000, FLUSH].map(against(COUNTER)).into_iter();
    Ok(Comparison {
        workload: workload.name,
        about: workload.about.clone(),
        transport,
        ratios: ratios.chain([STDOUT, STDOUT_1000, FLUSH].map(against(FILE))).collect(),
        rounds,
    })
}

async fn run(
    source: &Source,
    state: &Target,
    runner: &Runner,
    stretch: &Stretch,
    transport: Transport,
    side: &str,
) -> Result<Pass> {
    let folder: TempDir = tempfile::Builder::new().prefix("wg-bench-").tempdir().context("cannot make a folder")?;
    let lines = folder.path().join("lines.txt");
    let setup = setup(&stretch.tables, state.state_url(), &lines, side);
    let end = async |walgate: &mut Walgate| until_acknowledged(stretch, walgate).await;
    let pass = runner.pass(source, stretch, transport, &setup, None, end).await?;
    if side != COUNTER {
        let written = fs::read(&lines).with_context(|| format!("cannot read {}", lines.display()))?;
        let count = written.iter().filter(|byte| **byte == b'\n').count() as u64;
        ensure!(count == stretch.rows, "{count} lines were written for {} rows", stretch.rows);
    }
    Ok(pass)
}

fn setup(tables: &[String], state: String, lines: &Path, side: &str) -> Setup {
    let file = format!("[grant.output.lines]\nkind = \"file\"\npath = \"{}\"\n", lines.display());
    let stdout = "[grant.output.lines]\nkind = \"stdout\"\n";
    let (guest, more) = match side {
        FILE => ("output-lines", file),
        STDOUT => ("output-lines", stdout.to_owned()),
        STDOUT_1000 => ("output-lines", format!("{stdout}[checkpoint]\nmax_transactions = 1000\n")),
        FLUSH => ("flush-later", format!("{file}[flush]\nmax_transactions = 1000\n")),
        _ => return Setup::counter(tables, state),
    };
    let setup = Setup::of(guest, format!("{}{more}", grants(tables)), state);
    Setup { stdout: matches!(side, STDOUT | STDOUT_1000).then(|| lines.to_owned()), ..setup }
}
