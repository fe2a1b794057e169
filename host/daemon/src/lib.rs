//! The `walgate` daemon: configuration, the pipeline, the command line and the local API.
//!
//! Holds: what a process is made of. The stages themselves live in [`pipeline`], in the order in which data flows:
//! `source` (wire), `flow` (decode, assemble, minimize), `deliver`, `checkpoint`, `ack`.
//! Never knows: SQL on the state database (`walgate-store`), wasmtime (`walgate-plugin`).
//! Read next: [`cli`] for what a person can ask, [`pipeline`] for what the process does.

pub mod cli;

mod api;
mod config;
mod connect;
mod exit;
mod halt;
mod monitor;
mod panics;
mod pipeline;
mod plugins;
mod preflight;
mod printer;
mod secrets;
mod status;
mod telemetry;
