//! The way from the socket to the flow: whole replication messages as read, under a budget of bytes.
//!
//! Holds: [`Chunk`], and a channel that counts the bytes its receiver keeps. One item travels per read of the socket,
//! never one per message. Refuses to know sockets and what a payload means. Read next: [`crate::pump`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::frame::Frames;

/// What a chunk costs beside its bytes, so that a budget also bounds the number of very small chunks.
///
/// 128 bytes is a little more than the queue slot, the permit and the reference count really take.
const CHUNK_OVERHEAD_BYTES: usize = 128;

/// Whole CopyData messages as they came from the socket, one behind the other.
///
/// It keeps its share of the channel's budget until it is dropped. Bytes cloned out of it with [`Chunk::slice`] are
/// the holder's own to count.
pub struct Chunk {
    bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

impl Chunk {
    /// A chunk of no channel and without a budget: for tests and for replaying a recorded stream.
    pub fn detached(bytes: Bytes) -> Self {
        Self { bytes, _share: None }
    }

    /// The messages in it. A chunk that came from the pump never yields an error.
    pub fn frames(&self) -> Frames<'_> {
        Frames::new(&self.bytes)
    }

    /// Bytes in it, framing included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True when there is nothing in it; the pump sends no such chunk.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All of it, framing included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A part of it as shared bytes, without a copy; empty when `part` was not borrowed from this chunk.
    pub fn slice(&self, part: &[u8]) -> Bytes {
        let within = self.bytes.as_ptr_range();
        let part_range = part.as_ptr_range();
        if part.is_empty() || part_range.start < within.start || part_range.end > within.end {
            return Bytes::new();
        }
        self.bytes.slice_ref(part)
    }
}

/// Its size only.
impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk {{ {} bytes }}", self.bytes.len())
    }
}

/// Makes a channel whose receiver holds at most `budget_bytes` in chunks it has not dropped yet.
///
/// A chunk larger than the whole budget is let through alone, once nothing else is held.
pub fn channel(budget_bytes: usize) -> (ChunkSender, ChunkReceiver) {
    let budget = u32::try_from(budget_bytes).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 1);
    let (queue, chunks) = mpsc::unbounded_channel();
    let sender = ChunkSender { queue, left: Arc::new(Semaphore::new(budget as usize)), budget };
    (sender, ChunkReceiver { chunks })
}

/// The receiver is gone, so nothing can be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of the replication stream is gone")]
pub struct Closed;

/// The pump's end.
#[derive(Debug)]
pub struct ChunkSender {
    /// Unbounded in items: the budget bounds it in bytes, overhead included.
    queue: mpsc::UnboundedSender<Chunk>,
    left: Arc<Semaphore>,
    budget: u32,
}

impl ChunkSender {
    /// Waits until the budget has room, then hands the bytes over. They must be whole CopyData messages.
    ///
    /// Dropping the future before it is done sends nothing.
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        let share = self.admit(bytes.len()).await?;
        self.push(bytes, share)
    }

    /// Waits for room for that many bytes, or for the end of the receiver.
    pub(crate) async fn admit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Closed> {
        tokio::select! {
            biased;
            () = self.queue.closed() => Err(Closed),
            share = Arc::clone(&self.left).acquire_many_owned(self.cost(bytes)) => share.map_err(|_| Closed),
        }
    }

    /// Room for that many bytes if it is there now.
    pub(crate) fn try_admit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.left).try_acquire_many_owned(self.cost(bytes)).ok()
    }

    /// Hands bytes over for which [`ChunkSender::admit`] gave room.
    pub(crate) fn push(&self, bytes: Bytes, share: OwnedSemaphorePermit) -> Result<(), Closed> {
        self.queue.send(Chunk { bytes, _share: Some(share) }).map_err(|_| Closed)
    }

    fn cost(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.saturating_add(CHUNK_OVERHEAD_BYTES)).unwrap_or(u32::MAX).min(self.budget)
    }
}

/// The flow's end.
#[derive(Debug)]
pub struct ChunkReceiver {
    chunks: mpsc::UnboundedReceiver<Chunk>,
}

impl ChunkReceiver {
    /// The next chunk; `None` when the sender is gone and everything was received. Cancellation loses nothing.
    pub async fn recv(&mut self) -> Option<Chunk> {
        self.chunks.recv().await
    }

    /// The next chunk if one is there now: `None` means that everything sent so far was received.
    pub fn try_recv(&mut self) -> Option<Chunk> {
        self.chunks.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
        std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn bytes(len: usize) -> Bytes {
        Bytes::from(vec![0; len])
    }

    #[tokio::test]
    async fn the_budget_counts_until_the_chunk_is_dropped() {
        let (sender, mut receiver) = channel(3 * (1000 + CHUNK_OVERHEAD_BYTES));
        for _ in 0..3 {
            sender.send(bytes(1000)).await.unwrap();
        }
        assert!(poll_once(sender.send(bytes(1))).is_pending());
        let held = receiver.recv().await.unwrap();
        assert!(sender.try_admit(1).is_none(), "receiving is not yet releasing");
        drop(held);
        assert!(sender.try_admit(1000).is_some());
    }

    #[tokio::test]
    async fn a_chunk_above_the_budget_goes_alone() {
        let (sender, mut receiver) = channel(1000);
        sender.send(bytes(10)).await.unwrap();
        assert!(poll_once(sender.send(bytes(5000))).is_pending());
        drop(receiver.try_recv().unwrap());
        sender.send(bytes(5000)).await.unwrap();
        assert!(poll_once(sender.send(bytes(1))).is_pending());
        assert_eq!(receiver.try_recv().unwrap().len(), 5000);
        assert!(receiver.try_recv().is_none());
        drop(sender);
        assert!(receiver.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_waiting_sender_learns_that_the_receiver_is_gone() {
        let (sender, receiver) = channel(1000);
        sender.send(bytes(990)).await.unwrap();
        let waiting = tokio::spawn(async move { sender.send(bytes(500)).await });
        drop(receiver);
        assert_eq!(waiting.await.unwrap(), Err(Closed));
    }

    #[test]
    fn a_slice_shares_the_bytes_and_a_foreign_one_is_empty() {
        let chunk = Chunk::detached(Bytes::from_static(b"abcdef"));
        assert_eq!(chunk.slice(&chunk.bytes()[2..4]), b"cd"[..]);
        assert!(chunk.slice(b"zz").is_empty());
        assert_eq!(format!("{chunk:?}"), "Chunk { 6 bytes }");
    }
}
