//! The replication connection against real servers.
//!
//! One binary; a module for each thing that is tried. Servers come from the harness: every test has its own, and those
//! that look at version differences run on each major version of `WALGATE_MAJORS`.

mod connect;
mod faults;
mod slots;
mod streaming;
mod support;
mod tls;
