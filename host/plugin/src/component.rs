//! A plugin file, read, held against the contract, compiled and linked; ready to be instantiated any number of times.
//!
//! Holds: the steps from a path to a [`Component`] and every way they fail. Refuses to know grants and limits: nothing of
//! the plugin has run yet. Read next: [`crate::Worker`].

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::adapter::Linked;
use crate::aot::hex;
use crate::contract::{self, ContractError, ContractVersion};
use crate::engine::Engine;
use crate::error::Class;

/// Largest plugin file, in bytes. A Python component has 18 MB; what is above this is not a plugin but an accident, and
/// compiling it would take the machine's memory.
pub const MAX_COMPONENT_BYTES: u64 = 256 << 20;

/// A file that cannot become a plugin. Each says which file, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("plugin file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than [`MAX_COMPONENT_BYTES`].
    #[error("plugin file {} is larger than {} MiB; strip debug information from it", path.display(), MAX_COMPONENT_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not a plugin for this host.
    #[error("plugin file {}: {reason}", path.display())]
    Contract {
        /// The file.
        path: PathBuf,
        /// Why not, and the fix.
        reason: ContractError,
    },
    /// It does not compile: the component is invalid.
    #[error("plugin file {} is not a valid component; build it again", path.display())]
    Compile {
        /// The file.
        path: PathBuf,
        /// What the compiler said; about code, never about data.
        #[source]
        source: wasmtime::Error,
    },
    /// Its imports or exports have other shapes than the contract it names.
    #[error("plugin file {} uses the names of the walgate contract with other shapes; build it again from its folder in wit", path.display())]
    Link {
        /// The file.
        path: PathBuf,
        /// Which import or export, by name.
        #[source]
        source: wasmtime::Error,
    },
}

impl LoadError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// A compiled and linked plugin. Cheap to clone; nothing of it has run.
#[derive(Clone)]
pub struct Component {
    digest: [u8; 32],
    size: u64,
    version: ContractVersion,
    imports: Vec<String>,
    linked: Linked,
}

impl Component {
    /// Reads, checks, compiles (or takes from the cache) and links. Takes as long as compiling takes: up to seconds, so
    /// call it where blocking is allowed.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(engine: &Engine, path: &Path) -> Result<Self, LoadError> {
        let bytes = Self::read(path)?;
        Self::from_bytes(engine, path, &bytes)
    }

    /// The bytes of a file, if it has the size of a plugin.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
        read(path)
    }

    /// The same for bytes that were read already; `path` only names them in errors.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn from_bytes(engine: &Engine, path: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let path = || path.to_owned();
        let contract = contract::read(bytes).map_err(|reason| LoadError::Contract { path: path(), reason })?;
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let component = engine.compile(bytes, &digest).map_err(|source| LoadError::Compile { path: path(), source })?;
        let linked = Linked::new(engine, &component, contract.version);
        let linked = linked.map_err(|source| LoadError::Link { path: path(), source })?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(Self { digest, size, version: contract.version, imports: contract.imports, linked })
    }

    /// SHA-256 of the file, in lower-case hexadecimal.
    pub fn digest(&self) -> String {
        hex(&self.digest)
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The contract it was built for.
    pub fn version(&self) -> ContractVersion {
        self.version
    }

    /// The interfaces it imports, in its order.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    pub(crate) fn linked(&self) -> &Linked {
        &self.linked
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // Not from the metadata: the file may grow while it is read.
    file.take(MAX_COMPONENT_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_COMPONENT_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest;

    #[test]
    fn errors_name_the_file() {
        let engine = Engine::new(None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.wasm");
        let message = |e: LoadError| e.to_string();
        assert!(message(Component::load(&engine, &path).err().unwrap()).contains("plugin.wasm"));
        std::fs::write(&path, wat::parse_str("(module)").unwrap()).unwrap();
        let error = message(Component::load(&engine, &path).err().unwrap());
        assert!(error.contains("plugin.wasm") && error.contains("walgate plugin build"), "{error}");
    }

    #[test]
    fn a_component_with_other_shapes_is_refused_before_it_runs() {
        let bytes =
            wat::parse_str(r#"(component (instance $i) (export "walgate:cdc/sink@0.1.0" (instance $i)))"#).unwrap();
        let engine = Engine::new(None).unwrap();
        let error = Component::from_bytes(&engine, Path::new("x.wasm"), &bytes).err().unwrap();
        assert!(matches!(error, LoadError::Link { .. }), "{error:?}");
    }

    #[test]
    fn digest_and_size_are_of_the_file() {
        let engine = Engine::new(None).unwrap();
        let bytes = test_guest::build("");
        let component = Component::from_bytes(&engine, Path::new("x.wasm"), &bytes).unwrap();
        assert_eq!(component.digest(), hex(&test_guest::sha256(&bytes)));
        assert_eq!(component.size(), bytes.len() as u64);
    }
}
