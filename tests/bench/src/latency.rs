//! How long after a commit its row is with the sink, while one-row transactions come a thousand times a second.
//!
//! Holds: the paced writer and the two sinks. Both are processes that print into a pipe which the bench reads the same way:
//! walgate a line when it calls the plugin, `pg_recvlogical` the commit message. The clock starts when the commit
//! returns to the writer, so a value can be below zero. Never knows: how either works.
//! Read next: `commits.rs`.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Client;
use walgate_harness::{wait_until, walgate_bin};

use crate::commits::Commits;
use crate::figures::{Spread, percentile, ratio};
use crate::options::Options;
use crate::site::Setup;
use crate::source::{DEADLINE, Source, Transport};
use crate::walgate_run::Runner;
use crate::{note, recvlogical};

/// Transactions a second.
const RATE: u32 = 1_000;
/// Transactions before the clock counts: caches fill, relations are announced.
pub(crate) const WARM_UP: usize = 500;
/// Times each side is measured; a side runs for seconds, so a percentile of one run has thousands of values.
const ROUNDS: usize = 3;
/// Seconds of one side in a full and in a quick run.
const FULL_SECONDS: u32 = 10;
const QUICK_SECONDS: u32 = 3;
/// What walgate logs when it calls a plugin with a batch.
const DELIVERED: &str = "plugin called";

/// Microseconds from commit to sink, and the ratios of the rounds.
#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) transport: Transport,
    pub(crate) walgate: Percentiles,
    pub(crate) recvlogical: Percentiles,
    pub(crate) ratio_p50: Option<Spread>,
    pub(crate) ratio_p99: Option<Spread>,
}

/// Spreads over the rounds.
#[derive(Debug)]
pub(crate) struct Percentiles {
    pub(crate) p50: Option<Spread>,
    pub(crate) p99: Option<Spread>,
}

impl Percentiles {
    fn of(runs: &[Vec<f64>]) -> Self {
        let spread = |percent| Spread::of(runs.iter().filter_map(|run| percentile(run.iter().copied(), percent)));
        Self { p50: spread(50.0), p99: spread(99.0) }
    }
}

/// Measures both, alternating.
pub(crate) async fn measure(
    source: &Source,
    runner: &Runner,
    transport: Transport,
    options: &Options,
) -> Result<Latency> {
    let table = format!("ticks_{}", transport.name());
    source.run(&format!("CREATE TABLE {table} (id bigint PRIMARY KEY, name text)")).await?;
    let tables = [table.clone()];
    let publication = source.publish(&table, &tables).await?;
    let seconds = if options.quick { QUICK_SECONDS } else { FULL_SECONDS };
    let writer = Writer { client: source.connect().await?, table, count: (RATE * seconds) as usize };
    let setup = Setup::counter(&tables, source.state_url(transport));
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        note(&format!("latency over {}, round {round} of {ROUNDS}", transport.name()));
        let slot = source.create_slot().await?;
        let mut command = recvlogical::command(source, transport, &slot, &publication)?;
        command.args(["-f", "-"]);
        theirs.push(side(source, &writer, &slot, Printed::start_out(command)?).await?);
        let slot = source.create_slot().await?;
        let site = runner.site(source, transport, &setup, &slot, &publication, "debug")?;
        let mut command = Command::new(walgate_bin()?);
        command.args(["run", "--config"]).arg(site.config());
        ours.push(side(source, &writer, &slot, Printed::start_err(command)?).await?);
    }
    let per_round = |percent: f64| {
        let of = move |run: &Vec<f64>| percentile(run.iter().copied(), percent).unwrap_or(f64::NAN);
        Spread::of(ours.iter().zip(&theirs).filter_map(|(a, b)| ratio(of(a), of(b))))
    };
    Ok(Latency {
        transport,
        ratio_p50: per_round(50.0),
        ratio_p99: per_round(99.0),
        walgate: Percentiles::of(&ours),
        recvlogical: Percentiles::of(&theirs),
    })
}

/// One side once; microseconds from commit to print. Slot and process are gone afterwards.
async fn side(source: &Source, writer: &Writer, slot: &str, mut printed: Printed) -> Result<Vec<f64>> {
    source.walsender(slot, || printed.still_runs()).await?;
    writer.paced(WARM_UP).await?;
    printed.wait_for(WARM_UP).await?;
    let committed = writer.paced(writer.count).await?;
    let seen = printed.wait_for(WARM_UP + writer.count).await?;
    printed.end()?;
    source.drop_slot(slot).await?;
    let seen = seen.get(WARM_UP..).unwrap_or_default();
    ensure!(seen.len() == committed.len(), "the sink saw {} of {} transactions", seen.len(), committed.len());
    Ok(committed.iter().zip(seen).map(|(committed, seen)| micros(*committed, *seen)).collect())
}

