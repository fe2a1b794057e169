//! `walgate dead-letter`: look at what plugins could not take, have it tried again, or give it up.
//!
//! Holds: what is shown: names, positions, counts and codes. No value is ever printed; the row itself stands in the
//! table `walgate.dead_letters`, for those who may read it. Refuses to know how a letter is delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use clap::Subcommand;
use serde::Serialize;
use walgate_store::{DeadLetter, due};

use crate::config::Config;
use crate::connect;
use crate::exit::Failure;
use crate::printer::{Printer, moment, one_line};

#[derive(Subcommand)]
pub(super) enum Command {
    /// List dead letters, oldest first, and what was given up.
    List {
        /// Of this plugin only.
        #[arg(long)]
        plugin: Option<String>,
    },
    /// Show one: where it comes from, why it is here, and how to read its rows. Prints no value.
    Show {
        /// Its number in the list.
        id: i64,
    },
    /// Have them delivered once more, under their own ids, oldest first. A running walgate does so at once, a stopped one
    /// when it starts.
    ///
    /// A letter is older than what was delivered since: a sink that keeps the newest state of a row may be set back by it.
    Redrive {
        /// Their numbers; none with --all.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<i64>,
        /// All that wait.
        #[arg(long)]
        all: bool,
        /// With --all: of this plugin only.
        #[arg(long, requires = "all")]
        plugin: Option<String>,
    },
    /// Give them up for good. That is recorded and stays in the list.
    Drop {
        /// Their numbers.
        #[arg(required = true)]
        ids: Vec<i64>,
    },
}

#[derive(Serialize)]
struct Listed {
    id: i64,
    plugin: String,
    class: String,
    code: String,
    commit_lsn: String,
    source_ordinal: u32,
    tables: Vec<String>,
    rows: u32,
    bytes: u64,
    attempts: u32,
    requested: bool,
    /// Seconds from 1970.
    created_at: u64,
    batch_id: String,
    generation: u64,
}

#[derive(Serialize)]
struct Lost {
    plugin: String,
    reason: String,
    letters: u64,
    rows: u64,
    at: u64,
}

#[derive(Serialize)]
struct List {
    letters: Vec<Listed>,
    given_up: Vec<Lost>,
}

#[derive(Serialize)]
struct Redriven {
    letters: u64,
    /// Plugins of letters that wait, and that are not in the plugin directory.
    absent: BTreeSet<String>,
}

#[derive(Serialize)]
struct Done {
    letters: u64,
}

pub(super) async fn dead_letter(command: Command, config: &Config, printer: Printer) -> Result<(), Failure> {
    match command {
        Command::List { plugin } => list(config, plugin.as_deref(), printer).await,
        Command::Show { id } => show(config, id, printer).await,
        Command::Redrive { ids, all, plugin } => {
            let ids = (!all).then_some(ids);
            redrive(config, plugin.as_deref(), ids.as_deref(), printer).await
        }
        Command::Drop { ids } => give_up(config, &ids, printer).await,
    }
}

async fn list(config: &Config, plugin: Option<&str>, printer: Printer) -> Result<(), Failure> {
    let mut reader = connect::state_reader(&config.state).await?;
    let letters = reader.dead_letters(&config.slot, plugin).await.map_err(connect::state_failure)?;
    let losses = reader.dead_letter_losses(&config.slot).await.map_err(connect::state_failure)?;
    let answer = List {
        letters: letters.into_iter().map(listed).collect(),
        given_up: losses
            .into_iter()
            .filter(|loss| plugin.is_none_or(|plugin| plugin == loss.plugin))
            .map(|loss| Lost {
                plugin: loss.plugin,
                reason: loss.reason,
                letters: loss.letters,
                rows: loss.rows,
                at: seconds(loss.at),
            })
            .collect(),
    };
    printer.show(&answer, || {
        let mut text: String = answer.letters.iter().map(line).collect();
        match (answer.letters.len(), plugin) {
            (0, None) => text.push_str("no dead letters\n"),
            (0, Some(plugin)) => text.push_str(&format!("no dead letters of plugin {plugin}\n")),
            (count, _) => {
                let rows: u64 = answer.letters.iter().map(|letter| u64::from(letter.rows)).sum();
                let bytes: u64 = answer.letters.iter().map(|letter| letter.bytes).sum();
                text.push_str(&format!("{count} letters wait, with {rows} rows in {bytes} bytes\n"));
            }
        }
        for lost in &answer.given_up {
            text.push_str(&format!(
                "given up: {} letters with {} rows of plugin {} ({} at {})\n",
                lost.letters,
                lost.rows,
                lost.plugin,
                lost.reason,
                moment(lost.at)
            ));
        }
        text
    });
    Ok(())
}

