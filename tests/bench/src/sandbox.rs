//! What the sandbox costs: one recorded stream, decoded and minimized and delivered, once to the plugin and once to the
//! same counter compiled in.
//!
//! Holds: the replay and the comparison. Both run on the same kind of thread behind the same mailbox, and their totals must
//! agree. Never knows: sockets, checkpoints.
//! Read next: `counting.rs`.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use walgate_core::Cursor;
use walgate_core::assemble::Assembler;
use walgate_core::grant::rules::Rules;
use walgate_core::grant::{Columns, Grant, Operations, TableGrant};
use walgate_core::minimize::{Bounds, Item, Minimizer};
use walgate_harness::guest;
use walgate_plugin::{Capabilities, Component, Engine, OpenContext, Policy, Worker};
use walgate_wire::{Chunk, Frame};

use crate::counting::{Counting, Kept};
use crate::figures::{Spread, ratio};
use crate::process::own_cpu;
use crate::source::Stretch;

/// The bounds of a batch that the daemon has when nothing is configured.
const BOUNDS: Bounds = Bounds { max_rows: 10_000, max_bytes: 4 << 20 };
/// The least CPU of one sample: what a shorter one says drowns in the noise.
const LEAST_SAMPLE: Duration = Duration::from_millis(400);
/// The key under which the plugin keeps its totals.
const TOTALS: &str = "totals";

/// What was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sandbox {
    /// CPU with the plugin for each unit of CPU with the sink compiled in: decode, minimize and deliver.
    pub(crate) ratio: Option<Spread>,
    /// CPU of decode and minimize alone, in nanoseconds a row.
    pub(crate) decode_ns: Option<Spread>,
    /// CPU with the plugin, in nanoseconds a row.
    pub(crate) guest_ns: Option<Spread>,
}

/// Compares the two, alternating.
pub(crate) async fn measure(stretch: &Stretch, chunks: Vec<Bytes>, rounds: usize) -> Result<Sandbox> {
    let replay = Replay { chunks: chunks.into_iter().map(Chunk::detached).collect(), grant: grant(&stretch.tables) };
    let (guest, kept) = (guest_worker()?, Kept::default());
    let native =
        Worker::native(Box::new(Counting::new(Arc::clone(&kept)))).context("the native sink cannot be started")?;
    // Once to warm up, and to see how many times a sample has to go over a short recording.
    let warm_up = replay.sample(Some(&native), 1).await?;
    let passes = passes(warm_up.cpu);
    let (mut ratios, mut decode, mut guests) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = totals(&kept);
        let sandboxed = replay.sample(Some(&guest), passes).await?;
        // The native sink counts on from the warm-up, so the plugin's totals are compared where both count from nothing.
        let compiled_in = replay.sample(Some(&native), passes).await?;
        let alone = replay.sample(None, passes).await?;
        ensure!(totals(&kept) != before, "the native sink has counted nothing");
        let rows = (stretch.rows * u64::from(passes)) as f64;
        ratios.extend(ratio(sandboxed.cpu.as_secs_f64(), compiled_in.cpu.as_secs_f64()));
        decode.push(alone.cpu.as_nanos() as f64 / rows);
        guests.push(sandboxed.cpu.as_nanos() as f64 / rows);
    }
    same_work(&replay).await?;
    Ok(Sandbox { ratio: Spread::of(ratios), decode_ns: Spread::of(decode), guest_ns: Spread::of(guests) })
}

/// Both sides from nothing over the same batches: their totals are equal.
async fn same_work(replay: &Replay) -> Result<()> {
    let (guest, kept) = (guest_worker()?, Kept::default());
    let native =
        Worker::native(Box::new(Counting::new(Arc::clone(&kept)))).context("the native sink cannot be started")?;
    let theirs = replay.sample(Some(&guest), 1).await?.state;
    replay.sample(Some(&native), 1).await?;
    let (theirs, ours) = (theirs.context("the plugin keeps no totals")?, totals(&kept));
    ensure!(theirs == ours.as_bytes(), "the plugin and the native sink did not count the same");
    Ok(())
}

