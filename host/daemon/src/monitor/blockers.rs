//! What on the source is open for so long that it may keep the slot back.
//!
//! Holds: the question and its order. A slot restarts where the oldest transaction with an id began, so those come first;
//! a snapshot alone holds back dead rows, not log. Never asks for the text of a query or the name of a prepared transaction.

use crate::status::Blocker;

use super::session::{MonitorError, Session, column};

/// What ended between two looks kept nothing back, so the youngest are left out. The reader of the slot itself is no
/// blocker. On a standby the transactions of its primary are not seen.
const SQL: &str = "SELECT kind, pid, application, state, seconds, slot, has_xid FROM ( \
     SELECT 'transaction' AS kind, a.pid, a.application_name AS application, a.state, \
       extract(epoch FROM clock_timestamp() - a.xact_start)::int8 AS seconds, NULL::text AS slot, \
       a.backend_xid IS NOT NULL AS has_xid, age(coalesce(a.backend_xid, a.backend_xmin)) AS behind \
     FROM pg_stat_activity a \
     WHERE coalesce(a.backend_xid, a.backend_xmin) IS NOT NULL AND a.pid <> pg_backend_pid() \
       AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - interval '5 s') \
       AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = a.pid AND s.slot_name::text = $1) \
     UNION ALL \
     SELECT 'prepared', NULL, NULL, NULL, extract(epoch FROM clock_timestamp() - p.prepared)::int8, NULL, true, \
       age(p.transaction) \
     FROM pg_prepared_xacts p WHERE p.prepared < clock_timestamp() - interval '5 s' \
     UNION ALL \
     SELECT 'replication slot', s.active_pid, NULL, NULL, NULL, s.slot_name::text, false, age(s.xmin) \
     FROM pg_replication_slots s WHERE s.xmin IS NOT NULL AND s.slot_name::text <> $1 \
     ) found ORDER BY has_xid DESC, behind DESC, pid LIMIT 5";

/// Asks the source, at most five, the worst first.
pub(super) async fn ask(session: &mut Session<'_>, slot: &str) -> Result<Vec<Blocker>, MonitorError> {
    let doing = "looking for open transactions";
    let rows = session.query(doing, SQL, &[&slot]).await?;
    let read = |row: &tokio_postgres::Row| {
        let kind: &str = column(doing, row, 0)?;
        let seconds: Option<i64> = column(doing, row, 4)?;
        let of_slot: Option<&str> = column(doing, row, 5)?;
        Ok(Blocker {
            kind: of_slot.map_or_else(|| kind.to_owned(), |slot| format!("{kind} {}", printable(slot))),
            pid: column(doing, row, 1)?,
            application_name: column::<Option<&str>>(doing, row, 2)?.map(printable),
            state: column::<Option<&str>>(doing, row, 3)?.map(printable),
            age_seconds: seconds.map(|seconds| seconds.try_into().unwrap_or(0)),
            has_xid: column(doing, row, 6)?,
        })
    };
    rows.iter().map(read).collect()
}

/// A name for a page: at most as long as Postgres lets names be, and nothing that moves a cursor.
fn printable(name: &str) -> String {
    name.chars().take(63).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable("psql"), "psql");
        assert_eq!(printable("a\u{1b}[2J\nb\u{9b}"), "a?[2J?b?");
        assert_eq!(printable(&"ä".repeat(100)).chars().count(), 63);
    }
}