async fn show(config: &Config, id: i64, printer: Printer) -> Result<(), Failure> {
    let mut reader = connect::state_reader(&config.state).await?;
    let letter = reader.dead_letter(&config.slot, id).await.map_err(connect::state_failure)?;
    let Some(letter) = letter else {
        return Err(Failure::usage(format!(
            "there is no dead letter {id} of {}; see: walgate dead-letter list",
            config.slot
        )));
    };
    let letter = listed(letter);
    printer.show(&letter, || {
        format!(
            "letter      {}\nplugin      {} (generation {})\nkept        since {}\nwhy         {}, code {}\nfrom        the transaction that commits at {}, \
             change {} of it\ntables      {}\nrows        {} ({} bytes)\nbatch id    {}\nattempts    {}{}\n\nIts rows, for \
             those who may see them, in the state database:\n  {};\n",
            letter.id,
            letter.plugin,
            letter.generation,
            moment(letter.created_at),
            letter.class,
            letter.code,
            letter.commit_lsn,
            letter.source_ordinal,
            one_line(&letter.tables.join(", ")),
            letter.rows,
            letter.bytes,
            letter.batch_id,
            letter.attempts,
            if letter.requested { ", another is asked for" } else { "" },
            DeadLetter::image_query(letter.id)
        )
    });
    Ok(())
}

async fn redrive(config: &Config, plugin: Option<&str>, ids: Option<&[i64]>, printer: Printer) -> Result<(), Failure> {
    let mut store = connect::state(&config.state).await?;
    all_known(config, ids.unwrap_or_default()).await?;
    let letters = store.request_redrive(&config.slot, plugin, ids).await.map_err(connect::state_failure)?;
    some_of(ids.unwrap_or_default(), letters)?;
    let mut reader = connect::state_reader(&config.state).await?;
    let all = reader.dead_letters(&config.slot, plugin).await.map_err(connect::state_failure)?;
    let absent =
        absent(config, all.into_iter().filter(|letter| letter.requested).map(|letter| letter.plugin).collect())?;
    let told = letters > 0 && super::status::post(config.listen, "/dead-letters/redrive").await.is_ok();
    let done = Redriven { letters, absent };
    printer.show(&done, || {
        let when = if told { "by the running walgate, now" } else { "when walgate starts" };
        let mut text = if letters == 0 {
            "nothing more waits to be redriven\n".to_owned()
        } else {
            format!("{letters} letters: {when}\n")
        };
        for plugin in &done.absent {
            text.push_str(&format!(
                "plugin {plugin} is not in {}: its letters wait until it is back; or drop them\n",
                config.plugins.dir.display()
            ));
        }
        text
    });
    Ok(())
}

/// The plugins among these that no process can run.
fn absent(config: &Config, mut plugins: BTreeSet<String>) -> Result<BTreeSet<String>, Failure> {
    let found = walgate_plugin::scan(&config.plugins.dir)
        .map_err(|error| Failure::usage(format!("plugins.dir: {}", crate::exit::chain(&error))))?;
    plugins.retain(|plugin| !found.iter().any(|entry| entry.name == *plugin));
    Ok(plugins)
}

