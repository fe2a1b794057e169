//! The keeper of dead letters beside the stream: hands over those to be tried again, counts them, and removes old ones.
//!
//! Holds: a connection of its own to the state database. Refuses to know how a letter is delivered
//! (see [`super::deliver`]). Nothing here moves a position, and a fault here is told and waits for the next look.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use walgate_store::{Store, StoreError};
use walgate_wire::SourceOptions;

use super::checkpoint::LetterRoom;
use super::deliver::Todo;
use crate::config::LetterLimits;
use crate::connect;
use crate::exit::chain;
use crate::halt::{Halt, HaltClass};
use crate::status::Board;
use crate::telemetry::events;

/// How often letters are counted and old ones removed when nobody asks.
const LOOK: Duration = Duration::from_secs(10);

/// The keeper.
pub(crate) struct Keeper {
    pub(crate) pipeline: String,
    pub(crate) state: SourceOptions,
    pub(crate) limits: LetterLimits,
    /// The lanes by plugin. Weak: a lane ends when the flow lets go of it.
    pub(crate) lanes: Vec<(String, mpsc::WeakUnboundedSender<Todo>)>,
    /// The epoch of this process. A quiet stream writes nothing, and would not learn that another has taken over.
    pub(crate) epoch: Option<u64>,
    /// How much room there is, to be counted anew; tells when letters went or came back.
    pub(crate) room: LetterRoom,
    /// Told when somebody asked for a redrive.
    pub(crate) asked: Arc<Notify>,
    pub(crate) board: Board,
}

impl Keeper {
    /// Works until a stop is asked for.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) -> Result<(), Halt> {
        let mut store = None;
        // What was asked for while no process ran.
        let mut redrive = true;
        loop {
            match self.look(&mut store, redrive).await {
                Ok(true) => {}
                Ok(false) => {
                    events::fenced(self.epoch.unwrap_or_default());
                    let detail = "another walgate has taken this pipeline over; this one stops and leaves it alone";
                    return Err(Halt::new(HaltClass::Fenced, detail));
                }
                Err(why) => {
                    tracing::warn!("dead letters cannot be looked at: {why}");
                    store = None;
                }
            }
            redrive = tokio::select! {
                () = self.asked.notified() => true,
                // More may wait than fit one look.
                () = self.room.changed.notified() => true,
                () = tokio::time::sleep(LOOK) => false,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };
        }
    }

    /// False when another process leads.
    async fn look(&self, slot: &mut Option<Store>, redrive: bool) -> Result<bool, String> {
        let store = match slot.take() {
            Some(store) => store,
            None => {
                let store = connect::state_beside(&self.state, &self.pipeline, self.epoch).await;
                store.map_err(|failure| failure.message)?
            }
        };
        let store = slot.insert(store);
        let told = |error: StoreError| chain(&error);
        let leads = store.stored_epoch(&self.pipeline).await.map_err(told)?;
        if leads != self.epoch {
            return Ok(false);
        }
        let bytes = store.dead_letter_bytes(&self.pipeline).await.map_err(told)?;
        self.room.bytes.store(bytes, Ordering::Relaxed);
        if let Some(retain) = self.limits.retain {
            for lost in store.expire_letters(&self.pipeline, retain).await.map_err(told)? {
                events::dead_letters_expired(&lost.plugin, lost.letters);
            }
        }
        for (plugin, lane) in &self.lanes {
            let waiting = store.dead_letter_count(&self.pipeline, plugin).await.map_err(told)?;
            self.board.plugin(plugin, |status| status.dead_letters = waiting);
            events::dead_letters_waiting(plugin, waiting);
            if !redrive {
                continue;
            }
            let letters = store.requested_letters(&self.pipeline, plugin).await.map_err(told)?;
            if let (false, Some(lane)) = (letters.is_empty(), lane.upgrade()) {
                let _ = lane.send(Todo::Redrive(letters));
            }
        }
        Ok(true)
    }
}
