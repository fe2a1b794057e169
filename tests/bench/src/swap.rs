//! How long nothing is delivered while another version of a plugin takes over, with one-row transactions coming a thousand
//! times a second.
//!
//! Holds: the versions that follow one another, and two views of each exchange: the pause that walgate tells of itself, and the
//! longest time between two deliveries that anybody can see. Never knows: how a version takes over.
//! Read next: `latency.rs`, whose writer and sink these are.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use walgate_harness::{guest, request, wait_for, walgate_bin};

use crate::figures::Spread;
use crate::latency::{Printed, WARM_UP, Writer};
use crate::note;
use crate::options::Options;
use crate::site::{PLUGIN, Setup, Site};
use crate::source::{DEADLINE, Source, Transport};
use crate::walgate_run::Runner;

/// Exchanges in a full and in a quick run.
const FULL: usize = 20;
const QUICK: usize = 5;

/// Milliseconds.
#[derive(Debug)]
pub(crate) struct Swaps {
    /// What walgate says of itself.
    pub(crate) pause: Option<Spread>,
    /// The longest time between two deliveries around an exchange.
    pub(crate) gap: Option<Spread>,
}

/// Exchanges the counting plugin, over and over.
pub(crate) async fn measure(source: &Source, runner: &Runner, options: &Options) -> Result<Swaps> {
    source.run("CREATE TABLE swapped (id bigint PRIMARY KEY, name text)").await?;
    let table = "swapped".to_owned();
    let tables = [table.clone()];
    let publication = source.publish("swapped", &tables).await?;
    let slot = source.create_slot().await?;
    let setup = Setup::counter(&tables, source.state_url(Transport::Tcp));
    let site = runner.site(source, Transport::Tcp, &setup, &slot, &publication, "debug")?;
    let mut command = Command::new(walgate_bin()?);
    command.args(["run", "--config"]).arg(site.config());
    let mut printed = Printed::start_err(command)?;
    source.walsender(&slot, || printed.still_runs()).await?;
    let writer = Writer::new(source.connect().await?, table);
    writer.paced(WARM_UP).await?;
    let component = std::fs::read(guest(setup.guest)?).context("cannot read the guest")?;
    let count = if options.quick { QUICK } else { FULL };
    let (mut pauses, mut gaps) = (Vec::new(), Vec::new());
    note(&format!("{count} versions of a plugin follow one another under load"));
    for number in 0..count {
        let before = printed.wait_for(1).await?.len();
        let write = async {
            // Longer than noticing and compiling take; the exchange is somewhere in it.
            writer.paced(2 * WARM_UP).await?;
            while generation(&site).await? < number + 2 {
                writer.paced(WARM_UP / 5).await?;
            }
            anyhow::Ok(())
        };
        let swap = async {
            site.replace(&another(&component, number))?;
            wait_for(DEADLINE, "the next version takes over", async || {
                let plugin = plugin(&site).await?;
                let number_of = |field: &str| plugin.get(field).and_then(Value::as_f64);
                let done = number_of("generation") == Some((number + 2) as f64);
                Ok(number_of("last_swap_pause_us").filter(|_| done))
            })
            .await
        };
        let (write, pause) = tokio::join!(write, swap);
        write?;
        pauses.push(pause? / 1000.0);
        let seen = printed.wait_for(before + 1).await?;
        let around = seen.get(before.saturating_sub(1)..).unwrap_or_default();
        let longest = around
            .windows(2)
            .map(|two| two.last().zip(two.first()).map_or(Duration::ZERO, |(later, one)| later.duration_since(*one)))
            .max();
        gaps.extend(longest.map(|gap| gap.as_secs_f64() * 1000.0));
    }
    printed.end()?;
    source.drop_slot(&slot).await?;
    ensure!(pauses.len() == count, "{} of {count} exchanges", pauses.len());
    Ok(Swaps { pause: Spread::of(pauses), gap: Spread::of(gaps) })
}

async fn generation(site: &Site) -> Result<usize> {
    Ok(usize::try_from(plugin(site).await?.get("generation").and_then(Value::as_u64).unwrap_or_default())?)
}

async fn plugin(site: &Site) -> Result<Value> {
    let plugins: Value = serde_json::from_str(&request(site.api, "GET", "/plugins", None, "").await?.body)?;
    plugins.get(PLUGIN).cloned().context("walgate does not name its plugin")
}

/// The same component under another digest: a custom section more.
fn another(component: &[u8], number: usize) -> Vec<u8> {
    let name = format!("version {number:03}");
    let mut bytes = component.to_vec();
    bytes.push(0);
    bytes.extend([name.len() + 1, name.len()].map(|length| u8::try_from(length).unwrap_or_default()));
    bytes.extend(name.as_bytes());
    bytes
}
