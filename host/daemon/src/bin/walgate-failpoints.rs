//! The `walgate` binary with points at which it ends itself: what the crash suite runs. Nobody deploys it.
//!
//! Holds: the same entry as `main.rs`. A binary of its own name, so that it never takes the place of the other one.
//! Read next: `tests/failpoint`.

use std::process::ExitCode;

fn main() -> ExitCode {
    walgate::cli::main()
}
