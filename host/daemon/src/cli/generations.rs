//! `walgate plugin generations|rollback|unblock`: the versions of a plugin that ran, and the way back to one.
//!
//! Holds: what is shown, and the choice of what to go back to. A rollback only puts files into the plugin directory: whatever
//! runs notices them like any other change. Refuses to know how a version takes over.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use walgate_store::{Generation, ran_before};

use crate::config::Config;
use crate::connect;
use crate::exit::Failure;
use crate::plugins::{Kept, load};
use crate::printer::{Printer, moment};

#[derive(Serialize)]
struct Listed {
    generation: u64,
    version: String,
    fingerprint: String,
    /// Seconds from 1970 when it was opened last; none for one that never could be.
    opened_at: Option<u64>,
    /// Its files lie in the plugin directory.
    present: bool,
    /// There is a copy to go back to.
    kept: bool,
    /// Why it was rolled back.
    blocked: Option<String>,
}

/// Lists them, oldest first.
pub(super) async fn list(config: &Config, plugin: &str, printer: Printer) -> Result<(), Failure> {
    let known = known(config, plugin).await?;
    let (kept, present) = (copies(config, plugin), present(config, plugin).await?);
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let listed: Vec<Listed> = known
        .into_iter()
        .map(|one| Listed {
            generation: one.number,
            present: present.as_ref() == Some(&one.fingerprint),
            kept: kept.contains(&one.fingerprint),
            version: one.version,
            fingerprint: one.fingerprint,
            opened_at: one.opened_at.map(seconds),
            blocked: one.blocked,
        })
        .collect();
    printer.show(&listed, || {
        if listed.is_empty() {
            return format!("{plugin} has not run yet");
        }
        listed.iter().map(line).collect()
    });
    Ok(())
}

fn line(one: &Listed) -> String {
    let present = if one.present { ", in the plugin directory" } else { "" };
    let kept = if one.kept { ", kept" } else { ", no copy" };
    let blocked = one.blocked.as_ref().map(|cause| format!("; rolled back: {cause}")).unwrap_or_default();
    let short: String = one.fingerprint.chars().take(12).collect();
    let ran = one.opened_at.map_or_else(|| "never ran".to_owned(), |at| format!("opened last at {}", moment(at)));
    format!("{} {} ({short}{present}{kept}, {ran}{blocked})\n", one.generation, one.version)
}

#[derive(Serialize)]
struct Restored {
    plugin: String,
    generation: u64,
}

/// Puts the files of an earlier generation into the plugin directory: the given one, or the last other one that was not
/// rolled back.
pub(super) async fn rollback(config: &Config, plugin: &str, to: Option<u64>, printer: Printer) -> Result<(), Failure> {
    let known = known(config, plugin).await?;
    let (kept, present) = (copies(config, plugin), present(config, plugin).await?);
    let target = match to {
        Some(number) => known.iter().find(|one| one.number == number).ok_or_else(|| {
            Failure::usage(format!(
                "{plugin} has no generation {number}; see which there are: walgate plugin generations {plugin}"
            ))
        })?,
        None => ran_before(&known, present.as_deref()).ok_or_else(|| {
            let ran = if known.is_empty() { "never ran here" } else { "has run in one version only" };
            Failure::usage(format!("{plugin} {ran}; there is nothing to go back to. See: walgate plugin list"))
        })?,
    };
    let Some(cache) = config.plugins.cache_dir.as_deref().filter(|_| kept.contains(&target.fingerprint)) else {
        return Err(Failure::usage(format!(
            "there is no copy of generation {} of {plugin}: copies are kept in plugins.cache_dir, the last five of a plugin. \
             Put its files into the plugin directory yourself",
            target.number
        )));
    };
    let folder = config.plugins.dir.join(plugin);
    Kept::of(cache, plugin)
        .restore(&target.fingerprint, &folder)
        .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", folder.display())))?;
    let restored = Restored { plugin: plugin.to_owned(), generation: target.number };
    printer.show(&restored, || {
        format!(
            "generation {} of {plugin} lies in the plugin directory again; a running walgate takes it up by itself: \
             walgate status",
            restored.generation
        )
    });
    Ok(())
}

/// Has versions that were rolled back tried again.
pub(super) async fn unblock(config: &Config, plugin: &str, printer: Printer) -> Result<(), Failure> {
    let known = known(config, plugin).await?;
    if known.is_empty() {
        return Err(Failure::usage(format!(
            "no version of {plugin} ever ran here; see which plugins there are: walgate plugin list"
        )));
    }
    let blocked = known.iter().filter(|one| one.blocked.is_some()).count();
    let mut store = connect::state_plain(&config.state).await?;
    store.unblock_generations(&config.slot, plugin).await.map_err(connect::state_failure)?;
    let file = config.plugins.dir.join(plugin).join("plugin.wasm");
    // A running walgate looks at what changed.
    let touched = File::open(&file).and_then(|file| file.set_modified(SystemTime::now()));
    printer.show(&serde_json::json!({ "plugin": plugin, "touched": touched.is_ok() }), || {
        let next = match &touched {
            Ok(()) => "a running walgate tries what lies in the directory".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "drop one in".to_owned(),
            Err(error) => format!("touch {} to have it tried, or start walgate again ({error})", file.display()),
        };
        match blocked {
            0 => format!("no version of {plugin} was rolled back; {next}"),
            _ => format!("versions of {plugin} that were rolled back may run again; {next}"),
        }
    });
    Ok(())
}

async fn known(config: &Config, plugin: &str) -> Result<Vec<Generation>, Failure> {
    if !walgate_plugin::is_plugin_name(plugin) {
        return Err(Failure::usage("a plugin name is 1 to 40 of a-z, 0-9 and -, not beginning with -"));
    }
    let mut reader = connect::state_reader(&config.state).await?;
    reader.generations(&config.slot, plugin).await.map_err(connect::state_failure)
}

fn copies(config: &Config, plugin: &str) -> BTreeSet<String> {
    config.plugins.cache_dir.as_deref().map(|cache| Kept::of(cache, plugin).fingerprints()).unwrap_or_default()
}

/// The fingerprint of what lies in the directory, if it can be loaded.
async fn present(config: &Config, plugin: &str) -> Result<Option<String>, Failure> {
    let directory = load(config).await?;
    Ok(directory.loaded.into_iter().find(|one| one.name == plugin).map(|one| one.fingerprint))
}
