//! Faults of everything around walgate, under load: connections, servers, disks, and two of them at once.
//!
//! Holds: the loop over `Blow::surroundings`, proved after each. Never knows: how a blow is dealt.

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
async fn host_transactional_survives_its_surroundings() -> Result<()> {
    surroundings(Mode::Transactional).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_checkpointed_survives_its_surroundings() -> Result<()> {
    surroundings(Mode::Checkpointed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_and_flushed_survives_its_surroundings() -> Result<()> {
    surroundings(Mode::Flushed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sink_owned_survives_its_surroundings() -> Result<()> {
    surroundings(Mode::SinkOwned).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_the_state_survive_its_surroundings() -> Result<()> {
    surroundings(Mode::Rows).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_transactional_far_survives_its_surroundings() -> Result<()> {
    surroundings(Mode::RowsFar).await
}

async fn surroundings(mode: Mode) -> Result<()> {
    for major in majors() {
        let part = format!("surroundings, {} on {major}", mode.name());
        let mut random = StdRng::seed_from_u64(seed_of(&part));
        let mut scene = Scene::new(major, mode, true, seed_of(&format!("{part}, load"))).await?;
        for blow in Blow::surroundings(mode, true) {
            let began = Instant::now();
            let place = || format!("{part}: {blow}");
            blow.strike(&mut scene, &mut random).await.with_context(place)?;
            let found = scene.prove().await.with_context(place)?;
            say(&format!("{}: {found}, {:.1} s", place(), began.elapsed().as_secs_f64()));
        }
    }
    Ok(())
}
