//! Guests in other languages: built by the tools of each language, which are fetched once, pinned, into the cache.
//!
//! Holds: which languages there are, where their tools come from, and when a guest is built again. A language whose tools
//! cannot be had is told as missing; a guest that does not build is an error everywhere.
//! Never knows: what the guests do. Read next: `guests.rs`, the folders `tests/programs/counter-*`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{note, output};
use crate::fingerprint::Fingerprint;
use crate::{Result, machine, places};

/// The world of the contract that a sink is built against.
const WORLD: &str = "sink-plugin";

/// One language, with its guest.
struct Language {
    name: &'static str,
    /// The folder below `tests/programs`, and the name of the component.
    guest: &'static str,
    /// The files of that folder that pin the tools.
    pins: &'static [&'static str],
    /// How its tools get here by hand.
    remedy: &'static str,
    /// What is there once the tools are, below their folder.
    tool: &'static str,
    /// Fetches the tools into a folder: of the guest's sources, of the tools.
    fetch: fn(&Path, &Path) -> Result<()>,
    /// Builds a component: of the guest's sources, of the tools, the component.
    build: fn(&Path, &Path, &Path) -> Result<()>,
}

const LANGUAGES: [Language; 2] = [
    Language {
        name: "python",
        guest: "counter-python",
        pins: &["requirements.txt"],
        remedy: "install Python 3.9 or newer with venv (Debian: python3-venv), give pip a package index, and run: cargo \
                 xtask plugins",
        tool: "venv/bin/componentize-py",
        fetch: fetch_python,
        build: build_python,
    },
    Language {
        name: "javascript",
        guest: "counter-javascript",
        pins: &["package.json", "package-lock.json"],
        remedy: "install Node.js 20 or newer with npm (Debian: nodejs npm), give npm a registry, and run: cargo xtask \
                 plugins",
        tool: "node_modules/@bytecodealliance/componentize-js/package.json",
        fetch: fetch_javascript,
        build: build_javascript,
    },
];

/// A language whose guest cannot be built on this machine.
pub(crate) struct Missing {
    /// The name, which is part of the name of every test that needs its guest.
    pub(crate) language: &'static str,
    /// What keeps its tools away.
    pub(crate) why: String,
    /// How to get them.
    pub(crate) remedy: &'static str,
}

/// Makes sure that the guest of every language is in the cache and up to date; answers the languages whose tools are not
/// to be had.
///
/// Fails when a guest does not build.
pub(crate) fn ensure() -> Result<Vec<Missing>> {
    let mut missing = Vec::new();
    for language in &LANGUAGES {
        let source = places::checkout().join("tests/programs").join(language.guest);
        let guest = Guest::of(language.guest, &source)?;
        if guest.is_current() {
            continue;
        }
        // Nothing may take the guest of other sources for this one, whatever happens next.
        guest.forget()?;
        match tools(language, &source) {
            Ok(tools) => {
                note(&format!("building the guest {} (half a minute)", language.guest));
                guest.put(|partial| (language.build)(&source, &tools, partial))?;
            }
            Err(why) => {
                // The rest is what a package manager tells beside it.
                let why = why.lines().next().unwrap_or_default().to_owned();
                missing.push(Missing { language: language.name, why, remedy: language.remedy });
            }
        }
    }
    Ok(missing)
}

/// A component in the cache, and the stamp beside it that says what it was built from.
struct Guest {
    component: PathBuf,
    stamp: PathBuf,
    fingerprint: String,
}

impl Guest {
    /// The guest as these sources and the contract make it.
    fn of(name: &str, source: &Path) -> Result<Self> {
        let mut fingerprint = Fingerprint::default();
        fingerprint.folder(source)?;
        fingerprint.folder(&contract())?;
        Ok(Self::at(&places::guests(), name, fingerprint.finish()))
    }

    fn at(folder: &Path, name: &str, fingerprint: String) -> Self {
        let component = folder.join(format!("{name}.wasm"));
        Self { component, stamp: folder.join(format!(".{name}.fingerprint")), fingerprint }
    }

    fn is_current(&self) -> bool {
        self.component.exists() && fs::read_to_string(&self.stamp).is_ok_and(|text| text == self.fingerprint)
    }

