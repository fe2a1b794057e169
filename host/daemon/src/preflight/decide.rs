//! The decision table of a start: slot, checkpoint and intent against what the source is now.
//!
//! Holds: one pure function over facts, and the words of every refusal. Refuses to know connections, the clock and how a
//! decision is carried out (see [`super::settle`]). A checkpoint that cannot be read is not among the inputs: without one
//! nothing is decided, so nothing is created or touched.
//!
//! The order of the questions: whose history (another cluster or database voids all other answers), whether the slot can
//! be read at all, who reads it now, whether its timeline leads to ours, where it stands.

use walgate_core::{Cursor, Lsn};
use walgate_store::PipelineRow;
use walgate_wire::TimelineHistory;

use crate::config::StartMode;
use crate::halt::{Halt, HaltClass};

/// What the server says of the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// There is none of that name.
    Absent,
    /// It has no position yet: it waits for transactions that were open when it was made.
    Creating,
    /// Its name is that of a slot for a standby.
    Physical,
    /// It was made for another output plugin.
    ForeignPlugin(String),
    /// It belongs to another database.
    ForeignDatabase(String),
    /// It can never be read again; the server's own reason.
    Invalidated(String),
    /// A synchronized copy, on a server that is still a standby.
    SyncedUnpromoted,
    /// A session reads it.
    Active(Reader),
    /// It can be read from here on.
    Ready(Lsn),
}

/// The session that reads a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reader {
    /// Its server process.
    pub(crate) pid: i32,
    /// Its application name; empty when this role may not see it.
    pub(crate) application: String,
    /// It has the name and the role that walgate itself uses.
    pub(crate) ours: bool,
}

/// What is stored of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) system_id: String,
    /// The timeline that the positions are on.
    pub(crate) timeline: u32,
    pub(crate) database: String,
    pub(crate) slot: String,
    /// The furthest position that the source may have been told.
    pub(crate) acked: Lsn,
    /// How far each plugin has come.
    pub(crate) cursors: Vec<Cursor>,
}

impl Checkpoint {
    /// The facts of a stored pipeline.
    pub(crate) fn of(row: &PipelineRow) -> Self {
        Self {
            system_id: row.lineage.system_id.clone(),
            timeline: row.timeline,
            database: row.lineage.database.clone(),
            slot: row.lineage.slot.clone(),
            acked: row.acked,
            cursors: row.cursors.values().copied().collect(),
        }
    }

    /// The end of everything that is durable somewhere.
    fn furthest(&self) -> Lsn {
        self.cursors.iter().map(|cursor| cursor.end).fold(self.acked, Lsn::max)
    }

    /// Whether all of it happened before a history was left at `switch`. A record that begins before the switch point is
    /// part of both histories; so a transaction that a plugin has in part must have committed before it.
    fn is_before(&self, switch: Lsn) -> bool {
        self.furthest() <= switch && self.cursors.iter().all(|cursor| cursor.ordinal == 0 || cursor.commit < switch)
    }
}

/// What the source is now, and what the configuration calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) system_id: String,
    pub(crate) timeline: u32,
    /// `source.url`'s.
    pub(crate) database: String,
    /// `source.slot`.
    pub(crate) slot: String,
    /// The end of its log.
    pub(crate) end: Lsn,
    pub(crate) in_recovery: bool,
    /// The ancestry of its timeline; asked for only when the checkpoint is on another one.
    pub(crate) history: Option<TimelineHistory>,
}

/// What a start does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on where the checkpoints stand.
    Resume {
        /// Where the slot stands.
        confirmed: Lsn,
        /// The source was promoted: the timeline to store from now on.
        follow: Option<u32>,
    },
    /// Begin where the slot stands.
    Adopt(Lsn),
    /// Make the slot, then begin where it stands.
    CreateSlot,
    /// Ask again in a moment; a halt when it does not pass.
    Wait(Halt),
    /// An operator has to act.
    Halt(Halt),
}

