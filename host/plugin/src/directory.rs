//! What lies in the plugin directory: `<name>/plugin.wasm` with `plugin.toml`, or a bare `<name>.wasm` that waits.
//!
//! Holds: the naming rules and what is ignored. Refuses to know what is inside the files. One bad entry never hides the
//! others: each is reported with its own state. Read next: [`crate::Manifest`] and [`crate::Component`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::component::MAX_COMPONENT_BYTES;
use crate::error::Class;

/// The directory itself cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the plugin directory {} cannot be read; check [plugins] dir and its permissions", path.display())]
pub struct ScanError {
    /// The directory.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl ScanError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// One entry of the directory that means to be a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its name: the folder's, or the file's without `.wasm`.
    pub name: String,
    /// The component.
    pub wasm: PathBuf,
    /// Its plugin.toml, there or still missing.
    pub manifest: PathBuf,
    /// Whether it can be started.
    pub state: FoundState,
}

/// Whether an entry can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    /// Component and plugin.toml are there.
    Ready,
    /// plugin.toml is missing; `walgate plugin inspect` prints one to start from.
    AwaitingGrant,
    /// It will not be started.
    Refused(Refusal),
}

/// Why an entry is not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The name breaks the rule.
    #[error("a plugin name is 1 to 40 of a-z, 0-9 and -, not beginning with -; rename it")]
    Name,
    /// The folder has no component.
    #[error("the folder has no plugin.wasm; put the component there under that name")]
    NoComponent,
    /// A link leads out of the directory.
    #[error("a link leads out of the plugin directory; copy the file in instead")]
    OutsideLink,
    /// It is not a plain file.
    #[error("it is not a regular file")]
    NotAFile,
    /// The file is too large.
    #[error("the component is larger than {} MiB; strip debug information from it", MAX_COMPONENT_BYTES >> 20)]
    TooLarge,
    /// Two entries have one name.
    #[error("there is a folder of the same name; move this file into it as plugin.wasm, or remove one of the two")]
    Duplicate,
    /// The system refused to tell.
    #[error("it cannot be read ({0}); check its permissions")]
    Unreadable(io::ErrorKind),
}

/// Lists the plugins in a directory, by name. Dotfiles and `*.tmp` are ignored, so that files can be written in place and
/// renamed; other files that do not end in `.wasm` are ignored as well.
///
/// # Errors
/// Only when the directory itself cannot be read.
pub fn scan(dir: &Path) -> Result<Vec<Found>, ScanError> {
    let failed = |source| ScanError { path: dir.to_owned(), source };
    let root = fs::canonicalize(dir).map_err(failed)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        found.extend(look(&root, &path));
    }
    // Folders sort before files of the same name, so the file is the one that is refused.
    found.sort_by(|a, b| (&a.name, is_bare(a)).cmp(&(&b.name, is_bare(b))));
    let mut previous: Option<String> = None;
    for entry in &mut found {
        if previous.as_deref() == Some(&entry.name) {
            entry.state = FoundState::Refused(Refusal::Duplicate);
        }
        previous = Some(entry.name.clone());
    }
    Ok(found)
}

fn is_bare(found: &Found) -> bool {
    found.wasm.file_name().is_none_or(|name| name != "plugin.wasm")
}

/// None for an entry that does not mean to be a plugin.
fn look(root: &Path, path: &Path) -> Option<Found> {
    let file_name = path.file_name()?.to_string_lossy().into_owned();
    if file_name.starts_with('.') || file_name.ends_with(".tmp") {
        return None;
    }
    let folder = path.is_dir();
    let name = if folder { file_name.clone() } else { file_name.strip_suffix(".wasm")?.to_owned() };
    let (wasm, manifest) = if folder {
        (path.join("plugin.wasm"), path.join("plugin.toml"))
    } else {
        (path.to_owned(), path.with_file_name(&name).join("plugin.toml"))
    };
    let state = match check(root, &name, &wasm, folder) {
        Err(refusal) => FoundState::Refused(refusal),
        Ok(()) if !folder || !exists(&manifest) => FoundState::AwaitingGrant,
        Ok(()) => match inside(root, &manifest) {
            Err(refusal) => FoundState::Refused(refusal),
            Ok(_) => FoundState::Ready,
        },
    };
    Some(Found { name, wasm, manifest, state })
}

