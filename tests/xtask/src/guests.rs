//! Guests: built for wasm32-unknown-unknown, encoded to components, kept in the cache until their sources change.
//!
//! Holds: which toolchain builds them, and when they are built again.
//! Never knows: how a module becomes a component; `walgate plugin build` does that.
//! Read next: `languages.rs` (guests that are not in Rust), `sdk/rust`, `plugins/`, `tests/programs/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use crate::command::{cargo, note, output, run as run_command};
use crate::fingerprint::Fingerprint;
use crate::{Result, languages, machine, places};

const TARGET: &str = "wasm32-unknown-unknown";

/// Debian's own compiler, its standard library's source and its linker for WebAssembly.
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "lld-19"];

/// Variables by which cargo and rustup bind their children to one toolchain; guests may need another.
const TOOLCHAIN_VARIABLES: &[&str] = &[
    "CARGO",
    "CARGO_ENCODED_RUSTFLAGS",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
];

/// Who compiles guests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Toolchain {
    /// The toolchain that runs xtask has the target.
    Own,
    /// Debian's packages, which bring the standard library as source.
    Debian,
}

/// Answers `cargo xtask plugins`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        return Err(format!("`{arg}` is not understood; this command takes nothing"));
    }
    machine::need_c_compiler()?;
    ensure()?;
    let missing = languages::ensure()?;
    println!("guests are in {}", places::guests().display());
    for language in missing {
        println!("without the guest in {}: {}; to build it: {}", language.language, language.why, language.remedy);
    }
    Ok(ExitCode::SUCCESS)
}

/// Added to a build of binaries: with any test in the selection cargo resolves the same features as for all tests, and the
/// heavy dependencies are built once. This one is small.
pub(crate) const AS_FOR_TESTS: [&str; 2] = ["--test", "allocations"];

/// Builds walgate and every other binary of the workspace, once in the life of this process.
pub(crate) fn build_binaries() -> Result<()> {
    static BUILT: OnceLock<Result<()>> = OnceLock::new();
    let build = || {
        note("building the binaries of the workspace");
        // The whole workspace in one selection, for the same reason.
        run_command(cargo().args(["build", "--workspace", "--bins"]).args(AS_FOR_TESTS))
    };
    BUILT.get_or_init(build).clone()
}

/// Makes sure every guest is in the cache as a component and up to date.
pub(crate) fn ensure() -> Result<()> {
    let toolchain = toolchain()?;
    let fingerprint = fingerprint(toolchain)?;
    let stamp = places::guests().join(".fingerprint");
    if is_current(&stamp, &fingerprint) {
        return Ok(());
    }
    build_binaries()?;
    let mut names = Vec::new();
    for workspace in places::guest_workspaces() {
        note(&format!("building the guests of {}", workspace.display()));
        run_command(builder(toolchain, &workspace).args(["build", "--release", "--workspace", "--target", TARGET]))?;
        for (name, module) in modules(&workspace)? {
            encode(&name, &module)?;
            names.push(name);
        }
    }
    note(&format!("{} guests are up to date", names.len()));
    let text = format!("{fingerprint}\n{}\n", names.join("\n"));
    fs::write(&stamp, text).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
}

/// Whether guests can be built on this machine; on Debian after installing what is missing.
pub(crate) fn toolchain_is_here() -> Result<()> {
    toolchain().map(|_| ())
}

/// Whether the stamp is of the same sources, and every component it names is still there.
fn is_current(stamp: &Path, fingerprint: &str) -> bool {
    let text = fs::read_to_string(stamp).unwrap_or_default();
    let mut lines = text.lines();
    lines.next() == Some(fingerprint) && lines.all(|name| stamp.with_file_name(format!("{name}.wasm")).exists())
}

fn fingerprint(toolchain: Toolchain) -> Result<String> {
    let mut fingerprint = Fingerprint::default();
    let rustc = if toolchain == Toolchain::Debian { "/usr/bin/rustc" } else { "rustc" };
    fingerprint.text(&output(Command::new(rustc).arg("--version"))?);
    let mut folders = places::guest_workspaces();
    folders.extend(["sdk/rust", "wit"].map(|folder| places::checkout().join(folder)));
    for folder in folders {
        fingerprint.folder(&folder)?;
    }
    Ok(fingerprint.finish())
}

/// Finds the toolchain, and on Debian installs it without asking.
fn toolchain() -> Result<Toolchain> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    if Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
        return Ok(Toolchain::Own);
    }
    if !has_debian_toolchain() && machine::is_debian() {
        machine::install(DEBIAN_PACKAGES).map_err(|error| format!("{error}, or {}", advice()))?;
    }
    if has_debian_toolchain() { Ok(Toolchain::Debian) } else { Err(format!("guests cannot be built: {}", advice())) }
}