/// The table.
pub(crate) fn decide(
    slot: &Slot,
    checkpoint: Option<&Checkpoint>,
    intent: Option<StartMode>,
    source: &Source,
) -> Decision {
    if let Some(differs) = checkpoint.and_then(|stored| foreign(stored, source)) {
        return Decision::Halt(lineage_changed(&differs, checkpoint));
    }
    let name = &source.slot;
    let confirmed = match slot {
        Slot::Physical => return Decision::Halt(physical(name)),
        Slot::ForeignPlugin(plugin) => return Decision::Halt(foreign_plugin(name, plugin)),
        Slot::ForeignDatabase(database) => return Decision::Halt(foreign_database(source, database)),
        Slot::Invalidated(reason) => return Decision::Halt(invalidated(name, reason)),
        Slot::SyncedUnpromoted => return Decision::Halt(synced_unpromoted(name)),
        Slot::Creating => return Decision::Wait(creating(name)),
        Slot::Active(reader) if reader.ours => return Decision::Wait(active(name, reader)),
        Slot::Active(reader) => return Decision::Halt(active(name, reader)),
        Slot::Absent => None,
        Slot::Ready(confirmed) => Some(*confirmed),
    };
    match (confirmed, checkpoint, intent) {
        (None, Some(stored), _) => Decision::Halt(gone(stored, source)),
        (Some(confirmed), Some(stored), _) => resume(confirmed, stored, source),
        (Some(confirmed), None, Some(StartMode::GoForward)) => Decision::Adopt(confirmed),
        (None, None, Some(StartMode::GoForward)) => Decision::CreateSlot,
        (confirmed, None, None) => Decision::Halt(go_forward_required(name, confirmed)),
    }
}

/// A slot and a checkpoint of one cluster and database.
fn resume(confirmed: Lsn, stored: &Checkpoint, source: &Source) -> Decision {
    let mut follow = None;
    if stored.timeline != source.timeline {
        if let Err(differs) = descends(stored, source) {
            return Decision::Halt(lineage_changed(&differs, Some(stored)));
        }
        follow = Some(source.timeline);
    }
    if confirmed > stored.acked {
        return Decision::Halt(moved(confirmed, stored, source));
    }
    if stored.furthest() > source.end {
        let halt = behind(stored, source);
        // A standby that was restarted may have to catch up. A primary does not: what it writes next is something else, and
        // when it has written enough the positions would fit again.
        return if source.in_recovery { Decision::Wait(halt) } else { Decision::Halt(halt) };
    }
    Decision::Resume { confirmed, follow }
}

/// Why the checkpoints belong to another source, if they do.
fn foreign(stored: &Checkpoint, source: &Source) -> Option<String> {
    if stored.system_id != source.system_id {
        return Some(format!("another cluster: system identifier {} then, {} now", stored.system_id, source.system_id));
    }
    if stored.database != source.database {
        return Some(format!("another database: {} then, {} now", stored.database, source.database));
    }
    (stored.slot != source.slot).then(|| format!("another slot: {} then, {} now", stored.slot, source.slot))
}

/// Whether all that is stored is part of the past of the source, although its timeline is another one.
fn descends(stored: &Checkpoint, source: &Source) -> Result<(), String> {
    let (then, now) = (stored.timeline, source.timeline);
    let switch = source.history.as_ref().filter(|history| history.timeline() == now);
    let Some(switch) = switch.and_then(|history| history.switch_point(then)) else {
        return Err(format!(
            "another timeline: {then} then, {now} now, and {then} is not in the history of {now}; the server was promoted or \
             restored from before"
        ));
    };
    if stored.is_before(switch) {
        return Ok(());
    }
    Err(format!(
        "another timeline: {then} then, {now} now, which left {then} at {switch}; there are checkpoints up to {}, of \
         transactions that the promoted server never had",
        stored.furthest()
    ))
}

/// How to go on when positions are worth nothing any more.
fn anew(system_id: Option<&str>) -> String {
    let of = system_id.map(|id| format!(" --of {id}")).unwrap_or_default();
    format!("walgate slot drop --forget{of}, then walgate slot create")
}

fn lineage_changed(differs: &str, stored: Option<&Checkpoint>) -> Halt {
    Halt::new(
        HaltClass::LineageChanged,
        format!(
            "the source is not the one the checkpoints were written for ({differs}). Positions of one history mean nothing in \
             another. Point source.url back, choose another source.slot, or copy the tables again and start anew with: {}",
            anew(stored.map(|stored| stored.system_id.as_str()))
        ),
    )
}

fn physical(slot: &str) -> Halt {
    Halt::new(
        HaltClass::SlotPlugin,
        format!(
            "slot {slot} is a physical one, for a standby or a backup; walgate reads logical slots: set source.slot to another \
             name and run: walgate slot create"
        ),
    )
}

fn foreign_plugin(slot: &str, plugin: &str) -> Halt {
    Halt::new(
        HaltClass::SlotPlugin,
        format!(
            "slot {slot} was made for the output plugin {plugin}; walgate reads pgoutput: set source.slot to another name and \
             run: walgate slot create"
        ),
    )
}

fn foreign_database(source: &Source, database: &str) -> Halt {
    Halt::new(
        HaltClass::SlotDatabase,
        format!(
            "slot {} belongs to database {database}, source.url names {}; correct one of the two",
            source.slot, source.database
        ),
    )
}

