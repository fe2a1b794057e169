//! Decodes a slot with the crate pg_walstream up to a position: a reference for walgate's benchmark.
//!
//! Holds: one loop over `next_event`. Never knows: what the events mean.
//! Called as `walgate-bench-walstream URL SLOT PUBLICATION POSITION`, the position as a decimal number: the program ends
//! after the first commit that ends beyond it.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result};
use pg_walstream::{CancellationToken, EventType, LogicalReplicationStream, ReplicationStreamConfig};

/// As often as pg_recvlogical.
const FEEDBACK_EVERY: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut word = |name: &str| words.next().with_context(|| format!("no {name} was given"));
    let (url, slot, publication) = (word("URL")?, word("SLOT")?, word("PUBLICATION")?);
    let beyond: u64 = word("POSITION")?.parse().context("the position is no number")?;
    let config = ReplicationStreamConfig::builder(slot, publication)
        .with_protocol_version(1)
        .with_feedback_interval(FEEDBACK_EVERY);
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}replication=database&sslmode=disable");
    let mut stream = LogicalReplicationStream::new(&url, config).await?;
    stream.start(None).await?;
    let cancel = CancellationToken::new();
    loop {
        let event = black_box(stream.next_event(&cancel).await?);
        if let EventType::Commit { end_lsn, .. } = event.event_type {
            stream.shared_lsn_feedback.update_applied_lsn(end_lsn.value());
            if end_lsn.value() > beyond {
                return Ok(());
            }
        }
    }
}
