//! Blows at random, several in a row before the next proof: what no list thought of.
//!
//! Holds: how many processes are killed in all, and how they are spread over modes and versions.
//! Never knows: what a blow is.

use std::time::Instant;

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walgate_harness::majors;

use crate::blow::Blow;
use crate::mode::Mode;
use crate::progress::{say, seed_of};
use crate::scene::Scene;

/// Processes killed in one run, all modes and versions together.
const KILLS: usize = 50;
const NIGHTLY_KILLS: usize = 1_000;
/// Kills after which a pipeline is made anew, so that its ledger stays small enough to be read after each burst.
const KILLS_OF_A_SCENE: usize = 50;
/// Blows in a row before a proof.
const BURST: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_survives_chance() -> Result<()> {
    chance(Mode::Transactional).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_checkpointed_survives_chance() -> Result<()> {
    chance(Mode::Checkpointed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_and_flushed_survives_chance() -> Result<()> {
    chance(Mode::Flushed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sink_owned_survives_chance() -> Result<()> {
    chance(Mode::SinkOwned).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_the_state_survive_chance() -> Result<()> {
    chance(Mode::Rows).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_far_survives_chance() -> Result<()> {
    chance(Mode::RowsFar).await
}

async fn chance(mode: Mode) -> Result<()> {
    let kills = if std::env::var_os("WALGATE_NIGHTLY").is_some() { NIGHTLY_KILLS } else { KILLS };
    let majors = majors();
    let share = kills.div_ceil(majors.len() * Mode::ALL.len());
    for major in majors {
        let (mut killed, mut scenes) = (0, 0);
        while killed < share {
            let part = format!("chance, {} on {major}, pipeline {scenes}", mode.name());
            killed += one_scene(major, mode, &part, KILLS_OF_A_SCENE.min(share - killed)).await?;
            scenes += 1;
        }
        say(&format!("chance, {} on {major}: {killed} processes killed", mode.name()));
    }
    Ok(())
}

async fn one_scene(major: u32, mode: Mode, part: &str, kills: usize) -> Result<usize> {
    let mut random = StdRng::seed_from_u64(seed_of(part));
    let apart = random.random_bool(0.5);
    let mut scene = Scene::new(major, mode, apart, seed_of(&format!("{part}, load"))).await?;
    let mut killed = 0;
    while killed < kills {
        let began = Instant::now();
        let burst: Vec<Blow> =
            (0..random.random_range(1..=BURST)).map(|_| Blow::any(mode, apart, &mut random)).collect();
        let names = burst.iter().map(Blow::to_string).collect::<Vec<_>>().join(", then ");
        for (number, blow) in burst.iter().enumerate() {
            let place = || format!("{part}: {names}: blow {number}");
            killed += blow.strike(&mut scene, &mut random).await.with_context(place)?;
        }
        let found = scene.prove().await.with_context(|| format!("{part}: {names}"))?;
        say(&format!("{part}: {names}: {found}, {:.1} s", began.elapsed().as_secs_f64()));
    }
    Ok(killed)
}
