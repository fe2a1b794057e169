//! One workload: filled once, then read by every side in turn, round after round.
//!
//! Holds: which sides there are and in which order they run. Never knows: how a side works.
//! Read next: `pass.rs`, `report.rs`.

use std::path::Path;

use anyhow::{Context, Result};

use crate::figures::{Spread, ratio};
use crate::options::Options;
use crate::pass::Pass;
use crate::profile::Profile;
use crate::sandbox::{self, Sandbox};
use crate::source::{Source, Stretch, Transport};
use crate::walgate_run::Runner;
use crate::workload::Workload;
use crate::{bare, note, recvlogical, walstream};

/// All passes of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    pub(crate) recvlogical: Pass,
    pub(crate) walgate: Pass,
    /// The wire alone.
    pub(crate) bare: Pass,
    /// The wire alone, reading eagerly. Over TCP only: that is where it makes a difference.
    pub(crate) eager: Option<Pass>,
    /// The other crate. Over TCP only.
    pub(crate) walstream: Option<Pass>,
}

/// What one workload gave over one transport.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) workload: &'static str,
    pub(crate) about: String,
    pub(crate) transport: Transport,
    pub(crate) rows: u64,
    pub(crate) rounds: Vec<Round>,
    pub(crate) sandbox: Sandbox,
}

impl Measured {
    /// The spread of a figure over the rounds.
    pub(crate) fn spread(&self, figure: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(figure))
    }

    /// The spread of walgate's figure divided by another side's, round by round.
    pub(crate) fn against(
        &self,
        side: impl Fn(&Round) -> Option<Pass>,
        figure: impl Fn(&Pass) -> f64,
    ) -> Option<Spread> {
        self.spread(|round| ratio(figure(&round.walgate), figure(&side(round)?)))
    }
}

/// Measures a workload over every transport.
pub(crate) async fn measure(
    source: &Source,
    runner: &Runner,
    peer: Option<&Path>,
    workload: &Workload,
    options: &Options,
) -> Result<Vec<Measured>> {
    note(&format!("workload {}: {}", workload.name, workload.about));
    let stretch =
        source.fill(workload).await.with_context(|| format!("workload {} cannot be written", workload.name))?;
    let recording = bare::record(source, &stretch).await?;
    let sandbox = sandbox::measure(&stretch, recording, options.rounds()).await.context("comparing the sandbox")?;
    let mut measured = Vec::new();
    for transport in options.transports() {
        let mut rounds = Vec::new();
        for number in 1..=options.rounds() {
            let round = round(source, runner, peer, &stretch, transport).await;
            let round = round.with_context(|| format!("workload {} over {}", workload.name, transport.name()))?;
            note(&format!(
                "  {} round {number}: pg_recvlogical {:.2} s, walgate {:.2} s, bare {:.2} s",
                transport.name(),
                round.recvlogical.streaming.as_secs_f64(),
                round.walgate.streaming.as_secs_f64(),
                round.bare.streaming.as_secs_f64(),
            ));
            rounds.push(round);
        }
        if let Some(folder) = &options.profile {
            let profile = Profile::new(folder, &format!("{}-{}", workload.name, transport.name()))?;
            runner.run(source, &stretch, transport, Some(&profile)).await.context("under perf")?;
        }
        measured.push(Measured {
            workload: workload.name,
            about: workload.about.clone(),
            transport,
            rows: workload.rows,
            rounds,
            sandbox,
        });
    }
    source.forget(&stretch).await?;
    Ok(measured)
}

/// Each side once. walgate runs between the two readers it is compared with most.
async fn round(
    source: &Source,
    runner: &Runner,
    peer: Option<&Path>,
    stretch: &Stretch,
    transport: Transport,
) -> Result<Round> {
    let recvlogical = recvlogical::run(source, stretch, transport).await.context("pg_recvlogical")?;
    let walgate = runner.run(source, stretch, transport, None).await.context("walgate")?;
    let bare = bare::run(source, stretch, transport, true).await.context("the bare reader")?;
    let tcp = transport == Transport::Tcp;
    let eager = match tcp {
        true => Some(bare::run(source, stretch, transport, false).await.context("the eager bare reader")?),
        false => None,
    };
    let walstream = match peer.filter(|_| tcp) {
        Some(program) => Some(walstream::run(program, source, stretch, transport).await.context("pg_walstream")?),
        None => None,
    };
    Ok(Round { recvlogical, walgate, bare, eager, walstream })
}
