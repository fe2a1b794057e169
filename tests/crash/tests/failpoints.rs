//! Every named point, one after the other, on one pipeline a mode and version that is never made anew.
//!
//! Holds: the loop and its lines of progress. The state lives on the source's own server here, which is how most people
//! begin; the other two modules keep them apart. Never knows: where the points are.

use std::time::Instant;

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use walgate_harness::majors;

use crate::blow::Blow;
use crate::mode::Mode;
use crate::progress::{say, seed_of};
use crate::scene::Scene;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_survives_every_point() -> Result<()> {
    every_point(Mode::Transactional).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_checkpointed_survives_every_point() -> Result<()> {
    every_point(Mode::Checkpointed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_and_flushed_survives_every_point() -> Result<()> {
    every_point(Mode::Flushed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sink_owned_survives_every_point() -> Result<()> {
    every_point(Mode::SinkOwned).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_the_state_survive_every_point() -> Result<()> {
    every_point(Mode::Rows).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_far_survives_every_point() -> Result<()> {
    every_point(Mode::RowsFar).await
}

async fn every_point(mode: Mode) -> Result<()> {
    for major in majors() {
        let part = format!("points, {} on {major}", mode.name());
        let mut random = StdRng::seed_from_u64(seed_of(&part));
        let mut scene = Scene::new(major, mode, false, seed_of(&format!("{part}, load"))).await?;
        for name in mode.points() {
            let began = Instant::now();
            let blow = Blow::point(name, &mut random);
            let place = || format!("{part}: {blow}");
            blow.strike(&mut scene, &mut random).await.with_context(place)?;
            let found = scene.prove().await.with_context(place)?;
            say(&format!("{}: {found}, {:.1} s", place(), began.elapsed().as_secs_f64()));
        }
    }
    Ok(())
}
