//! The last stage: what is durable becomes what the source is told.
//!
//! Holds: the sending side of the position. It takes a [`Durable`], which only a committed checkpoint makes, so that
//! acknowledging before checkpointing does not compile. Never knows: rows, plugins, the socket.
//! A failover slot may be ahead of the standby that has to take over from it only where the server itself sees to that; else
//! the position waits here for the standby.

use tokio::sync::{mpsc, watch};
use walgate_core::Lsn;
use walgate_store::Durable;

use crate::status::Board;

/// Tells the wire how far the source may free its log.
pub(crate) struct Ack {
    position: watch::Sender<Lsn>,
    /// What the source may be told at most, when a standby of it has to have it first.
    guard: watch::Receiver<Option<Lsn>>,
    durable: Lsn,
    board: Board,
}

impl Ack {
    /// Starts at a position that is stored already.
    pub(crate) fn new(position: watch::Sender<Lsn>, guard: watch::Receiver<Option<Lsn>>, board: Board) -> Self {
        let durable = *position.borrow();
        board.acknowledged(durable);
        Self { position, guard, durable, board }
    }

    /// Works until the checkpoint stage is gone.
    pub(crate) async fn run(mut self, mut durable: mpsc::UnboundedReceiver<Durable>) {
        loop {
            let proof = tokio::select! {
                proof = durable.recv() => match proof {
                    Some(proof) => proof,
                    None => return,
                },
                Ok(()) = self.guard.changed() => {
                    self.tell();
                    continue;
                }
            };
            self.advance(&proof);
        }
    }

    /// Moves forward; never back.
    fn advance(&mut self, durable: &Durable) {
        self.durable.advance(durable.acked());
        self.tell();
    }

    fn tell(&self) {
        let most = *self.guard.borrow();
        let told = most.map_or(self.durable, |most| self.durable.min(most));
        walgate_failpoint::hit("ack.before");
        let moved = self.position.send_if_modified(|position| position.advance(told));
        walgate_failpoint::hit("ack.told");
        if moved {
            self.board.acknowledged(told);
        }
        self.board.held_for_standbys((told < self.durable).then_some(self.durable));
    }
}