async fn give_up(config: &Config, ids: &[i64], printer: Printer) -> Result<(), Failure> {
    let mut store = connect::state(&config.state).await?;
    all_known(config, ids).await?;
    none_under_way(config, ids).await?;
    let letters = store.drop_letters(&config.slot, ids).await.map_err(connect::state_failure)?;
    some_of(ids, letters)?;
    printer.show(&Done { letters }, || format!("{letters} letters are given up"));
    Ok(())
}

/// Among others, a number that names nothing is a mistake: nothing is done.
async fn all_known(config: &Config, ids: &[i64]) -> Result<(), Failure> {
    let mut reader = connect::state_reader(&config.state).await?;
    let letters = reader.dead_letters(&config.slot, None).await.map_err(connect::state_failure)?;
    let known: BTreeSet<i64> = letters.into_iter().map(|letter| letter.id).collect();
    let unknown: Vec<String> = ids.iter().filter(|id| !known.contains(id)).map(ToString::to_string).collect();
    if unknown.is_empty() || unknown.len() == ids.len() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "no dead letters of this pipeline: {}; nothing was done; see: walgate dead-letter list",
        unknown.join(", ")
    )))
}

/// A letter that a running walgate was asked to deliver again may be on its way: it cannot be said of it that it is given up.
async fn none_under_way(config: &Config, ids: &[i64]) -> Result<(), Failure> {
    let mut reader = connect::state_reader(&config.state).await?;
    if !reader.is_led(&config.slot).await.map_err(connect::state_failure)? {
        return Ok(());
    }
    let letters = reader.dead_letters(&config.slot, None).await.map_err(connect::state_failure)?;
    let mut of_plugins: BTreeMap<String, Vec<DeadLetter>> = BTreeMap::new();
    letters.into_iter().for_each(|letter| of_plugins.entry(letter.plugin.clone()).or_default().push(letter));
    let gone = absent(config, of_plugins.keys().cloned().collect())?;
    let now = super::status::plugins(config.listen).await;
    let idle = ["parked", "quarantined", "rejected", "awaiting-grant"];
    let may_run =
        |plugin: &str| !gone.contains(plugin) && !now.get(plugin).is_some_and(|now| idle.contains(&now.state.as_str()));
    let due = of_plugins.iter().filter(|(plugin, _)| may_run(plugin)).flat_map(|(_, letters)| due(letters));
    let under_way: Vec<String> = due.filter(|id| ids.contains(id)).map(|id| id.to_string()).collect();
    if under_way.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "a running walgate is to deliver again: {}; nothing was done. They are gone or back in the list once they were tried; to \
         drop them untried, stop walgate first",
        under_way.join(", ")
    )))
}

/// Numbers that name nothing are a mistake, and not the same as nothing to do.
fn some_of(ids: &[i64], letters: u64) -> Result<(), Failure> {
    if ids.is_empty() || letters > 0 {
        return Ok(());
    }
    Err(Failure::usage(
        "none of these numbers is a dead letter of this pipeline that is not marked already; see: walgate dead-letter list",
    ))
}

fn listed(letter: DeadLetter) -> Listed {
    Listed {
        id: letter.id,
        plugin: letter.plugin,
        class: letter.class,
        code: letter.code,
        commit_lsn: letter.commit.to_string(),
        source_ordinal: letter.source_ordinal,
        tables: letter.tables,
        rows: letter.rows,
        bytes: letter.bytes,
        attempts: letter.attempts,
        requested: letter.requested,
        created_at: seconds(letter.created_at),
        batch_id: letter.batch_id,
        generation: letter.generation,
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn line(letter: &Listed) -> String {
    format!(
        "{}  {}  plugin {}: {} ({}), {} rows of {}, committed at {}{}\n",
        letter.id,
        moment(letter.created_at),
        letter.plugin,
        letter.class,
        letter.code,
        letter.rows,
        one_line(&letter.tables.join(", ")),
        letter.commit_lsn,
        if letter.requested { ", to be redriven" } else { "" }
    )
}
