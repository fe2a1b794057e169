//! How far the slot is behind the end of the source's log.
//!
//! Holds: the one question about the slot, and the distances between its positions. Refuses to know who is to blame; see
//! [`super::blockers`].

use tokio_postgres::types::PgLsn;
use walgate_core::Lsn;

use super::session::{MonitorError, Session, column};

/// On a standby the log ends where replay stands: nothing beyond it can be decoded.
const SQL: &str = "SELECT s.confirmed_flush_lsn, s.restart_lsn, s.wal_status, s.safe_wal_size, \
     CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, \
     (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') \
     FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND s.slot_name::text = $1";

/// Where the slot stands, as the source told it at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lags {
    /// What the slot was last told is durable.
    pub(crate) confirmed: Lsn,
    /// Log from here on is kept for it; `None` when it is lost.
    pub(crate) restart: Option<Lsn>,
    /// The end of the log: written on a primary, replayed on a standby.
    pub(crate) current: Lsn,
}

/// One answer about the slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reading {
    /// `None` while the slot is being created.
    pub(super) confirmed: Option<Lsn>,
    pub(super) restart: Option<Lsn>,
    /// `None` on a standby that has replayed nothing yet.
    pub(super) current: Option<Lsn>,
    pub(super) wal_status: Option<&'static str>,
    pub(super) safe_wal_bytes: Option<i64>,
    /// `max_slot_wal_keep_size`; `None` when it has no bound.
    pub(super) keep_bytes: Option<u64>,
}

impl Reading {
    /// The positions, once the slot has them.
    pub(super) fn lags(&self) -> Option<Lags> {
        Some(Lags { confirmed: self.confirmed?, restart: self.restart, current: self.current? })
    }

    /// Bytes from the confirmed position to the end of the log.
    pub(super) fn confirmed_lag(&self) -> Option<u64> {
        Some(self.current?.bytes_since(self.confirmed?))
    }

    /// Bytes of log that are kept for the slot.
    pub(super) fn restart_lag(&self) -> Option<u64> {
        Some(self.current?.bytes_since(self.restart?))
    }

    /// Sets the gauges.
    pub(super) fn publish(&self) {
        for (kind, lag) in [("confirmed", self.confirmed_lag()), ("restart", self.restart_lag())] {
            if let Some(lag) = lag {
                metrics::gauge!("walgate_lag_bytes", "kind" => kind).set(lag as f64);
            }
        }
    }
}

/// Asks the source about the slot.
pub(super) async fn ask(session: &mut Session<'_>, slot: &str) -> Result<Reading, MonitorError> {
    let doing = "reading the slot";
    let rows = session.query(doing, SQL, &[&slot]).await?;
    let row = rows.first().ok_or_else(|| MonitorError::SlotMissing { slot: slot.to_owned() })?;
    let lsn = |at| Ok(column::<Option<PgLsn>>(doing, row, at)?.map(|lsn| Lsn::new(lsn.into())));
    Ok(Reading {
        confirmed: lsn(0)?,
        restart: lsn(1)?,
        current: lsn(4)?,
        wal_status: column::<Option<&str>>(doing, row, 2)?.map(status_word),
        safe_wal_bytes: column(doing, row, 3)?,
        keep_bytes: column::<Option<i64>>(doing, row, 5)?.and_then(keep_bytes),
    })
}

/// The words that Postgres has for the state of a slot's log.
fn status_word(told: &str) -> &'static str {
    const KNOWN: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];
    KNOWN.into_iter().find(|word| *word == told).unwrap_or("unknown")
}

/// The setting is in megabytes, and negative without a bound.
fn keep_bytes(megabytes: i64) -> Option<u64> {
    u64::try_from(megabytes).ok().map(|megabytes| megabytes.saturating_mul(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lags_are_bytes_to_the_end_of_the_log() {
        let lsn = |raw| Some(Lsn::new(raw));
        let reading = Reading { confirmed: lsn(900), restart: lsn(400), current: lsn(1000), ..Reading::default() };
        assert_eq!((reading.confirmed_lag(), reading.restart_lag()), (Some(100), Some(600)));
        // A standby may be asked about a slot that stands beyond what it has replayed.
        let ahead = Reading { current: lsn(500), ..reading };
        assert_eq!(ahead.confirmed_lag(), Some(0));
        let creating = Reading { confirmed: None, ..reading };
        assert_eq!((creating.lags(), creating.confirmed_lag()), (None, None));
        let lost = Reading { restart: None, ..reading };
        assert_eq!((lost.restart_lag(), lost.lags().map(|lags| lags.restart)), (None, Some(None)));
    }

    #[test]
    fn words_and_settings_of_the_server_are_a_closed_set() {
        assert_eq!(status_word("unreserved"), "unreserved");
        assert_eq!(status_word("a word\nof another server"), "unknown");
        assert_eq!((keep_bytes(-1), keep_bytes(0), keep_bytes(3)), (None, Some(0), Some(3 << 20)));
        assert_eq!(keep_bytes(i64::MAX), Some(u64::MAX));
    }
}
