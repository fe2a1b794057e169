//! Every way a pipeline can stop for good, as one closed set.
//!
//! Holds: the classes, their stable names, and what a halt says. Refuses to know which stage halts.
//! A halt is permanent: it stands in `status`, in the exit code, in metrics and in the state database until an operator
//! acts and starts walgate again. Each class has a page: `walgate explain NAME`.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! classes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// A class of halt. The names are stable: alerts match them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum HaltClass {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl HaltClass {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable word.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// What it means, in one line.
            pub(crate) fn summary(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+).trim(),)+
                }
            }
        }
    };
}

classes! {
    /// Something that cannot happen did.
    Bug = "bug",

    // The configuration and the intent.
    /// There is no checkpoint, and nothing says that the stream may begin at the present.
    GoForwardRequired = "go_forward_required",
    /// A new slot would leave a gap behind checkpoints that are kept.
    CheckpointExists = "checkpoint_exists",
    /// A failover slot needs a newer server or another configuration.
    FailoverUnsupported = "failover_unsupported",
    /// The publications changed while a plugin stands inside a transaction.
    PublicationsChanged = "publications_changed",
    /// What this start asks for is not what the standby it reads from can do.
    StandbyUnsupported = "standby_unsupported",

    // The source and its slot.
    /// The server is older than 15.
    ServerTooOld = "server_too_old",
    /// `wal_level` is not `logical`.
    WalLevel = "wal_level",
    /// A publication does not exist, now or where the log is read.
    PublicationMissing = "publication_missing",
    /// The slot does not exist, and nothing was ever read from it.
    SlotMissing = "slot_missing",
    /// The slot is gone although there are checkpoints.
    DataGapSlotMissing = "data_gap(slot_missing_with_checkpoint)",
    /// A plugin stands before what the source still has.
    DataGapPlugin = "data_gap(plugin_behind)",
    /// A cursor does not fit the stream.
    DataGapCursor = "data_gap(cursor)",
    /// The slot stands beyond what was ever acknowledged.
    SlotMoved = "slot_moved",
    /// The slot was made for another output plugin.
    SlotPlugin = "slot_plugin",
    /// The slot belongs to another database.
    SlotDatabase = "slot_database",
    /// The server invalidated the slot.
    SlotInvalidated = "slot_invalidated",
    /// The slot is a synchronized copy on a standby that was not promoted.
    SlotSyncedUnpromoted = "slot_synced_unpromoted",
    /// Someone else reads the slot.
    SlotActive = "slot_active",
    /// The slot is still being created.
    SlotCreating = "slot_creating",
    /// A slot of that name exists.
    SlotExists = "slot_exists",
    /// The slot cannot be used.
    SlotUnusable = "slot_unusable",
    /// The source is another history than the one the checkpoints belong to.
    LineageChanged = "lineage_changed",
    /// The source has less log than was acknowledged.
    SourceBehind = "source_behind",
    /// The log that is needed was removed.
    WalMissing = "wal_missing",
    /// The role may not do what is needed.
    Permission = "permission",
    /// The server refused the role or its password.
    Authentication = "authentication",
    /// The server's certificate does not verify, or it has no TLS.
    Tls = "tls",
    /// The database does not exist.
    DatabaseMissing = "database_missing",
    /// The server is not set up for logical decoding.
    NotReady = "not_ready",
    /// A limit of the server's configuration is reached.
    ConfigurationLimit = "configuration_limit",
    /// A name that no server takes.
    BadName = "bad_name",
    /// The server refused a command of ours.
    RefusedCommand = "refused_command",
    /// The server failed in a way that trying again does not mend.
    ServerError = "server_error",
    /// The bytes from the server are not what the protocol allows.
    Protocol = "protocol",
    /// One message is larger than the limit.
    MessageTooLarge = "message_too_large",
    /// One result is larger than the limit.
    ResultTooLarge = "result_too_large",
    /// A fault of the source that is waited out elsewhere ended a command that cannot wait.
    SourceUnavailable = "source_unavailable",
    /// The thread of the wire cannot be started.
    WireThread = "wire_thread",

    // The stream.
    /// A message cannot be decoded.
    DecodeFailure = "decode_failure",
    /// A value cannot be carried exactly.
    ValueNotCarried = "value_not_carried",
    /// A granted column is gone from its table.
    GrantedColumnMissing = "granted_column_missing",
    /// A column that a grant leaves out is gone from its table.
    ExceptedColumnMissing = "excepted_column_missing",
    /// A treatment, a row filter or a key of plugin.toml does not fit its table.
    GrantDoesNotFit = "grant_does_not_fit",
    /// The source does not send what a row filter looks at.
    RowFilterUndecided = "row_filter_undecided",

    // Plugins.
    /// A plugin trapped, ran out of time or answered garbage, more often than its policy allows.
    PluginFailed = "plugin_failed",
    /// A plugin asked for another try more often than its policy allows.
    PluginRefused = "plugin_refused",
    /// A plugin said that nothing more can be done.
    PluginHalted = "plugin_halted",
    /// A plugin declined a new shape of a table.
    RelationDeclined = "relation_declined",
    /// A plugin wants a fresh copy of a table.
    ResyncNeeded = "resync_needed",
    /// The position a sink keeps is ahead of the source.
    PositionAhead = "position_ahead",
    /// The position a sink keeps is of another lineage.
    PositionForeign = "position_foreign",
    /// A plugin takes nothing while reading waits for it.
    SinkTooSlow = "sink_too_slow",
    /// A parked plugin pins more log than is allowed.
    ParkedTooLong = "parked_too_long",
    /// The target refused rows of a plugin.
    RowsRefused = "rows_refused",
    /// A target of rows cannot be used as it is.
    RowsTarget = "rows_target",
    /// The database of a far target does not answer.
    RowsUnavailable = "rows_unavailable",
    /// There is no room for another dead letter.
    DeadLettersFull = "dead_letters_full",

    // The state database.
    /// Another walgate has taken the pipeline over.
    Fenced = "fenced",
    /// The state database did not answer.
    StoreUnavailable = "checkpoint_store(unavailable)",
    /// The state database refused the role.
    StoreAccess = "checkpoint_store(access)",
    /// The tables of the state database are not ours.
    StoreSchema = "checkpoint_store(schema)",
    /// An applied migration has another text.
    StoreMigrationChanged = "checkpoint_store(migration_changed)",
    /// The state database was used by a newer version.
    StoreMigrationUnknown = "checkpoint_store(migration_unknown)",
    /// A migration is missing between others.
    StoreMigrationMissing = "checkpoint_store(migration_missing)",
    /// The pipeline row is gone or of another history.
    StoreLineageChanged = "checkpoint_store(lineage_changed)",
    /// Cursors count changes another way.
    StoreOrdinalScheme = "checkpoint_store(ordinal_scheme)",
    /// A plugin has no cursor.
    StoreCursorMissing = "checkpoint_store(cursor_missing)",
    /// The state of a plugin is larger than its limit.
    StoreStateTooLarge = "checkpoint_store(state_too_large)",
    /// A position would move back.
    StoreRegress = "checkpoint_store(regress)",
    /// The state database refused a write.
    StoreWrite = "checkpoint_store(write)",
    /// Two names of pipelines have one lock.
    StoreLockShared = "checkpoint_store(lock_shared)",

    // Output files.
    /// The disk of an output file is full.
    OutputFull = "output(full)",
    /// An output file cannot be written.
    OutputIo = "output(io)",
    /// An output file cannot be used any more after a failed write.
    OutputUnusable = "output(unusable)",
    /// An output file is shorter than its checkpoint.
    OutputShort = "output(short)",
    /// An output file is gone.
    OutputMissing = "output(missing)",
    /// An output file holds bytes that are not ours.
    OutputForeign = "output(foreign)",
    /// The path of an output is not a file.
    OutputNotAFile = "output(not_a_file)",
    /// Another process has an output file open.
    OutputLocked = "output(locked)",
}