/// The reasons that servers give: 15 shows lost log only, 16 that recovery conflicted, 17 and later a reason each.
fn invalidated(slot: &str, reason: &str) -> Halt {
    let look = match reason {
        "wal_removed" => "Look at max_slot_wal_keep_size first: walgate was away for longer than it allows",
        "idle_timeout" => "Look at idle_replication_slot_timeout first: walgate was away for longer than it allows",
        "conflicting" => {
            "Turn on hot_standby_feedback on the standby first, and look at max_slot_wal_keep_size there: Postgres 16 does not \
             tell which of the two it was"
        }
        "rows_removed" => {
            "Turn on hot_standby_feedback on the standby first, with a replication slot of its own on the primary: the \
             primary removed rows of the catalog that the slot needed"
        }
        "wal_level_insufficient" => "Set wal_level = logical on the primary first, and on the standby",
        _ => "Look at the log of the server first",
    };
    Halt::new(
        HaltClass::SlotInvalidated,
        format!(
            "the server invalidated slot {slot} ({reason}): log that was not read yet is gone. {look}. Then copy the tables \
             again, or accept the gap with: {}",
            anew(None)
        ),
    )
}

fn synced_unpromoted(slot: &str) -> Halt {
    Halt::new(
        HaltClass::SlotSyncedUnpromoted,
        format!(
            "slot {slot} is the copy that this standby keeps of the primary's slot; it can be read only after the standby is \
             promoted. Point source.url at the primary, or, to read from this standby, set source.slot to another name and run: \
             walgate slot create"
        ),
    )
}

fn creating(slot: &str) -> Halt {
    Halt::new(
        HaltClass::SlotCreating,
        format!(
            "slot {slot} is still being created: it waits for transactions that were open at the time to end. End them, or \
             see who holds it with: walgate slot list"
        ),
    )
}

fn active(slot: &str, reader: &Reader) -> Halt {
    let Reader { pid, application, .. } = reader;
    Halt::new(
        HaltClass::SlotActive,
        format!(
            "slot {slot} is in use by process {pid} of the server (application {application:?}); stop that reader, or end it \
             with: SELECT pg_terminate_backend({pid})"
        ),
    )
}

fn gone(stored: &Checkpoint, source: &Source) -> Halt {
    let promoted = if stored.timeline == source.timeline {
        String::new()
    } else {
        format!(
            " The timeline was {}, it is {} now: the server was promoted, and slots come along only with failover = true in \
             [source] and sync_replication_slots = on at the standby.",
            stored.timeline, source.timeline
        )
    };
    Halt::new(
        HaltClass::DataGapSlotMissing,
        format!(
            "slot {} is gone, but there are checkpoints up to {}: changes since then are lost to the stream.{promoted} Copy the \
             tables again, or accept the gap with: {}",
            source.slot,
            stored.acked,
            anew(None)
        ),
    )
}

fn moved(confirmed: Lsn, stored: &Checkpoint, source: &Source) -> Halt {
    Halt::new(
        HaltClass::SlotMoved,
        format!(
            "slot {} stands at {confirmed}, beyond {}, the furthest walgate ever acknowledged: it was recreated or advanced by \
             someone else, and the changes in between may be gone. Copy the tables again, or accept the gap with: {}",
            source.slot,
            stored.acked,
            anew(None)
        ),
    )
}

fn behind(stored: &Checkpoint, source: &Source) -> Halt {
    let why = if source.in_recovery {
        "it is a standby that has not come as far, or was restored to an earlier state. When it does not catch up, start"
    } else {
        "it was restored to an earlier state, and what it writes now would be taken for delivered. Start"
    };
    Halt::new(
        HaltClass::SourceBehind,
        format!(
            "there are checkpoints up to {}, but the source has written only up to {}: {why} anew with: {}",
            stored.furthest(),
            source.end,
            anew(None)
        ),
    )
}

fn go_forward_required(slot: &str, confirmed: Option<Lsn>) -> Halt {
    let (what, other) = match confirmed {
        None => ("neither the slot nor a checkpoint exists".to_owned(), ", or run: walgate slot create"),
        Some(confirmed) => (
            format!("the slot stands at {confirmed}, and there is no checkpoint"),
            ". If walgate has read this slot before, its checkpoints are in another database: correct the url of [state] instead",
        ),
    };
    Halt::new(
        HaltClass::GoForwardRequired,
        format!(
            "{what} for {slot}: it has to be said that the stream may begin there, without the rows that the tables hold \
             already. Add to [source] in walgate.toml: start = \"go-forward\"{other}"
        ),
    )
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
