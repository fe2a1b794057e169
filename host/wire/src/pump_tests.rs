//! Tests of the pump against a scripted server at the other end of an in-memory pipe.

use std::future::Future;
use std::pin::pin;
use std::task::Waker;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::chunk::{ChunkReceiver, channel};
use crate::link::Link;
use crate::stream::StartOptions;

/// Nothing in these tests takes longer; a wait that does is stuck.
const DEADLINE: Duration = Duration::from_secs(20);

/// A pump, the server's end of its socket, and the daemon's ends of everything else.
struct Rig {
    stream: CopyStream,
    server: DuplexStream,
    sender: ChunkSender,
    chunks: ChunkReceiver,
    flush: watch::Sender<Lsn>,
    stop: watch::Sender<bool>,
    stats: PumpStats,
}

fn rig(timeout_ms: u64, budget: usize, dead_peer_after: Duration) -> Rig {
    let (ours, server) = duplex(1 << 20);
    let mut options = StartOptions::new("s", Lsn::ZERO, vec![]);
    options.dead_peer_after = Some(dead_peer_after);
    let stream = CopyStream::new(Link::new(Box::new(ours)), Duration::from_millis(timeout_ms), &options);
    let (sender, chunks) = channel(budget);
    let (flush, stop) = (watch::channel(Lsn::ZERO).0, watch::channel(false).0);
    Rig { stream, server, sender, chunks, flush, stop, stats: PumpStats::new() }
}

impl Rig {
    /// Runs the pump beside `script`; the script's end ends the test, unless the pump fails first.
    async fn run<T>(
        &mut self,
        script: impl AsyncFnOnce(&mut DuplexStream, &mut ChunkReceiver, &watch::Sender<Lsn>) -> T,
    ) -> T {
        let (mut flush, mut stop) = (self.flush.subscribe(), self.stop.subscribe());
        let pump = self.stream.pump(&self.sender, &mut flush, &mut stop, &self.stats);
        let script = script(&mut self.server, &mut self.chunks, &self.flush);
        tokio::select! {
            result = script => result,
            end = pump => panic!("the pump ended: {end:?}"),
            () = tokio::time::sleep(DEADLINE) => panic!("the script is stuck"),
        }
    }

    /// Runs the pump to its end beside a server that does nothing any more.
    async fn end(&mut self) -> Result<StreamEnd, WireError> {
        let (mut flush, mut stop) = (self.flush.subscribe(), self.stop.subscribe());
        let pump = self.stream.pump(&self.sender, &mut flush, &mut stop, &self.stats);
        timeout(DEADLINE, pump).await.expect("the pump ends")
    }
}

fn copy_data(body: &[u8]) -> Vec<u8> {
    let mut out = vec![b'd'];
    out.put_u32(4 + body.len() as u32);
    out.put_slice(body);
    out
}

fn data(start: u64, payload: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.put_u64(start);
    body.put_u64(start);
    body.put_u64(0);
    body.put_slice(payload);
    copy_data(&body)
}

fn keepalive(end: u64, reply: bool) -> Vec<u8> {
    let mut body = vec![b'k'];
    body.put_u64(end);
    body.put_u64(0);
    body.put_u8(reply.into());
    copy_data(&body)
}

fn error(fields: &[u8]) -> Vec<u8> {
    [&b"E"[..], &(4 + fields.len() as u32).to_be_bytes(), fields].concat()
}

/// Reads one status: its flush position, and whether it asks for an answer.
async fn status(server: &mut DuplexStream) -> (u64, bool) {
    let mut message = [0; 39];
    server.read_exact(&mut message).await.unwrap();
    let mut fields = &message[5..];
    assert_eq!((message[0], fields.get_u8()), (b'd', b'r'));
    let positions = [fields.get_u64(), fields.get_u64(), fields.get_u64()];
    assert!(positions.iter().all(|p| *p == positions[0]), "written = flushed = applied");
    let _clock = fields.get_u64();
    (positions[0], fields.get_u8() == 1)
}

fn starts(chunk: &crate::chunk::Chunk) -> Vec<u64> {
    chunk.frames().map(|frame| frame.unwrap().lsn().get()).collect()
}

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_keepalive_is_answered_at_once_with_the_flush_position() {
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    rig.run(async |server, chunks, flush| {
        flush.send_replace(Lsn::new(77));
        server.write_all(&keepalive(100, true)).await.unwrap();
        assert_eq!(status(server).await, (77, false));
        assert_eq!(starts(&chunks.recv().await.unwrap()), [100], "the flow sees it as well");
        server.write_all(&keepalive(101, false)).await.unwrap();
        assert_eq!(starts(&chunks.recv().await.unwrap()), [101]);
    })
    .await;
    assert_eq!(rig.stats.counts().keepalives_answered, 1);
    assert_eq!(rig.stats.counts().statuses_sent, 1, "an unasked keepalive gets no answer");
}

