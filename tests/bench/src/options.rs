//! The command line: what is measured, how often, and where the figures go.
//!
//! Holds: flags and their defaults. Never knows: how anything is measured.
//! Read next: `workload.rs`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use walgate_harness::postgres_bin;

use crate::source::Transport;
use crate::workload::{self, Workload};

/// Rounds of a full run: a median of fewer moves with every neighbour on the machine.
const FULL_ROUNDS: usize = 5;
/// Rounds of a quick run.
const QUICK_ROUNDS: usize = 3;
/// The server measured unless another is asked for, then what is used when it is not there.
const MAJORS: [u32; 4] = [18, 17, 16, 15];

/// Measures walgate with a counting plugin against pg_recvlogical on a copied slot, and prints a table.
///
/// Every side reads the same stretch of log from its own copy of one slot; the sides alternate. Times are not asserted:
/// a ratio over its bar is marked in the table, and the exit code stays 0.
#[derive(Debug, Parser)]
#[command(name = "walgate-bench", version)]
pub(crate) struct Options {
    /// Small sizes and three rounds: minutes instead of a quarter of an hour, and less steady.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write the figures as a JSON array.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Rounds of each workload.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Only these workloads, as in a,d.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = workload::NAMES)]
    only: Vec<String>,
    /// Only this way to the server.
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// The Postgres version; 18 when it is there.
    #[arg(long, value_name = "MAJOR")]
    major: Option<u32>,
    /// Leave the latency out.
    #[arg(long)]
    pub(crate) no_latency: bool,
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

    /// The workloads, in the order of their names.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        let wanted = |workload: &Workload| self.only.is_empty() || self.only.iter().any(|name| name == workload.name);
        workload::all(self.quick).into_iter().filter(wanted).collect()
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

    #[test]
    fn a_full_run_has_every_workload_and_five_rounds() {
        let options = parse("bench");
        assert_eq!((options.rounds(), options.workloads().len(), options.transports().len()), (5, 6, 2));
    }

    #[test]
    fn a_quick_run_can_be_narrowed() {
        let options = parse("bench --quick --only a,d --transport tcp --json out.json");
        let names: Vec<_> = options.workloads().iter().map(|workload| workload.name).collect();
        assert_eq!((options.rounds(), names), (3, vec!["a", "d"]));
        assert_eq!(options.transports(), [Transport::Tcp]);
        assert!(Options::try_parse_from(["bench", "--only", "z"]).is_err());
    }
}
