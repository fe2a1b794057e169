//! Logical replication's own apply worker: the writer of rows that the mirror is compared with.
//!
//! Holds: a subscription for one pass. Never knows: what it writes.
//! Read next: `mirror.rs`.

use std::time::Instant;

use anyhow::Result;

use crate::pass::Pass;
use crate::process::CpuWatch;
use crate::source::{Source, Stretch, Transport};
use crate::target::Target;

/// Its name.
const NAME: &str = "bench";

/// Writes a stretch to the target. `synchronous` as walgate has it: a transaction is flushed when it is committed. Without
/// it, which is what a subscription does by itself, the flush comes a moment later, and is acknowledged then.
pub(crate) async fn run(
    source: &Source,
    target: &Target,
    stretch: &Stretch,
    transport: Transport,
    synchronous: bool,
) -> Result<Pass> {
    let slot = source.copy_slot(&stretch.slot).await?;
    let (url, publication) = (source.url(transport), &stretch.publication);
    let commit = if synchronous { "on" } else { "off" };
    target
        .run(&format!(
            "CREATE SUBSCRIPTION {NAME} CONNECTION '{url}' PUBLICATION {publication} WITH (create_slot = false, \
             slot_name = '{slot}', copy_data = false, enabled = false, synchronous_commit = '{commit}')"
        ))
        .await?;
    let began = Instant::now();
    target.run(&format!("ALTER SUBSCRIPTION {NAME} ENABLE")).await?;
    let walsender = source.walsender(&slot, || Ok(())).await?;
    let watch = CpuWatch::start(walsender.pid);
    let end = target.until_arrived(|| Ok(())).await?;
    let pass = Pass {
        from_spawn: end.duration_since(began),
        streaming: end.duration_since(walsender.seen),
        walsender_cpu: watch.read(),
        reader_cpu: None,
        peak_bytes: None,
    };
    drop(watch);
    for end in ["DISABLE", "SET (slot_name = NONE)"] {
        target.run(&format!("ALTER SUBSCRIPTION {NAME} {end}")).await?;
    }
    target.run(&format!("DROP SUBSCRIPTION {NAME}")).await?;
    source.drop_slot(&slot).await?;
    Ok(pass)
}
