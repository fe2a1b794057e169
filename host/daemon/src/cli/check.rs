//! `walgate check`: would `run` start? Asks everything, changes nothing.
//!
//! Holds: the list of checks. Each goes on after the others failed, so that one run shows all that is missing.

use serde::Serialize;
use walgate_plugin::Output;
use walgate_store::{PipelineRow, StoreReader};
use walgate_wire::Connection;

use super::worst;
use crate::config::Config;
use crate::connect;
use crate::exit::{Exit, Failure};
use crate::halt::{Halt, HaltClass};
use crate::pipeline::Files;
use crate::plugins::{Loaded, Loader, NotRunning};
use crate::preflight::{self, Decision, Observed, Refusal, Server};
use crate::printer::Printer;

/// One line of the answer.
#[derive(Serialize)]
struct Line {
    what: String,
    ok: bool,
    /// It does not keep `run` from starting, and should be mended nevertheless.
    warning: bool,
    detail: String,
}

pub(super) async fn check(config: &Config, printer: Printer) -> Result<(), Failure> {
    let mut lines =
        vec![Line { what: "configuration".to_owned(), ok: true, warning: false, detail: "read".to_owned() }];
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
        lines.push(Line { what: what.to_owned(), ok, warning: false, detail });
    };
    let mut halted = None;
    let mut reader = None;
    let stored = match connect::state_reader(&config.state).await {
        Ok(mut asked) => match asked.load(&config.slot).await {
            Ok(stored) => {
                let detail = stored.as_ref().map_or_else(
                    || "reachable, no checkpoint yet".to_owned(),
                    |stored| format!("reachable, acknowledged up to {}", stored.acked),
                );
                note("state", Ok(detail));
                if let Ok(Some(halt)) = asked.halt(&config.slot).await {
                    let of = halt.plugin.map(|plugin| format!(" (plugin {plugin})")).unwrap_or_default();
                    halted = Some(format!("it halted when it ran last: {}{of}: {}", halt.name, halt.detail));
                }
                reader = Some(asked);
                Some(stored)
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
    let mut warnings = Vec::new();
    match connect::source(&config.source).await {
        Err(failure) => note("source", Err(failure)),
        Ok(mut connection) => match preflight::observe(&mut connection, config).await {
            Err(refusal) => note("source", Err(failure_of(refusal))),
            Ok(observed) => {
                let Server { identity, major, in_recovery } = &observed.server;
                let role = if *in_recovery { "standby" } else { "primary" };
                note(
                    "source",
                    Ok(format!("Postgres {major}, {role}, system {}, publications exist", identity.system_id)),
                );
                note("slot", would_start(&mut connection, config, &observed, stored.as_ref()).await);
                match preflight::warnings(&mut connection, config).await {
                    Ok(found) => warnings.extend(found.into_iter().map(|detail| ("source".to_owned(), detail))),
                    Err(error) => note("warnings", Err(connect::source_failure(&error))),
                }
                source = Some(connection);
            }
        },
    }
    let stored = stored.as_ref().and_then(Option::as_ref);
    let loading = async {
        let loader = Loader::new(config)?;
        Ok::<_, Failure>((loader.all().await?, loader))
    };
    match loading.await {
        Err(failure) => note("plugins", Err(failure)),
        Ok((mut directory, loader)) => {
            // Whoever came later is told of what it shares with others.
            let has_run = |name: &String| stored.is_some_and(|stored| stored.cursors.contains_key(name));
            directory.loaded.sort_by_key(|plugin| !has_run(&plugin.name));
            let mut files = Files::default();
            let mut runs_any = !directory.loaded.is_empty();
            for plugin in &directory.loaded {
                let outcome = async {
                    let before = match &mut reader {
                        Some(reader) => before_blocked(plugin, config, &loader, reader).await?,
                        None => None,
                    };
                    let (runs, cause) = before.as_ref().map_or((plugin, None), |(before, cause)| (before, Some(cause)));
                    files.take(&runs.name, &runs.manifest.outputs).map_err(|halt| Failure::usage(halt.detail))?;
                    let detail = would_run(runs, config, source.as_mut()).await?;
                    stored.map_or(Ok(()), |stored| would_go_on(runs, stored))?;
                    Ok(cause.map_or(detail.clone(), |cause| {
                        format!("{detail}, from the copy of the version before: {cause}")
                    }))
                };
                note(&format!("plugin {}", plugin.name), outcome.await);
            }
            for plugin in &directory.not_running {
                let what = format!("plugin {}", plugin.name);
                let outcome = async {
                    let is_there = directory.loaded.iter().any(|loaded| loaded.name == plugin.name);
                    let stands_in = match &mut reader {
                        Some(reader) if !is_there => {
                            let known = reader.generations(&config.slot, &plugin.name).await;
                            loader.stand_in(plugin, &known.map_err(connect::state_failure)?).await
                        }
                        _ => None,
                    };
                    match (stands_in, stored) {
                        (Some(stands_in), Some(stored)) => {
                            would_run(&stands_in, config, source.as_mut()).await?;
                            would_go_on(&stands_in, stored)
                        }
                        _ => Err(Failure::usage(format!("{}: {}", plugin.state, plugin.cause))),
                    }
                };
                match outcome.await {
                    Ok(()) => {
                        runs_any = true;
                        let NotRunning { state, cause, .. } = plugin;
                        warnings.push((
                            what,
                            format!("{state}: {cause}; the version that ran last would go on, from its copy"),
                        ));
                    }
                    Err(failure) => note(&what, Err(failure)),
                }
            }
            if !runs_any {
                note("plugins", Err(Failure::usage(format!("no plugin in {} can run", config.plugins.dir.display()))));
            }
        }
    }
    warnings.extend(halted.map(|detail| ("last run".to_owned(), detail)));
    lines.extend(warnings.into_iter().map(|(what, detail)| Line { what, ok: true, warning: true, detail }));
    printer.show(&lines, || {
        let mark = |line: &Line| match (line.ok, line.warning) {
            (false, _) => "FAIL",
            (true, true) => "warn",
            (true, false) => "ok  ",
        };
        lines.iter().map(|line| format!("{} {}: {}\n", mark(line), line.what, line.detail)).collect()
    });
    match worst(&failures) {
        None => Ok(()),
        Some(exit) => Err(Failure { exit, message: format!("{} checks failed", failures.len()), halt: None }),
    }
}

/// What `run` would do with the slot. `stored` is what the state database answered, if it did.
async fn would_start(
    connection: &mut Connection,
    config: &Config,
    observed: &Observed,
    stored: Option<&Option<PipelineRow>>,
) -> Result<String, Failure> {
    let stored = stored.ok_or_else(|| Failure::unavailable("cannot be judged without the state database"))?;
    match preflight::judge(connection, config, observed, stored.as_ref()).await.map_err(failure_of)? {
        Decision::Resume { confirmed, follow: None } => Ok(format!("stands at {confirmed}")),
        Decision::Resume { confirmed, follow: Some(timeline) } => Ok(format!(
            "stands at {confirmed}; the source was promoted to timeline {timeline}, and everything stored came before"
        )),
        Decision::Adopt(confirmed) => Ok(format!("stands at {confirmed}, where the stream would begin")),
        Decision::CreateSlot => Ok("does not exist; run would create it, as source.start says".to_owned()),
        // Most likely the installation that is being checked.
        Decision::Wait(halt) if halt.class == HaltClass::SlotActive => {
            Ok("is read by a walgate that runs; another one would wait as a standby".to_owned())
        }
        Decision::Wait(halt) => Err(failure_of(Refusal::Held(halt))),
        Decision::Halt(halt) => Err(halt.into()),
    }
}

/// What can be said of a plugin before it is opened: its outputs have a place, its targets are as they have
/// to be, its tables are published, and its grant fits them.
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
    crate::pipeline::look_at_targets(config, &plugin.manifest, &plugin.name).await?;
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
        let misfits = preflight::misfits(connection, config, &plugin.grant, plugin.hash_key.as_ref())
            .await
            .map_err(|error| connect::source_failure(&error))?;
        if !misfits.is_empty() {
            let all: Vec<String> = misfits.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(format!("its first row would stop it: {}", all.join("; "))));
        }
    }
    Ok(format!("version {}, {} tables granted", plugin.description.version, plugin.grant.tables.len()))
}

