//! Answers against the contract, texts that are too large, and refusals.
//!
//! Never knows: calls that do not come back.

use anyhow::{Result, ensure};

use super::beside::{CANARY, End, Hostile, Seen};

/// What the programs repeat to make a huge text.
const HUGE: &str = "huge-text";

pub(super) async fn one_ordinal_twice(major: u32) -> Result<()> {
    Hostile::new("garbage-receipt")
        .setting("lie", "twice")
        .ends(major, End::Parked("rejects one ordinal twice"))
        .await
        .map(drop)
}

pub(super) async fn an_ordinal_beyond_the_batch(major: u32) -> Result<()> {
    Hostile::new("garbage-receipt")
        .setting("lie", "beyond")
        .ends(major, End::Parked("an ordinal that the batch does not have"))
        .await
        .map(drop)
}

pub(super) async fn both_ordinals(major: u32) -> Result<()> {
    let seen = Hostile::new("garbage-receipt").ends(major, End::Parked("contract")).await?;
    ensure!(seen.plugin["dead_letters"] == 0, "nothing follows from a broken receipt: {}", seen.plugin);
    Ok(())
}

pub(super) async fn invalid_code(major: u32) -> Result<()> {
    Hostile::new("invalid-code").ends(major, End::Parked("invalid-code")).await.map(drop)
}

async fn huge(place: &str, major: u32, end: End<'_>) -> Result<Seen> {
    let hostile = Hostile::new("huge-strings").at(place).granted("\"log\", \"metrics\", \"state\"").with_output();
    let seen = hostile.ends(major, end).await?;
    ensure!(!(seen.said.clone() + &seen.metrics + &seen.plugin.to_string()).contains(HUGE), "{place}: it is shown");
    Ok(seen)
}

pub(super) async fn huge_codes(major: u32) -> Result<()> {
    huge("failure-code", major, End::Parked("invalid-code")).await?;
    huge("log-code", major, End::Runs).await?.says("plugin output over its limit was dropped")?;
    let seen = huge("reject-code", major, End::Runs).await?;
    ensure!(seen.plugin["dead_letters"].as_u64() > Some(0), "{}", seen.plugin);
    let other = seen.scene.ask("SELECT count(*) FROM walgate.dead_letters WHERE code <> 'invalid-code'").await?;
    ensure!(other == "0", "{other} letters have another code");
    Ok(())
}

pub(super) async fn huge_messages(major: u32) -> Result<()> {
    huge("failure-message", major, End::Parked("huge-message")).await?;
    huge("log-message", major, End::Runs).await?.says("plugin output over its limit was dropped")
}

pub(super) async fn huge_names(major: u32) -> Result<()> {
    let seen = huge("metric-name", major, End::Runs).await?;
    ensure!(seen.metric("walgate_metrics_dropped_total") >= 2, "{}", seen.metrics);
    huge("state-key", major, End::Parked("over-limit")).await?;
    huge("output-name", major, End::Parked("not-granted")).await?;
    huge("secret", major, End::Parked("not-granted")).await?;
    huge("setting", major, End::Runs).await.map(drop)
}

pub(super) async fn huge_describe(major: u32) -> Result<()> {
    let seen = Hostile::new("huge-describe").ends(major, End::Rejected("longer than 255 bytes")).await?;
    ensure!(!seen.said.contains(HUGE), "it is shown: {}", seen.said);
    Ok(())
}

pub(super) async fn retry_forever(major: u32) -> Result<()> {
    Hostile::new("retry-forever").ends(major, End::Parked("2 attempts")).await.map(drop)
}

/// What is rejected is set aside, whatever the failure policy, and the plugin goes on behind it.
pub(super) async fn reject_batch(major: u32) -> Result<()> {
    let seen = Hostile::new("reject-batch").ends(major, End::SetsAside).await?;
    let rows = seen.scene.ask("SELECT max(rows) FROM walgate.dead_letters WHERE code = 'never-this'").await?;
    ensure!(rows == "100", "{rows} rows instead of the whole transaction");
    Ok(())
}

pub(super) async fn reject_odd(major: u32) -> Result<()> {
    let seen = Hostile::new("reject-odd").ends(major, End::Runs).await?;
    ensure!(seen.plugin["dead_letters"].as_u64() > Some(0), "{}", seen.plugin);
    let rows = seen.scene.ask("SELECT max(rows) FROM walgate.dead_letters WHERE code = 'odd'").await?;
    ensure!(rows == "50", "{rows} of a hundred rows have an odd ordinal");
    Ok(())
}

pub(super) async fn halt_in_deliver(major: u32) -> Result<()> {
    Hostile::new("halt-in-deliver").ends(major, End::Parked("refused")).await.map(drop)
}

pub(super) async fn halt_in_open(major: u32) -> Result<()> {
    Hostile::new("halt-in-open").ends(major, End::Parked("cannot be opened")).await.map(drop)
}

pub(super) async fn panic_with_value(major: u32) -> Result<()> {
    let seen = Hostile::new("panic-with-value").granted("\"log\"").ends(major, End::Parked("unreachable")).await?;
    seen.says("about-to-panic")?;
    ensure!(!seen.said.contains(CANARY), "{}", seen.said);
    Ok(())
}

/// Its name tells what its calls were answered.
pub(super) async fn write_in_describe(major: u32) -> Result<()> {
    let seen = Hostile::new("write-in-describe").granted("\"state\"").ends(major, End::Runs).await?;
    let file = seen.scene.path("plugins/bad/plugin.wasm").display().to_string();
    seen.scene.cli(&["plugin", "inspect", &file])?.expect(0, "set-not-granted-get-not-granted")
}
