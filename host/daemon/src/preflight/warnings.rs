//! What does not keep a stream from starting, but will hurt later?
//!
//! Holds: warnings as lines for people, for the log of a start and for `walgate check`. Refuses to stop anything.

use walgate_wire::{Connection, WireError};

use super::failover;
use crate::config::Config;

/// Everything an operator should hear of this source and slot. Changes nothing.
pub(crate) async fn warnings(connection: &mut Connection, config: &Config) -> Result<Vec<String>, WireError> {
    let mut lines = Vec::new();
    let in_recovery = connection.in_recovery().await?;
    if in_recovery && connection.setting("hot_standby_feedback").await?.as_deref() != Some("on") {
        lines.push(
            "the source is a standby with hot_standby_feedback = off: the primary may remove rows of its catalog that the slot \
             needs, and then the server invalidates the slot; run on the standby: ALTER SYSTEM SET hot_standby_feedback = on; \
             SELECT pg_reload_conf()"
                .to_owned(),
        );
    }
    if in_recovery && config.ddl.is_none() {
        lines.push(
            "the source is a standby and [source] has no ddl_url: a slot can be created only after someone runs on the primary: \
             SELECT pg_log_standby_snapshot()"
                .to_owned(),
        );
    }
    if let Some(slot) = connection.slot(&config.slot).await? {
        lines.extend(failover::warnings(connection, config, &slot).await?);
        lines.extend(younger_publications(connection, config).await?);
    }
    Ok(lines)
}

/// Publications that were made or altered after the oldest catalog the slot may look at. The server reads old log under the
/// publications of that time: up to 17 it fails on one that did not exist, from 18 on it passes over its changes. A new slot
/// takes the oldest catalog over from a slot that is behind, and then its own says nothing.
async fn younger_publications(connection: &mut Connection, config: &Config) -> Result<Vec<String>, WireError> {
    let names: Vec<String> = config.publications.iter().map(|name| walgate_wire::literal(name)).collect();
    let sql = format!(
        "SELECT p.pubname FROM pg_catalog.pg_publication p, pg_catalog.pg_replication_slots s \
         WHERE p.pubname IN ({}) AND s.slot_name::text = {} AND pg_catalog.age(p.xmin) < pg_catalog.age(s.catalog_xmin) \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots o WHERE o.slot_name <> s.slot_name \
             AND pg_catalog.age(o.catalog_xmin) >= pg_catalog.age(s.catalog_xmin))",
        names.join(", "),
        walgate_wire::literal(&config.slot)
    );
    let rows = connection.query(&sql).await?;
    let names = rows.iter().filter_map(|row| row.get(0)).map(walgate_wire::identifier);
    Ok(names
        .map(|name| {
            format!(
                "publication {name} may be younger than what slot {} has yet to read: changes from before it was made do not \
                 come. If the slot was created first, drop it and create it again",
                config.slot
            )
        })
        .collect())
}
