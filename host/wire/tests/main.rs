//! The replication connection against real servers.
//!
//! One binary; a module for each thing that is tried. Servers come from the harness: every test has its own, and those
//! that look at version differences run on each major version of `WALGATE_MAJORS`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml exempts test functions; the helpers between them may fail as loudly"
)]

mod connect;
mod faults;
mod slots;
mod streaming;
mod support;
mod tls;
