//! Commands that another binary of this repository answers: the demo and the benchmark.
//!
//! Holds: what must be in place first, and handing flags, stdin, stdout and exit code through.
//! Never knows: what those binaries do.
//! Read next: `tests/demo`, `tests/bench`.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::command::{note, set_places};
use crate::{Result, guests, languages, machine, places, postgres};

/// Answers `cargo xtask demo`.
pub(crate) fn demo(args: &[String]) -> Result<ExitCode> {
    prepare()?;
    if let Err(error) = postgres::ensure(18) {
        note(&format!("{error}; using Postgres 15"));
        postgres::ensure(15)?;
    }
    hand_over("walgate-demo", args)
}

/// Answers `cargo xtask bench`.
pub(crate) fn bench(args: &[String]) -> Result<ExitCode> {
    prepare()?;
    // The benchmark says what it leaves out without them.
    languages::ensure()?;
    postgres::ensure(18)?;
    hand_over("walgate-bench", args)
}

fn prepare() -> Result<()> {
    machine::need_c_compiler()?;
    guests::build_binaries()?;
    guests::ensure()
}

/// Becomes a built binary: signals, output and exit code are its own from here on.
pub(crate) fn hand_over(name: &str, args: &[String]) -> Result<ExitCode> {
    let path = places::binary(name);
    let mut command = Command::new(&path);
    command.args(args);
    set_places(&mut command);
    Err(format!("cannot start {}: {}", path.display(), command.exec()))
}