#[tokio::test]
async fn a_newer_flush_position_is_told_soon_and_an_older_one_never() {
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    rig.run(async |server, _, flush| {
        flush.send_replace(Lsn::new(50));
        assert_eq!(status(server).await.0, 50);
        flush.send_replace(Lsn::new(40));
        server.write_all(&keepalive(100, true)).await.unwrap();
        assert_eq!(status(server).await.0, 50);
    })
    .await;
}

#[tokio::test]
async fn a_blocked_flow_does_not_stop_the_feedback() {
    let mut rig = rig(60, 1, Duration::from_millis(200));
    rig.run(async |server, chunks, flush| {
        // The first takes the whole budget, the second waits for ever, also far beyond the dead-peer limit.
        server.write_all(&data(1, b"x")).await.unwrap();
        let held = chunks.recv().await.unwrap();
        server.write_all(&[data(2, b"y"), keepalive(3, true)].concat()).await.unwrap();
        for n in 1..=30 {
            flush.send_replace(Lsn::new(n));
            while status(server).await.0 < n {}
        }
        assert!(chunks.try_recv().is_none());
        drop(held);
        assert_eq!(starts(&chunks.recv().await.unwrap()), [2, 3]);
    })
    .await;
}

#[tokio::test]
async fn feedback_goes_on_in_the_middle_of_a_giant_message() {
    let mut rig = rig(60, 1, LONG);
    rig.run(async |server, chunks, flush| {
        let giant = data(9, &vec![7; 3 << 20]);
        for (n, part) in giant.chunks(giant.len() / 10 + 1).enumerate() {
            server.write_all(part).await.unwrap();
            flush.send_replace(Lsn::new(n as u64 + 1));
            while status(server).await.0 < n as u64 + 1 {}
        }
        let chunk = chunks.recv().await.unwrap();
        assert_eq!((chunk.len(), starts(&chunk)), (giant.len(), vec![9]));
    })
    .await;
}

#[tokio::test]
async fn messages_that_may_come_at_any_time_are_dealt_with() {
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    let notice = [&b"N"[..], &(4_u32 + 8).to_be_bytes(), b"C00000\0\0"].concat();
    let parameter = [&b"S"[..], &(4_u32 + 13).to_be_bytes(), b"TimeZone\0UTC\0"].concat();
    let notification = [&b"A"[..], &(4_u32 + 8).to_be_bytes(), &[0, 0, 0, 1], b"ch\0\0"].concat();
    let all = [data(1, b""), notice, data(2, b""), parameter, notification, data(3, b"")].concat();
    rig.run(async |server, chunks, _| {
        server.write_all(&all).await.unwrap();
        for n in 1..=3 {
            assert_eq!(starts(&chunks.recv().await.unwrap()), [n]);
        }
    })
    .await;
    assert_eq!(rig.stream.link.parameter("TimeZone"), Some("UTC"));
}

#[tokio::test]
async fn an_error_comes_after_the_data_before_it_and_without_its_words() {
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    let fields = b"SERROR\0C57P01\0Ma secret value\0Dmore\0\0";
    rig.server.write_all(&[data(1, b""), error(fields)].concat()).await.unwrap();
    let error = rig.end().await.unwrap_err();
    assert_eq!((error.sqlstate(), error.halt_name()), (Some("57P01"), "server_unavailable"));
    assert!(!format!("{error} {error:?}").contains("secret"));
    assert_eq!(starts(&rig.chunks.recv().await.unwrap()), [1]);
}

#[tokio::test]
async fn the_end_of_the_stream_is_an_error_to_retry() {
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    rig.server.write_all(b"c\0\0\0\x04").await.unwrap();
    assert_eq!(rig.end().await.unwrap_err().halt_name(), "stream_ended");
    let mut rig = self::rig(3_600_000, 1 << 20, LONG);
    rig.server.write_all(&data(1, b"x")[..9]).await.unwrap();
    rig.server.shutdown().await.unwrap();
    let error = rig.end().await.unwrap_err();
    assert!(error.is_connection_loss() && error.class() == crate::Class::Retry, "{error}");
}

