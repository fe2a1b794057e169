//! Reads from a component's own names which contract it was built for, before anything of it runs.
//!
//! Holds: the known versions and every import a plugin may have. Refuses to know how a version is spoken (see
//! `adapter/`) and whether the component is valid in full (the compiler checks that).

use wasmparser::{Encoding, Parser, Payload};

/// A released version of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContractVersion {
    /// `walgate:cdc@0.1.0`.
    V0_1,
    /// A second one, which no release has: proof that versions live side by side.
    #[cfg(test)]
    Next,
}

impl ContractVersion {
    /// The version as it stands after the `@`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V0_1 => "0.1.0",
            #[cfg(test)]
            Self::Next => "0.2.0-next",
        }
    }

    /// The interfaces of `walgate:cdc` and of `walgate:host` that a plugin of this version may import.
    const fn interfaces(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::V0_1 => (
                &["change", "outcome", "rows"],
                &["log", "metrics", "state", "output", "settings", "secrets", "replica"],
            ),
            #[cfg(test)]
            Self::Next => (&[], &["metrics"]),
        }
    }
}

/// Every version this host can speak.
pub const KNOWN_VERSIONS: &[ContractVersion] = &[
    ContractVersion::V0_1,
    #[cfg(test)]
    ContractVersion::Next,
];

/// What a sink exports, without its version.
const SINK: &str = "walgate:cdc/sink";

/// What a lifecycle plugin exports, without its version.
const LIFECYCLE: &str = "walgate:cdc/tenant-lifecycle";

/// What a component says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contract {
    pub(crate) version: ContractVersion,
    pub(crate) imports: Vec<String>,
}

/// Why a file is not a plugin for this host. The file is named by [`crate::LoadError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// It ends in the middle.
    #[error("the file ends too early; copy it again, and rename it into place when it is whole")]
    Truncated,
    /// It is no WebAssembly.
    #[error(
        "the file is not WebAssembly (at byte {offset}); a plugin is a component such as `walgate plugin build` makes"
    )]
    NotWasm {
        /// Where reading stopped.
        offset: u64,
    },
    /// It is a core module.
    #[error("the file is a core module, not a component; run `walgate plugin build` on it")]
    CoreModule,
    /// It exports no face that a sink has.
    #[error("the component does not export {SINK}; build it for the world `sink-plugin` of the walgate contract")]
    NoSink,
    /// It is a plugin of the other kind.
    #[error(
        "the component is a lifecycle plugin ({LIFECYCLE}), which this version of walgate does not run yet; remove it from the plugin directory"
    )]
    Lifecycle,
    /// It was built for a version this host does not know.
    #[error("the component was built for contract {found}; this walgate speaks {}", known())]
    UnknownVersion {
        /// The version it names.
        found: String,
    },
    /// It wants something no grant can give.
    #[error(
        "the component imports {import}, which is outside the walgate contract and WASI 0.2; build it without that import"
    )]
    ForeignImport {
        /// The import.
        import: String,
    },
}

fn known() -> String {
    KNOWN_VERSIONS.iter().map(|v| v.name()).collect::<Vec<_>>().join(", ")
}

/// Reads the outermost imports and exports and holds them against the contract.
pub(crate) fn read(bytes: &[u8]) -> Result<Contract, ContractError> {
    let (imports, exports) = names(bytes)?;
    let version = version(&exports)?;
    if let Some(import) = imports.iter().find(|import| !allowed(import, version)) {
        return Err(ContractError::ForeignImport { import: import.clone() });
    }
    Ok(Contract { version, imports })
}

fn version(exports: &[String]) -> Result<ContractVersion, ContractError> {
    let of = |face: &str| {
        exports.iter().find_map(|name| name.strip_prefix(face)).map(|v| v.strip_prefix('@').unwrap_or(v).to_owned())
    };
    match of(SINK) {
        Some(found) => KNOWN_VERSIONS
            .iter()
            .copied()
            .find(|known| known.name() == found)
            .ok_or(ContractError::UnknownVersion { found }),
        None if of(LIFECYCLE).is_some() => Err(ContractError::Lifecycle),
        None => Err(ContractError::NoSink),
    }
}

fn names(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), ContractError> {
    if bytes.len() < 8 {
        let magic = b"\0asm".starts_with(bytes.get(..4).unwrap_or(bytes));
        return Err(if magic { ContractError::Truncated } else { ContractError::NotWasm { offset: 0 } });
    }
    let (mut imports, mut exports, mut depth) = (Vec::new(), Vec::new(), 0usize);
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(unreadable)? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => return Err(ContractError::CoreModule),
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import.map_err(unreadable)?.name.full_name().into_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exports.push(export.map_err(unreadable)?.name.full_name().into_owned());
                }
            }
            _ => {}
        }
    }
    Ok((imports, exports))
}