fn advice() -> String {
    format!("add the target to your toolchain: rustup target add {TARGET}")
}

fn has_debian_toolchain() -> bool {
    let tools = ["/usr/bin/cargo", "/usr/bin/rustc", "/usr/bin/wasm-ld-19"];
    let sysroot = output(Command::new("/usr/bin/rustc").args(["--print", "sysroot"])).unwrap_or_default();
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/std/Cargo.toml");
    tools.iter().all(|tool| Path::new(tool).exists()) && library.exists()
}

/// A cargo that builds guests in the given workspace.
fn builder(toolchain: Toolchain, workspace: &Path) -> Command {
    let mut command = match toolchain {
        Toolchain::Own => cargo(),
        Toolchain::Debian => {
            let mut command = Command::new("/usr/bin/cargo");
            for name in TOOLCHAIN_VARIABLES {
                command.env_remove(name);
            }
            // Building the standard library is an unstable feature, which a stable compiler does when told so.
            command.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld-19");
            command.env("CARGO_UNSTABLE_BUILD_STD", "std,panic_abort");
            command
        }
    };
    command.env("CARGO_TARGET_DIR", places::guest_target()).current_dir(workspace);
    command
}

/// The modules that a workspace has built: component name → file.
fn modules(workspace: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let answer = output(cargo().current_dir(workspace).args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let folder = places::guest_target().join(TARGET).join("release");
    Ok(libraries(&answer)?.into_iter().map(|(name, file)| (name, folder.join(file))).collect())
}

/// Package name → file name of every package whose library is a dynamic one, from the answer of `cargo metadata`.
fn libraries(metadata: &str) -> Result<BTreeMap<String, String>> {
    let json: serde_json::Value =
        serde_json::from_str(metadata).map_err(|error| format!("cargo metadata answered no JSON: {error}"))?;
    let list = |value: &serde_json::Value, key: &str| value.get(key).and_then(|v| v.as_array()).cloned();
    let text = |value: &serde_json::Value, key: &str| value.get(key).and_then(|v| v.as_str()).map(str::to_owned);
    let mut found = BTreeMap::new();
    for package in list(&json, "packages").unwrap_or_default() {
        for target in list(&package, "targets").unwrap_or_default() {
            let dynamic = list(&target, "crate_types").unwrap_or_default().iter().any(|kind| kind == "cdylib");
            if let (true, Some(name), Some(library)) = (dynamic, text(&package, "name"), text(&target, "name")) {
                found.insert(name, format!("{}.wasm", library.replace('-', "_")));
            }
        }
    }
    Ok(found)
}

/// Makes a component of a module and moves it into place as the last step.
fn encode(name: &str, module: &Path) -> Result<()> {
    let folder = places::guests();
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let (partial, place) = (folder.join(format!(".{name}.wasm")), folder.join(format!("{name}.wasm")));
    let mut command = Command::new(places::binary("walgate"));
    command.args(["plugin", "build"]).arg(module).arg("-o").arg(&partial);
    output(&mut command).map_err(|error| format!("guest {name} was not encoded: {error}"))?;
    fs::rename(&partial, &place)
        .map_err(|error| format!("guest {name} was not encoded to {}: {error}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dynamic_libraries_are_guests() {
        let metadata = r#"{"packages":[
            {"name":"counter-rust","targets":[{"name":"counter_rust","crate_types":["cdylib","rlib"]}]},
            {"name":"trap-in-open","targets":[{"name":"trap-in-open","crate_types":["cdylib"]},{"name":"t","crate_types":["bin"]}]},
            {"name":"kit","targets":[{"name":"kit","crate_types":["lib"]}]}]}"#;
        let found: Vec<_> = libraries(metadata).unwrap().into_iter().collect();
        let expected = [("counter-rust", "counter_rust.wasm"), ("trap-in-open", "trap_in_open.wasm")];
        assert_eq!(found, expected.map(|(name, file)| (name.to_owned(), file.to_owned())));
    }

    #[test]
    fn a_stamp_is_current_while_sources_and_components_are() {
        let folder = std::env::temp_dir().join(format!("xtask-guests-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let stamp = folder.join(".fingerprint");
        fs::write(&stamp, "abc\none\n").unwrap();
        assert!(!is_current(&stamp, "abc"), "the component is missing");
        fs::write(folder.join("one.wasm"), "").unwrap();
        assert!(is_current(&stamp, "abc"));
        assert!(!is_current(&stamp, "abd"), "the sources have changed");
        fs::remove_dir_all(&folder).unwrap();
        assert!(!is_current(&stamp, "abc"), "there is no stamp");
    }
}
