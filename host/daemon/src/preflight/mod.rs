//! What must be true of the source before a stream is started, asked on the very connection that will stream.
//!
//! Holds: the order of the questions, one file a question, and what is done with the answer. Refuses to know what happens
//! afterwards.
//!
//! ```text
//! observe: server.rs, slot.rs ─ then the checkpoint is read ─ decide.rs ─ settle: create.rs, leftover.rs
//! ```
//!
//! Read next: `decide.rs`, the table.

mod create;
mod decide;
mod failover;
mod fits;
mod leftover;
mod promotion;
mod published;
mod server;
mod slot;
mod unpublished;
mod warnings;

use walgate_core::Lsn;
use walgate_store::PipelineRow;
use walgate_wire::{Class, Connection, SystemIdentity, WireError};

use crate::config::Config;
use crate::connect::source_halt;
use crate::exit::Failure;
use crate::halt::Halt;

pub(crate) use create::create;
pub(crate) use decide::Decision;
pub(crate) use failover::{Guard, failover_guard};
pub(crate) use fits::misfits;
pub(crate) use leftover::Leftover;
pub(crate) use promotion::RunningStandby;
pub(crate) use published::published;
pub(crate) use server::{Server, server};
pub(crate) use unpublished::unpublished;
pub(crate) use warnings::warnings;

/// Why a stream cannot be started on this connection.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It may be possible later: the connection broke.
    Later(WireError),
    /// It may pass by itself: what is left of a process of ours holds the slot, or a standby has to catch up.
    Held(Halt),
    /// It will not be possible until an operator acts.
    Halt(Halt),
    /// The state database, which is asked in between, is away.
    Unavailable(Failure),
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        match error.class() {
            Class::Retry => Self::Later(error),
            Class::Operator | Class::Bug => Self::Halt(source_halt(&error)),
        }
    }
}

impl From<Halt> for Refusal {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

/// What was found, once a stream may be started.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) identity: SystemIdentity,
    pub(crate) major: u32,
    /// Where the slot stands.
    pub(crate) confirmed: Lsn,
    /// The source was promoted since the checkpoint was written, and everything that is stored came before: the timeline to
    /// store before anything of it is.
    pub(crate) follow: Option<u32>,
    /// The source is a standby: to be asked now and then while it is streamed from, see [`RunningStandby::promoted`].
    pub(crate) standby: Option<RunningStandby>,
}

/// What the server and the slot look like, before anything is concluded from it.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) server: Server,
    pub(crate) slot: decide::Slot,
}

/// Asks the server everything that does not depend on what is stored. Changes nothing.
pub(crate) async fn observe(connection: &mut Connection, config: &Config) -> Result<Observed, Refusal> {
    let server = server(connection, config).await?;
    let slot = slot::look(connection, config, server.in_recovery).await?;
    Ok(Observed { server, slot })
}

/// What a start would do. Changes nothing.
///
/// `stored` must have been read *after* the slot was: what the server was told was stored before, so a slot ahead of it was
/// moved by someone else, not by a walgate that ended in between.
pub(crate) async fn judge(
    connection: &mut Connection,
    config: &Config,
    observed: &Observed,
    stored: Option<&PipelineRow>,
) -> Result<Decision, Refusal> {
    let checkpoint = stored.map(decide::Checkpoint::of);
    let identity = &observed.server.identity;
    let elsewhere = checkpoint
        .as_ref()
        .is_some_and(|stored| stored.system_id == identity.system_id && stored.timeline != identity.timeline);
    let history = if elsewhere { Some(connection.timeline_history(identity.timeline).await?) } else { None };
    let source = decide::Source {
        system_id: identity.system_id.clone(),
        timeline: identity.timeline,
        database: config.source.database.clone(),
        slot: config.slot.clone(),
        end: identity.xlog_pos,
        in_recovery: observed.server.in_recovery,
        history,
    };
    Ok(decide::decide(&observed.slot, checkpoint.as_ref(), config.start, &source))
}

/// Decides, and does what was decided: makes a slot that is to be made, and ends a leftover of ours that has been silent
/// for long. The state database was asked before, so that nothing is touched while it is away.
pub(crate) async fn settle(
    connection: &mut Connection,
    config: &Config,
    observed: Observed,
    stored: Option<&PipelineRow>,
    leftover: &mut Leftover,
) -> Result<Found, Refusal> {
    let (confirmed, follow) = match judge(connection, config, &observed, stored).await? {
        Decision::Resume { confirmed, follow } => (confirmed, follow),
        Decision::Adopt(confirmed) => (confirmed, None),
        Decision::CreateSlot => {
            tracing::info!(slot = config.slot, "neither slot nor checkpoint: the slot is made, as source.start says");
            let say = |line: String| tracing::info!(slot = config.slot, "{line}");
            let created = create(connection, config, observed.server.in_recovery, say).await?;
            (created.consistent_point, None)
        }
        Decision::Wait(halt) => {
            if let decide::Slot::Active(reader) = &observed.slot {
                leftover.look(connection, reader).await?;
            }
            return Err(Refusal::Held(halt));
        }
        Decision::Halt(halt) => return Err(halt.into()),
    };
    let Server { identity, major, in_recovery } = observed.server;
    let standby = if in_recovery { Some(RunningStandby::of(connection, identity.timeline).await?) } else { None };
    Ok(Found { identity, major, confirmed, follow, standby })
}