/// Microseconds from `from` to `to`, below zero when `to` is earlier.
fn micros(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(later) => later.as_nanos() as f64 / 1000.0,
        None => -(from.duration_since(to).as_nanos() as f64 / 1000.0),
    }
}

/// Writes one-row transactions.
pub(crate) struct Writer {
    client: Client,
    table: String,
    count: usize,
}

impl Writer {
    pub(crate) fn new(client: Client, table: String) -> Self {
        Self { client, table, count: 0 }
    }

    /// One transaction each thousandth of a second; the moments at which the commits returned.
    pub(crate) async fn paced(&self, count: usize) -> Result<Vec<Instant>> {
        let sql = format!("INSERT INTO {0} SELECT coalesce(max(id), 0) + 1, 'a name' FROM {0}", self.table);
        let insert = self.client.prepare(&sql).await.context("cannot prepare the insert")?;
        let mut committed = Vec::with_capacity(count);
        let mut pace = tokio::time::interval(Duration::from_secs(1) / RATE);
        for _ in 0..count {
            pace.tick().await;
            self.client.execute(&insert, &[]).await.context("cannot write a row")?;
            committed.push(Instant::now());
        }
        Ok(committed)
    }
}

/// A process whose output tells which rows it has taken, and when each was told.
pub(crate) struct Printed {
    child: Child,
    seen: Arc<Mutex<Vec<Instant>>>,
}

impl Printed {
    /// `pg_recvlogical`, which prints messages to standard output: a row for each commit.
    fn start_out(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start pg_recvlogical")?;
        let pipe = child.stdout.take().context("its output is not here")?;
        let mut commits = Commits::default();
        Ok(Self { seen: read(pipe, move |bytes| commits.push(bytes)), child })
    }

    /// walgate, which logs to standard error: as many rows as a line tells.
    pub(crate) fn start_err(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start walgate")?;
        let pipe = child.stderr.take().context("its log is not here")?;
        let mut rest = String::new();
        let rows = move |bytes: &[u8]| {
            rest.push_str(&String::from_utf8_lossy(bytes));
            let whole = rest.rfind('\n').map_or(0, |at| at + 1);
            let rows = rest.get(..whole).unwrap_or_default().lines().filter_map(delivered_rows).sum();
            rest.drain(..whole);
            Ok(rows)
        };
        Ok(Self { seen: read(pipe, rows), child })
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("a sink ended with {status}"),
        }
    }

    /// The moments of all rows once there are that many.
    pub(crate) async fn wait_for(&mut self, count: usize) -> Result<Vec<Instant>> {
        wait_until(DEADLINE, "the sink has every row", async || {
            self.still_runs()?;
            Ok(self.count() >= count)
        })
        .await?;
        Ok(self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub(crate) fn end(&mut self) -> Result<()> {
        self.child.kill().context("a sink cannot be ended")?;
        self.child.wait().context("a sink did not end")?;
        Ok(())
    }
}

impl Drop for Printed {
    fn drop(&mut self) {
        // Ended already in the ordinary case.
        let _ = self.end();
    }
}

/// Reads a pipe on a thread of its own: for each row that `rows` finds, the moment after the read that brought it.
fn read(
    mut pipe: impl Read + Send + 'static,
    mut rows: impl FnMut(&[u8]) -> Result<usize> + Send + 'static,
) -> Arc<Mutex<Vec<Instant>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = pipe.read(&mut buffer) {
            let now = Instant::now();
            // What cannot be read counts nothing, and the wait for the rows then fails and says how many came.
            let found = buffer.get(..length).map_or(Ok(0), &mut rows).unwrap_or(0);
            let mut seen = told.lock().unwrap_or_else(PoisonError::into_inner);
            seen.extend(std::iter::repeat_n(now, found));
        }
    });
    seen
}

/// The rows in a line that tells of a delivered batch.
fn delivered_rows(line: &str) -> Option<usize> {
    let (_, fields) = line.split_once(DELIVERED)?;
    fields.split_whitespace().find_map(|field| field.strip_prefix("rows=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_from_the_log() {
        let line = "2025-01-01T00:00:00.000001Z DEBUG walgate_plugin::instance: plugin called plugin=\"counter\" rows=3 to=0/2A";
        assert_eq!(delivered_rows(line), Some(3));
        assert_eq!(delivered_rows("2025 INFO walgate: streaming rows=3"), None);
    }

    #[test]
    fn a_row_seen_before_the_commit_returned_counts_below_zero() {
        let now = Instant::now();
        let later = now + Duration::from_micros(5);
        assert_eq!((micros(now, later), micros(later, now)), (5.0, -5.0));
    }

    #[test]
    fn a_pipe_gives_a_moment_for_each_row() {
        let seen = read(&b"xxxx"[..], |bytes| Ok(bytes.len()));
        while seen.lock().unwrap().len() < 4 {
            std::thread::yield_now();
        }
    }
}
