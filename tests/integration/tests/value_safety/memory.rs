//! Random grants over random changes of a real server: what a grant hides is not in the memory of the guest, not in what it
//! writes, not in its dead letters; and no value at all is in what walgate says.
//!
//! Holds: several plugins at once, each with a grant of its own. The seed is printed. Never knows: how a grant is enforced.
//! Read next: `canaries.rs` of the harness for the changes and the rule.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _};

use anyhow::{Context as _, Result, ensure};
use walgate_harness::canaries::{Dice, Grant, Stream, TABLES, found};
use walgate_harness::{Cluster, Needles};

use super::evidence::Watched;
use crate::scene::{SOON, Scene};

/// Where what a plugin was given lies afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In this output.
    Output(&'static str),
    /// In the images of its dead letters.
    Letters,
}

/// Plugins, their programs, and where to look.
const PLUGINS: [(&str, &str, Place); 5] = [
    ("memory-1", "dump-memory", Place::Output("memory")),
    ("memory-2", "dump-memory", Place::Output("memory")),
    ("memory-3", "dump-memory", Place::Output("memory")),
    ("lines", "ndjson-rust", Place::Output("changes")),
    ("letters", "reject-batch", Place::Letters),
];

pub(super) async fn memory_of_guests_and_random_grants(major: u32) -> Result<()> {
    let named = std::env::var("WALGATE_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = named.unwrap_or_else(|| std::hash::RandomState::new().build_hasher().finish());
    println!("WALGATE_SEED={seed}");
    let mut all = (0, 0);
    for seed in [seed, seed.wrapping_add(1)] {
        let (hidden, handed_over) =
            run(major, &mut Dice(seed)).await.with_context(|| format!("WALGATE_SEED={seed}"))?;
        all = (all.0 + hidden, all.1 + handed_over);
    }
    ensure!(all.0 > 0 && all.1 > 0, "{all:?} hidden and handed over prove nothing; WALGATE_SEED={seed}");
    Ok(())
}

/// Answers how much was hidden and handed over.
async fn run(major: u32, dice: &mut Dice) -> Result<(usize, usize)> {
    let stream = Stream::random(dice);
    let cluster = Cluster::start(major)?;
    let orders = "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, note text);
                  CREATE PUBLICATION shop FOR TABLE canaries, unseen, orders";
    cluster.execute("postgres", &format!("{TABLES} {orders}")).await?;
    let mut watched = Watched::looking_for(Needles::new(stream.texts())?, Scene::bare(cluster)?);
    watched.configure("[secrets.pii]\nfile = \"key\"");
    std::fs::write(watched.scene.path("key"), "a key of at least 32 bytes for the hashes\n")?;
    let mut grants = Vec::new();
    for (name, program, place) in PLUGINS {
        let grant = Grant::random(dice);
        let output = match place {
            Place::Output(output) => format!("[grant.output.{output}]\nkind = \"file\"\npath = \"granted\"\n"),
            Place::Letters => String::new(),
        };
        watched.scene.plugin(name, program, &format!("[plugin]\nrequired = true\n{}{output}", grant.toml()))?;
        grants.push(grant);
    }
    let mut watched = watched.output("granted");
    watched.scene.create_slot()?;
    let mut walgate = watched.start()?;
    walgate.wait_ready(SOON).await?;
    for sql in stream.sql() {
        watched.scene.execute(&sql).await?;
    }
    watched.scene.wait_confirmed().await?;
    let mut counts = (0, 0);
    for ((name, _, place), grant) in PLUGINS.into_iter().zip(&grants) {
        let given = match place {
            Place::Output(_) => found(&std::fs::read(watched.scene.path(&format!("plugins/{name}/granted")))?),
            Place::Letters => letters(&watched.scene, name).await?,
        };
        let (hides, hands_over) = (grant.hides(&stream), grant.hands_over(&stream));
        let leaked: Vec<_> = hides.intersection(&given).collect();
        ensure!(leaked.is_empty(), "{name} has {leaked:?} under {grant:?}: {stream:?}");
        let missing: Vec<_> = hands_over.difference(&given).collect();
        ensure!(missing.is_empty(), "{missing:?} were not found at {name} under {grant:?}: {stream:?}");
        counts = (counts.0 + hides.len(), counts.1 + hands_over.len());
    }
    watched.running(&walgate).await?;
    watched.stopped(&mut walgate).await?;
    watched.everything().await?;
    Ok(counts)
}

/// What the images of a plugin's letters hold.
async fn letters(scene: &Scene, plugin: &str) -> Result<BTreeSet<u32>> {
    let client = scene.cluster.client("postgres").await?;
    let images = client.query("SELECT image FROM walgate.dead_letters WHERE plugin = $1", &[&plugin]).await?;
    Ok(images.iter().flat_map(|row| found(row.get::<_, &[u8]>(0))).collect())
}
