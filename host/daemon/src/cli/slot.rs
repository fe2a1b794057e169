//! `walgate slot`: create, drop and list replication slots.
//!
//! Holds: the order of the two sides: the slot is created first and then recorded; it is dropped first and then
//! forgotten. Refuses to know the stream.

use clap::Subcommand;
use serde::Serialize;
use walgate_core::Lineage;
use walgate_wire::{Connection, SlotInfo};

use crate::config::Config;
use crate::connect;
use crate::exit::Failure;
use crate::halt::{Halt, HaltClass};
use crate::preflight::{self, Refusal};
use crate::printer::Printer;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Create the slot of the configuration and record where its history begins.
    ///
    /// It waits for transactions that are open on the server at this moment to end.
    Create,
    /// Drop the slot of the configuration. The server then frees its log; what was not read is gone.
    Drop {
        /// Also forget the checkpoints, so that a new slot starts anew. Plugins keep nothing of their state.
        #[arg(long)]
        forget: bool,
        /// With --forget: the checkpoints were written for the cluster with this system identifier, which is not the one
        /// that source.url names now.
        #[arg(long, value_name = "SYSTEM_ID", requires = "forget")]
        of: Option<String>,
    },
    /// List the logical slots of the server.
    List,
}

#[derive(Serialize)]
struct Done {
    slot: String,
    consistent_point: Option<String>,
    forgotten: bool,
}

pub(super) async fn slot(command: Command, config: &Config, printer: Printer) -> Result<(), Failure> {
    match command {
        Command::Create => create(config, printer).await,
        Command::Drop { forget, of } => drop_slot(config, forget, of.as_deref(), printer).await,
        Command::List => list(config, printer).await,
    }
}

async fn create(config: &Config, printer: Printer) -> Result<(), Failure> {
    let mut store = connect::state(&config.state).await?;
    if let Some(stored) = store.load(&config.slot).await.map_err(connect::state_failure)? {
        let theirs = &stored.lineage;
        let named = async { connect::source(&config.source).await.ok()?.identify_system().await.ok() }.await;
        let elsewhere = named.filter(|now| now.system_id != theirs.system_id).map(|now| {
            format!(
                " They were written for system {} database {}, and source.url names system {}: another walgate may share the \
                 state database, so choose another source.slot; or correct source.url.",
                theirs.system_id, theirs.database, now.system_id
            )
        });
        let of = elsewhere.as_ref().map(|_| format!(" --of {}", theirs.system_id)).unwrap_or_default();
        return Err(Halt::new(
            HaltClass::CheckpointExists,
            format!(
                "there are checkpoints up to {} for slot {}: a new slot would leave a gap behind them.{} If they are no longer \
                 needed, forget them with: walgate slot drop --forget{of}",
                stored.acked,
                config.slot,
                elsewhere.unwrap_or_default()
            ),
        )
        .into());
    }
    let mut connection = connect::source(&config.source).await?;
    let server = preflight::server(&mut connection, config).await.map_err(failure_of)?;
    let created = preflight::create(&mut connection, config, server.in_recovery, |line| printer.problem(&line))
        .await
        .map_err(failure_of)?;
    let lineage = Lineage {
        system_id: server.identity.system_id,
        timeline: server.identity.timeline,
        database: config.source.database.clone(),
        slot: config.slot.clone(),
        slot_created_at: created.consistent_point,
    };
    store.adopt(&config.slot, &lineage, created.consistent_point).await.map_err(connect::state_failure)?;
    let done =
        Done { slot: created.name, consistent_point: Some(created.consistent_point.to_string()), forgotten: false };
    printer.show(&done, || format!("slot {} created, consistent from {}", done.slot, created.consistent_point));
    Ok(())
}

/// A command does not wait for what may pass.
fn failure_of(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Halt(halt) | Refusal::Held(halt) => halt.into(),
        Refusal::Later(error) => connect::source_failure(&error),
        Refusal::Unavailable(failure) => failure,
    }
}

async fn drop_slot(config: &Config, forget: bool, of: Option<&str>, printer: Printer) -> Result<(), Failure> {
    let mut connection = connect::source(&config.source).await?;
    only_ours(config, &mut connection, forget, of).await?;
    let slot = connection.slot(&config.slot).await.map_err(|error| connect::source_failure(&error))?;
    match slot {
        Some(found) if found.plugin != "pgoutput" || found.database != config.source.database => {
            return Err(Failure::usage(format!(
                "slot {} is of database {} and output plugin {}, so it is not walgate's: source.url names database {}. Correct \
                 source.slot; or drop it where it belongs, with: SELECT pg_drop_replication_slot({})",
                config.slot,
                found.database,
                found.plugin,
                config.source.database,
                walgate_wire::literal(&config.slot)
            )));
        }
        Some(_) => connection.drop_slot(&config.slot, false).await.map_err(|error| connect::source_failure(&error))?,
        None if forget => {
            printer.problem(&format!("slot {} does not exist; only checkpoints are forgotten", config.slot))
        }
        None => return Err(Halt::new(HaltClass::SlotMissing, format!("slot {} does not exist", config.slot)).into()),
    }
    let kept = !forget && has_checkpoints(config).await;
    let forgotten = if forget {
        let mut store = connect::state(&config.state).await?;
        store.clear_halt(&config.slot).await.map_err(connect::state_failure)?;
        store.forget(&config.slot).await.map_err(connect::state_failure)?
    } else {
        false
    };
    let done = Done { slot: config.slot.clone(), consistent_point: None, forgotten };
    printer.show(&done, || {
        let more = match (forget, forgotten) {
            (true, true) => ", its checkpoints are forgotten",
            (true, false) => ", there were no checkpoints",
            (false, _) if !kept => "",
            (false, _) => "; its checkpoints are kept and keep a new slot from starting, forget them with --forget",
        };
        format!("slot {} is gone{more}", done.slot)
    });
    Ok(())
}