impl HaltClass {
    /// The class of that name: of an error of the wire, the store or an output, which name their own.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.name() == name)
    }

    /// The same for a name that has to be known. One that is not is a fault of ours, and a pipeline stops for it either way.
    pub(crate) fn named(name: &str) -> Self {
        Self::of_name(name).unwrap_or(Self::Bug)
    }

    /// Whether it is of a plugin's own output, which others have no part in.
    pub(crate) fn is_of_output(self) -> bool {
        self.name().starts_with("output(")
    }
}

impl Serialize for HaltClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for HaltClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A permanent stop. It says what happened and what to do, and holds no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Halt {
    /// Its class.
    #[serde(rename = "name")]
    pub(crate) class: HaltClass,
    /// The plugin it is about, if it is about one.
    pub(crate) plugin: Option<String>,
    /// What happened and what to do.
    pub(crate) detail: String,
}

impl Halt {
    pub(crate) fn new(class: HaltClass, detail: impl Into<String>) -> Self {
        Self { class, plugin: None, detail: detail.into() }
    }

    pub(crate) fn of_plugin(class: HaltClass, plugin: &str, detail: impl Into<String>) -> Self {
        Self { class, plugin: Some(plugin.to_owned()), detail: detail.into() }
    }

    /// Something that cannot happen.
    pub(crate) fn bug(detail: &str) -> Self {
        Self::new(HaltClass::Bug, format!("{detail}; please report this"))
    }
}

/// What happened, what to do, and where there is more of it: `(walgate explain NAME)`, for a shell to take as it is.
impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, plugin, detail } = self;
        write!(f, "halted: {class}")?;
        if let Some(plugin) = plugin {
            write!(f, " (plugin {plugin})")?;
        }
        let quote = if class.name().contains('(') { "'" } else { "" };
        write!(f, ": {detail} (walgate explain {quote}{class}{quote})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_lead_back() {
        for class in HaltClass::ALL {
            assert_eq!(HaltClass::of_name(class.name()), Some(*class));
            assert!(class.summary().ends_with('.'), "{class}");
        }
    }

    #[test]
    fn a_halt_says_where_there_is_more() {
        let halt = Halt::of_plugin(HaltClass::PluginFailed, "mirror", "it trapped");
        assert_eq!(
            halt.to_string(),
            "halted: plugin_failed (plugin mirror): it trapped (walgate explain plugin_failed)"
        );
        let halt = Halt::new(HaltClass::DataGapCursor, "it does not fit");
        assert!(halt.to_string().ends_with("(walgate explain 'data_gap(cursor)')"), "{halt}");
    }
}
