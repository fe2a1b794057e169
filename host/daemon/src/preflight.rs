//! What must be true of the source before a stream is started, asked on the very connection that will stream.
//!
//! Holds: the checks and the words that say how to mend what is missing. Refuses to know what happens afterwards.

use walgate_core::grant::Grant;
use walgate_core::{Lineage, Lsn};
use walgate_store::PipelineRow;
use walgate_wire::{Class, Connection, SlotInfo, SystemIdentity, WireError};

use crate::config::Config;
use crate::connect::source_halt;
use crate::exit::{Failure, Halt};

/// The first major that decodes with `wal_level = replica`.
const LOGICAL_WITHOUT_LEVEL: u32 = 19;
/// The oldest major supported: from 15 on the server leaves out empty transactions.
const OLDEST: u32 = 15;

/// Why a stream cannot be started on this connection.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It may be possible later: the connection broke, or another session still holds the slot.
    Later(WireError),
    /// Another session with our own name still holds the slot: what is left of a process that ended a moment ago.
    Held(Halt),
    /// It will not be possible until an operator acts.
    Halt(Halt),
    /// The state database, which is asked in between, is away.
    Unavailable(Failure),
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        match error.class() {
            Class::Retry => Self::Later(error),
            Class::Operator | Class::Bug => Self::Halt(source_halt(&error)),
        }
    }
}

impl From<Halt> for Refusal {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) identity: SystemIdentity,
    pub(crate) major: u32,
    /// Where the slot stands.
    pub(crate) confirmed: Lsn,
}

/// Everything that must be true whatever is stored. Does not look at the slot's user when `ours` is false.
pub(crate) async fn server(connection: &mut Connection, config: &Config) -> Result<(SystemIdentity, u32), Refusal> {
    let major = connection.server_version();
    if major < OLDEST {
        return Err(Halt::new(
            "server_too_old",
            format!("the source is Postgres {major}; walgate needs {OLDEST} or newer"),
        )
        .into());
    }
    let level = connection.setting("wal_level").await?.unwrap_or_default();
    if level != "logical" && major < LOGICAL_WITHOUT_LEVEL {
        return Err(Halt::new(
            "wal_level",
            format!(
                "the source has wal_level = {level}; run: ALTER SYSTEM SET wal_level = logical; and restart the server"
            ),
        )
        .into());
    }
    let identity = connection.identify_system().await?;
    let missing = connection.missing_publications(&config.publications).await?;
    if let Some(name) = missing.first() {
        let name = walgate_wire::identifier(name);
        return Err(Halt::new(
            "publication_missing",
            format!(
                "publication {name} does not exist in database {}; run there: CREATE PUBLICATION {name} FOR TABLE …; \
                 before the slot is created, because the slot reads old log under the publications of its time",
                config.source.database
            ),
        )
        .into());
    }
    Ok((identity, major))
}

/// The granted tables that no publication carries now: nothing of them will ever come.
pub(crate) async fn unpublished(
    connection: &mut Connection,
    config: &Config,
    grant: &Grant,
) -> Result<Vec<String>, WireError> {
    let names: Vec<String> = config.publications.iter().map(|name| walgate_wire::literal(name)).collect();
    let sql = format!(
        "SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname IN ({})",
        names.join(", ")
    );
    let rows = connection.query(&sql).await?;
    let published =
        |schema: &str, name: &str| rows.iter().any(|row| row.get(0) == Some(schema) && row.get(1) == Some(name));
    let missing = grant.tables.iter().filter(|table| !published(&table.namespace, &table.name));
    Ok(missing.map(|table| format!("{}.{}", table.namespace, table.name)).collect())
}

/// Where the slot stands; nothing when there is none.
pub(crate) async fn slot(connection: &mut Connection, config: &Config) -> Result<Option<Lsn>, Refusal> {
    let name = &config.slot;
    let Some(slot) = connection.slot(name).await? else { return Ok(None) };
    usable(&slot, config)?;
    if slot.active {
        return Err(held(&slot, config));
    }
    slot.confirmed_flush.map(Some).ok_or_else(|| {
        Refusal::Held(Halt::new(
            "slot_creating",
            format!("slot {name} is still being created: it waits for transactions that were open at the time to end"),
        ))
    })
}

