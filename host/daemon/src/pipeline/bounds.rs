//! The bound of what a plugin without a running instance may cost the source.
//!
//! Holds: the look at the board, once a second. Refuses to know why a plugin does not run.

use std::time::Duration;

use tokio::sync::watch;

use crate::halt::{Halt, HaltClass};
use crate::status::Board;
use crate::telemetry::events;

const LOOK: Duration = Duration::from_secs(1);

/// Ends with a halt when a required plugin that does not run pins more than `max_bytes` of log; else with the pipeline.
pub(super) async fn watch(board: Board, max_bytes: u64, mut stop: watch::Receiver<bool>) -> Result<(), Halt> {
    loop {
        for (plugin, pinned) in board.pinned() {
            events::parked_pins(&plugin, pinned);
            if pinned > max_bytes {
                let detail = format!(
                    "it does not run and keeps {pinned} bytes of log on the source, more than delivery.max_parked_bytes = \
                     {max_bytes}. Mend it, or let go of its place by removing its folder, or raise the bound; then start \
                     walgate again"
                );
                return Err(Halt::of_plugin(HaltClass::ParkedTooLong, &plugin, detail));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}