/// As far as the state database says so.
async fn has_checkpoints(config: &Config) -> bool {
    match connect::state_reader(&config.state).await {
        Ok(mut reader) => reader.load(&config.slot).await.is_ok_and(|stored| stored.is_some()),
        Err(_) => true,
    }
}

/// Checkpoints are kept by the name of the slot. Two sources that share a state database may use one name, and the
/// checkpoints of the other one are not ours to forget; nor is a slot of another cluster ours to drop, when an address leads
/// elsewhere than before.
async fn only_ours(
    config: &Config,
    connection: &mut Connection,
    forget: bool,
    of: Option<&str>,
) -> Result<(), Failure> {
    let loaded = async {
        let mut reader = connect::state_reader(&config.state).await?;
        reader.load(&config.slot).await.map_err(connect::state_failure)
    };
    let stored = match loaded.await {
        Ok(stored) => stored,
        // A slot can be dropped although nobody knows any more what was read from it.
        Err(_) if !forget => None,
        Err(failure) => return Err(failure),
    };
    let Some(stored) = stored else { return Ok(()) };
    let now = connection.identify_system().await.map_err(|error| connect::source_failure(&error))?;
    let (theirs, ours) = (&stored.lineage, config.source.database.as_str());
    let same = theirs.system_id == now.system_id && theirs.database == ours;
    if same || of == Some(theirs.system_id.as_str()) {
        return Ok(());
    }
    let otherwise = if forget {
        format!("if they are yours and no longer needed: walgate slot drop --forget --of {}", theirs.system_id)
    } else {
        format!(
            "if that slot is not needed there: SELECT pg_drop_replication_slot({})",
            walgate_wire::literal(&config.slot)
        )
    };
    Err(Failure::usage(format!(
        "the checkpoints of slot {} were written for system {} database {}, and source.url names system {} database {ours}: they \
         may belong to another walgate that shares the state database, or the address leads to another server now. Correct \
         source.url or source.slot, or, {otherwise}",
        config.slot, theirs.system_id, theirs.database, now.system_id
    )))
}

/// What a machine reads of a slot.
#[derive(Serialize)]
struct Listed {
    name: String,
    plugin: String,
    database: String,
    active: bool,
    active_pid: Option<i32>,
    active_application: Option<String>,
    confirmed_flush: Option<String>,
    restart: Option<String>,
    wal_status: Option<String>,
    invalidated: Option<String>,
    failover: Option<bool>,
    synced: Option<bool>,
}

async fn list(config: &Config, printer: Printer) -> Result<(), Failure> {
    let mut connection = connect::source(&config.source).await?;
    let slots = connection.slots().await.map_err(|error| connect::source_failure(&error))?;
    let listed: Vec<Listed> = slots.iter().map(listed).collect();
    printer.show(&listed, || {
        if listed.is_empty() {
            return "no logical slots; create one with: walgate slot create".to_owned();
        }
        listed.iter().map(line).collect()
    });
    Ok(())
}

fn listed(slot: &SlotInfo) -> Listed {
    Listed {
        name: slot.name.clone(),
        plugin: slot.plugin.clone(),
        database: slot.database.clone(),
        active: slot.active,
        active_pid: slot.active_pid,
        active_application: slot.active_application.clone(),
        confirmed_flush: slot.confirmed_flush.map(|lsn| lsn.to_string()),
        restart: slot.restart_lsn.map(|lsn| lsn.to_string()),
        wal_status: slot.wal_status.clone(),
        invalidated: slot.invalidated().map(str::to_owned),
        failover: slot.failover,
        synced: slot.synced,
    }
}

fn line(slot: &Listed) -> String {
    let user = match (slot.active_pid, &slot.active_application) {
        (Some(pid), Some(application)) => format!("in use by process {pid} ({application})"),
        (Some(pid), None) => format!("in use by process {pid}"),
        (None, _) => "not in use".to_owned(),
    };
    let confirmed = slot.confirmed_flush.as_deref().unwrap_or("still being created");
    let invalidated = slot.invalidated.as_ref().map(|why| format!(", INVALIDATED: {why}")).unwrap_or_default();
    let failover = if slot.failover == Some(true) { ", failover" } else { "" };
    let synced = if slot.synced == Some(true) { ", synchronized copy" } else { "" };
    format!(
        "{} ({}, database {}): {user}, confirmed {confirmed}{failover}{synced}{invalidated}\n",
        slot.name, slot.plugin, slot.database
    )
}