fn totals(kept: &Kept) -> String {
    kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn passes(once: Duration) -> u32 {
    let once = once.max(Duration::from_micros(100));
    u32::try_from(LEAST_SAMPLE.as_nanos().div_ceil(once.as_nanos())).unwrap_or(u32::MAX)
}

fn guest_worker() -> Result<Worker> {
    let engine = Engine::new(None).context("the plugin engine cannot be started")?;
    let component = Component::load(&engine, &guest("counter-rust")?).context("the plugin cannot be loaded")?;
    let capabilities = Capabilities { metrics: true, state: true, ..Capabilities::default() };
    let policy = Policy { plugin: "counter".to_owned(), capabilities, ..Policy::default() };
    Worker::start(component, policy).context("the plugin cannot be started")
}

fn grant(tables: &[String]) -> Grant {
    let table = |name: &String| TableGrant {
        namespace: "public".to_owned(),
        name: name.clone(),
        columns: Columns::AllExcept(Vec::new()),
        required: Vec::new(),
        operations: Operations::ALL,
        allow_new_columns: false,
        rules: Rules::default(),
    };
    Grant { tables: tables.iter().map(table).collect(), message_prefixes: Vec::new() }
}

/// A recorded stream and what of it is granted.
struct Replay {
    chunks: Vec<Chunk>,
    grant: Grant,
}

/// One measurement.
struct Sample {
    cpu: Duration,
    /// The plugin's totals as it staged them last.
    state: Option<Vec<u8>>,
}

impl Replay {
    /// Goes over the recording that many times, one batch after the other; without a worker nothing is delivered.
    async fn sample(&self, worker: Option<&Worker>, passes: u32) -> Result<Sample> {
        let mut state = None;
        if let Some(worker) = worker {
            worker.open(OpenContext { plugin: "counter".to_owned(), epoch: 1, ..OpenContext::default() }).await?;
        }
        let (clock, before) = (Instant::now(), own_cpu()?);
        for _ in 0..passes {
            self.pass(worker, &mut state).await?;
        }
        let cpu = own_cpu()?.saturating_sub(before);
        // Without the scheduler's counts the steps are coarse; the wall clock of a sample is the better guess then.
        let cpu = if cpu.is_zero() { clock.elapsed() } else { cpu };
        Ok(Sample { cpu, state })
    }

    async fn pass(&self, worker: Option<&Worker>, state: &mut Option<Vec<u8>>) -> Result<()> {
        let mut minimizer = Minimizer::new(self.grant.clone(), "bench", BOUNDS, Cursor::default());
        let mut assembler = Assembler::new();
        for frame in self.chunks.iter().flat_map(Chunk::frames) {
            let Frame::Data { start, payload, .. } = frame? else { continue };
            minimizer.apply(&assembler.push(start, payload)?)?;
            deliver(&mut minimizer, worker, state).await?;
        }
        minimizer.cut()?;
        deliver(&mut minimizer, worker, state).await
    }
}

#[inline]
async fn deliver(minimizer: &mut Minimizer, worker: Option<&Worker>, state: &mut Option<Vec<u8>>) -> Result<()> {
    while let Some(item) = minimizer.next_item() {
        match (item, worker) {
            (Item::Relation { current, previous }, Some(worker)) => {
                worker.relation_changed(&current, previous.as_ref()).await?;
            }
            (Item::Batch(batch), Some(worker)) => {
                let delivery = worker.deliver(batch).await;
                let receipt = delivery.outcome?;
                if !receipt.durable {
                    bail!("the counter did not take a batch for good");
                }
                if let Some((_, value)) = delivery.staged.state.into_iter().find(|(key, _)| key == TOTALS) {
                    *state = value;
                }
                minimizer.recycle(delivery.batch);
            }
            (Item::Batch(batch), None) => minimizer.recycle(batch),
            (Item::Relation { .. }, None) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_recording_is_replayed_until_a_sample_is_long_enough() {
        assert_eq!(passes(Duration::from_millis(100)), 4);
        assert_eq!(passes(Duration::from_secs(3)), 1);
        assert_eq!(passes(Duration::ZERO), 4000);
    }
}
