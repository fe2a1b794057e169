//! How far the standbys are that a failover would promote.
//!
//! A slot that follows a failover is copied to standbys. If the plugins get changes that no standby has yet, and the
//! primary is lost, the promoted standby lacks them for ever while their sinks have them. The server prevents that when
//! `synchronized_standby_slots` names the standbys; where it does not, the acknowledgement is held here.
//! Holds: the question, and what its answer means. Refuses to know who acknowledges.

use tokio_postgres::types::PgLsn;
use walgate_core::Lsn;

use super::session::{MonitorError, Session, column};

/// Published while nobody knows how far the standbys are: nothing moves.
pub(crate) const HOLD: Option<Lsn> = Some(Lsn::ZERO);

/// The restart position of a physical slot is what its standby last said it has on disk. One that is away counts, too: it
/// may be the one that is promoted, and its slot keeps the log by itself. A slot that nobody ever used does not.
const SQL: &str = "SELECT count(*), count(restart_lsn), min(restart_lsn) FROM pg_replication_slots \
     WHERE slot_type = 'physical' AND (active OR restart_lsn IS NOT NULL) AND wal_status IS DISTINCT FROM 'lost'";

/// The position that every standby with a physical slot has confirmed; `None` when there is none.
pub(super) async fn ask(session: &mut Session<'_>) -> Result<Option<Lsn>, MonitorError> {
    let doing = "reading the physical slots";
    let row = session.query_one(doing, SQL, &[]).await?;
    let least: Option<PgLsn> = column(doing, &row, 2)?;
    Ok(position(column(doing, &row, 0)?, column(doing, &row, 1)?, least.map(|lsn| Lsn::new(lsn.into()))))
}

/// A standby that has just come, and has confirmed nothing yet, has nothing.
fn position(in_use: i64, with_position: i64, least: Option<Lsn>) -> Option<Lsn> {
    match in_use {
        0 => None,
        _ if with_position < in_use => HOLD,
        _ => least.or(HOLD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_standby_counts_and_one_without_a_position_holds_all() {
        let at = Some(Lsn::new(7));
        assert_eq!(position(0, 0, None), None);
        assert_eq!(position(2, 2, at), at);
        assert_eq!(position(2, 1, at), HOLD);
        assert_eq!(position(1, 0, None), HOLD);
    }
}
