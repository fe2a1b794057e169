//! Throwaway Postgres clusters and walgate processes, for tests, the demo and the benchmark.
//!
//! Holds: a cluster that cleans up after itself ([`Cluster`]), the real binary as a child process ([`Walgate`]),
//! waits with deadlines ([`wait_until`]), a disk that is full ([`Disk`]), an HTTP server that misbehaves when told to ([`WebServer`]),
//! a search for what must be nowhere ([`Needles`]),
//! random changes and grants with values that are known wherever they turn up ([`canaries`]), and where built things lie ([`cache_root`], [`guest`], [`walgate_bin`]).
//! Never knows: what walgate does with any of it; no crate of ours is a dependency.
//! Read next: `cluster.rs`, then `walgate.rs`.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use walgate_harness::Cluster;
//!
//! let cluster = Cluster::builder(18).setting("wal_sender_timeout", "2s").start()?;
//! cluster.execute("postgres", "CREATE TABLE t (id int PRIMARY KEY)").await?;
//! let client = cluster.client("postgres").await?;
//! client.execute("INSERT INTO t VALUES (1)", &[]).await?;
//! # Ok(())
//! # }
//! ```

mod account;
pub mod canaries;
mod child;
mod cluster;
mod disk;
mod guard;
mod http;
mod needles;
mod parts;
mod places;
mod standby;
mod usage;
mod wait;
mod walgate;
mod web;

pub use cluster::{Builder, Cluster};
pub use disk::Disk;
pub use http::{Response, request};
pub use needles::Needles;
pub use places::{cache_root, failpoints_bin, free_port, guest, majors, postgres_bin, target_dir, walgate_bin};
pub use usage::{cpu_time, resident_bytes};
pub use wait::{wait_for, wait_until};
pub use walgate::{Walgate, WalgateCommand};
pub use web::{Reply, Seen, WebServer};
