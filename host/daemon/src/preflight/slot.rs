//! What does the server say of the slot?
//!
//! Holds: the reading of the server's view into one of the cases of the table. Refuses to conclude anything from it.

use walgate_wire::{Connection, SlotInfo};

use super::Refusal;
use super::decide::{Reader, Slot};
use crate::config::Config;

/// Looks at the slot of the configuration.
pub(super) async fn look(connection: &mut Connection, config: &Config, in_recovery: bool) -> Result<Slot, Refusal> {
    if let Some(info) = connection.slot(&config.slot).await? {
        return Ok(classify(&info, config, in_recovery));
    }
    let name = walgate_wire::literal(&config.slot);
    let physical = connection
        .query(&format!(
            "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {name} AND slot_type = 'physical'"
        ))
        .await?;
    Ok(if physical.is_empty() { Slot::Absent } else { Slot::Physical })
}

/// What can never be read comes before who reads it, and that it is being made before who makes it: its maker uses it.
fn classify(info: &SlotInfo, config: &Config, in_recovery: bool) -> Slot {
    if info.plugin != "pgoutput" {
        return Slot::ForeignPlugin(info.plugin.clone());
    }
    if info.database != config.source.database {
        return Slot::ForeignDatabase(info.database.clone());
    }
    if let Some(reason) = info.invalidated() {
        return Slot::Invalidated(reason.to_owned());
    }
    if in_recovery && info.synced == Some(true) {
        return Slot::SyncedUnpromoted;
    }
    let Some(confirmed) = info.confirmed_flush else { return Slot::Creating };
    if !info.active {
        return Slot::Ready(confirmed);
    }
    let application = info.active_application.clone().unwrap_or_default();
    let ours = application == config.source.application_name
        && info.active_role.as_deref().is_none_or(|role| role == config.source.user);
    Slot::Active(Reader { pid: info.active_pid.unwrap_or(0), application, ours })
}
