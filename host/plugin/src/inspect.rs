//! Everything that can be told about a plugin file without granting it anything: `walgate plugin inspect`.

use std::path::Path;

use crate::component::{Component, LoadError};
use crate::contract::ContractVersion;
use crate::description::{Description, HTTP};
use crate::engine::Engine;
use crate::error::Class;
use crate::grant::asked_mode;
use crate::manifest::{Manifest, Policy};
use crate::outcome::CallError;
use crate::worker::{StartError, Worker};

/// What a plugin file is and wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Bytes of the file.
    pub size: u64,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: String,
    /// The contract it was built for.
    pub contract: ContractVersion,
    /// The interfaces it imports.
    pub imports: Vec<String>,
    /// What it answered to `describe`.
    pub description: Description,
    /// Its delivery mode as asked for, as a sentence: `open` and plugin.toml can change it.
    pub mode: String,
    /// A plugin.toml that grants all it asks for.
    pub starter: String,
}

/// A file that cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// It is not a plugin for this host.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The host has no thread left.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It did not describe itself.
    #[error("the plugin does not describe itself: {0}; report it to its author")]
    Describe(CallError),
}

impl InspectError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// The interface by which requests are sent.
const SENDING: &str = "wasi:http/outgoing-handler@";

/// Interpreters import everything that they could use.
const UNASKED_HTTP: &str = "\n# It imports wasi:http/outgoing-handler and does not ask for `http`: requests are denied, whatever stands here.\n";

/// Loads a file and asks it to describe itself, with every capability denied and the default limits. Blocks while it
/// compiles: seconds for a large plugin that is not cached.
///
/// # Errors
/// See [`InspectError`].
pub async fn inspect(engine: &Engine, path: &Path) -> Result<Inspection, InspectError> {
    let component = Component::load(engine, path)?;
    let (size, sha256, contract) = (component.size(), component.digest(), component.version());
    let imports = component.imports().to_vec();
    let plugin = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let worker = Worker::start(component, Policy { plugin, ..Policy::default() })?;
    let description = worker.describe().await.map_err(InspectError::Describe)?;
    let mut starter = Manifest::starter(&description);
    if imports.iter().any(|import| import.starts_with(SENDING))
        && !description.capabilities.iter().any(|word| word == HTTP)
    {
        starter.push_str(UNASKED_HTTP);
    }
    let mode = asked_mode(&description);
    Ok(Inspection { size, sha256, contract, imports, description, mode, starter })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest;

    #[tokio::test]
    async fn tells_what_a_file_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.wasm");
        std::fs::write(&path, test_guest::build("")).unwrap();
        let inspection = inspect(&Engine::new(None).unwrap(), &path).await.unwrap();
        assert_eq!(inspection.contract, ContractVersion::V0_1);
        assert_eq!(inspection.description.name, "test");
        assert!(
            inspection.starter.contains("capabilities = [\"log\", \"metrics\", \"state\"]"),
            "{}",
            inspection.starter
        );
        assert!(inspection.mode.contains("host-transactional unless `open` answers a position"), "{}", inspection.mode);
        assert!(inspection.imports.iter().any(|i| i == "walgate:host/log@0.1.0"));
        // The guest of the tests imports http and does not ask for it.
        assert!(inspection.imports.iter().any(|i| i.starts_with(SENDING)), "{:?}", inspection.imports);
        assert!(inspection.starter.contains(UNASKED_HTTP) && !inspection.starter.contains("[[grant.http]]"));
    }

    #[tokio::test]
    async fn a_plugin_that_traps_in_describe_is_an_error_without_guest_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.wasm");
        std::fs::write(&path, test_guest::build_with(&[("describe", "unreachable")])).unwrap();
        let error = inspect(&Engine::new(None).unwrap(), &path).await.unwrap_err();
        assert!(error.to_string().contains("trapped: unreachable"), "{error}");
    }
}
