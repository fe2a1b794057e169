//! Versions of a plugin that follow one another under load while the process is killed at each step of it: the ledger holds
//! everything once, whichever version runs afterwards.
//!
//! Holds: the steps, and the proof. Never knows: which changes are made in a lane and which take a turn of the pipeline.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use walgate_harness::{guest, majors};

use crate::mode::Mode;
use crate::progress::{say, seed_of};
use crate::scene::Scene;

/// Steps of a swap in a lane, of a turn, and of going back.
pub(crate) const POINTS: [&str; 6] =
    ["swap.entered", "swap.drained", "swap.opened", "swap.done", "turn.begun", "turn.back"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_survives_every_step() -> Result<()> {
    every_step(Mode::Transactional).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_checkpointed_survives_every_step() -> Result<()> {
    every_step(Mode::Checkpointed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_and_flushed_survives_every_step() -> Result<()> {
    every_step(Mode::Flushed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sink_owned_survives_every_step() -> Result<()> {
    every_step(Mode::SinkOwned).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_far_survives_every_step() -> Result<()> {
    every_step(Mode::RowsFar).await
}

async fn every_step(mode: Mode) -> Result<()> {
    for major in majors() {
        let part = format!("swaps, {} on {major}", mode.name());
        let mut random = StdRng::seed_from_u64(seed_of(&part));
        let mut scene = Scene::new(major, mode, false, seed_of(&format!("{part}, load"))).await?;
        let manifest = mode.manifest(&scene.ledger());
        let other = manifest.replace("columns = \"*\"", "columns = \"*\"\nnew_columns = \"allow\"");
        let good = fs::read(guest(mode.guest())?)?;
        let bad = fs::read(guest("trap-in-deliver")?)?;
        scene.load.resume();
        for (number, name) in (2..).zip(POINTS) {
            let began = Instant::now();
            let place = || format!("{part}: {name}");
            scene.start(Some((name, 1))).await?;
            scene.ready().await.with_context(place)?;
            scene.moment(&mut random).await.with_context(place)?;
            match name {
                "turn.back" => scene.replace_plugin(&bad, &manifest)?,
                "turn.begun" => scene.replace_plugin(&good, &other)?,
                _ => scene.replace_plugin(&another(&good, number), &manifest)?,
            }
            scene.fallen(name).await.with_context(place)?;
            // What failed is in the directory still, and the one before was granted something else: a better one follows.
            if name == "turn.back" {
                scene.replace_plugin(&good, &manifest)?;
            }
            let found = scene.prove().await.with_context(place)?;
            say(&format!("{}: {found}, {:.1} s", place(), began.elapsed().as_secs_f64()));
            scene.load.resume();
        }
    }
    Ok(())
}

/// The same component under another digest: a custom section more.
fn another(component: &[u8], number: u8) -> Vec<u8> {
    let mut bytes = component.to_vec();
    bytes.extend([0, 2, 1, b'a' + number]);
    bytes
}
