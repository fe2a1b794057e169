//! Logical slots: create, drop, inspect.
//!
//! Holds: the commands, and the view of slots by server version. Refuses to decide whether a slot may be used or must
//! be recreated; the daemon does. Read next: [`crate::stream`].

use walgate_core::Lsn;

use crate::connection::{Connection, Row};
use crate::error::{Kind, WireError};
use crate::quote::{identifier, literal};
use crate::verdict::Phase;

/// How a slot is made. The default is a durable one that exports no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotOptions {
    /// Gone with the session that made it.
    pub temporary: bool,
    /// Decode prepared transactions when they are prepared.
    pub two_phase: bool,
    /// Keep it in step on standbys; needs Postgres 17.
    pub failover: bool,
    /// Export the snapshot of the consistent point; it dies with the next command of this connection.
    pub export_snapshot: bool,
}

/// What a new slot tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Its name.
    pub name: String,
    /// The first position it can stream from; part of the lineage.
    pub consistent_point: Lsn,
    /// The name of the exported snapshot, if one was asked for.
    pub snapshot: Option<String>,
}

/// One logical slot as the server shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// Its name.
    pub name: String,
    /// Its output plugin; walgate reads `pgoutput` only.
    pub plugin: String,
    /// The database it belongs to.
    pub database: String,
    /// Gone with its session.
    pub temporary: bool,
    /// Some session uses it now.
    pub active: bool,
    /// The server process of that session.
    pub active_pid: Option<i32>,
    /// The application name of that session, when this role may see it.
    pub active_application: Option<String>,
    /// The role of that session, when this role may see it.
    pub active_role: Option<String>,
    /// Log from here on is kept for it; `None` while it is being created or after it was lost.
    pub restart_lsn: Option<Lsn>,
    /// The last flush position it was told; `None` while it is still being created.
    pub confirmed_flush: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` while it has no position.
    pub wal_status: Option<String>,
    /// Bytes of log that can still be written before it is in danger; `None` without `max_slot_wal_keep_size`.
    pub safe_wal_size: Option<i64>,
    /// Whether recovery on a standby conflicted with it (16 does not tell that from lost log there); `None` before
    /// Postgres 16, false on a primary.
    pub conflicting: Option<bool>,
    /// Why it cannot be used any more; `None` while it can, and before Postgres 17.
    pub invalidation_reason: Option<String>,
    /// Whether it is kept in step on standbys; `None` before Postgres 17.
    pub failover: Option<bool>,
    /// Whether it is such a copy, which cannot be used before the standby is promoted; `None` before Postgres 17.
    pub synced: Option<bool>,
}

/// A physical slot: what a standby holds on its upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhysicalSlot {
    /// Its name.
    pub name: String,
    /// A standby uses it now.
    pub active: bool,
    /// What its standby has confirmed; log from here on is kept for it. `None` before it was first used.
    pub restart_lsn: Option<Lsn>,
}

impl SlotInfo {
    /// Why it can never be read again, in the server's words; `None` when it can.
    pub fn invalidated(&self) -> Option<&str> {
        if let Some(reason) = &self.invalidation_reason {
            return Some(reason);
        }
        // 16 calls such a slot lost, too, and 15 knows but the one reason.
        if self.conflicting == Some(true) {
            return Some("conflicting");
        }
        (self.wal_status.as_deref() == Some("lost")).then_some("wal_removed")
    }
}

impl Connection {
    /// Creates a logical slot for `pgoutput`. Waits for transactions that are open on the source, without a bound.
    pub async fn create_slot(&mut self, name: &str, options: SlotOptions) -> Result<CreatedSlot, WireError> {
        let rows = self.command(&create_command(name, options, self.server_version())?, Phase::Create).await?;
        let created = rows.first().and_then(|row| {
            Some(CreatedSlot {
                name: row.get(0)?.to_owned(),
                consistent_point: row.get(1)?.parse().ok()?,
                snapshot: row.get(2).filter(|name| !name.is_empty()).map(str::to_owned),
            })
        });
        created.ok_or_else(|| WireError::protocol("an incomplete description of a new slot"))
    }

    /// Drops a slot. If it is in use, `wait` waits until it is free, without a bound; else that is an error to retry.
    pub async fn drop_slot(&mut self, name: &str, wait: bool) -> Result<(), WireError> {
        let wait = if wait { " WAIT" } else { "" };
        let command = format!("DROP_REPLICATION_SLOT {}{wait}", slot_identifier(name)?);
        match self.command(&command, Phase::Drop).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.explain(name, error).await),
        }
    }

    /// The logical slot of that name.
    pub async fn slot(&mut self, name: &str) -> Result<Option<SlotInfo>, WireError> {
        let sql = slots_query(self.server_version(), Some(name));
        self.query(&sql).await?.first().map(slot_of).transpose()
    }

    /// All logical slots of the cluster, by name.
    pub async fn slots(&mut self) -> Result<Vec<SlotInfo>, WireError> {
        let sql = slots_query(self.server_version(), None);
        self.query(&sql).await?.iter().map(slot_of).collect()
    }

    /// All physical slots of the cluster, by name.
    pub async fn physical_slots(&mut self) -> Result<Vec<PhysicalSlot>, WireError> {
        let sql = "SELECT slot_name, active, restart_lsn FROM pg_catalog.pg_replication_slots \
                   WHERE slot_type = 'physical' ORDER BY 1";
        let rows = self.query(sql).await?;
        let read = |row: &Row| {
            Some(PhysicalSlot {
                name: row.get(0)?.to_owned(),
                active: row.get(1)? == "t",
                restart_lsn: row.get(2).map(str::parse).transpose().ok()?,
            })
        };
        let slots: Option<Vec<_>> = rows.iter().map(read).collect();
        slots.ok_or_else(|| WireError::protocol("an unreadable description of a physical slot"))
    }

    /// Makes an error about a slot say what the slot's own state says; the error as it was when that shows nothing.
    pub(crate) async fn explain(&mut self, name: &str, error: WireError) -> WireError {
        let slot = name.to_owned();
        match error.sqlstate() {
            Some("42704") => Kind::SlotMissing { slot }.into(),
            Some("55006") => {
                let info = self.slot(name).await.ok().flatten();
                let (pid, application) = info.map_or((None, None), |i| (i.active_pid, i.active_application));
                Kind::SlotActive { slot, pid, application }.into()
            }
            Some("55000") => {
                let info = self.slot(name).await.ok().flatten();
                match info.as_ref().and_then(SlotInfo::invalidated) {
                    Some(reason) => Kind::SlotInvalidated { slot, reason: reason.to_owned() }.into(),
                    None => error,
                }
            }
            _ => error,
        }
    }
}

/// The name as an identifier, if it is a slot name at all.
pub(crate) fn slot_identifier(name: &str) -> Result<String, WireError> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if (1..=63).contains(&name.len()) && name.bytes().all(legal) {
        Ok(identifier(name))
    } else {
        Err(Kind::SlotName.into())
    }
}

fn create_command(name: &str, options: SlotOptions, major: u32) -> Result<String, WireError> {
    let temporary = if options.temporary { " TEMPORARY" } else { "" };
    let snapshot = if options.export_snapshot { "export" } else { "nothing" };
    let mut list = format!("SNAPSHOT '{snapshot}'");
    if options.two_phase {
        list.push_str(", TWO_PHASE true");
    }
    if options.failover {
        if major < 17 {
            return Err(Kind::TooOld { what: "a failover slot", needs: 17, have: major }.into());
        }
        list.push_str(", FAILOVER true");
    }
    Ok(format!("CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput ({list})", slot_identifier(name)?))
}

fn slots_query(major: u32, name: Option<&str>) -> String {
    let since = |version: u32, column: &'static str| if major >= version { column } else { "NULL" };
    let filter = name.map(|name| format!(" AND s.slot_name::text = {}", literal(name))).unwrap_or_default();
    format!(
        "SELECT s.slot_name, s.plugin, s.database, s.temporary, s.active, s.active_pid, a.application_name, \
         s.restart_lsn, s.confirmed_flush_lsn, s.wal_status, s.safe_wal_size, {}, {}, {}, {}, a.usename \
         FROM pg_catalog.pg_replication_slots s \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid \
         WHERE s.slot_type = 'logical'{filter} ORDER BY 1",
        // 16 says so of every slot that was invalidated; what is not a standby has nothing to conflict with.
        since(16, "s.conflicting AND pg_catalog.pg_is_in_recovery()"),
        since(17, "s.invalidation_reason"),
        since(17, "s.failover"),
        since(17, "s.synced"),
    )
}

fn slot_of(row: &Row) -> Result<SlotInfo, WireError> {
    let text = |column| row.get(column).map(str::to_owned);
    let flag = |column| row.get(column).map(|value| value == "t");
    let lsn = |column| row.get(column).map(str::parse).transpose();
    let read = || -> Option<SlotInfo> {
        Some(SlotInfo {
            name: text(0)?,
            plugin: text(1)?,
            database: text(2)?,
            temporary: flag(3)?,
            active: flag(4)?,
            active_pid: row.get(5).map(str::parse).transpose().ok()?,
            active_application: text(6),
            active_role: text(15),
            restart_lsn: lsn(7).ok()?,
            confirmed_flush: lsn(8).ok()?,
            wal_status: text(9),
            safe_wal_size: row.get(10).map(str::parse).transpose().ok()?,
            conflicting: flag(11),
            invalidation_reason: text(12),
            failover: flag(13),
            synced: flag(14),
        })
    };
    read().ok_or_else(|| WireError::protocol("an unreadable description of a slot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_by_version() {
        let plain = create_command("s_1", SlotOptions::default(), 15).unwrap();
        assert_eq!(plain, "CREATE_REPLICATION_SLOT \"s_1\" LOGICAL pgoutput (SNAPSHOT 'nothing')");
        let all = SlotOptions { temporary: true, two_phase: true, failover: true, export_snapshot: true };
        assert_eq!(
            create_command("s", all, 17).unwrap(),
            "CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export', TWO_PHASE true, FAILOVER true)"
        );
        assert_eq!(create_command("s", all, 16).unwrap_err().halt_name(), "server_too_old");
        assert!(!slots_query(15, None).contains("conflicting"));
        assert!(slots_query(16, None).contains("pg_is_in_recovery(), NULL"));
        assert!(slots_query(17, Some("it's")).contains("= 'it''s'"));
    }

    #[test]
    fn a_bad_slot_name_is_refused_without_echo() {
        for name in ["", "Upper", "a-b", "a\"b", "ä", &"x".repeat(64)] {
            let error = slot_identifier(name).unwrap_err();
            assert_eq!(error.halt_name(), "bad_name");
            assert!(name.is_empty() || !format!("{error:?}").contains(name));
        }
        assert_eq!(slot_identifier(&"x".repeat(63)).unwrap().len(), 65);
    }
}
