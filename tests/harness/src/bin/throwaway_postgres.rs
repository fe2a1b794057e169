//! Starts a throwaway cluster, prints its URL, and keeps it until ctrl-C. `cargo xtask postgres 18 --start` runs it.
//!
//! Holds: the lifetime of one [`walgate_harness::Cluster`]. Never knows: how the server got onto the machine.
//! Read next: `src/cluster.rs`.

use anyhow::{Context, Result};
use walgate_harness::Cluster;

#[tokio::main]
async fn main() -> Result<()> {
    let major = std::env::args().nth(1).context("usage: walgate-throwaway-postgres MAJOR")?;
    let cluster = Cluster::start(major.parse().with_context(|| format!("{major} is not a major version"))?)?;
    println!("{}", cluster.url("postgres"));
    eprintln!(
        "Postgres {major} runs until ctrl-C; its data goes with it. Unix socket: {}",
        cluster.unix_url("postgres")
    );
    tokio::signal::ctrl_c().await.context("cannot wait for ctrl-C")
}
