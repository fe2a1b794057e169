//! Keeps a replication stream going: reads, hands over, reports the flush position, notices a dead peer.
//!
//! Holds: the one loop that owns the socket. Refuses to know what a payload means, and never waits for the flow without
//! serving the server meanwhile. Read next: [`crate::feedback`] (when a status is due), [`crate::pacing`] (when to
//! pause), [`crate::chunk`] (the budget).

use std::future::poll_fn;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use walgate_core::Lsn;

use crate::chunk::{ChunkSender, Closed};
use crate::connection::stopped;
use crate::error::{Kind, WireError};
use crate::feedback::Status;
use crate::frame::{Frame, Header, Next, scan};
use crate::link::{Filled, server_error};
use crate::stats::PumpStats;
use crate::stream::CopyStream;
use crate::thread;
use crate::verdict::Phase;

/// How long data may pile up while behind.
///
/// A quarter of a millisecond to one and a half were tried: one gave the least wall time and the least CPU on both
/// sides over TCP, for small rows and for rows of 2 kB. See [`crate::thread`] for the figures.
const PAUSE: Duration = Duration::from_millis(1);

/// The same where only a timer of a shared runtime can wait. It counts whole milliseconds and rounds up, so half of one
/// is one and a half in fact.
const TIMER_PAUSE: Duration = Duration::from_micros(500);

/// The longest pause on a unix socket. The kernel counts some 800 bytes for a message of any length there, so the
/// sender's buffer holds under 300 small ones, and cannot be made larger from this side: a millisecond caps the stream.
const SHORT_PAUSE: Duration = Duration::from_micros(400);

/// A read from a unix socket that brings more shortens the next pause in proportion: messages are long, and the server
/// would wait for room.
const SHORT_PAUSE_BYTES: f64 = 32_768.0;

/// How long a stop waits for the server's goodbye. The final status is on its way before; only a clean end is at stake.
const FAREWELL: Duration = Duration::from_secs(2);

/// Statuses that may wait to go out. A peer that does not read a hundred of them is not helped by more.
const MAX_OUTBOX_BYTES: usize = 4 << 10;

/// Why a pump ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// It was told to stop.
    Stopped {
        /// The position the last status told; zero when none was known.
        flushed: Lsn,
        /// Whether the server said goodbye, so that it surely has read the last status.
        confirmed: bool,
    },
    /// The receiver of the chunks is gone.
    ReceiverGone,
}

