//! The mirror against logical replication's own apply worker: the same log into the same empty target.
//!
//! Holds: which sides there are and in which order they run. The target is a server that flushes what it commits; so does
//! the state database, which is there, too. Never knows: how rows are written.
//! Read next: `target.rs`, `subscription.rs`.

use anyhow::{Context, Result};
use walgate_harness::Walgate;

use crate::comparison::{Comparison, Goal, Ratio};
use crate::note;
use crate::options::Options;
use crate::pass::Pass;
use crate::report::Compared;
use crate::site::{Setup, grants};
use crate::source::{Source, Stretch, Transport};
use crate::subscription;
use crate::target::Target;
use crate::walgate_run::{Runner, still_runs};
use crate::workload::Workload;

/// The guest.
pub(crate) const GUEST: &str = "mirror-rust";

/// The state in a database beside the target.
const FAR: &str = "walgate, far";
/// The state in the target.
const NEAR: &str = "walgate, near";
/// The apply worker, its transactions flushed one by one as walgate's are.
const FLUSHING: &str = "apply worker";
/// The apply worker as a subscription has it by itself.
const LAZY: &str = "apply worker, lazy";

/// The part of the report.
pub(crate) const PART: Compared = Compared {
    part: "mirror",
    about: "Time until the last row is in the target (fsync on), from the walsender's first appearance: walgate with mirror-rust,\n\
            the state in another database (far) or in the target (near), divided by that of a subscription with\n\
            synchronous_commit = on, which is what walgate's sessions have, and = off, which is its default (lazy):",
};

/// Measures a workload. The target is compared with the source after every pass.
pub(crate) async fn measure(
    source: &Source,
    target: &Target,
    runner: &Runner,
    workload: &Workload,
    transport: Transport,
    options: &Options,
) -> Result<Comparison> {
    note(&format!("mirror, workload {}: {}", workload.name, workload.about));
    let stretch =
        source.fill(workload).await.with_context(|| format!("workload {} cannot be written", workload.name))?;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds() {
        let mut round = Vec::new();
        for side in [FAR, FLUSHING, NEAR, LAZY] {
            target.reset(workload).await?;
            let pass = run(source, target, runner, &stretch, transport, side).await.with_context(|| side.to_owned())?;
            target.ensure_equal(source, workload, &stretch).await.with_context(|| side.to_owned())?;
            round.push((side, pass));
        }
        let times: Vec<String> =
            round.iter().map(|(side, pass)| format!("{side} {:.2} s", pass.streaming.as_secs_f64())).collect();
        note(&format!("  round {number}: {}", times.join(", ")));
        rounds.push(round);
    }
    source.forget(&stretch).await?;
    let goal = match workload.name {
        "a" => Some(Goal::AtMost(1.2)),
        "d" => Some(Goal::Below(1.0)),
        _ => None,
    };
    let ratios = [FAR, NEAR].into_iter().flat_map(|side| [FLUSHING, LAZY].map(|against| Ratio { side, against, goal }));
    Ok(Comparison {
        workload: workload.name,
        about: workload.about.clone(),
        transport,
        ratios: ratios.collect(),
        rounds,
    })
}

async fn run(
    source: &Source,
    target: &Target,
    runner: &Runner,
    stretch: &Stretch,
    transport: Transport,
    side: &str,
) -> Result<Pass> {
    let setup = match side {
        FAR => far(&stretch.tables, target),
        NEAR => Setup::of(GUEST, manifest(&stretch.tables, "state"), target.url()),
        _ => return subscription::run(source, target, stretch, transport, side == FLUSHING).await,
    };
    let end = async |walgate: &mut Walgate| target.until_arrived(|| still_runs(walgate)).await;
    runner.pass(source, stretch, transport, &setup, None, end).await
}

fn far(tables: &[String], target: &Target) -> Setup {
    let sections = format!("[databases.target]\nurl = \"{}\"\n", target.url());
    Setup { sections, ..Setup::of(GUEST, manifest(tables, "target"), target.state_url()) }
}

fn manifest(tables: &[String], database: &str) -> String {
    format!(
        "[plugin]\nrequired = true\non_failure = \"halt\"\n{}[grant]\ncapabilities = [\"log\"]\n\
         [grant.rows.\"*\"]\ndatabase = \"{database}\"\nschema = \"public\"\n",
        grants(tables)
    )
}