fn unreadable(error: wasmparser::BinaryReaderError) -> ContractError {
    // wasmparser keeps the kind of its errors private; its words for this case are pinned by a test below.
    if error.message().starts_with("unexpected end") {
        ContractError::Truncated
    } else {
        ContractError::NotWasm { offset: error.offset() }
    }
}

/// Whether an import can be answered, by the grant or by an empty context. Exact names: what is not listed is refused.
fn allowed(import: &str, version: ContractVersion) -> bool {
    let Some((name, at)) = import.rsplit_once('@') else { return false };
    let Some((package, interface)) = name.split_once('/') else { return false };
    let interfaces: &[&str] = match package {
        "walgate:cdc" => version.interfaces().0,
        "walgate:host" => version.interfaces().1,
        "wasi:io" => &["error", "poll", "streams"],
        "wasi:clocks" => &["monotonic-clock", "wall-clock"],
        "wasi:random" => &["random", "insecure", "insecure-seed"],
        "wasi:cli" => &[
            "environment",
            "exit",
            "stdin",
            "stdout",
            "stderr",
            "terminal-input",
            "terminal-output",
            "terminal-stdin",
            "terminal-stdout",
            "terminal-stderr",
        ],
        "wasi:filesystem" => &["types", "preopens"],
        "wasi:sockets" => {
            &["network", "instance-network", "tcp", "tcp-create-socket", "udp", "udp-create-socket", "ip-name-lookup"]
        }
        "wasi:http" => &["types", "outgoing-handler"],
        _ => return false,
    };
    let version_fits = if package.starts_with("walgate:") { at == version.name() } else { wasi_0_2(at) };
    version_fits && interfaces.contains(&interface)
}

/// `0.2.N`, and no pre-release such as `0.2.0-draft`.
fn wasi_0_2(version: &str) -> bool {
    version.strip_prefix("0.2.").is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest;

    #[track_caller]
    fn check(bytes: &[u8], expect: Result<ContractVersion, &str>) {
        match (read(bytes), expect) {
            (Ok(contract), Ok(version)) => assert_eq!(contract.version, version),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (got, want) => panic!("got {got:?}, want {want:?}"),
        }
    }

    fn component(body: &str) -> Vec<u8> {
        wat::parse_str(format!("(component {body})")).unwrap()
    }

    #[test]
    fn reads_the_version_and_the_imports() {
        let bytes = test_guest::build("");
        check(&bytes, Ok(ContractVersion::V0_1));
        let imports = read(&bytes).unwrap().imports;
        assert!(imports.iter().any(|i| i == "walgate:host/state@0.1.0"), "{imports:?}");
    }

    #[test]
    fn refuses_what_is_not_a_whole_component() {
        check(b"", Err("ends too early"));
        check(b"\0as", Err("ends too early"));
        check(b"#!/bin/sh\n", Err("not WebAssembly (at byte 0)"));
        check(&wat::parse_str("(module)").unwrap(), Err("walgate plugin build"));
        let whole = test_guest::build("");
        for end in [8, 9, whole.len() / 2, whole.len() - 1] {
            assert!(read(&whole[..end]).is_err(), "{end} bytes were accepted");
        }
        check(&whole[..whole.len() / 2], Err("ends too early"));
    }

    #[test]
    fn refuses_other_versions_and_other_worlds() {
        check(&component(""), Err("does not export walgate:cdc/sink"));
        check(
            &component(r#"(instance $i) (export "walgate:cdc/sink@0.9.0" (instance $i))"#),
            Err("built for contract 0.9.0; this walgate speaks 0.1.0, 0.2.0-next"),
        );
        check(
            &component(r#"(instance $i) (export "walgate:cdc/tenant-lifecycle@0.1.0" (instance $i))"#),
            Err("lifecycle plugin"),
        );
    }

    #[test]
    fn refuses_a_foreign_import_by_name() {
        let importing = |name: &str| {
            component(&format!(
                r#"(import "{name}" (instance)) (instance $i) (export "walgate:cdc/sink@0.1.0" (instance $i))"#
            ))
        };
        for good in ["wasi:io/poll@0.2.6", "wasi:http/outgoing-handler@0.2.0", "walgate:cdc/rows@0.1.0"] {
            check(&importing(good), Ok(ContractVersion::V0_1));
        }
        for bad in [
            "wasi:keyvalue/store@0.2.0",
            "wasi:io/poll@0.3.0",
            "wasi:io/poll@0.2.0-rc1",
            "walgate:host/disposal@0.1.0",
            "walgate:host/state@0.2.0",
            "acme:net/raw@1.0.0",
        ] {
            check(&importing(bad), Err(bad));
        }
    }
}