impl CopyStream {
    /// Pumps until told to stop, until the receiver is gone, or until the stream breaks.
    ///
    /// - Every whole message goes to `out`, in order, a chunk for each read.
    /// - `flush` is the position up to which everything is durable. It is told to the server at least every third of
    ///   `wal_sender_timeout` (never later than 10 s), 100 ms after it moved, and at once when the server asks; also
    ///   while `out` has no room, and in the middle of a message or transaction of any size.
    /// - `stop`: once true, or its sender gone, the final flush position is told and the stream ended. Set the last
    ///   value in `flush` *before* `stop`.
    ///
    /// Dropping the future loses nothing: the next call goes on. After an error the stream is of no more use.
    ///
    /// It works on any runtime, and is at its best on a thread of its own: see [`crate::own_thread`].
    pub async fn pump(
        &mut self,
        out: &ChunkSender,
        flush: &mut watch::Receiver<Lsn>,
        stop: &mut watch::Receiver<bool>,
        stats: &PumpStats,
    ) -> Result<StreamEnd, WireError> {
        let (mut flush_open, mut stopping) = (true, false);
        let mut resume: Option<Instant> = None;
        // Messages that came together with the start of the stream.
        self.sort_inbox(stats)?;
        loop {
            // The stop is looked at first: whoever sets it has set the last flush position before.
            stopping = stopping || *stop.borrow();
            let durable = *flush.borrow_and_update();
            self.feedback.flushed(durable);
            if stopping {
                return self.farewell(stats).await;
            }
            if self.hand_over(out).is_err() {
                return Ok(StreamEnd::ReceiverGone);
            }
            let blocked = self.ready.front().map(bytes::Bytes::len);
            if blocked.is_none()
                && let Some(error) = self.ended.take()
            {
                return Err(error);
            }
            let now = Instant::now();
            resume = resume.filter(|at| *at > now);
            let reading = blocked.is_none() && resume.is_none();
            // Also answers what the last read asked for, before any pause and with the newest flush position.
            self.keep_up(now, blocked.is_some(), stats)?;
            if let Some(at) = resume.filter(|_| thread::is_own()) {
                self.sleep(at).await?;
                continue;
            }
            let wake = resume.unwrap_or(self.feedback.next()).min(self.feedback.next()).min(self.feedback.dead_at());
            tokio::select! {
                biased;
                // Looks at the flush position once more before it says farewell.
                () = stopped(stop) => stopping = true,
                filled = poll_fn(|cx| self.poll_link(cx, reading)) => {
                    let filled = filled.map_err(|e| WireError::io(Phase::Stream.doing(), e))?;
                    resume = self.take_in(filled, stats)?;
                }
                share = admit(out, blocked), if blocked.is_some() => {
                    let Ok(share) = share else { return Ok(StreamEnd::ReceiverGone) };
                    if let Some(bytes) = self.ready.pop_front() && out.push(bytes, share).is_err() {
                        return Ok(StreamEnd::ReceiverGone);
                    }
                }
                changed = flush.changed(), if flush_open => flush_open = changed.is_ok(),
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Hands over what there is room for now.
    fn hand_over(&mut self, out: &ChunkSender) -> Result<(), Closed> {
        while let Some(bytes) = self.ready.pop_front() {
            let Some(share) = out.try_admit(bytes.len()) else {
                self.ready.push_front(bytes);
                return Ok(());
            };
            out.push(bytes, share)?;
        }
        Ok(())
    }

    /// Sends a status if one is due, and gives up on a peer that has been silent for too long.
    fn keep_up(&mut self, now: Instant, blocked: bool, stats: &PumpStats) -> Result<(), WireError> {
        if blocked {
            self.feedback.heard(now);
        }
        if let Some(after) = self.feedback.dead(now) {
            return Err(Kind::Silent { after }.into());
        }
        if let Some(status) = self.feedback.due(now) {
            self.queue(status, stats);
        }
        Ok(())
    }

    fn queue(&mut self, status: Status, stats: &PumpStats) {
        if self.link.outbox.len() < MAX_OUTBOX_BYTES {
            status.write(&mut self.link.outbox);
            stats.statuses_sent.fetch_add(1, Relaxed);
        }
    }

    /// Writes whatever waits, and reads if `reading`. Ready when something was read.
    fn poll_link(&mut self, cx: &mut Context<'_>, reading: bool) -> Poll<io::Result<Filled>> {
        if self.link.has_output()
            && let Poll::Ready(Err(error)) = self.link.poll_flush(cx)
        {
            return Poll::Ready(Err(error));
        }
        if reading { self.link.poll_fill(cx, self.missing) } else { Poll::Pending }
    }

    /// Blocks this thread until then, after writing what can be written now.
    async fn sleep(&mut self, until: Instant) -> Result<(), WireError> {
        let flushed = poll_fn(|cx| Poll::Ready(self.poll_link(cx, false))).await;
        if let Poll::Ready(Err(error)) = flushed {
            return Err(WireError::io(Phase::Stream.doing(), error));
        }
        // Others on this thread are none; but its timers and its budget of polls want a turn.
        tokio::task::yield_now().await;
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// Takes in what a read brought. Returns until when to pause.
    fn take_in(&mut self, filled: Filled, stats: &PumpStats) -> Result<Option<Instant>, WireError> {
        if filled.bytes == 0 {
            self.ended.get_or_insert_with(|| Kind::Closed { doing: Phase::Stream.doing() }.into());
            return Ok(None);
        }
        let now = Instant::now();
        stats.read(filled.bytes);
        self.feedback.heard(now);
        self.sort_inbox(stats)?;
        let pause = self.pacing.pause_after(filled.bytes, filled.drained, now);
        Ok(pause.then(|| {
            stats.pauses.fetch_add(1, Relaxed);
            now + self.pause(filled.bytes)
        }))
    }

    /// How long to pause after a read of that many bytes.
    fn pause(&self, bytes: usize) -> Duration {
        match (thread::is_own(), self.short_pauses) {
            (false, _) => TIMER_PAUSE,
            (true, false) => PAUSE,
            (true, true) => SHORT_PAUSE.mul_f64((SHORT_PAUSE_BYTES / bytes.max(1) as f64).clamp(0.1, 1.0)),
        }
    }

    /// Moves whole messages from the inbox to where they belong.
    fn sort_inbox(&mut self, stats: &PumpStats) -> Result<(), WireError> {
        while self.ended.is_none() {
            let (mut last, mut asked) = (self.last, 0);
            let scanned = scan(&self.link.inbox, last, |frame| {
                last = frame.lsn();
                if let Frame::Keepalive { reply_requested: true, .. } = frame {
                    asked += 1;
                }
            });
            self.last = last;
            if asked > 0 {
                stats.keepalives_answered.fetch_add(asked, Relaxed);
                self.feedback.owe();
            }
            let scanned = scanned?;
            if scanned.run > 0 {
                self.ready.push_back(self.link.inbox.split_to(scanned.run).freeze());
            }
            match scanned.next {
                Next::Partial { missing } => {
                    self.missing = missing;
                    return Ok(());
                }
                Next::Other(header) => self.other(header)?,
            }
        }
        Ok(())
    }

    /// Deals with a message that is not part of the data.
    fn other(&mut self, header: Header) -> Result<(), WireError> {
        let mut raw = self.link.inbox.split_to(header.total);
        let message = Message::parse(&mut raw)
            .map_err(|e| WireError::unreadable("an unreadable message", e))?
            .ok_or_else(|| WireError::protocol("a message without an end"))?;
        match self.link.absorb(message) {
            None => {}
            Some(Message::ErrorResponse(body)) => self.ended = Some(server_error(Phase::Stream, body.fields())),
            Some(Message::CopyDone | Message::CommandComplete(_) | Message::ReadyForQuery(_)) => {
                self.ended = Some(Kind::Ended.into());
            }
            Some(_) => return Err(WireError::protocol("a message that has no place in a stream")),
        }
        Ok(())
    }

    /// Tells the final position, ends the stream, and waits a little for the server to do the same.
    async fn farewell(&mut self, stats: &PumpStats) -> Result<StreamEnd, WireError> {
        let status = self.feedback.status(Instant::now());
        status.write(&mut self.link.outbox);
        stats.statuses_sent.fetch_add(1, Relaxed);
        frontend::copy_done(&mut self.link.outbox);
        let confirmed = timeout(FAREWELL, self.wait_for_goodbye(stats)).await.unwrap_or(false);
        if confirmed {
            frontend::terminate(&mut self.link.outbox);
            // Best effort: the server also notices that the socket closes.
            let _ = timeout(FAREWELL, poll_fn(|cx| self.link.poll_flush(cx))).await;
        }
        Ok(StreamEnd::Stopped { flushed: status.flush, confirmed })
    }

    /// Reads and drops data until the server has ended the stream. False when the connection broke instead.
    async fn wait_for_goodbye(&mut self, stats: &PumpStats) -> bool {
        loop {
            self.ready.clear();
            if self.sort_inbox(stats).is_err() {
                return false;
            }
            if let Some(end) = &self.ended {
                return matches!(end.kind(), Kind::Ended);
            }
            match poll_fn(|cx| self.poll_link(cx, true)).await {
                Ok(filled) if filled.bytes > 0 => stats.read(filled.bytes),
                _ => return false,
            }
        }
    }
}

/// Waits for room for the chunk that is blocked; not polled when none is.
async fn admit(out: &ChunkSender, blocked: Option<usize>) -> Result<tokio::sync::OwnedSemaphorePermit, Closed> {
    out.admit(blocked.unwrap_or_default()).await
}

#[cfg(test)]
#[path = "pump_tests.rs"]
mod tests;
