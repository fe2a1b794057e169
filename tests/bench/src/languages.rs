//! What a plugin's language costs: the same counter in Rust, Python and JavaScript over the same log.
//!
//! Holds: which guests there are and in which order they run. A guest that is not built is left out, and said to be. Never
//! knows: how a language is made a component.
//! Read next: `tests/programs/counter-python`, `tests/programs/counter-javascript`, `walgate_run.rs`.

use anyhow::{Context, Result};
use walgate_harness::{Walgate, guest};

use crate::comparison::{Comparison, Ratio};
use crate::note;
use crate::options::Options;
use crate::pass::Pass;
use crate::report::Compared;
use crate::site::Setup;
use crate::source::{Source, Stretch, Transport};
use crate::walgate_run::{Runner, until_acknowledged};
use crate::workload::Workload;

/// What the others are compared with.
const RUST: &str = "counter-rust";
/// Read one value after the other, by an interpreter inside the sandbox.
const OTHERS: [&str; 2] = ["counter-python", "counter-javascript"];

/// The part of the report.
pub(crate) const PART: Compared = Compared {
    part: "languages",
    about: "Time until everything is acknowledged, from the walsender's first appearance, with the same counter in another\n\
            language. Each reads every value by itself, as an author in that language would write it; compiled before:",
};

/// The guests that are here, each compiled, the first of them the one in Rust; what is missing goes into the report.
pub(crate) fn guests(runner: &Runner, mut missing: impl FnMut(String)) -> Result<Vec<&'static str>> {
    let mut found = vec![RUST];
    for name in OTHERS {
        match guest(name) {
            Ok(_) => found.push(name),
            Err(error) => missing(format!("{error:#}")),
        }
    }
    found.iter().try_for_each(|name| runner.compile(name))?;
    Ok(found)
}

/// Measures a workload.
pub(crate) async fn measure(
    source: &Source,
    runner: &Runner,
    guests: &[&'static str],
    workload: &Workload,
    transport: Transport,
    options: &Options,
) -> Result<Comparison> {
    note(&format!("languages, workload {}: {}", workload.name, workload.about));
    let stretch =
        source.fill(workload).await.with_context(|| format!("workload {} cannot be written", workload.name))?;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds() {
        let mut round = Vec::new();
        for side in guests {
            let pass = run(source, runner, &stretch, transport, side).await.with_context(|| (*side).to_owned())?;
            round.push((*side, pass));
        }
        let times: Vec<String> =
            round.iter().map(|(side, pass)| format!("{side} {:.2} s", pass.streaming.as_secs_f64())).collect();
        note(&format!("  round {number}: {}", times.join(", ")));
        rounds.push(round);
    }
    source.forget(&stretch).await?;
    let others = guests.iter().filter(|side| **side != RUST);
    Ok(Comparison {
        workload: workload.name,
        about: workload.about.clone(),
        transport,
        ratios: others.map(|side| Ratio { side, against: RUST, goal: None }).collect(),
        rounds,
    })
}

async fn run(
    source: &Source,
    runner: &Runner,
    stretch: &Stretch,
    transport: Transport,
    side: &'static str,
) -> Result<Pass> {
    let setup = Setup { guest: side, ..Setup::counter(&stretch.tables, source.state_url(transport)) };
    let end = async |walgate: &mut Walgate| until_acknowledged(stretch, walgate).await;
    runner.pass(source, stretch, transport, &setup, None, end).await
}
