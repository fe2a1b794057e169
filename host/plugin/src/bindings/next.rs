//! The generated types and traits of `next.wit`, for tests.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::restriction, reason = "generated")]

wasmtime::component::bindgen!({
    path: "src/bindings/next.wit",
    world: "walgate:cdc/sink-plugin",
    exports: { default: async },
});
