//! The body of an answer on its way to the guest: counted, capped, in time, and its connection kept for the next request.
//!
//! Holds: the caps of an answer, and when a connection may be used again. Refuses to buffer: the guest's own pace is the
//! pace of the peer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};
use wasmtime_wasi_http::Error;

use super::audit::Call;
use super::client::Client;
use super::connect::Connection;
use super::fault::Fault;

/// The rest of an answer.
pub(super) struct Answer {
    incoming: Incoming,
    /// Gone once it was given back, or is of no use.
    connection: Option<Connection>,
    client: Arc<Client>,
    /// Of the grant: connections are kept apart by it.
    at: usize,
    call: Call,
    limit: u64,
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
    /// The guest's own patience between two pieces, if it has less than all of the time.
    between: Option<Duration>,
    ended: bool,
}

impl Answer {
    pub(super) fn new(
        incoming: Incoming,
        connection: Connection,
        (client, at): (Arc<Client>, usize),
        call: Call,
        deadline: Instant,
        between: Option<Duration>,
    ) -> Self {
        let limit = client.limits().http_response_bytes;
        let timer = Box::pin(sleep_until(next(deadline, between)));
        let connection = Some(connection);
        Self { incoming, connection, client, at, call, limit, deadline, timer, between, ended: false }
    }

    fn fails(&mut self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.connection = None;
        self.ended = true;
        Poll::Ready(Some(Err(self.call.fails(fault).into())))
    }

    /// All of it was read: the connection is as good as new.
    fn is_whole(&mut self) {
        self.ended = true;
        self.call.is_whole();
        if let Some(connection) = self.connection.take() {
            self.client.keep(self.at, connection);
        }
    }
}

fn next(deadline: Instant, between: Option<Duration>) -> Instant {
    between.map_or(deadline, |between| deadline.min(Instant::now() + between))
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // Before what has come: a peer that always has one more byte must not outrun the clock.
        if self.timer.as_mut().poll(cx).is_ready() {
            return self.fails(Fault::Timeout);
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                self.is_whole();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => self.fails(Fault::of_hyper(&error)),
            Poll::Ready(Some(Ok(frame))) => {
                let received = self.call.receives(frame.data_ref().map_or(0, Bytes::len));
                if received > self.limit {
                    let limit = self.limit;
                    return self.fails(Fault::ResponseTooLarge(limit));
                }
                let next = next(self.deadline, self.between);
                self.timer.as_mut().reset(next);
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // An answer without a body is whole although nobody read it.
        if !self.ended && self.incoming.is_end_stream() {
            self.is_whole();
        }
    }
}
