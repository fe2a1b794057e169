//! The command line: what is measured, how often, and where the figures go.
//!
//! Holds: flags and their defaults. Never knows: how anything is measured.
//! Read next: `workload.rs`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use walgate_harness::postgres_bin;

use crate::source::Transport;
use crate::workload::{self, Size, Workload};

/// Rounds of a full run: a median of fewer moves with every neighbour on the machine.
const FULL_ROUNDS: usize = 5;
/// Rounds of a quick run.
const QUICK_ROUNDS: usize = 3;
/// The server measured unless another is asked for, then what is used when it is not there.
const MAJORS: [u32; 4] = [18, 17, 16, 15];

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Throughput with the counting plugin against other readers.
    Streaming,
    /// Rows into another server against logical replication's own apply worker.
    Mirror,
    /// Plugins that are checkpointed in other ways against the counting plugin.
    Modes,
    /// The counting plugin in other languages against the one in Rust.
    Languages,
    /// From commit to plugin against pg_recvlogical.
    Latency,
    /// How long nothing is delivered while another version of a plugin takes over.
    Swap,
}

/// Measures walgate against other readers of a copied slot, and prints tables.
///
/// Every side reads the same stretch of log from its own copy of one slot; the sides alternate. Times are not asserted:
/// a ratio over its bar is marked in the table, and the exit code stays 0.
#[derive(Debug, Parser)]
#[command(name = "walgate-bench", version)]
pub(crate) struct Options {
    /// Small sizes and three rounds, less steady: minutes, and with `--parts mirror,modes` less than one.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write the figures as a JSON array.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Rounds of each workload.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Only these parts, as in mirror,modes.
    #[arg(long, value_enum, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<Part>,
    /// Only these workloads, as in a,d.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = workload::NAMES)]
    only: Vec<String>,
    /// Only this way to the server.
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// The Postgres version; 18 when it is there.
    #[arg(long, value_name = "MAJOR")]
    major: Option<u32>,
    /// Leave the latency out.
    #[arg(long)]
    no_latency: bool,
    /// Also measure the crate pg_walstream in a quick run. Built on its first use, which takes minutes.
    #[arg(long)]
    pub(crate) walstream: bool,
    /// Once more for each workload with perf attached to walgate and its walsender; profiles go to this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) profile: Option<PathBuf>,
}

impl Options {
    /// How often each side runs.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { QUICK_ROUNDS } else { FULL_ROUNDS }).max(1)
    }

    /// Whether a part is measured.
    pub(crate) fn wants(&self, part: Part) -> bool {
        let named = self.parts.is_empty() || self.parts.contains(&part);
        named && !(self.no_latency && part == Part::Latency)
    }

    /// The workloads of a part, in the order of their names.
    pub(crate) fn workloads(&self, part: Part) -> Vec<Workload> {
        let (names, quick) = match part {
            Part::Streaming => (&workload::NAMES[..], Size::Small),
            Part::Mirror => (&["a", "d", "f"][..], Size::Tiny),
            Part::Modes => (&["a", "d"][..], Size::Tiny),
            Part::Languages => (&["a", "c", "d"][..], Size::Tiny),
            Part::Latency | Part::Swap => (&[][..], Size::Small),
        };
        // An interpreter takes its time, and shows what it costs on less.
        let full = if part == Part::Languages { Size::Small } else { Size::Full };
        let size = if self.quick { quick } else { full };
        let wanted = |workload: &Workload| {
            names.contains(&workload.name)
                && (self.only.is_empty() || self.only.iter().any(|name| name == workload.name))
        };
        workload::all(size).into_iter().filter(wanted).collect()
    }

    /// The ways to the server.
    pub(crate) fn transports(&self) -> Vec<Transport> {
        self.transport.map_or(vec![Transport::Tcp, Transport::Unix], |one| vec![one])
    }

    /// The server's major version.
    ///
    /// Fails, with the command that fetches it, when none is there.
    pub(crate) fn major(&self) -> Result<u32> {
        if let Some(major) = self.major {
            postgres_bin(major)?;
            return Ok(major);
        }
        match MAJORS.into_iter().find(|major| postgres_bin(*major).is_ok()) {
            Some(major) => Ok(major),
            None => bail!("no Postgres is in the cache; run: cargo xtask postgres 18"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Options {
        Options::try_parse_from(line.split(' ')).unwrap()
    }

    fn names(options: &Options, part: Part) -> Vec<&'static str> {
        options.workloads(part).iter().map(|workload| workload.name).collect()
    }

    #[test]
    fn a_full_run_has_every_part_and_workload_and_five_rounds() {
        let options = parse("bench");
        assert_eq!((options.rounds(), options.transports().len()), (5, 2));
        let parts =
            [(Part::Streaming, 7), (Part::Mirror, 3), (Part::Modes, 2), (Part::Languages, 3), (Part::Latency, 0)];
        for (part, workloads) in parts {
            assert!(options.wants(part), "{part:?}");
            assert_eq!(options.workloads(part).len(), workloads, "{part:?}");
        }
    }

    #[test]
    fn a_quick_run_can_be_narrowed() {
        let options = parse("bench --quick --only a,f --transport tcp --json out.json");
        assert_eq!(options.rounds(), 3);
        assert_eq!((names(&options, Part::Streaming), names(&options, Part::Modes)), (vec!["a", "f"], vec!["a"]));
        assert_eq!(options.transports(), [Transport::Tcp]);
        assert!(Options::try_parse_from(["bench", "--only", "z"]).is_err());
    }

    #[test]
    fn parts_can_be_picked() {
        let options = parse("bench --parts mirror,latency --no-latency");
        assert!(options.wants(Part::Mirror) && !options.wants(Part::Modes) && !options.wants(Part::Latency));
    }
}