/// The stored lineage against what is there now. `stored` must have been read *after* the slot was: what the server was
/// told was stored before, so a slot ahead of it was moved by someone else, not by a walgate that ended in between.
pub(crate) fn history(
    config: &Config,
    identity: SystemIdentity,
    major: u32,
    confirmed: Option<Lsn>,
    stored: Option<&PipelineRow>,
) -> Result<Found, Refusal> {
    if let Some(stored) = stored {
        same_history(&stored.lineage, &identity, config)?;
    }
    let name = &config.slot;
    let Some(confirmed) = confirmed else { return Err(missing(name, stored).into()) };
    if let Some(stored) = stored {
        let furthest = stored.cursors.values().map(|cursor| cursor.end).fold(stored.acked, Lsn::max);
        if furthest > identity.xlog_pos {
            // Not a halt at once: a standby that was restarted may have to catch up.
            return Err(Refusal::Held(Halt::new(
                "source_behind",
                format!(
                    "there are checkpoints up to {furthest}, but the source has written only up to {}: it was restored to an \
                     earlier state, and what it writes now would be taken for delivered. Start anew with: walgate slot drop \
                     --forget, then walgate slot create",
                    identity.xlog_pos
                ),
            )));
        }
    }
    if let Some(stored) = stored
        && confirmed > stored.acked
    {
        return Err(Halt::new(
            "slot_moved",
            format!(
                "slot {name} stands at {confirmed}, beyond {}, the furthest walgate ever acknowledged: it was recreated or \
                 advanced by someone else, and the changes in between may be gone. Copy the tables again, or accept the \
                 gap with: walgate slot drop --forget, then walgate slot create",
                stored.acked
            ),
        )
        .into());
    }
    Ok(Found { identity, major, confirmed })
}

fn same_history(stored: &Lineage, now: &SystemIdentity, config: &Config) -> Result<(), Halt> {
    let differs = if stored.system_id != now.system_id {
        format!("another cluster: system identifier {} then, {} now", stored.system_id, now.system_id)
    } else if stored.timeline != now.timeline {
        format!("another timeline: {} then, {} now; the server was promoted or restored", stored.timeline, now.timeline)
    } else if stored.database != config.source.database {
        format!("another database: {} then, {} now", stored.database, config.source.database)
    } else if stored.slot != config.slot {
        format!("another slot: {} then, {} now", stored.slot, config.slot)
    } else {
        return Ok(());
    };
    Err(Halt::new(
        "lineage_changed",
        format!(
            "the source is not the one the checkpoints were written for ({differs}). Positions of one history mean nothing \
             in another. Point source.url back, choose another source.slot, or start anew with: walgate slot drop --forget --of {}, \
             then walgate slot create",
            stored.system_id
        ),
    ))
}

fn missing(name: &str, stored: Option<&PipelineRow>) -> Halt {
    match stored {
        None => Halt::new("slot_missing", format!("slot {name} does not exist; create it with: walgate slot create")),
        Some(stored) => Halt::new(
            "data_gap",
            format!(
                "slot {name} is gone, but there are checkpoints up to {}: changes since then are lost to the stream. Copy the \
                 tables again, or accept the gap with: walgate slot drop --forget, then walgate slot create",
                stored.acked
            ),
        ),
    }
}

fn usable(slot: &SlotInfo, config: &Config) -> Result<(), Halt> {
    let name = &config.slot;
    match slot.plugin.as_str() {
        "pgoutput" => {}
        plugin => {
            return Err(Halt::new(
                "slot_plugin",
                format!(
                    "slot {name} was made for the output plugin {plugin}; walgate reads pgoutput: set source.slot to another name and run: walgate slot create"
                ),
            ));
        }
    }
    if slot.database != config.source.database {
        return Err(Halt::new(
            "slot_database",
            format!(
                "slot {name} belongs to database {}, source.url names {}; correct one of the two",
                slot.database, config.source.database
            ),
        ));
    }
    let Some(reason) = slot.invalidated() else { return Ok(()) };
    Err(Halt::new(
        "slot_invalidated",
        format!(
            "the server invalidated slot {name} ({reason}): log that was not read yet is gone. Copy the tables again, or \
             accept the gap with: walgate slot drop --forget, then walgate slot create. Look at max_slot_wal_keep_size and \
             idle_replication_slot_timeout first"
        ),
    ))
}

/// A slot in use: by a leftover of ours for a moment, or by someone else for good.
fn held(slot: &SlotInfo, config: &Config) -> Refusal {
    let application = slot.active_application.as_deref().unwrap_or("");
    let halt = Halt::new(
        "slot_active",
        format!(
            "slot {} is in use by process {} of the server (application {application:?}); stop that reader, or end it \
             with: SELECT pg_terminate_backend({})",
            config.slot,
            slot.active_pid.unwrap_or(0),
            slot.active_pid.unwrap_or(0)
        ),
    );
    if application == config.source.application_name { Refusal::Held(halt) } else { Refusal::Halt(halt) }
}
