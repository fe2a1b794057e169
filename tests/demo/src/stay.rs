//! After the round: walgate and a quiet shop stay up, for whoever wants to look and try things.
//!
//! Holds: the light workload, what to look at, and a restart whenever walgate ends. Refuses to judge.
//! Read next: `gate.rs`.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::gate::Gate;
use crate::interrupted;
use crate::report::Progress;
use crate::run::Done;
use crate::shop::DATABASE;

/// Between two small transactions.
const PACE: Duration = Duration::from_millis(500);

/// Before a walgate that could not start is started again: time to mend a plugin.toml.
const RETRY: Duration = Duration::from_secs(5);

/// Goes on until ctrl-C or SIGTERM, then stops walgate; the server goes with `done`.
pub(crate) async fn stay(mut done: Done, progress: Progress) -> Result<()> {
    // Listening from here on: an interrupt during a start must not be lost.
    let interrupted = interrupted();
    tokio::pin!(interrupted);
    let source = done.cluster.url(DATABASE);
    tokio::select! {
        started = done.gate.start() => started?,
        signal = &mut interrupted => return signal.map(drop),
    }
    progress.say(&guide(&done.gate, &source));
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut start_at = None;
    loop {
        tokio::select! {
            biased;
            signal = &mut interrupted => {
                progress.say(&format!("{}: stopping walgate and Postgres", signal?));
                break;
            }
            _ = pace.tick() => {
                done.clerk.serve_one().await?;
                look_after(&mut done.gate, &mut start_at, progress).await?;
            }
        }
    }
    // In a terminal ctrl-C reaches walgate as well, so it may be gone already.
    if done.gate.ended()?.is_none() && done.gate.pid().is_some() {
        done.gate.stop().await?;
    }
    Ok(())
}

/// Starts walgate again when it has ended, at once after a clean stop, after a while when something is wrong.
async fn look_after(gate: &mut Gate, start_at: &mut Option<Instant>, progress: Progress) -> Result<()> {
    if let Some(status) = gate.ended()? {
        if status.success() {
            *start_at = Some(Instant::now());
        } else {
            progress.say(&format!("walgate ended with {status}:\n{}", gate.last_words()));
            *start_at = Some(Instant::now() + RETRY);
        }
    }
    if start_at.is_some_and(|at| at <= Instant::now()) {
        *start_at = None;
        match gate.start().await {
            Ok(()) => progress.say(&format!("walgate runs again, process {}", gate.pid().unwrap_or_default())),
            // It has ended or is not ready; the next look tells why and tries again.
            Err(error) => progress.say(&format!("walgate is not ready: {error:#}")),
        }
    }
    Ok(())
}

fn guide(gate: &Gate, source: &str) -> String {
    let (api, pid) = (gate.api(), gate.pid().unwrap_or_default());
    format!(
        "walgate and the shop stay up until ctrl-C. What to look at:

  the source       psql {source}      (psql comes with any Postgres client package)
  what goes out    tail -f {output}
  status           curl http://{api}/status      or: {walgate} status --config {configuration}
  metrics          curl http://{api}/metrics
  the grants       {grants}

What to try:

  change a row:    psql {source} -c \"UPDATE customers SET visits = visits + 1 WHERE id = 1\"
  let email out:   write except = [\"phone\"] into the grants, then: kill -TERM {pid}   (the demo starts walgate again)
  crash it:        kill -KILL {pid}
",
        output = gate.output().display(),
        walgate =
            walgate_harness::walgate_bin().map_or_else(|_| "walgate".to_owned(), |path| path.display().to_string()),
        configuration = gate.configuration().display(),
        grants = gate.grants().display(),
    )
}
