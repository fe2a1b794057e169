//! The ways in which what a plugin does becomes durable, as the suite sees them: where the ledger is, and the promise.
//!
//! Holds: one variant a mode, its plugin, and the points a process passes in it. A mode that comes later is one more
//! variant: a plugin, a ledger (`ledger.rs` or `mirror.rs` reads it) and a promise. Never knows: how anything is proved.

use std::path::Path;

/// Rows in a batch: small, so that a transaction of ordinary size comes in several parts.
pub(crate) const MAX_BATCH_ROWS: usize = 40;

/// Batches that one crash may repeat where nothing can be taken back: the next one is delivered when the last one is
/// checkpointed.
const BATCHES_IN_A_CHECKPOINT: usize = 1;

/// A delivery mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Lines in a file whose length commits with the position.
    Transactional,
    /// Lines on standard output, which nothing can take back.
    Checkpointed,
    /// Lines in a file, kept in the plugin's memory until a flush.
    Flushed,
    /// Lines in a file and a position of its own beside them.
    SinkOwned,
    /// Rows in the state database, which commit with the position.
    Rows,
    /// Rows in another database, which commit with a copy of the position.
    RowsFar,
}

/// Where a mode keeps its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    File,
    StandardOutput,
    /// Tables of schema `mirror`.
    Tables,
}

/// What may stand in the ledger twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Nothing.
    EffectOnce,
    /// After a crash what was delivered after the last checkpoint, and no more than that many changes.
    AtLeastOnce(usize),
}

impl Mode {
    /// Every mode there is.
    pub(crate) const ALL: [Self; 6] =
        [Self::Transactional, Self::Checkpointed, Self::Flushed, Self::SinkOwned, Self::Rows, Self::RowsFar];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Transactional => "host-transactional",
            Self::Checkpointed => "host-checkpointed",
            Self::Flushed => "accepted and flushed",
            Self::SinkOwned => "sink-owned",
            Self::Rows => "rows in the state",
            Self::RowsFar => "host-transactional-far",
        }
    }

    pub(crate) fn promise(self) -> Promise {
        match self {
            Self::Checkpointed => Promise::AtLeastOnce(BATCHES_IN_A_CHECKPOINT * MAX_BATCH_ROWS),
            _ => Promise::EffectOnce,
        }
    }

    pub(crate) fn place(self) -> Place {
        match self {
            Self::Transactional | Self::Flushed | Self::SinkOwned => Place::File,
            Self::Checkpointed => Place::StandardOutput,
            Self::Rows | Self::RowsFar => Place::Tables,
        }
    }

    /// The guest that keeps the ledger: it writes each change with its position and its values.
    pub(crate) fn guest(self) -> &'static str {
        match self {
            Self::Transactional | Self::Checkpointed => "ndjson-rust",
            Self::Flushed => "flush-later",
            Self::SinkOwned => "own-position",
            Self::Rows | Self::RowsFar => "mirror-rust",
        }
    }

    /// Its plugin.toml; `ledger` is the file of the modes that write one.
    pub(crate) fn manifest(self, ledger: &Path) -> String {
        let file = format!("kind = \"file\"\npath = \"{}\"\n", ledger.display());
        let grants = match self {
            Self::Transactional => format!("[grant.output.changes]\n{file}"),
            Self::Checkpointed => "[grant.output.changes]\nkind = \"stdout\"\n".to_owned(),
            Self::Flushed => format!(
                "[grant.output.lines]\n{file}[settings]\nvalues = \"yes\"\n[flush]\nmax_delay_ms = 150\nmax_transactions = 20\n"
            ),
            Self::SinkOwned => format!(
                "[grant]\ncapabilities = [\"state\"]\n[grant.output.lines]\n{file}[settings]\nvalues = \"yes\"\n"
            ),
            Self::Rows => rows("state"),
            Self::RowsFar => rows("far"),
        };
        with_grants("halt", &grants)
    }

    /// The points that a process passes in this mode, those of the start first: the very first start is one of them.
    pub(crate) fn points(self) -> Vec<&'static str> {
        let outputs = self.place() != Place::Tables;
        let mut all = STARTING.to_vec();
        all.extend(["receive.chunk", "assemble.commit", "deliver.before_call", "deliver.after_call"]);
        all.extend((self == Self::Flushed).then_some("deliver.before_flush"));
        all.push("deliver.given");
        if !outputs {
            all.extend(["apply.before_rows", "apply.in_transaction", "apply.committed"]);
        }
        all.push("checkpoint.before_outputs");
        // Standard output is written whole; where it is torn is the affair of the system.
        all.extend((self.place() == Place::File).then_some("output.half_written"));
        all.extend(outputs.then_some("output.synced"));
        all.extend(["checkpoint.before_commit", "checkpoint.committed", "ack.before", "ack.told"]);
        all
    }
}

/// The points of every start.
pub(crate) const STARTING: [&str; 5] =
    ["takeover.locked", "takeover.fenced", "takeover.loaded", "start.adopted", "start.opened"];

/// A plugin.toml that grants everything published, and these sections.
pub(crate) fn with_grants(on_failure: &str, grants: &str) -> String {
    format!(
        "[plugin]\nrequired = true\non_failure = \"{on_failure}\"\nmax_attempts = 5\nbackoff_ms = 10\n\
         [[grant.table]]\nschema = \"public\"\nname = \"entries\"\ncolumns = \"*\"\n\
         [[grant.table]]\nschema = \"public\"\nname = \"accounts\"\ncolumns = \"*\"\n{grants}"
    )
}

/// The grants of a mirror in that database.
pub(crate) fn rows(database: &str) -> String {
    format!("[grant]\ncapabilities = [\"log\"]\n[grant.rows.\"*\"]\ndatabase = \"{database}\"\nschema = \"mirror\"\n")
}

/// The latest pass at which a point is armed. A start passes its points once, a checkpoint comes ten times a second.
pub(crate) fn latest_pass(point: &str) -> u64 {
    match point.split('.').next() {
        Some("start" | "takeover" | "swap" | "turn") => 1,
        Some("receive" | "assemble") => 25,
        Some("deliver") if point != "deliver.before_flush" => 25,
        _ => 5,
    }
}