#[tokio::test]
async fn bytes_that_are_no_replication_message_end_it() {
    for bytes in [&b"d\0\0\0\x05?"[..], &b"d\0\0\0\x01"[..], &b"D\0\0\0\x06\0\0"[..], &b"?\0\0\0\x04"[..]] {
        let mut rig = rig(3_600_000, 1 << 20, LONG);
        rig.server.write_all(bytes).await.unwrap();
        assert_eq!(rig.end().await.unwrap_err().class(), crate::Class::Bug, "{bytes:?}");
    }
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    rig.server.write_all(&[data(0xAB, b"x"), b"d\xFF\xFF\xFF\xFF".to_vec()].concat()).await.unwrap();
    let error = rig.end().await.unwrap_err();
    assert_eq!(error.halt_name(), "message_too_large");
    assert!(error.to_string().contains("0/AB"), "kf_061: the position is named: {error}");
}

#[tokio::test]
async fn a_silent_peer_is_asked_and_then_given_up() {
    let mut rig = rig(3_600_000, 1 << 20, Duration::from_millis(300));
    let error = rig.end().await.unwrap_err();
    assert_eq!((error.halt_name(), error.class()), ("peer_silent", crate::Class::Retry));
    let (_, asked) = status(&mut rig.server).await;
    assert!(asked, "it was asked for a sign of life first");
}

#[tokio::test]
async fn a_stop_tells_the_last_position_and_waits_for_the_goodbye() {
    let mut rig = rig(3_600_000, 1, LONG);
    // Blocked at that moment: a stop must not wait for the flow.
    rig.server.write_all(&data(1, b"x")).await.unwrap();
    rig.server.write_all(&data(2, b"y")).await.unwrap();
    rig.server.write_all(b"c\0\0\0\x04C\0\0\0\x0bCOPY 0\0").await.unwrap();
    rig.flush.send_replace(Lsn::new(42));
    rig.stop.send_replace(true);
    let end = rig.end().await.unwrap();
    assert_eq!(end, StreamEnd::Stopped { flushed: Lsn::new(42), confirmed: true });
    assert_eq!(status(&mut rig.server).await.0, 42);
    let mut rest = [0; 10];
    rig.server.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"c\0\0\0\x04X\0\0\0\x04");
}

#[tokio::test]
async fn a_receiver_that_is_gone_ends_it() {
    let mut rig = rig(3_600_000, 1 << 20, LONG);
    rig.server.write_all(&data(1, b"x")).await.unwrap();
    rig.chunks = channel(1).1;
    assert_eq!(rig.end().await.unwrap(), StreamEnd::ReceiverGone);
}

/// Polls the pump a few times, drops it, and starts it again, with the bytes arriving in every piece size.
#[tokio::test]
async fn dropping_the_pump_at_any_poll_loses_nothing() {
    let stream: Vec<u8> = (1..=20).flat_map(|n| data(n, &vec![n as u8; n as usize])).collect();
    for piece in 1..=40 {
        for polls in 1..=4 {
            let mut rig = rig(3_600_000, 200, LONG);
            let (mut seen, mut pieces) = (Vec::new(), stream.chunks(piece));
            while seen.len() < 20 {
                if let Some(piece) = pieces.next() {
                    rig.server.write_all(piece).await.unwrap();
                }
                let (mut flush, mut stop) = (rig.flush.subscribe(), rig.stop.subscribe());
                let mut pump = pin!(rig.stream.pump(&rig.sender, &mut flush, &mut stop, &rig.stats));
                for _ in 0..polls {
                    let polled = pump.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    assert!(polled.is_pending(), "{polled:?}");
                    while let Some(chunk) = rig.chunks.try_recv() {
                        seen.extend(starts(&chunk));
                    }
                }
                // Lets tokio's cooperative budget, which only a real scheduler refills, start afresh; and the pause end.
                tokio::task::yield_now().await;
            }
            assert_eq!(seen, (1..=20).collect::<Vec<u64>>(), "pieces of {piece}, {polls} polls");
        }
    }
}

#[tokio::test]
async fn pauses_while_behind_and_not_for_single_messages() {
    let mut rig = rig(3_600_000, 64 << 20, LONG);
    let large: Vec<u8> = (0..100).flat_map(|n| data(n, &[0; 1000])).collect();
    rig.run(async |server, chunks, _| {
        for n in 0..20 {
            server.write_all(&data(n, b"small")).await.unwrap();
            chunks.recv().await.unwrap();
        }
    })
    .await;
    assert_eq!(rig.stats.counts().pauses, 0);
    rig.run(async |server, chunks, _| {
        server.write_all(&large).await.unwrap();
        let mut bytes = 0;
        while bytes < large.len() {
            bytes += chunks.recv().await.unwrap().len();
        }
        // Exact during the pause, too.
        server.write_all(&keepalive(1, true)).await.unwrap();
        assert!(!status(server).await.1);
    })
    .await;
    assert!(rig.stats.counts().pauses > 0);
}
