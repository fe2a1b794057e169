//! The cache of compiled components: machine code on disk, trusted only because nobody else could have written it.
//!
//! Holds: the directory and its checks, the file format, and the one `unsafe` of the crate. Refuses to know plugins: the
//! key is the digest of the bytes and of the engine's settings.
//!
//! A large guest (Python, JavaScript) compiles for 5 to 12 seconds and loads from here in milliseconds.
//!
//! File: magic, SHA-256 of the code, code. Written to a temporary file, synced, renamed, never over an existing one; a
//! file that does not match its own digest is removed and compiled again.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use crate::error::Class;

/// Opens every file. Its last byte counts the format.
const MAGIC: &[u8; 8] = b"WALGAOT\x01";

/// Bytes before the code.
const HEADER: usize = MAGIC.len() + 32;

/// The cache directory cannot be trusted or used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be created, read or written.
    #[error("the plugin cache {} cannot be used; give [plugins] cache_dir a directory that this user can write", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The path is not a directory.
    #[error("the plugin cache {} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else could put machine code there.
    #[error("the plugin cache {} must belong to the user walgate runs as, with mode 0700, because code is loaded from it", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
    },
}

impl CacheError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// One lock for each component, by its digest.
type Compiling = BTreeMap<[u8; 32], Arc<Mutex<()>>>;

/// A private directory of compiled code.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    dir: PathBuf,
    /// What is compiled right now, so that hundreds of plugins with one component compile it once.
    compiling: Arc<Mutex<Compiling>>,
}

impl Cache {
    /// Creates the directory with mode 0700 where it is missing, and refuses one that others can enter.
    pub(crate) fn open(dir: &Path) -> Result<Self, CacheError> {
        let io = |source| CacheError::Io { path: dir.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => CacheError::NotADirectory { path: dir.to_owned() },
            _ => io(source),
        })?;
        let meta = fs::metadata(dir).map_err(io)?;
        // A file that this process just made tells which user it is, without a call outside std.
        let own = tempfile::tempfile_in(dir).and_then(|file| file.metadata()).map_err(io)?;
        let private = meta.permissions().mode() & 0o077 == 0 && meta.uid() == own.uid();
        if !private {
            return Err(CacheError::NotPrivate { path: dir.to_owned() });
        }
        Ok(Self { dir: dir.to_owned(), compiling: Arc::default() })
    }

    /// The compiled form of a component whose SHA-256 is `digest`; `compile` makes it where there is none. Trouble with the
    /// cache costs time, never the plugin.
    pub(crate) fn load_or_compile(
        &self,
        engine: &wasmtime::Engine,
        digest: &[u8; 32],
        compile: impl FnOnce() -> wasmtime::Result<Vec<u8>>,
    ) -> wasmtime::Result<Component> {
        let path = self.dir.join(file_name(engine, digest));
        if let Some(component) = load(engine, &path) {
            return Ok(component);
        }
        let one = Arc::clone(lock(&self.compiling).entry(*digest).or_default());
        let _one_at_a_time = lock(&one);
        if let Some(component) = load(engine, &path) {
            return Ok(component);
        }
        let code = compile()?;
        if let Err(error) = self.store(&path, &code) {
            tracing::warn!(cache = %path.display(), error = %error, "compiled plugin not kept; the next start compiles it again");
        }
        deserialize(engine, &code)
    }

    fn store(&self, path: &Path, code: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            Ok(_) => fs::File::open(&self.dir)?.sync_all(),
            // Another process compiled the same bytes meanwhile; its file is as good.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error.error),
        }
    }
}

/// A compiler that panicked leaves nothing behind that is shared.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None when there is nothing usable; what is there and not usable is removed.
fn load(engine: &wasmtime::Engine, path: &Path) -> Option<Component> {
    let file = fs::read(path).ok()?;
    let loaded = code(&file).and_then(|code| deserialize(engine, code).ok());
    if loaded.is_none() {
        tracing::warn!(cache = %path.display(), "cached plugin code is damaged; compiling it again");
        // Best effort: a file that cannot be removed only means that compiling repeats at every start.
        let _ = fs::remove_file(path);
    }
    loaded
}

/// The code in a cache file, if the file is what this module wrote.
fn code(file: &[u8]) -> Option<&[u8]> {
    let (header, code) = file.split_at_checked(HEADER)?;
    let (magic, digest) = header.split_at_checked(MAGIC.len())?;
    (magic == MAGIC && digest == Sha256::digest(code).as_slice()).then_some(code)
}

#[expect(unsafe_code, reason = "the one place where compiled code enters the process, see SAFETY")]
pub(crate) fn deserialize(engine: &wasmtime::Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the bytes must come from this version of wasmtime, unchanged. They were either just compiled by this
    // process, or read from a 0700 directory of this user under a name that contains the engine's compatibility hash, and
    // match the digest written with them. wasmtime checks its own version and settings in the header once more.
    unsafe { Component::deserialize(engine, code) }
}

fn file_name(engine: &wasmtime::Engine, digest: &[u8; 32]) -> String {
    let mut settings = Sha256Hasher(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut settings);
    format!("{}-{}.cwasm", hex(digest), hex(&settings.0.finalize()[..]))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Feeds `Hash` into SHA-256: the standard hasher's 64 bits are too few to name code by.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest::{self, sha256};

    fn engine() -> wasmtime::Engine {
        wasmtime::Engine::default()
    }

    fn compiled(cache: &Cache, bytes: &[u8]) {
        let engine = engine();
        cache.load_or_compile(&engine, &sha256(bytes), || engine.precompile_component(bytes)).unwrap();
    }

    fn cached(dir: &Path) -> PathBuf {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    #[test]
    fn keeps_code_privately_and_reuses_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cache");
        let cache = Cache::open(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        let bytes = test_guest::build("");
        compiled(&cache, &bytes);
        let path = cached(&dir);
        assert!(load(&engine(), &path).is_some());
        let before = fs::metadata(&path).unwrap().ino();
        compiled(&cache, &bytes);
        assert_eq!(fs::metadata(cached(&dir)).unwrap().ino(), before, "written again");
    }

    #[test]
    fn damaged_code_is_compiled_again() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let bytes = test_guest::build("");
        compiled(&cache, &bytes);
        let path = cached(root.path());
        let whole = fs::read(&path).unwrap();
        for damage in [whole.len() - 1, HEADER + 100, MAGIC.len(), 0] {
            let mut broken = whole.clone();
            broken[damage] ^= 1;
            fs::write(&path, &broken).unwrap();
            assert!(load(&engine(), &path).is_none(), "accepted with byte {damage} flipped");
            compiled(&cache, &bytes);
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
        fs::write(&path, &whole[..HEADER - 1]).unwrap();
        assert!(load(&engine(), &path).is_none());
    }

    #[test]
    fn a_directory_others_can_enter_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(Cache::open(root.path()), Err(CacheError::NotPrivate { .. })));
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(Cache::open(&file), Err(CacheError::NotADirectory { .. })));
    }

    #[test]
    fn another_configuration_has_another_name() {
        let other = wasmtime::Engine::new(wasmtime::Config::new().epoch_interruption(true)).unwrap();
        assert_ne!(file_name(&engine(), &[0; 32]), file_name(&other, &[0; 32]));
    }
}
