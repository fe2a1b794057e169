//! `walgate check`: would `run` start? Asks everything, changes nothing.
//!
//! Holds: the list of checks. Each goes on after the others failed, so that one run shows all that is missing.

use serde::Serialize;
use walgate_plugin::Output;
use walgate_wire::Connection;

use super::worst;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::plugins::Loaded;
use crate::preflight::{self, Refusal};
use crate::printer::Printer;
use crate::{connect, plugins};

/// One line of the answer.
#[derive(Serialize)]
struct Line {
    what: String,
    ok: bool,
    detail: String,
}

pub(super) async fn check(config: &Config, printer: Printer) -> Result<(), Failure> {
    let mut lines = vec![Line { what: "configuration".to_owned(), ok: true, detail: "read".to_owned() }];
    let mut failures = Vec::new();
    let mut note = |what: &str, outcome: Result<String, Failure>| {
        let (ok, detail) = match outcome {
            Ok(detail) => (true, detail),
            Err(failure) => {
                let detail = failure.message.clone();
                failures.push(failure);
                (false, detail)
            }
        };
        lines.push(Line { what: what.to_owned(), ok, detail });
    };
    let stored = match connect::state_reader(&config.state).await {
        Ok(mut reader) => match reader.load(&config.slot).await {
            Ok(stored) => {
                let detail = stored.as_ref().map_or_else(
                    || "reachable, no checkpoint yet".to_owned(),
                    |stored| format!("reachable, acknowledged up to {}", stored.acked),
                );
                note("state", Ok(detail));
                stored
            }
            Err(error) => {
                note("state", Err(connect::state_failure(error)));
                None
            }
        },
        Err(failure) => {
            note("state", Err(failure));
            None
        }
    };
    let mut source = None;
    match connect::source(&config.source).await {
        Err(failure) => note("source", Err(failure)),
        Ok(mut connection) => match preflight::server(&mut connection, config).await {
            Err(refusal) => note("source", Err(failure_of(refusal))),
            Ok((identity, major)) => {
                note("source", Ok(format!("Postgres {major}, system {}, publications exist", identity.system_id)));
                let slot = preflight::slot(&mut connection, config)
                    .await
                    .and_then(|confirmed| preflight::history(config, identity, major, confirmed, stored.as_ref()));
                note("slot", slot.map(|found| format!("stands at {}", found.confirmed)).map_err(failure_of));
                source = Some(connection);
            }
        },
    }
    match plugins::load(config).await {
        Err(failure) => note("plugins", Err(failure)),
        Ok(directory) => {
            if directory.loaded.is_empty() {
                note("plugins", Err(Failure::usage(format!("no plugin in {} can run", config.plugins.dir.display()))));
            }
            for plugin in &directory.loaded {
                note(&format!("plugin {}", plugin.name), would_run(plugin, config, source.as_mut()).await);
            }
            for plugin in &directory.not_running {
                note(
                    &format!("plugin {}", plugin.name),
                    Err(Failure::usage(format!("{}: {}", plugin.state, plugin.cause))),
                );
            }
        }
    }
    printer.show(&lines, || {
        let mark = |ok| if ok { "ok  " } else { "FAIL" };
        lines.iter().map(|line| format!("{} {}: {}\n", mark(line.ok), line.what, line.detail)).collect()
    });
    match worst(&failures) {
        None => Ok(()),
        Some(exit) => Err(Failure { exit, message: format!("{} checks failed", failures.len()), halt: None }),
    }
}

/// What can be said of a plugin before it is opened: its outputs have a place, and its tables are published.
async fn would_run(plugin: &Loaded, config: &Config, source: Option<&mut Connection>) -> Result<String, Failure> {
    for (name, output) in &plugin.manifest.outputs {
        if let Output::File { path, .. } = output
            && !path.parent().is_some_and(std::path::Path::is_dir)
        {
            return Err(Failure::usage(format!(
                "output {name:?}: the folder of {} does not exist; create it, or correct the path in plugin.toml",
                path.display()
            )));
        }
    }
    if let Some(connection) = source {
        let missing = preflight::unpublished(connection, config, &plugin.grant)
            .await
            .map_err(|error| connect::source_failure(&error))?;
        if let Some(table) = missing.first() {
            return Err(Failure::usage(format!(
                "{table} is granted, but no publication carries it ({} such tables): correct the name in plugin.toml, or run: \
                 ALTER PUBLICATION {} ADD TABLE …",
                missing.len(),
                config.publications.first().map(|name| walgate_wire::identifier(name)).unwrap_or_default()
            )));
        }
    }
    Ok(format!("version {}, {} tables granted", plugin.description.version, plugin.grant.tables.len()))
}

fn failure_of(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Halt(halt) => halt.into(),
        Refusal::Held(halt) => Failure { exit: Exit::Unavailable, message: halt.to_string(), halt: None },
        Refusal::Later(error) => connect::source_failure(&error),
        Refusal::Unavailable(failure) => failure,
    }
}
