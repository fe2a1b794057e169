//! Running other programs: cargo with the right folders, quiet tools, and progress for the person who waits.
//!
//! Holds: how a failed program becomes a message. Never knows: what the programs are for.
//! Read next: `machine.rs`.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Result, places};

/// Prints a line of progress to stderr, because stdout belongs to results.
pub(crate) fn note(text: &str) {
    eprintln!("xtask: {text}");
}

/// The cargo that runs this xtask, with the target folder and the cache set for it and all its children.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(places::checkout());
    // `cargo run` describes xtask's own package to xtask in these variables. ring's build script watches them: handed
    // on, they would rebuild it, and everything above it, whenever xtask and a person at the prompt take turns.
    for (name, _) in env::vars_os().filter(|(name, _)| describes_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    set_places(&mut command);
    command
}

fn describes_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|start| variable.starts_with(start))
        || variable == "CARGO_PRIMARY_PACKAGE"
}

/// Tells a program where things lie, so that what xtask fetched is what it finds.
pub(crate) fn set_places(command: &mut Command) {
    command.env("CARGO_TARGET_DIR", places::target()).env("WALGATE_CACHE", places::cache());
}

/// Runs a program to its end with its output on stderr; fails with its command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    // Everything that is set-up goes to stderr, so that `demo --json` can be piped.
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` failed with {status}")),
        Err(error) => Err(format!("`{line}` could not be started: {error}")),
    }
}

/// Runs a program and returns what it printed to stdout; fails with its command line and the end of its stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{line}` could not be started: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` failed with {}: {}", output.status, text.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name can be found in PATH.
pub(crate) fn exists(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The command line as a person would type it: the program without its folder.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_line_and_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert!(error.contains("`sh -c") && error.ends_with("no"), "{error}");
        assert!(run(&mut Command::new("no-such-program")).unwrap_err().contains("could not be started"));
    }

    #[test]
    fn cargo_is_not_told_about_the_package_of_xtask() {
        // Tests run under cargo too, so the variables are set here.
        assert!(env::var_os("CARGO_PKG_NAME").is_some() && env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = cargo();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(command.get_envs().any(|(key, value)| key == name && value.is_none()), "{name} is handed on");
        }
        assert!(!describes_package("CARGO_HOME") && !describes_package("CARGO_TARGET_DIR"));
    }

    #[test]
    fn programs_are_looked_for_in_path() {
        assert!(exists("sh") && !exists("no-such-program"));
    }
}
