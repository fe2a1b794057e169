//! Makes the slot, and says what it waits for.
//!
//! Holds: the wait for transactions that are open on the source, on a primary and on a standby. Refuses to give up: a slot
//! without its past is worth nothing, and whoever asked can stop asking.

use std::time::Duration;

use walgate_wire::{Connection, CreatedSlot, SlotOptions, SourceOptions, WireError};

use super::Refusal;
use super::server::can_make_slot;
use crate::config::Config;

/// How often a primary is asked to log what runs on it. The standby's slot needs one such record, sometimes two.
const NUDGE: Duration = Duration::from_secs(1);
/// One line of progress for so many of those.
const NUDGES_A_LINE: u32 = 5;

/// Makes the slot of the configuration. `say` gets a line every few seconds for as long as that waits.
pub(crate) async fn create(
    connection: &mut Connection,
    config: &Config,
    in_recovery: bool,
    say: impl Fn(String),
) -> Result<CreatedSlot, Refusal> {
    can_make_slot(config, in_recovery)?;
    let options = SlotOptions { failover: config.failover, ..SlotOptions::default() };
    let creating = connection.create_slot(&config.slot, options);
    tokio::pin!(creating);
    let mut ticks = tokio::time::interval(NUDGE);
    let mut asked = 0_u32;
    loop {
        tokio::select! {
            created = &mut creating => return Ok(created?),
            _ = ticks.tick() => {}
        }
        // While the primary is asked, the slot may be done; its answer waits.
        let nudged = match (&config.ddl, in_recovery) {
            (Some(primary), true) => nudge(primary).await.err(),
            _ => None,
        };
        if asked > 0 && asked.is_multiple_of(NUDGES_A_LINE) {
            let waited = NUDGE.as_secs().saturating_mul(asked.into());
            say(format!(
                "slot {} is not made yet after {waited} s: {}",
                config.slot,
                why(config, in_recovery, nudged).await
            ));
        }
        asked = asked.saturating_add(1);
    }
}

/// Has the primary write down which transactions run: what a slot on a standby waits for.
async fn nudge(primary: &SourceOptions) -> Result<(), WireError> {
    let mut connection = Connection::connect_sql(primary).await?;
    connection.query("SELECT pg_catalog.pg_log_standby_snapshot()").await.map(|_| ())
}

/// What the wait is for, as far as can be told.
async fn why(config: &Config, in_recovery: bool, nudged: Option<WireError>) -> String {
    match (in_recovery, &config.ddl, nudged) {
        (false, ..) => blockers(&config.source).await,
        (true, None, _) => {
            "the standby waits for the primary to log its running transactions; run on the primary: SELECT \
                            pg_log_standby_snapshot(), or add ddl_url to [source]"
                .to_owned()
        }
        (true, Some(_), Some(error)) => {
            format!("pg_log_standby_snapshot() cannot be called over source.ddl_url: {error}")
        }
        (true, Some(primary), None) => blockers(primary).await,
    }
}

/// Who holds transactions open on the primary. Names and numbers, never a query.
async fn blockers(primary: &SourceOptions) -> String {
    let sql = "SELECT count(*) OVER (), pid, application_name, extract(epoch FROM now() - xact_start)::bigint \
               FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 1";
    let asked = async { Connection::connect_sql(primary).await?.query(sql).await }.await;
    let rows = match asked {
        Ok(rows) => rows,
        Err(error) => return format!("it waits for transactions that were open when it began ({error})"),
    };
    let Some(row) = rows.first() else {
        return "it waits for transactions that were open when it began; none is seen now, look for prepared ones in \
                pg_prepared_xacts"
            .to_owned();
    };
    format!(
        "it waits for transactions that were open when it began; {} are open now, the oldest for {} s by process {} \
         (application {:?})",
        row.get(0).unwrap_or("?"),
        row.get(3).unwrap_or("?"),
        row.get(1).unwrap_or("?"),
        row.get(2).unwrap_or("")
    )
}
