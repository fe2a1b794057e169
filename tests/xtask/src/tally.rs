//! Counts what a test run has shown, and says it: failures by name, skips with their reason, one last line.
//!
//! Holds: reading libtest's output. Never knows: which suites there are.
//! Read next: `suites.rs`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};

use crate::Result;

/// Something that was not run.
struct Skip {
    which: String,
    why: String,
    remedy: String,
}

/// The sums of a run.
pub(crate) struct Tally {
    /// Where the run is shown while it goes on.
    out: Box<dyn Write>,
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
    skips: Vec<Skip>,
}

impl Tally {
    /// A run that has shown nothing yet, and that is shown on `out`.
    pub(crate) fn new(out: impl Write + 'static) -> Self {
        let (failures, skips) = (Vec::new(), Vec::new());
        Self { out: Box::new(out), passed: 0, failed: 0, skipped: 0, failures, skips }
    }

    /// Shows a line. A closed output (`| head`) does not end the run: its exit code still counts.
    pub(crate) fn show(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
    }

    /// Counts one check that is not a libtest, by its outcome.
    pub(crate) fn check(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => {
                self.show(&format!("{name} ... ok"));
                self.passed += 1;
            }
            Err(error) => {
                self.show(&format!("{name} ... FAILED: {error}"));
                self.fail(format!("{name}: {error}"));
            }
        }
    }

    /// Counts something that could not be run: a failure in CI, where everything must be there, else a skip.
    pub(crate) fn missing(&mut self, which: &str, why: &str, remedy: &str, ci: bool) {
        if ci {
            self.fail(format!("{which}: {why} (CI skips nothing; {remedy})"));
        } else {
            self.skip(which, why, remedy);
        }
    }

    /// Runs a cargo test command, shows its output as it comes and counts what libtest reports.
    ///
    /// A run that fails without a failed test (it did not compile, or a test brought the process down) is one failure.
    pub(crate) fn libtest(&mut self, name: &str, command: &mut Command) {
        let before = self.failed;
        match self.stream(name, command) {
            Ok(status) if status.success() => {}
            Ok(status) if self.failed == before => self.fail(format!("{name}: cargo test ended with {status}")),
            Ok(_) => {}
            Err(error) => self.fail(format!("{name}: {error}")),
        }
    }

    /// Whether nothing has failed, and there was something: a filter that matches no test proves nothing.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0 && self.passed + self.skipped > 0
    }

    /// Everything worth saying at the end; the last line is the sum.
    pub(crate) fn report(&self) -> String {
        let mut text = String::from("\n");
        if self.passed + self.failed + self.skipped == 0 {
            text += "no test was run, which counts as a failure: does the filter match any name?\n";
        }
        for skip in &self.skips {
            text += &format!("skipped: {}: {}; to run it: {}\n", skip.which, skip.why, skip.remedy);
        }
        for failure in &self.failures {
            text += &format!("failed: {failure}\n");
        }
        text + &format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped)
    }

    fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    fn skip(&mut self, which: &str, why: &str, remedy: &str) {
        self.skipped += 1;
        self.skips.push(Skip { which: which.to_owned(), why: why.to_owned(), remedy: remedy.to_owned() });
    }

    fn stream(&mut self, name: &str, command: &mut Command) -> Result<ExitStatus> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("cargo could not be started: {error}"))?;
        let output = child.stdout.take().ok_or("cargo has no output")?;
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("cargo's output could not be read: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            self.line(name, &line);
            self.show(&line);
        }
        child.wait().map_err(|error| format!("cargo could not be waited for: {error}"))
    }

    /// Takes one line of libtest's output into account.
    fn line(&mut self, name: &str, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            // Ignored tests are counted line by line below, where their names are.
            self.passed += count(counts, "passed");
            let listed = count(counts, "failed");
            self.failed += listed;
        } else if let Some((test, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            if outcome == "FAILED" {
                self.failures.push(format!("{name}: {test}"));
            } else if let Some(reason) = outcome.strip_prefix("ignored") {
                let why = reason.trim_start_matches([',', ' ']);
                self.skip(
                    &format!("{name}: {test}"),
                    if why.is_empty() { "ignored" } else { why },
                    "-- --include-ignored",
                );
            }
        }
    }
}

/// The number before a word in `ok. 3 passed; 1 failed; …`.
fn count(counts: &str, word: &str) -> u64 {
    let mut previous = "";
    for token in counts.split([' ', ';']).filter(|token| !token.is_empty()) {
        if token == word {
            return previous.parse().unwrap_or(0);
        }
        previous = token;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shown nowhere: a run that reads this test's output must not count what is made up here.
    fn tally() -> Tally {
        Tally::new(std::io::sink())
    }

    fn last_line(tally: &Tally) -> String {
        tally.report().lines().last().unwrap().to_owned()
    }

    #[test]
    fn libtest_lines_are_summed_over_binaries() {
        let mut tally = tally();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test a::d ... ignored, needs a terminal",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.00s",
        ] {
            tally.line("unit", line);
        }
        let report = tally.report();
        assert!(report.contains("failed: unit: a::c\n"), "{report}");
        assert!(report.contains("skipped: unit: a::d: needs a terminal; to run it: "), "{report}");
        assert_eq!(last_line(&tally), "41 passed, 1 failed, 1 skipped");
        assert!(!tally.is_good());
    }

    #[test]
    fn a_run_that_dies_without_a_failed_test_is_a_failure() {
        let mut tally = tally();
        tally.libtest("unit", Command::new("sh").args(["-c", "echo 'test x ... '; exit 101"]));
        assert_eq!(last_line(&tally), "0 passed, 1 failed, 0 skipped");
        tally.libtest("unit", &mut Command::new("no-such-program"));
        assert_eq!(last_line(&tally), "0 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn a_run_of_nothing_is_not_good() {
        let mut tally = tally();
        tally
            .line("unit", "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0s");
        assert!(!tally.is_good() && tally.report().contains("no test was run"));
        assert_eq!(last_line(&tally), "0 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn a_failed_test_is_counted_once() {
        let mut tally = tally();
        let script = "echo 'test x ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; exit 101";
        tally.libtest("unit", Command::new("sh").args(["-c", script]));
        assert_eq!(last_line(&tally), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn what_is_missing_is_a_skip_on_a_desk_and_a_failure_in_ci() {
        let mut tally = tally();
        tally.missing("integration", "no Postgres 18", "cargo xtask postgres 18", false);
        assert!(tally.is_good() && last_line(&tally) == "0 passed, 0 failed, 1 skipped");
        assert!(tally.report().contains("integration: no Postgres 18; to run it: cargo xtask postgres 18"));
        tally.missing("integration", "no Postgres 18", "cargo xtask postgres 18", true);
        assert!(!tally.is_good());
    }
}
