//! The test suites by name, and what running one means.
//!
//! Holds: the list CI runs, in the order that shows a mistake soonest.
//! Never knows: how tests are written; it runs cargo and reads what libtest says.
//! Read next: `tally.rs`.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::command::{cargo, note, output, run as checked};
use crate::tally::Tally;
use crate::{Result, guests, languages, machine, places, postgres, tidy};

/// What `cargo xtask test --help` says.
pub(crate) const DETAILS: &str = "\
Without a name it runs every suite, which is what CI runs. One profile (dev) serves them all.
  fmt          rustfmt on all workspaces
  tidy         the rules of the house, see `cargo xtask tidy --help`
  clippy       all targets of all workspaces, warnings are errors
  unit         tests inside the crates, doc tests, and the native tests of plugins/
  integration  host/*/tests and tests/* against real servers, Postgres 15 and 18; gets servers and builds guests first
  crash        walgate, its source, its state and its targets killed under load in every delivery mode, while two processes
               take turns and while rows are refused; a ledger proves that nothing was lost or repeated; prints its seed,
               WALGATE_CRASH_SEED repeats it
  plugins      the part of integration that is about plugins: grants, limits, bad ones, swaps; runs only when it is named
--nightly runs the heavy forms: Postgres 15 to 18, 4096 cases a property, 1000 random kills instead of 50. What follows -- goes to each test
binary, such as part of a test's name. What cannot run is skipped with its reason; with CI=true it fails instead.
The last line is always `N passed, N failed, N skipped`.";

/// The test target of the crash suite.
const CRASH: &str = "crash";

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
    &[("fmt", fmt), ("tidy", tidy), ("clippy", clippy), ("unit", unit), ("integration", integration), ("crash", crash)];

/// Parts of others, for whoever works on them.
const PARTS: &[(&str, Suite)] = &[("plugins", plugins)];

/// The modules of the integration tests that are about plugins.
const OF_PLUGINS: [&str; 11] = [
    "bad_plugins::",
    "directory::",
    "grants::",
    "hostile::",
    "languages::",
    "recycling::",
    "probation::",
    "swaps::",
    "trust::",
    "values::",
    "webhook::",
];

/// Answers `cargo xtask test`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let request = parse(args)?;
    let mut tally = Tally::new(std::io::stdout());
    if let Err(error) = machine::need_c_compiler() {
        tally.missing("everything that compiles", &error, "install a C compiler", true);
    }
    for (name, suite) in SUITES.iter().chain(PARTS).filter(|(name, _)| request.suites.contains(name)) {
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
            word => match SUITES.iter().chain(PARTS).find(|(name, _)| *name == word) {
                Some((name, _)) => request.suites.push(name),
                None => return Err(format!("there is no suite `{word}`; there are: {}", known().join(", "))),
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

/// Those of [`PARTS`], too.
fn known() -> Vec<&'static str> {
    SUITES.iter().chain(PARTS).map(|(name, _)| *name).collect()
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
    if !servers_and_guests("integration", request, tally) {
        return;
    }
    let Some(left_out) = other_languages("integration", tally) else { return };
    // By name: the test folders of every crate, and not once more the unit tests. A package is not left out of the
    // selection, because cargo would then resolve other features and build the heavy dependencies once more.
    let named = match test_targets() {
        Ok(named) => named,
        Err(error) => return tally.check("integration: targets", Err(error)),
    };
    let targets = named.iter().filter(|name| *name != CRASH).flat_map(|name| ["--test", name]);
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).args(targets);
    tally.libtest("integration", tests(request, &mut command).args(left_out));
}

fn plugins(request: &Request, tally: &mut Tally) {
    if !servers_and_guests("plugins", request, tally) {
        return;
    }
    let Some(left_out) = other_languages("plugins", tally) else { return };
    let test = ["test", "--workspace", "--no-fail-fast", "--test"];
    tally.libtest("plugins: host", tests(request, cargo().args(test).arg("guests")).args(&left_out));
    let mut command = cargo();
    let command = tests(request, command.args(test).arg("integration")).args(OF_PLUGINS).args(&left_out);
    tally.libtest("plugins: integration", command);
}

fn crash(request: &Request, tally: &mut Tally) {
    if !servers_and_guests("crash", request, tally) {
        return;
    }
    // Under a name of its own, so that the binary everything else runs stays the one without points.
    let bin = ["build", "--workspace", "--bin", "walgate-failpoints", "--features", "walgate/failpoints"];
    let build = bin.into_iter().chain(guests::AS_FOR_TESTS);
    if let Err(error) = checked(cargo().args(build)) {
        return tally.check("crash: build", Err(error));
    }
    tally.libtest("crash", tests(request, cargo().args(["test", "--workspace", "--test", CRASH, "--no-fail-fast"])));
}

/// The names of all test targets of the workspace.
fn test_targets() -> Result<BTreeSet<String>> {
    let answer = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let answer: serde_json::Value =
        serde_json::from_str(&answer).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = answer["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    Ok(tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect())
}

/// Makes sure that what tests on real servers need is there; else says why the suite is not run.
fn servers_and_guests(suite: &str, request: &Request, tally: &mut Tally) -> bool {
    for major in majors(request) {
        if let Err(error) = postgres::ensure(*major) {
            tally.missing(suite, &error, &format!("cargo xtask postgres {major}"), machine::is_ci());
            return false;
        }
    }
    // A host that does not compile is a failure everywhere; a missing toolchain for guests is not.
    if let Err(error) = guests::build_binaries() {
        tally.check(&format!("{suite}: build"), Err(error));
        return false;
    }
    if let Err(error) = guests::toolchain_is_here() {
        tally.missing(suite, &error, "cargo xtask plugins", machine::is_ci());
        return false;
    }
    if let Err(error) = guests::ensure() {
        tally.check(&format!("{suite}: guests"), Err(error));
        return false;
    }
    true
}

/// Makes sure that guests in other languages are there, and answers the flags that leave out the tests of a language whose
/// tools are not to be had: left out by libtest, so that they are told as skipped and not counted as passed. None when a
/// guest does not build.
fn other_languages(suite: &str, tally: &mut Tally) -> Option<Vec<&'static str>> {
    let missing = match languages::ensure() {
        Ok(missing) => missing,
        Err(error) => {
            tally.check(&format!("{suite}: guests in other languages"), Err(error));
            return None;
        }
    };
    for one in &missing {
        let which = format!("{suite}: tests with {} in their name", one.language);
        tally.missing(&which, &one.why, one.remedy, machine::is_ci());
    }
    Some(missing.iter().flat_map(|one| ["--skip", one.language]).collect())
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
        assert!(
            parsed(&["units"]).unwrap_err().contains("there are: fmt, tidy, clippy, unit, integration, crash, plugins")
        );
    }

    #[test]
    fn the_help_names_every_suite() {
        for name in known() {
            assert!(DETAILS.contains(&format!("\n  {name} ")), "{name} is missing");
        }
    }
}
