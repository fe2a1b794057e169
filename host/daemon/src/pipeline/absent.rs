//! Plugins that do not run: whether they hold the acknowledgement, and what is said of it.
//!
//! Holds: the rule that a required plugin keeps its place while it still has one. Refuses to know why it does not run (see
//! `start.rs`).

use std::collections::BTreeSet;

use walgate_core::Cursor;
use walgate_store::PipelineRow;

use super::checkpoint::{PACE, Position};
use super::outputs::Outputs;
use crate::plugins::Directory;
use crate::status::Board;

/// A plugin whose folder is gone is let go of. While nothing it lacks is acknowledged it could still come back, so whoever
/// moved the folder by mistake has to read it now.
pub(super) fn warn_of_absent(stored: &PipelineRow, plugins: &Directory) {
    let loaded = plugins.loaded.iter().map(|plugin| &plugin.name);
    let present: BTreeSet<&String> = loaded.chain(plugins.not_running.iter().map(|plugin| &plugin.name)).collect();
    let absent = stored.cursors.iter().filter(|(name, cursor)| cursor.end >= stored.acked && !present.contains(name));
    for (plugin, cursor) in absent {
        tracing::warn!(
            plugin,
            at = %cursor.end,
            "it ran before and its folder is gone, so nothing is kept for it any more; if that was not meant, stop walgate and \
             put the folder back now: once others have gone on it cannot start again under this name"
        );
    }
}

/// The position of a required plugin without a lane: it keeps its place, and with it the source's log. One that stands where
/// others have gone on already has lost its place, and holds nothing any more.
pub(super) fn hold(
    name: &str,
    required: bool,
    cursor: Cursor,
    stored: &PipelineRow,
    board: &Board,
) -> Option<Position> {
    if !required {
        return None;
    }
    if !cursor.reaches(stored.acked) {
        tracing::warn!(
            plugin = name,
            at = %cursor.end,
            "a required plugin does not run, and others went on without it: it has a gap already and holds nothing"
        );
        return None;
    }
    tracing::warn!(
        plugin = name,
        at = %cursor.end,
        "a required plugin does not run and holds the acknowledgement; mend it, or remove its folder to let go of it"
    );
    board.plugin(name, |status| status.required = true);
    board.cursor(name, cursor.end);
    Some(Position {
        plugin: name.to_owned(),
        required: true,
        generation: stored.generations.get(name).copied().unwrap_or(1),
        cursor,
        stored: cursor,
        delivered_to: (None, None),
        outputs: Outputs::none(name, board.clone()),
        together: false,
        pace: PACE,
    })
}
