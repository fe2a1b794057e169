//! Where a plugin's rows go: the writer of one plugin, opened, and the position its database has.
//!
//! Holds: the way from plugin.toml and walgate.toml to a writer. Refuses to know what is written (see [`super::apply`]).

use std::collections::BTreeMap;

use walgate_core::Cursor;
use walgate_plugin::{Manifest, RowsTarget};
use walgate_store::{
    Class, PipelineRow, Retries, RetryPolicy, RowsError, RowsPlace, RowsRest, RowsSink, RowsTable, RowsTargets, Store,
};
use walgate_wire::SourceOptions;

use super::outputs::Outputs;
use crate::config::Config;
use crate::connect;
use crate::exit::{Failure, chain};
use crate::halt::{Halt, HaltClass};

/// Attempts to reach a target at the start after the first.
const ATTEMPTS: u32 = 3;

/// A writer that can be used.
pub(super) struct Target {
    pub(super) sink: RowsSink,
    /// It is the state database, so that everything the plugin stages commits with its rows.
    pub(super) together: bool,
    /// Where rows were committed up to, in a database that is not the state database.
    pub(super) position: Option<Cursor>,
    /// The outputs that commit with the rows.
    pub(super) outputs: Option<Outputs>,
}

/// None when the plugin has no targets.
pub(super) async fn open(
    config: &Config,
    manifest: &Manifest,
    plugin: &str,
    store: &Store,
    pipeline: &str,
    stored: &PipelineRow,
) -> Result<Option<Target>, Failure> {
    let Some(database) = manifest.rows_database() else { return Ok(None) };
    let epoch = store.epoch().ok_or_else(|| Halt::bug("a target is opened before the epoch is known"))?;
    let (options, section) = database_of(config, database, plugin)?;
    let place = match database {
        None => RowsPlace::State { pipeline: pipeline.to_owned(), lineage: stored.lineage.clone(), epoch },
        Some(_) => RowsPlace::Far { pipeline: pipeline.to_owned(), lineage: stored.lineage.token(), epoch },
    };
    let mut retries = Retries::new(RetryPolicy { max_retries: ATTEMPTS, ..RetryPolicy::default() });
    let (sink, position) = loop {
        let tls = connect::tls_of(options, &section)?;
        let config = connect::config_of(options, "rows");
        let opened = async {
            let mut sink = RowsSink::connect(config, tls, plugin, targets(manifest), place.clone()).await?;
            sink.look().await?;
            let position = sink.open().await?;
            Ok::<_, RowsError>((sink, position))
        };
        match opened.await {
            Ok(opened) => break opened,
            Err(error) if error.class() == Class::Retry && retries.pause().await => {
                tracing::warn!(
                    plugin,
                    attempt = retries.failures(),
                    "its targets cannot be reached yet: {}",
                    chain(&error)
                );
            }
            Err(error) => return Err(failure(plugin, &section, &error)),
        }
    };
    Ok(Some(Target { sink, together: database.is_none(), position, outputs: None }))
}

/// What can be said of the targets without a start: changes nothing.
pub(crate) async fn look(config: &Config, manifest: &Manifest, plugin: &str) -> Result<(), Failure> {
    let Some(database) = manifest.rows_database() else { return Ok(()) };
    let (options, section) = database_of(config, database, plugin)?;
    let tls = connect::tls_of(options, &section)?;
    // Nothing is looked up under these names, and nothing is written.
    let place = RowsPlace::Far { pipeline: config.slot.clone(), lineage: String::new(), epoch: 0 };
    let looked = async {
        let config = connect::config_of(options, "check");
        RowsSink::connect(config, tls, plugin, targets(manifest), place).await?.look().await
    };
    looked.await.map_err(|error| failure(plugin, &section, &error))
}

/// The database of a plugin's targets, and the section of walgate.toml that names it.
fn database_of<'a>(
    config: &'a Config,
    database: Option<&str>,
    plugin: &str,
) -> Result<(&'a SourceOptions, String), Failure> {
    let Some(name) = database else { return Ok((&config.state, "state".to_owned())) };
    let options = config.databases.get(name).ok_or_else(|| {
        Failure::usage(format!(
            "plugin {plugin}: its targets are in database {name:?}, which walgate.toml does not name; add there:\n\
             [databases.{name}]\nurl = \"postgres://role@host:5432/database\""
        ))
    })?;
    Ok((options, format!("databases.{name}")))
}

fn failure(plugin: &str, section: &str, error: &RowsError) -> Failure {
    let detail = format!("{section}: {}", chain(error));
    let class = match error.class() {
        // Its plugin's policy says what stops for a database that stays away.
        Class::Retry => HaltClass::RowsUnavailable,
        _ => HaltClass::named(error.halt_name()),
    };
    Halt::of_plugin(class, plugin, detail).into()
}

fn targets(manifest: &Manifest) -> RowsTargets {
    let mut named = BTreeMap::new();
    let mut rest = None;
    for (name, target) in &manifest.rows {
        let RowsTarget { schema, columns, key, .. } = target.clone();
        if name == "*" {
            rest = Some(RowsRest { schema, columns, key });
        } else {
            let table = target.table.clone().unwrap_or_else(|| name.clone());
            named.insert(name.clone(), RowsTable { schema, table, columns, key });
        }
    }
    RowsTargets { named, rest }
}
