//! What keeps a failover slot from being ahead of the standby that will be promoted?
//!
//! Holds: the question, and the warnings about it. Refuses to hold anything back itself.

use walgate_wire::{Connection, SlotInfo, WireError};

use super::server::FAILOVER_SINCE;
use crate::config::Config;

/// What stands between the acknowledgement and a promotion that would lose what was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The server itself sends nothing that its standbys have not confirmed (`synchronized_standby_slots`).
    Guarded,
    /// Nothing: walgate may be ahead of every standby, so its acknowledgement must wait for them.
    Unguarded,
    /// The slot is not kept on standbys, so there is nothing to guard.
    NotFailover,
}

/// What guards the slot of the configuration on this server.
pub(crate) async fn failover_guard(connection: &mut Connection, config: &Config) -> Result<Guard, WireError> {
    let slot = connection.slot(&config.slot).await?;
    if slot.and_then(|slot| slot.failover) != Some(true) {
        return Ok(Guard::NotFailover);
    }
    let named = connection.setting("synchronized_standby_slots").await?.unwrap_or_default();
    Ok(if named.trim().is_empty() { Guard::Unguarded } else { Guard::Guarded })
}

/// What an operator should know of a slot and the configuration that do not agree, or of a slot that nothing guards.
pub(super) async fn warnings(
    connection: &mut Connection,
    config: &Config,
    slot: &SlotInfo,
) -> Result<Vec<String>, WireError> {
    let mut lines = Vec::new();
    if connection.server_version() < FAILOVER_SINCE {
        return Ok(lines);
    }
    let name = walgate_wire::identifier(&config.slot);
    match (config.failover, slot.failover == Some(true)) {
        (true, false) => lines.push(format!(
            "failover = true in [source], but standbys keep no copy of slot {name}; run over a replication connection: \
             ALTER_REPLICATION_SLOT {name} (FAILOVER true)"
        )),
        (false, true) => lines.push(format!(
            "standbys keep a copy of slot {name}, but [source] does not say failover = true; add that line, or run over a \
             replication connection: ALTER_REPLICATION_SLOT {name} (FAILOVER false)"
        )),
        (true, true) | (false, false) => {}
    }
    if failover_guard(connection, config).await? == Guard::Unguarded {
        lines.push(
            "synchronized_standby_slots is empty: the server may send changes that no standby has yet. walgate then \
             acknowledges only what every physical slot has confirmed, also of a standby that is away; better: name the slots of the standbys in \
             synchronized_standby_slots on the primary"
                .to_owned(),
        );
    }
    Ok(lines)
}
