//! The last stage: what is durable becomes what the source is told.
//!
//! Holds: the sending side of the position. It takes a [`Durable`], which only a committed checkpoint makes, so that
//! acknowledging before checkpointing does not compile. Never knows: rows, plugins, the socket.

use tokio::sync::{mpsc, watch};
use walgate_core::Lsn;
use walgate_store::Durable;

use crate::status::Board;

/// Tells the wire how far the source may free its log.
pub(crate) struct Ack {
    position: watch::Sender<Lsn>,
    board: Board,
}

impl Ack {
    /// Starts at a position that is stored already.
    pub(crate) fn new(position: watch::Sender<Lsn>, board: Board) -> Self {
        board.acknowledged(*position.borrow());
        Self { position, board }
    }

    /// Works until the checkpoint stage is gone.
    pub(crate) async fn run(self, mut durable: mpsc::UnboundedReceiver<Durable>) {
        while let Some(proof) = durable.recv().await {
            self.advance(&proof);
        }
    }

    /// Moves forward; never back.
    fn advance(&self, durable: &Durable) {
        let moved = self.position.send_if_modified(|position| position.advance(durable.acked()));
        if moved {
            self.board.acknowledged(durable.acked());
        }
    }
}
