//! Where things lie: the checkout, the caches, the target folders.
//!
//! Holds: the same defaults as `tests/harness/src/places.rs`, which reads what is put there.
//! Never knows: how anything gets there.
//! Read next: `postgres.rs`, `guests.rs`.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The root of the checkout that this xtask was built from.
pub(crate) fn checkout() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The folder for everything fetched or built outside the checkout: `WALGATE_CACHE`, else `/var/cache/walgate` for
/// root (the account that servers run under cannot read root's home), else the user's cache folder.
pub(crate) fn cache() -> PathBuf {
    path_var("WALGATE_CACHE").unwrap_or_else(|| {
        if is_root() {
            return PathBuf::from("/var/cache/walgate");
        }
        let home = path_var("XDG_CACHE_HOME").or_else(|| path_var("HOME").map(|home| home.join(".cache")));
        home.unwrap_or_else(env::temp_dir).join("walgate")
    })
}

/// The one target folder of host crates, tests and native tests of plugins.
pub(crate) fn target() -> PathBuf {
    path_var("CARGO_TARGET_DIR").unwrap_or_else(|| cache().join("target"))
}

/// The target folder of guests, which are built by another toolchain.
pub(crate) fn guest_target() -> PathBuf {
    cache().join("guest-target")
}

/// The encoded components.
pub(crate) fn guests() -> PathBuf {
    path_var("WALGATE_GUESTS").unwrap_or_else(|| cache().join("guests"))
}

/// What builds guests in other languages than Rust, one folder a language.
pub(crate) fn tools() -> PathBuf {
    cache().join("tools")
}

/// The servers, one folder a major version.
pub(crate) fn servers() -> PathBuf {
    path_var("WALGATE_POSTGRES").unwrap_or_else(|| cache().join("postgres"))
}

/// A built binary of the workspace.
pub(crate) fn binary(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// The guest workspaces that exist in this checkout.
pub(crate) fn guest_workspaces() -> Vec<PathBuf> {
    let folders = ["plugins", "tests/programs"].map(|folder| checkout().join(folder));
    folders.into_iter().filter(|folder| folder.join("Cargo.toml").exists()).collect()
}

/// Whether this process may install packages and must hand servers to another account.
pub(crate) fn is_root() -> bool {
    // The owner of /proc/self is the effective user; std has no other way to ask.
    fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// A variable that holds a path; empty counts as unset.
fn path_var(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkout_is_the_folder_with_the_workspace() {
        let manifest = fs::read_to_string(checkout().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
