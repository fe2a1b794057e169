//! More than the host takes, through every call that carries something: it is dropped and counted, answered with a fault, or
//! ends the instance, before the host has to hold it.
//!
//! Never knows: how much is the default.

use anyhow::{Result, ensure};

use super::beside::{End, Hostile, Seen};

pub(super) async fn flood_of_log_lines(major: u32) -> Result<()> {
    let seen =
        Hostile::new("log-flood").granted("\"log\"").limit("log_lines_per_call", 7).ends(major, End::Runs).await?;
    // Two batches at least, seven lines each; the sentinel of the scene makes more.
    let written = seen.said.lines().filter(|line| line.contains("flood") && line.contains("walgate::guest")).count();
    ensure!(written >= 14 && written % 7 == 0, "{written} lines: {}", seen.said);
    seen.says("plugin output over its limit was dropped")?;
    seen.says("993")
}

fn flood(place: &str) -> Hostile {
    Hostile::new("flood").at(place).granted("\"metrics\", \"state\"").with_output()
}

pub(super) async fn flood_of_metric_names(major: u32) -> Result<()> {
    let seen = flood("metric-names").limit("metric_names", 5).ends(major, End::Runs).await?;
    let names = seen.metrics.lines().filter(|line| line.starts_with("walgate_plugin_flood_")).count();
    ensure!(names == 5, "{names} names: {}", seen.metrics);
    let dropped = seen.metric("walgate_metrics_dropped_total");
    ensure!(dropped >= 995, "{dropped} dropped");
    Ok(())
}

pub(super) async fn flood_of_metric_values(major: u32) -> Result<()> {
    let seen = flood("metric-values").ends(major, End::Runs).await?;
    ensure!(seen.metric("walgate_metrics_dropped_total") >= 20_000, "{}", seen.metrics);
    ensure!(!seen.metrics.contains("walgate_plugin_flood"), "{}", seen.metrics);
    Ok(())
}

/// The fault ends what the call staged, and nothing of it is kept.
fn left_nothing(seen: &Seen) -> Result<()> {
    ensure!(seen.plugin["rows"] == 0 && seen.scene.lines("bad.txt").is_empty(), "{}", seen.plugin);
    Ok(())
}

async fn state_is_empty(seen: &Seen) -> Result<()> {
    let kept = seen.scene.ask("SELECT count(*) FROM walgate.plugin_state WHERE plugin = 'bad'").await?;
    ensure!(kept == "0", "{kept} keys were kept");
    left_nothing(seen)
}

const OVER_LIMIT: End<'static> = End::Parked("over-limit");

pub(super) async fn flood_of_state_keys(major: u32) -> Result<()> {
    state_is_empty(&flood("state-keys").limit("state_keys", 10).ends(major, OVER_LIMIT).await?).await
}

pub(super) async fn flood_of_state_bytes(major: u32) -> Result<()> {
    for place in ["state-key", "state-value", "state-total"] {
        state_is_empty(&flood(place).limit("state_total_bytes", 1 << 20).ends(major, OVER_LIMIT).await?).await?;
    }
    Ok(())
}

pub(super) async fn flood_of_output(major: u32) -> Result<()> {
    left_nothing(&flood("output").limit("output_bytes_per_call", 1 << 20).ends(major, OVER_LIMIT).await?)
}

/// It goes on whatever it is answered, so that only the deadline ends it.
pub(super) async fn flood_that_hears_nothing(major: u32) -> Result<()> {
    let hostile = flood("output-deaf").limit("output_bytes_per_call", 1 << 20).impatient();
    left_nothing(&hostile.ends(major, End::Parked("1000 ms")).await?)
}

pub(super) async fn flood_in_one_call(major: u32) -> Result<()> {
    let hostile = flood("host-call").limit("host_call_bytes", 1 << 20);
    left_nothing(&hostile.ends(major, End::Parked("host-call-bytes")).await?)
}