/// The version that runs where the one in the directory was rolled back, with why.
async fn before_blocked(
    plugin: &Loaded,
    config: &Config,
    loader: &Loader,
    reader: &mut StoreReader,
) -> Result<Option<(Loaded, String)>, Failure> {
    let known = reader.generations(&config.slot, &plugin.name).await.map_err(connect::state_failure)?;
    let Some(cause) = crate::pipeline::blocked_by(&known, plugin) else { return Ok(None) };
    match loader.before(plugin, &known).await {
        Some((_, before)) => Ok(Some((before, cause))),
        None => Err(Failure::usage(format!("quarantined: {cause}"))),
    }
}

/// Whether it can go on where it stood.
fn would_go_on(plugin: &Loaded, stored: &PipelineRow) -> Result<(), Failure> {
    match stored.cursors.get(&plugin.name).filter(|_| plugin.manifest.required) {
        Some(cursor) if !cursor.reaches(stored.acked) => {
            let detail = format!(
                "it stands at {}, but the source may have freed its log up to {}: it was away while others went on. Unless its \
                 sink says by itself that it has everything up to there, it can only begin at the present, under another name",
                cursor.end, stored.acked
            );
            Err(Halt::of_plugin(HaltClass::DataGapPlugin, &plugin.name, detail).into())
        }
        _ => Ok(()),
    }
}

fn failure_of(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Halt(halt) => halt.into(),
        Refusal::Held(halt) => Failure { exit: Exit::Unavailable, message: halt.to_string(), halt: None },
        Refusal::Later(error) => connect::source_failure(&error),
        Refusal::Unavailable(failure) => failure,
    }
}
