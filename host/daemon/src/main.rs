//! The `walgate` binary: everything is in the library, so that it can be documented and tested.

use std::process::ExitCode;

fn main() -> ExitCode {
    walgate::cli::main()
}
