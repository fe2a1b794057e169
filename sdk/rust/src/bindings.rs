//! The generated bindings of `wit/v0.1`, and nothing else.
//!
//! Refuses to know anything by hand: what authors see is built on top in the other modules. Read next:
//! [`crate::guest`], which calls a sink through these types.

#![allow(missing_docs, unreachable_pub, unsafe_code, clippy::all, clippy::restriction, reason = "generated code")]

wit_bindgen::generate!({
    path: "../../wit/v0.1",
    world: "sink-plugin",
    generate_all,
    pub_export_macro: true,
    export_macro_name: "export_bindings",
    default_bindings_module: "walgate_sdk::bindings",
    runtime_path: "::walgate_sdk::wit_bindgen::rt",
    additional_derives: [PartialEq],
});
