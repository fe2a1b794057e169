//! One round: start everything, work, crash, work on, exchange a plugin, stop, judge.
//!
//! Holds: the order of the steps and their deadlines. Refuses to know SQL, file formats and configuration.
//! Read next: `workload.rs`, `ledger.rs`, `leak.rs`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio_postgres::Client;
use walgate_core::Lsn;
use walgate_harness::{Cluster, postgres_bin, wait_for, wait_until};

use crate::gate::Gate;
use crate::leak::{Findings, Needles};
use crate::ledger::Ledger;
use crate::report::{Changes, Progress, Report, Rows, Swap};
use crate::shop::{self, DATABASE, MAIL_MARKER, TABLES};
use crate::state;
use crate::tally::Tally;
use crate::workload::{Clerk, IMPORT_NAME, IMPORT_ROWS};

/// Bytes of a line of the large transaction, a little less than the shortest measured (193 to 200). It only has to place
/// the crash near a third; how many rows there really were is counted afterwards.
const IMPORT_LINE_BYTES: u64 = 185;

/// How often the growing file is looked at before the crash: often against the time that a batch of 1,000 rows takes.
const WATCH: Duration = Duration::from_millis(2);

/// Everything made so far has to arrive within this; it takes a second or two.
const DELIVERY_DEADLINE: Duration = Duration::from_secs(120);

/// Enough of the end of the file to hold its last transactions.
const END_BYTES: u64 = 256 << 10;

/// What a round leaves behind.
pub(crate) struct Done {
    pub(crate) cluster: Cluster,
    pub(crate) gate: Gate,
    pub(crate) clerk: Clerk,
    pub(crate) report: Report,
}

/// The crash.
struct Crash {
    imported: Tally,
    killed_after_rows: u64,
}

/// Runs a round. walgate is stopped at its end, Postgres is not.
pub(crate) async fn round(folder: &Path, progress: Progress) -> Result<Done> {
    let major = [18, 15].into_iter().find(|major| postgres_bin(*major).is_ok());
    let major = major.context("there is no Postgres 18 and no 15; run: cargo xtask postgres 18")?;
    progress.say(&format!("starting a throwaway Postgres {major} with a small shop"));
    let cluster = Cluster::start(major)?;
    cluster.execute("postgres", &format!("CREATE DATABASE {DATABASE}")).await?;
    let client = cluster.client(DATABASE).await?;
    let run = run_digits();
    shop::create(&client, &run).await?;
    let mut clerk = Clerk::new(cluster.client(DATABASE).await?);
    let importer = Clerk::new(cluster.client(DATABASE).await?);
    let mut gate = Gate::lay_out(folder, &cluster.url(DATABASE))?;
    let (crash, swap) = match work(&mut gate, &mut clerk, importer, &client, progress).await {
        Ok(done) => done,
        Err(error) => return Err(gate.explain(error)),
    };
    progress.say("comparing the source with what the NDJSON file rebuilds, and looking for emails and phones");
    let made = clerk.made().plus(crash.imported);
    let mut report = judge(&gate, &client, &run, made, swap).await?;
    report.killed_after_rows = crash.killed_after_rows;
    report.postgres = major;
    report.duration_ms = u64::try_from(progress.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Done { cluster, gate, clerk, report })
}

/// Eight digits that no other run has.
fn run_digits() -> String {
    // The standard library seeds its hasher at random; that is all the chance needed here.
    format!("{:08}", RandomState::new().build_hasher().finish() % 100_000_000)
}

/// From the slot to the clean stop.
async fn work(
    gate: &mut Gate,
    clerk: &mut Clerk,
    importer: Clerk,
    client: &Client,
    progress: Progress,
) -> Result<(Crash, Swap)> {
    progress.say("walgate: slot create, check, run");
    for args in [["slot", "create"].as_slice(), &["check"], &["plugin", "list"]] {
        gate.ask(args).await?;
    }
    gate.start().await?;
    progress.say("the shop opens: inserts, updates beside large values, new keys, deletes, rollbacks, a truncate");
    clerk.open_shop().await?;
    let mark = clerk.mark(1).await?;
    delivered(gate, &mark).await?;
    gate.interview().await?;
    let crash = crash(gate, clerk, importer, progress).await?;
    clerk.serve(20).await?;
    progress.say("starting walgate again");
    gate.start().await?;
    clerk.serve(20).await?;
    progress.say("a new version of ndjson-rust is dropped into the plugin directory while the shop works on");
    let swap = swap(gate, clerk).await?;
    clerk.serve(20).await?;
    let mark = clerk.mark(2).await?;
    let last = delivered(gate, &mark).await?;
    wait_until(DELIVERY_DEADLINE, "walgate acknowledges the last transaction", async || {
        Ok(gate.acknowledged().await? > last)
    })
    .await?;
    gate.interview().await?;
    progress.say("everything has arrived; stopping walgate with SIGTERM");
    gate.stop().await?;
    wait_until(Duration::from_secs(10), "the slot has passed the last transaction", async || {
        Ok(state::confirmed(client).await? > last)
    })
    .await?;
    Ok((crash, swap))
}

/// A new version takes over under load: the shop works until it has.
async fn swap(gate: &mut Gate, clerk: &mut Clerk) -> Result<Swap> {
    let done = Cell::new(false);
    let load = async {
        while !done.get() {
            clerk.serve(5).await?;
        }
        anyhow::Ok(())
    };
    let swap = async {
        let swap = gate.swap().await;
        done.set(true);
        swap
    };
    let (load, swap) = tokio::join!(load, swap);
    load?;
    swap
}

