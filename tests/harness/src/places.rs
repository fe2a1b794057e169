//! Where built and fetched things lie: caches, servers, guests, the walgate binary, a free port.
//!
//! Holds: the same defaults as `cargo xtask`, which fills these places.
//! Never knows: how to build or fetch anything; each error names the command that does.
//! Read next: `tests/xtask/src/places.rs`, the other side of the same convention.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The folder for everything fetched or built outside the checkout.
///
/// `WALGATE_CACHE` when set. Else `/var/cache/walgate` for root, because a server runs as another user, who cannot
/// read root's home; else `$XDG_CACHE_HOME/walgate` or `~/.cache/walgate`.
pub fn cache_root() -> PathBuf {
    if let Some(path) = path_var("WALGATE_CACHE") {
        return path;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/cache/walgate");
    }
    path_var("XDG_CACHE_HOME")
        .or_else(|| path_var("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("walgate")
}

/// The cargo target folder: `CARGO_TARGET_DIR` when set, else `target` in [`cache_root`].
pub fn target_dir() -> PathBuf {
    path_var("CARGO_TARGET_DIR").unwrap_or_else(|| cache_root().join("target"))
}

/// The `bin` folder of a Postgres major version: `WALGATE_POSTGRES`/`major`/`bin`, else the same in the cache.
///
/// Errors name the command that fetches the server.
pub fn postgres_bin(major: u32) -> Result<PathBuf> {
    let root = path_var("WALGATE_POSTGRES").unwrap_or_else(|| cache_root().join("postgres"));
    let bin = root.join(major.to_string()).join("bin");
    if !bin.join("initdb").exists() {
        bail!("Postgres {major} is not in {}; run: cargo xtask postgres {major}", root.display());
    }
    Ok(bin)
}

/// The major versions a test of all versions runs on: `WALGATE_MAJORS` (as in `15,18`), else 15 and 18.
///
/// `cargo xtask test` sets the variable; its nightly form names 15 to 18.
pub fn majors() -> Vec<u32> {
    parse_majors(&env::var("WALGATE_MAJORS").unwrap_or_default())
}

fn parse_majors(text: &str) -> Vec<u32> {
    let named: Vec<u32> = text.split(',').filter_map(|word| word.trim().parse().ok()).collect();
    if named.is_empty() { vec![15, 18] } else { named }
}

/// The encoded component of a guest: `WALGATE_GUESTS`/`name`.wasm, else the same in the cache's `guests`.
///
/// Errors name the command that builds the guests.
pub fn guest(name: &str) -> Result<PathBuf> {
    let root = path_var("WALGATE_GUESTS").unwrap_or_else(|| cache_root().join("guests"));
    let path = root.join(format!("{name}.wasm"));
    if !path.exists() {
        bail!("guest {name} is not built ({} is missing); run: cargo xtask plugins", path.display());
    }
    Ok(path)
}

/// The built `walgate` binary: `WALGATE_BIN` when set, else beside the running test, else in [`target_dir`].
///
/// Errors name the command that builds it.
pub fn walgate_bin() -> Result<PathBuf> {
    binary("WALGATE_BIN", "walgate", "cargo build --package walgate")
}

/// The built `walgate-failpoints` binary: `WALGATE_FAILPOINTS_BIN` when set, else as for [`walgate_bin`].
///
/// Errors name the command that builds it.
pub fn failpoints_bin() -> Result<PathBuf> {
    binary("WALGATE_FAILPOINTS_BIN", "walgate-failpoints", "cargo xtask test crash")
}

fn binary(variable: &str, name: &str, build: &str) -> Result<PathBuf> {
    if let Some(path) = path_var(variable) {
        return Ok(path);
    }
    // A test binary lies in <target>/debug/deps, an ordinary one in <target>/debug.
    let running = env::current_exe().context("cannot tell where this program lies")?;
    let beside = running.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let default = target_dir().join("debug").join(name);
    match beside.chain([default]).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("the {name} binary is not built; run: {build}"),
    }
}

/// A TCP port on 127.0.0.1 that nobody held a moment ago.
///
/// Another process may take it before its user does; [`crate::Cluster`] tries another port when that happens.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind a port on 127.0.0.1")?;
    Ok(listener.local_addr().context("cannot read the bound port")?.port())
}

/// A variable that holds a path; empty counts as unset.
fn path_var(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_names_the_command() {
        let error = postgres_bin(7).unwrap_err().to_string();
        assert!(error.contains("cargo xtask postgres 7"), "{error}");
    }

    #[test]
    fn a_missing_guest_names_the_command() {
        let error = guest("no-such-guest").unwrap_err().to_string();
        assert!(error.contains("cargo xtask plugins"), "{error}");
    }

    #[test]
    fn versions_are_the_named_ones_or_the_two_ends() {
        assert_eq!(parse_majors("16, 17"), [16, 17]);
        assert_eq!(parse_majors(""), [15, 18]);
    }

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free_port().unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
