//! Is the server one that walgate can read from?
//!
//! Holds: version, wal_level, standby, failover, publications, and the lines that mend them. Refuses to look at the slot.

use walgate_wire::{Connection, SystemIdentity};

use super::Refusal;
use crate::config::Config;
use crate::halt::{Halt, HaltClass};

/// The first major that decodes with `wal_level = replica`.
const LOGICAL_WITHOUT_LEVEL: u32 = 19;
/// The oldest major supported: from 15 on the server leaves out empty transactions.
const OLDEST: u32 = 15;
/// The first major that decodes on a standby.
const STANDBY_SINCE: u32 = 16;
/// The first major with slots that standbys keep a copy of.
pub(super) const FAILOVER_SINCE: u32 = 17;

/// A server that can be read from.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) identity: SystemIdentity,
    pub(crate) major: u32,
    /// It is a standby now.
    pub(crate) in_recovery: bool,
}

/// Everything that must be true whatever is stored.
pub(crate) async fn server(connection: &mut Connection, config: &Config) -> Result<Server, Refusal> {
    let major = connection.server_version();
    if major < OLDEST {
        return Err(Halt::new(
            HaltClass::ServerTooOld,
            format!("the source is Postgres {major}; walgate needs {OLDEST} or newer"),
        )
        .into());
    }
    let in_recovery = connection.in_recovery().await?;
    if let Some(halt) = unsupported(config, major, in_recovery) {
        return Err(halt.into());
    }
    let level = connection.setting("wal_level").await?.unwrap_or_default();
    if level != "logical" && major < LOGICAL_WITHOUT_LEVEL {
        return Err(Halt::new(
            HaltClass::WalLevel,
            format!(
                "the source has wal_level = {level}; run: ALTER SYSTEM SET wal_level = logical; and restart the server"
            ),
        )
        .into());
    }
    let identity = connection.identify_system().await?;
    publications(connection, config, in_recovery).await?;
    Ok(Server { identity, major, in_recovery })
}

/// What the configuration asks for and a server of this kind cannot do.
fn unsupported(config: &Config, major: u32, in_recovery: bool) -> Option<Halt> {
    let standby = |detail: String| Some(Halt::new(HaltClass::StandbyUnsupported, detail));
    if config.failover && major < FAILOVER_SINCE {
        return Some(Halt::new(
            HaltClass::FailoverUnsupported,
            format!(
                "failover = true needs Postgres {FAILOVER_SINCE} or newer, and the source is {major}; take the line out of \
                 [source], or upgrade the source"
            ),
        ));
    }
    if !in_recovery {
        return None;
    }
    if major < STANDBY_SINCE {
        return standby(format!(
            "the source is a standby of Postgres {major}, which cannot decode its log before {STANDBY_SINCE}; point \
             source.url at the primary"
        ));
    }
    if config.state.host == config.source.host && config.state.port == config.source.port {
        return standby(
            "the source is a standby, where no checkpoint can be written; add to walgate.toml a section [state] with the url \
             of a database on a primary"
                .to_owned(),
        );
    }
    if config.heartbeat.is_some() && config.ddl.is_none() {
        return standby(
            "the source is a standby, where no heartbeat can be written; add ddl_url with the address of the primary to \
             [source], or take heartbeat_ms out"
                .to_owned(),
        );
    }
    None
}

/// Whether a slot as configured can be made here. Asked only when one is: a standby that is about to be promoted may well
/// hold the copy of such a slot.
pub(super) fn can_make_slot(config: &Config, in_recovery: bool) -> Result<(), Halt> {
    if !(config.failover && in_recovery) {
        return Ok(());
    }
    Err(Halt::new(
        HaltClass::FailoverUnsupported,
        "the source is a standby, and Postgres keeps copies only of a primary's slots; take failover = true out of [source], \
         or point source.url at the primary",
    ))
}

async fn publications(connection: &mut Connection, config: &Config, in_recovery: bool) -> Result<(), Refusal> {
    let missing = connection.missing_publications(&config.publications).await?;
    let Some(name) = missing.first() else { return Ok(()) };
    let name = walgate_wire::identifier(name);
    let place = if in_recovery { "on the primary, in that database" } else { "there" };
    Err(Halt::new(
        HaltClass::PublicationMissing,
        format!(
            "publication {name} does not exist in database {}; run {place}: CREATE PUBLICATION {name} FOR TABLE …; before the \
             slot is created, because the slot reads old log under the publications of its time",
            config.source.database
        ),
    )
    .into())
}
