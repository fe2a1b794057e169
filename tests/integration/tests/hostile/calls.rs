//! Calls that do not come back as calls do: loops, sleeps, traps, memory, stack and tables.
//!
//! Never knows: what is answered.

use anyhow::{Result, ensure};

use super::beside::{End, Hostile};

const LATE: End<'static> = End::Parked("1000 ms");
const TRAPPED: End<'static> = End::Parked("unreachable");

pub(super) async fn loop_in_deliver(major: u32) -> Result<()> {
    Hostile::new("loop-in-deliver").impatient().ends(major, LATE).await.map(drop)
}

pub(super) async fn loop_in_open(major: u32) -> Result<()> {
    Hostile::new("loop-in-open").limit("open_deadline_ms", 1_000).ends(major, LATE).await.map(drop)
}

pub(super) async fn loop_in_describe(major: u32) -> Result<()> {
    Hostile::new("loop-in-describe").limit("open_deadline_ms", 300).ends(major, End::Rejected("300 ms")).await.map(drop)
}

/// Never comes back from that call.
fn never(place: &str, how: &str) -> Hostile {
    Hostile::new("never-answers").at(place).setting("how", how).impatient()
}

pub(super) async fn loop_in_relation_changed(major: u32) -> Result<()> {
    never("relation-changed", "loop").ends(major, LATE).await.map(drop)
}

pub(super) async fn loop_in_flush(major: u32) -> Result<()> {
    never("flush", "loop").ends(major, LATE).await.map(drop)
}

/// An instance that is exchanged is closed; one that does not come back from that is exchanged all the same.
async fn in_close(hostile: Hostile, major: u32) -> Result<()> {
    let seen = hostile.limit("recycle_calls", 1).ends(major, End::Runs).await?;
    seen.says("a last call failed, which changes nothing")?;
    // Not by its metric: that is read while the first exchange may still wait for its call.
    seen.says("has served its time")?;
    ensure!(seen.metric("walgate_instances_ended_total") == 0, "its batches were taken: {}", seen.metrics);
    Ok(())
}

pub(super) async fn loop_in_close(major: u32) -> Result<()> {
    in_close(never("close", "loop"), major).await
}

pub(super) async fn sleep_in_deliver(major: u32) -> Result<()> {
    Hostile::new("sleep-in-deliver").impatient().ends(major, LATE).await.map(drop)
}

pub(super) async fn sleep_in_relation_changed(major: u32) -> Result<()> {
    never("relation-changed", "sleep").ends(major, LATE).await.map(drop)
}

pub(super) async fn sleep_in_flush(major: u32) -> Result<()> {
    never("flush", "sleep").ends(major, LATE).await.map(drop)
}

pub(super) async fn sleep_in_close(major: u32) -> Result<()> {
    in_close(never("close", "sleep"), major).await
}

pub(super) async fn trap_in_deliver(major: u32) -> Result<()> {
    Hostile::new("trap-in-deliver").ends(major, TRAPPED).await.map(drop)
}

pub(super) async fn trap_in_open(major: u32) -> Result<()> {
    Hostile::new("trap-in-open").ends(major, TRAPPED).await.map(drop)
}

pub(super) async fn trap_in_relation_changed(major: u32) -> Result<()> {
    Hostile::new("trap-in-call").at("relation-changed").ends(major, TRAPPED).await.map(drop)
}

pub(super) async fn trap_in_flush(major: u32) -> Result<()> {
    Hostile::new("trap-in-call").at("flush").ends(major, TRAPPED).await.map(drop)
}

pub(super) async fn trap_in_close(major: u32) -> Result<()> {
    in_close(Hostile::new("trap-in-call").at("close"), major).await
}

/// It takes one batch and traps in the next, again and again: each is delivered once more to a fresh instance, and what the
/// failed attempt had staged is gone.
pub(super) async fn trap_after_batches(major: u32) -> Result<()> {
    let hostile = Hostile::new("trap-after-batches").setting("batches", "1").with_output();
    let seen = hostile.ends(major, End::Runs).await?;
    ensure!(seen.metric("walgate_instances_ended_total") > 0, "{}", seen.metrics);
    let (good, bad) = (seen.scene.lines("good.txt"), seen.scene.lines("bad.txt"));
    ensure!(good == bad, "{} lines instead of {}", bad.len(), good.len());
    Ok(())
}

pub(super) async fn eat_memory(major: u32) -> Result<()> {
    Hostile::new("eat-memory").limit("memory_mib", 32).ends(major, End::Parked("memory-limit")).await.map(drop)
}

pub(super) async fn recurse(major: u32) -> Result<()> {
    Hostile::new("recurse").ends(major, End::Parked("stack-overflow")).await.map(drop)
}

pub(super) async fn grow_tables(major: u32) -> Result<()> {
    Hostile::new("grow-tables").limit("table_elements", 5_000).ends(major, End::Parked("table-limit")).await.map(drop)
}
