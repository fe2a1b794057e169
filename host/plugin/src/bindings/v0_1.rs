//! The generated types and traits of `wit/v0.1`.
//!
//! Exports are called asynchronously, so that a guest that waits inside a host call can be ended by a timer; imports are
//! plain functions that cannot trap, because a refusal is an answer.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::restriction, reason = "generated")]

wasmtime::component::bindgen!({
    path: "../../wit/v0.1",
    world: "walgate:cdc/sink-plugin",
    exports: { default: async },
});