/// The large transaction, small ones beside it, and SIGKILL when a third of it is in the file.
async fn crash(gate: &mut Gate, clerk: &mut Clerk, mut importer: Clerk, progress: Progress) -> Result<Crash> {
    progress.say(&format!("a transaction of {IMPORT_ROWS} rows, with small ones beside it"));
    let output = gate.output();
    let start = length(&output)?;
    let third = IMPORT_ROWS / 3 * IMPORT_LINE_BYTES;
    let import = tokio::spawn(async move { importer.import().await.map(|()| importer.made()) });
    clerk.serve(20).await?;
    grown(&output, start + third).await?;
    gate.kill()?;
    let imported = import.await.context("the import ended unexpectedly")??;
    let killed_after_rows = imported_lines(&output, start)?;
    progress
        .say(&format!("walgate got SIGKILL when {killed_after_rows} rows of it were in the file; the shop goes on"));
    Ok(Crash { imported, killed_after_rows })
}

/// Waits until a file has some length.
async fn grown(path: &Path, to: u64) -> Result<()> {
    let mut watch = tokio::time::interval(WATCH);
    let growing = async {
        while length(path)? < to {
            watch.tick().await;
        }
        anyhow::Ok(())
    };
    let waited = tokio::time::timeout(DELIVERY_DEADLINE, growing).await;
    waited.with_context(|| format!("the output did not reach {to} bytes within {DELIVERY_DEADLINE:?}"))?
}

fn length(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?.len())
}

/// Lines of the large transaction behind some offset.
fn imported_lines(path: &Path, from: u64) -> Result<u64> {
    let bytes = read_from(path, from)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.matches(&format!("\"name\":\"{IMPORT_NAME}")).count() as u64)
}

fn read_from(path: &Path, from: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.seek(SeekFrom::Start(from)).with_context(|| format!("cannot seek in {}", path.display()))?;
    file.read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

/// Waits until the customer of that name is the end of the file, and answers where its transaction committed.
///
/// Fails as soon as walgate has ended.
async fn delivered(gate: &mut Gate, mark: &str) -> Result<Lsn> {
    let (output, name) = (gate.output(), format!("\"name\":\"{mark}\""));
    wait_for(DELIVERY_DEADLINE, "everything made so far arrives in the NDJSON file", async || {
        if let Some(status) = gate.ended()? {
            bail!("walgate ended with {status}");
        }
        let end = read_from(&output, length(&output)?.saturating_sub(END_BYTES))?;
        let text = String::from_utf8_lossy(&end);
        let line = text.split_inclusive('\n').find(|line| line.ends_with('\n') && line.contains(&name));
        let commit =
            line.and_then(|line| line.split_once("\"commit_lsn\":\"")).and_then(|(_, rest)| rest.split_once('"'));
        commit.map(|(lsn, _)| lsn.parse().context("commit_lsn")).transpose()
    })
    .await
}

/// Everything the two judges have to say; what only the caller knows is left at zero.
async fn judge(gate: &Gate, client: &Client, run: &str, made: Tally, swap: Swap) -> Result<Report> {
    let ledger = Ledger::read(&gate.output())?;
    let mut tables = BTreeMap::new();
    for table in &TABLES {
        let found = ledger.compare(table, &shop::rows(client, table).await?);
        let (source, rebuilt, wrong) = (found.source, found.rebuilt, found.wrong);
        tables.insert(table.name, Rows { source, rebuilt, wrong, wrong_columns: found.columns });
    }
    let wrong = tables.values().map(|rows| rows.wrong).sum();
    let counted = state::counted(client).await?;
    let findings = search(gate, client, run).await?;
    Ok(Report {
        // The counter keeps no rows, but its counts commit with its checkpoint: what it has too much came twice.
        lost: ledger.lost(made, wrong) + made.beyond(counted),
        repeated: ledger.repeated() + counted.beyond(made),
        leaked: findings.leaked,
        tables,
        changes: Changes { made: made.total(), ndjson: ledger.arrived().total(), counter: counted.total() },
        kills: 1,
        swap,
        killed_after_rows: 0,
        import_rows: IMPORT_ROWS,
        checked_bytes: findings.bytes,
        checked_files: findings.files,
        leaks: findings.places,
        postgres: 0,
        duration_ms: 0,
    })
}

/// Looks for canaries in everything below the folder, after the state was written there too.
async fn search(gate: &Gate, client: &Client, run: &str) -> Result<Findings> {
    if state::dump(client, &gate.state()).await? == 0 {
        bail!("walgate has no tables in the state database, so there is nothing to search");
    }
    let mut texts = vec![MAIL_MARKER.to_owned(), shop::phone_marker(run)];
    for (mail, phone) in shop::canaries(client).await? {
        // Whole, and without the part that all have: a value cut short is a leak as well.
        texts.extend(mail.split_once('@').map(|(local, _)| local.to_owned()));
        texts.extend(phone.split_once('-').map(|(_, number)| number.to_owned()));
        texts.extend([mail, phone]);
    }
    let needles = Needles::new(texts)?;
    let (secrets, expected) = shop::secrets(client).await?;
    if needles.count(secrets.as_bytes()) < expected || expected < IMPORT_ROWS {
        bail!("the search does not find the canaries where they are, in the source; its answer would mean nothing");
    }
    needles.search(gate.folder())
}