    fn forget(&self) -> Result<()> {
        for path in [&self.stamp, &self.component].into_iter().filter(|path| path.exists()) {
            fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Builds it beside its place and moves it there as the last step but the stamp.
    fn put(&self, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let fail = |error| format!("cannot write {}: {error}", self.component.display());
        let folder = self.component.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(fail)?;
        let partial = self.stamp.with_extension("partial");
        build(&partial)?;
        fs::rename(&partial, &self.component).map_err(fail)?;
        fs::write(&self.stamp, &self.fingerprint).map_err(fail)
    }
}

/// The tools of a language, fetched when they are not there as the guest's sources pin them.
fn tools(language: &Language, source: &Path) -> Result<PathBuf> {
    let folder = places::tools().join(language.name);
    let stamp = folder.join(".fingerprint");
    let mut fingerprint = Fingerprint::default();
    for name in language.pins {
        let path = source.join(name);
        fingerprint
            .text(&fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?);
    }
    let fingerprint = fingerprint.finish();
    if folder.join(language.tool).exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == fingerprint) {
        return Ok(folder);
    }
    // In place, because a Python environment holds its own path; the stamp comes last.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    note(&format!("fetching what builds guests in {}", language.name));
    (language.fetch)(source, &folder)?;
    fs::write(&stamp, fingerprint).map_err(|error| format!("cannot write {}: {error}", stamp.display()))?;
    Ok(folder)
}

/// The folder of the contract's newest version.
fn contract() -> PathBuf {
    places::checkout().join("wit/v0.1")
}

fn fetch_python(source: &Path, tools: &Path) -> Result<()> {
    let environment = tools.join("venv");
    let make = |python: &str| output(Command::new(python).args(["-m", "venv", "--clear"]).arg(&environment)).map(drop);
    // Debian has Python without venv, and a machine may have another Python before Debian's.
    let made = make("python3")
        .or_else(|_| machine::install(&["python3", "python3-venv"]).and_then(|()| make("/usr/bin/python3")));
    made.map_err(|error| format!("there is no Python with venv: {error}"))?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    // A package without a wheel for this machine would be built from source, which is not what is pinned.
    pip.args(["--require-hashes", "--only-binary", ":all:", "--requirement"]).arg(source.join("requirements.txt"));
    output(&mut pip).map(drop)
}

fn build_python(source: &Path, tools: &Path, component: &Path) -> Result<()> {
    // Python leaves compiled files beside what it reads, which must not be the checkout.
    let work = tools.join("work");
    fs::create_dir_all(&work).map_err(|error| format!("cannot make {}: {error}", work.display()))?;
    copy(source, &work, &["app.py"])?;
    let environment = tools.join("venv");
    let mut command = Command::new(environment.join("bin/componentize-py"));
    command.env("VIRTUAL_ENV", &environment).current_dir(&work).arg("--wit-path").arg(contract());
    command.args(["--world", WORLD, "componentize", "app", "--output"]).arg(component);
    output(&mut command).map(drop)
}

fn fetch_javascript(source: &Path, tools: &Path) -> Result<()> {
    machine::need_npm()?;
    copy(source, tools, &["package.json", "package-lock.json"])?;
    let mut npm = Command::new("npm");
    npm.current_dir(tools).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    output(&mut npm).map(drop)
}

fn build_javascript(source: &Path, tools: &Path, component: &Path) -> Result<()> {
    // Node finds packages beside the script that imports them.
    copy(source, tools, &["build.mjs", "counter.js"])?;
    let mut node = Command::new("node");
    node.current_dir(tools).args(["build.mjs", "counter.js"]).arg(contract()).arg(component);
    output(&mut node).map(drop)
}

fn copy(from: &Path, to: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let path = to.join(name);
        fs::copy(from.join(name), &path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_built_when_its_sources_change_and_only_then() {
        let folder = std::env::temp_dir().join(format!("xtask-languages-{}", std::process::id()));
        let guest = Guest::at(&folder, "counter", "one".to_owned());
        assert!(!guest.is_current());
        let write = |partial: &Path| fs::write(partial, "component").map_err(|error| error.to_string());
        guest.put(write).unwrap();
        assert!(guest.is_current());
        let changed = Guest::at(&folder, "counter", "two".to_owned());
        assert!(!changed.is_current());
        // A build that fails leaves nothing that could be taken for it.
        changed.forget().unwrap();
        assert!(changed.put(|_| Err("no".to_owned())).is_err());
        assert!(!guest.component.exists() && !guest.is_current() && !changed.is_current());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn everything_that_is_fetched_is_pinned_and_no_registry_is_named() {
        for language in &LANGUAGES {
            let source = places::checkout().join("tests/programs").join(language.guest);
            for name in language.pins {
                let text = fs::read_to_string(source.join(name)).unwrap();
                assert!(!text.contains("\"resolved\"") && !text.contains("--index-url"), "{name} names a registry");
                let digests = text.matches("--hash=sha256:").count() + text.matches("\"integrity\"").count();
                assert!(digests > 0 || *name == "package.json", "{name} has no digest");
            }
        }
    }
}