fn check(root: &Path, name: &str, wasm: &Path, folder: bool) -> Result<(), Refusal> {
    if !good_name(name) {
        return Err(Refusal::Name);
    }
    if folder && let Err(error) = fs::symlink_metadata(wasm) {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => Refusal::NoComponent,
            kind => Refusal::Unreadable(kind),
        });
    }
    let real = inside(root, wasm)?;
    let meta = fs::metadata(real).map_err(|error| Refusal::Unreadable(error.kind()))?;
    match meta {
        meta if !meta.is_file() => Err(Refusal::NotAFile),
        meta if meta.len() > MAX_COMPONENT_BYTES => Err(Refusal::TooLarge),
        _ => Ok(()),
    }
}

/// Also true for a link that leads nowhere: it is there, and `inside` says what is wrong with it.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The real path, if it lies in the directory.
fn inside(root: &Path, path: &Path) -> Result<PathBuf, Refusal> {
    let real = fs::canonicalize(path).map_err(|error| Refusal::Unreadable(error.kind()))?;
    if real.starts_with(root) { Ok(real) } else { Err(Refusal::OutsideLink) }
}

/// Whether a plugin may be called so.
pub fn good_name(name: &str) -> bool {
    (1..=40).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn states(dir: &Path) -> Vec<(String, FoundState)> {
        scan(dir).unwrap().into_iter().map(|f| (f.name, f.state)).collect()
    }

    fn plugin(dir: &Path, name: &str) {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("plugin.wasm"), "x").unwrap();
        fs::write(dir.join(name).join("plugin.toml"), "").unwrap();
    }

    #[test]
    fn finds_every_kind_and_hides_none_behind_a_bad_one() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        plugin(dir, "good");
        plugin(dir, "Bad Name");
        fs::write(dir.join("bare.wasm"), "x").unwrap();
        fs::write(dir.join("good.wasm"), "x").unwrap();
        fs::create_dir(dir.join("empty")).unwrap();
        fs::create_dir(dir.join("waiting")).unwrap();
        fs::write(dir.join("waiting/plugin.wasm"), "x").unwrap();
        for ignored in [".hidden.wasm", "half.wasm.tmp", "README.md"] {
            fs::write(dir.join(ignored), "x").unwrap();
        }
        let refused = FoundState::Refused;
        assert_eq!(
            states(dir),
            [
                ("Bad Name".to_owned(), refused(Refusal::Name)),
                ("bare".to_owned(), FoundState::AwaitingGrant),
                ("empty".to_owned(), refused(Refusal::NoComponent)),
                ("good".to_owned(), FoundState::Ready),
                ("good".to_owned(), refused(Refusal::Duplicate)),
                ("waiting".to_owned(), FoundState::AwaitingGrant),
            ]
        );
    }

    #[test]
    fn links_stay_inside() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = root.path();
        plugin(outside.path(), "elsewhere");
        fs::create_dir(dir.join("link-in")).unwrap();
        plugin(dir, "real");
        symlink(dir.join("real/plugin.wasm"), dir.join("link-in/plugin.wasm")).unwrap();
        symlink(dir.join("real/plugin.toml"), dir.join("link-in/plugin.toml")).unwrap();
        symlink(outside.path().join("elsewhere"), dir.join("link-out")).unwrap();
        fs::create_dir(dir.join("toml-out")).unwrap();
        fs::write(dir.join("toml-out/plugin.wasm"), "x").unwrap();
        symlink(outside.path().join("elsewhere/plugin.toml"), dir.join("toml-out/plugin.toml")).unwrap();
        symlink("/nowhere/at/all", dir.join("dangling.wasm")).unwrap();
        let refused = FoundState::Refused;
        assert_eq!(
            states(dir),
            [
                ("dangling".to_owned(), refused(Refusal::Unreadable(io::ErrorKind::NotFound))),
                ("link-in".to_owned(), FoundState::Ready),
                ("link-out".to_owned(), refused(Refusal::OutsideLink)),
                ("real".to_owned(), FoundState::Ready),
                ("toml-out".to_owned(), refused(Refusal::OutsideLink)),
            ]
        );
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_it() {
        let error = scan(Path::new("/nowhere/plugins")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/plugins"), "{error}");
    }

    #[test]
    fn an_oversized_component_is_refused_unread() {
        let root = tempfile::tempdir().unwrap();
        plugin(root.path(), "huge");
        let file = fs::File::create(root.path().join("huge/plugin.wasm")).unwrap();
        file.set_len(MAX_COMPONENT_BYTES + 1).unwrap();
        assert_eq!(states(root.path()), [("huge".to_owned(), FoundState::Refused(Refusal::TooLarge))]);
    }
}
