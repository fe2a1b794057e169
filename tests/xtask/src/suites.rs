//! The test suites by name, and what running one means.
//!
//! Holds: the list CI runs, in the order that shows a mistake soonest.
//! Never knows: how tests are written; it runs cargo and reads what libtest says.
//! Read next: `tally.rs`.

use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::command::{cargo, note, output, run as checked};
use crate::tally::Tally;
use crate::{Result, guests, machine, places, postgres, tidy};

/// What `cargo xtask test --help` says.
pub(crate) const DETAILS: &str = "\
Without a name it runs every suite, which is what CI runs. One profile (dev) serves them all.
  fmt          rustfmt on all workspaces
  tidy         the rules of the house, see `cargo xtask tidy --help`
  clippy       all targets of all workspaces, warnings are errors
  unit         tests inside the crates, doc tests, and the native tests of plugins/
  integration  host/*/tests and tests/* against real servers, Postgres 15 and 18; gets servers and builds guests first
--nightly runs the heavy forms: Postgres 15 to 18, and 4096 cases a property. What follows -- goes to each test
binary, such as part of a test's name. What cannot run is skipped with its reason; with CI=true it fails instead.
The last line is always `N passed, N failed, N skipped`.";

/// What a run was asked for.
#[derive(Debug, Default, PartialEq)]
struct Request {
    suites: Vec<&'static str>,
    nightly: bool,
    filter: Vec<String>,
}

type Suite = fn(&Request, &mut Tally);

/// Name and function of each suite; the cheap ones come first.
const SUITES: &[(&str, Suite)] =
    &[("fmt", fmt), ("tidy", tidy), ("clippy", clippy), ("unit", unit), ("integration", integration)];

/// Answers `cargo xtask test`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let request = parse(args)?;
    let mut tally = Tally::new(std::io::stdout());
    if let Err(error) = machine::need_c_compiler() {
        tally.missing("everything that compiles", &error, "install a C compiler", true);
    }
    for (name, suite) in SUITES.iter().filter(|(name, _)| request.suites.contains(name)) {
        tally.show(&format!("\n== {name}"));
        let start = Instant::now();
        suite(&request, &mut tally);
        note(&format!("{name} took {} s", start.elapsed().as_secs()));
    }
    let report = tally.report();
    tally.show(report.trim_end());
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse(args: &[String]) -> Result<Request> {
    let mut request = Request::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--nightly" => request.nightly = true,
            "--" => request.filter = args.by_ref().cloned().collect(),
            word => match SUITES.iter().find(|(name, _)| *name == word) {
                Some((name, _)) => request.suites.push(name),
                None => return Err(format!("there is no suite `{word}`; there are: {}", names().join(", "))),
            },
        }
    }
    if request.suites.is_empty() {
        request.suites = names();
    }
    Ok(request)
}

fn names() -> Vec<&'static str> {
    SUITES.iter().map(|(name, _)| *name).collect()
}

fn fmt(_: &Request, tally: &mut Tally) {
    if !has_component("fmt", tally) {
        return;
    }
    tally.check("fmt", checked(cargo().args(["fmt", "--check"])));
    for workspace in places::guest_workspaces() {
        let name = format!("fmt {}", short(&workspace));
        tally.check(&name, checked(cargo().args(["fmt", "--check"]).current_dir(workspace)));
    }
}

fn tidy(_: &Request, tally: &mut Tally) {
    tally.check("tidy", tidy::check());
}

fn clippy(_: &Request, tally: &mut Tally) {
    if !has_component("clippy", tally) {
        return;
    }
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    tally.check("clippy", checked(cargo().args(arguments)));
    for workspace in places::guest_workspaces() {
        let name = format!("clippy {}", short(&workspace));
        tally.check(&name, checked(cargo().args(arguments).current_dir(workspace)));
    }
}

fn unit(request: &Request, tally: &mut Tally) {
    let inner = ["test", "--workspace", "--lib", "--bins", "--no-fail-fast"];
    tally.libtest("unit", tests(request, cargo().args(inner)));
    tally.libtest("doc", tests(request, cargo().args(["test", "--workspace", "--doc", "--no-fail-fast"])));
    let plugins = places::checkout().join("plugins");
    if plugins.join("Cargo.toml").exists() {
        let command = ["test", "--workspace", "--no-fail-fast"];
        tally.libtest("plugins", tests(request, cargo().args(command).current_dir(plugins)));
    }
}

fn integration(request: &Request, tally: &mut Tally) {
    for major in majors(request) {
        if let Err(error) = postgres::ensure(*major) {
            let remedy = format!("cargo xtask postgres {major}");
            return tally.missing("integration", &error, &remedy, machine::is_ci());
        }
    }
    // A host that does not compile is a failure everywhere; a missing toolchain for guests is not.
    if let Err(error) = guests::build_binaries() {
        return tally.check("integration: build", Err(error));
    }
    if let Err(error) = guests::toolchain_is_here() {
        return tally.missing("integration", &error, "cargo xtask plugins", machine::is_ci());
    }
    if let Err(error) = guests::ensure() {
        return tally.check("integration: guests", Err(error));
    }
    // `--test` and a pattern: the test folders of every crate, and not once more the unit tests.
    let command = ["test", "--workspace", "--test", "*", "--no-fail-fast"];
    tally.libtest("integration", tests(request, cargo().args(command)));
}

fn majors(request: &Request) -> &'static [u32] {
    if request.nightly { &postgres::ALL } else { &postgres::TESTED }
}

/// Adds to a test command what tests read from their environment, and the filter.
fn tests<'a>(request: &Request, command: &'a mut Command) -> &'a mut Command {
    let list: Vec<String> = majors(request).iter().map(u32::to_string).collect();
    command.env("WALGATE_MAJORS", list.join(","));
    if request.nightly {
        command.env("WALGATE_NIGHTLY", "1").env("PROPTEST_CASES", "4096");
    }
    command.arg("--").args(&request.filter)
}

/// Whether cargo has this subcommand; a missing one is told with its remedy.
fn has_component(name: &str, tally: &mut Tally) -> bool {
    let found = output(cargo().args([name, "--version"])).is_ok();
    if !found {
        let remedy = format!("add the component to your toolchain (rustfmt, clippy), so that `cargo {name}` works");
        tally.missing(name, "this toolchain does not have it", &remedy, machine::is_ci());
    }
    found
}

/// A path as it is called inside the checkout.
fn short(path: &std::path::Path) -> String {
    path.strip_prefix(places::checkout()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Request> {
        parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn no_name_runs_everything() {
        assert_eq!(parsed(&[]).unwrap().suites, names());
        assert_eq!(parsed(&["--nightly"]).unwrap().suites, names());
    }

    #[test]
    fn names_flags_and_a_filter_are_told_apart() {
        let request = parsed(&["tidy", "--nightly", "unit", "--", "lsn", "--nocapture"]).unwrap();
        assert_eq!(request.suites, ["tidy", "unit"]);
        assert!(request.nightly);
        assert_eq!(request.filter, ["lsn", "--nocapture"]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert!(parsed(&["units"]).unwrap_err().contains("there are: fmt, tidy, clippy, unit, integration"));
    }

    #[test]
    fn the_help_names_every_suite() {
        for name in names() {
            assert!(DETAILS.contains(&format!("\n  {name} ")), "{name} is missing");
        }
    }
}
