//! Makes a component of a core module: what `walgate plugin build` does after the compiler of the guest's language.
//!
//! Holds: one call of wit-component with errors for people. Refuses to know toolchains.

use wasmparser::{Encoding, Parser, Payload};
use wit_component::ComponentEncoder;

use crate::error::Class;

/// A core module that cannot become a component.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// It is a component already.
    #[error("the file is a component already; use it as plugin.wasm as it is")]
    AlreadyComponent,
    /// It is no WebAssembly, or not a whole one.
    #[error("the file is not a whole WebAssembly module; build it again")]
    NotWasm,
    /// Nothing in it says which world it implements.
    #[error(
        "the module was built without the walgate kit of its language (it has no component-type section); add the kit and build it again"
    )]
    NoMetadata,
    /// It was built for WASI preview 1.
    #[error(
        "the module imports wasi_snapshot_preview1; build it for wasm32-unknown-unknown, or let its toolchain make the component"
    )]
    NeedsAdapter,
    /// wit-component refused it.
    #[error(
        "the module does not fit the walgate contract it was built for; build it again with the kit of this version"
    )]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl EncodeError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// Wraps a core module, built with a kit of walgate, as a component, and validates it.
///
/// # Errors
/// See [`EncodeError`].
pub fn encode_module(core_wasm: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let mut described = false;
    for payload in Parser::new(0).parse_all(core_wasm) {
        match payload.map_err(|_| EncodeError::NotWasm)? {
            Payload::Version { encoding: Encoding::Component, .. } => return Err(EncodeError::AlreadyComponent),
            Payload::CustomSection(section) => described |= section.name().starts_with("component-type"),
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if import.map_err(|_| EncodeError::NotWasm)?.module == "wasi_snapshot_preview1" {
                        return Err(EncodeError::NeedsAdapter);
                    }
                }
            }
            _ => {}
        }
    }
    if !described {
        return Err(EncodeError::NoMetadata);
    }
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(core_wasm).map_err(|error| EncodeError::Encode(error.into()))?;
    encoder.encode().map_err(|error| EncodeError::Encode(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest;

    #[test]
    fn a_module_with_its_world_becomes_a_component() {
        let component = encode_module(&test_guest::module("")).unwrap();
        assert!(crate::contract::read(&component).is_ok());
        assert!(matches!(encode_module(&component), Err(EncodeError::AlreadyComponent)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let module = |text: &str| wat::parse_str(text).unwrap();
        assert!(matches!(encode_module(b"\0asm\x01"), Err(EncodeError::NotWasm)));
        assert!(matches!(encode_module(&module("(module)")), Err(EncodeError::NoMetadata)));
        let wasi = module(r#"(module (import "wasi_snapshot_preview1" "fd_write" (func)))"#);
        assert!(matches!(encode_module(&wasi), Err(EncodeError::NeedsAdapter)));
        let unfit = test_guest::embed("(module)");
        assert!(matches!(encode_module(&unfit), Err(EncodeError::Encode(_))));
    }
}
