//! `cargo xtask …`: how people and CI run everything in this repository.
//!
//! Holds: the commands, their help, and which function answers each.
//! Never knows: walgate itself; it drives cargo and the built binaries as other processes.
//! Read next: `suites.rs` (what `test` runs), `postgres.rs` and `guests.rs` (what it sets up).

mod command;
mod fingerprint;
mod forward;
mod guests;
mod languages;
mod machine;
mod places;
mod postgres;
mod suites;
mod tally;
mod tidy;

use std::env;
use std::process::ExitCode;

/// What went wrong, as a sentence for the person who ran the command.
type Result<T> = std::result::Result<T, String>;

/// One command: how it is called, what it does, how long it takes, and what answers it.
struct Task {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    takes: &'static str,
    details: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
}

const TASKS: &[Task] = &[
    Task {
        name: "demo",
        usage: "demo [--once] [--json]",
        about: "shows walgate at work on a throwaway Postgres",
        takes: "first time about 12 min, mostly building; then seconds",
        details: "Builds walgate and the guests, gets Postgres 18 (15 when 18 is not to be had) and starts the demo.\n\
                  --once stops after one round. --json prints the result as JSON, and nothing else, to stdout.\n\
                  Every other flag goes to the demo as it is.",
        run: forward::demo,
    },
    Task {
        name: "test",
        usage: "test [SUITE…] [--nightly] [-- FILTER]",
        about: "runs what CI runs, or only the named suites",
        takes: "cold under 45 min, warm under 20 min; `test tidy` and `test fmt` take seconds",
        details: suites::DETAILS,
        run: suites::run,
    },
    Task {
        name: "bench",
        usage: "bench [FLAG…]",
        about: "measures throughput and latency, prints a table",
        takes: "about a quarter of an hour, `--quick` minutes",
        details: "Builds walgate and the guests, gets Postgres 18 and starts the benchmark. Every flag goes to it:\n\
                  --quick        small sizes and three rounds: minutes instead of a quarter of an hour, less steady\n\
                  --json FILE    also write the figures as a JSON array\n\
                  --parts P,P    only these parts (streaming mirror modes languages latency)\n\
                  --only a,d     only these workloads (a c d e g h)\n\
                  --transport    tcp or unix, only this way to the server\n\
                  --rounds N     rounds of each workload\n\
                  --major N      the Postgres version\n\
                  --no-latency   leave the latency out\n\
                  --walstream    measure the crate pg_walstream in a quick run, too\n\
                  --profile DIR  once more for each workload with perf attached",
        run: forward::bench,
    },
    Task {
        name: "plugins",
        usage: "plugins",
        about: "builds all guests in plugins/ and tests/programs/ into the cache",
        takes: "first time about 12 min with walgate itself; 1 s when nothing changed",
        details: "Builds for wasm32-unknown-unknown, encodes each guest to a component and puts it in\n\
                  <cache>/guests/<name>.wasm. Guests in Python and JavaScript are built by componentize-py and componentize-js,\n\
                  which pip and npm fetch into <cache>/tools, pinned. On Debian missing packages are installed; elsewhere it\n\
                  says what to install.",
        run: guests::run,
    },
    Task {
        name: "postgres",
        usage: "postgres [MAJOR…] [--start]",
        about: "gets Postgres servers (15 to 18) into the cache",
        takes: "about 10 s a server, once",
        details: "Without a version: 15 and 18, the ones that tests need. With --start it then starts a throwaway cluster\n\
                  of the last version named, prints its URL and keeps it until ctrl-C.",
        run: postgres::run,
    },
    Task {
        name: "tidy",
        usage: "tidy",
        about: "checks the rules of the house that no compiler checks",
        takes: "under 1 s",
        details: "Imports by stage, crate edges, file heads, names, sleeps in tests, prose in wit/. Files above the length\n\
                  cap are warnings, everything else fails. A pause that a test cannot do without carries the comment\n\
                  `tidy: sleep ok, <reason>`.",
        run: tidy::run,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let Some((name, rest)) = args.split_first() else {
        print!("{}", overview());
        return ExitCode::SUCCESS;
    };
    if ["--help", "-h", "help"].contains(&name.as_str()) {
        print!("{}", overview());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprintln!("xtask: there is no command `{name}`\n\n{}", overview());
        return ExitCode::from(2);
    };
    // The demo and the benchmark explain their own flags; here only what xtask adds is explained.
    let own = rest.split(|arg| arg == "--").next().unwrap_or_default();
    if own.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{}", explain(task));
        return ExitCode::SUCCESS;
    }
    match (task.run)(rest) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("xtask {name}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn overview() -> String {
    let mut text = "cargo xtask COMMAND: everything this repository does, with its own set-up\n\n".to_owned();
    for task in TASKS {
        text += &format!("  {:<42}{}\n  {:<42}({})\n", task.usage, task.about, "", task.takes);
    }
    text += &format!(
        "\n`cargo xtask COMMAND --help` tells more. On Debian everything missing is installed; elsewhere it is named.\n\
         Caches lie outside the checkout and a second run downloads and rebuilds nothing:\n  \
         cache   {}   (WALGATE_CACHE)\n  target  {}   (CARGO_TARGET_DIR)\n",
        places::cache().display(),
        places::target().display()
    );
    text
}

fn explain(task: &Task) -> String {
    format!("cargo xtask {}\n\n{}. Takes: {}.\n\n{}\n", task.usage, task.about, task.takes, task.details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_names_every_command_and_its_time() {
        let text = overview();
        for task in TASKS {
            assert!(text.contains(task.usage) && text.contains(task.takes), "{} is missing", task.name);
            assert!(explain(task).contains(task.details));
        }
    }
}
