//! The bare reader: walgate's own wire with every frame thrown away. What walgate could reach if its work were free.
//!
//! Holds: a pump, an end position, and recording what passes. Never knows: what is inside a frame but commits.
//! Read next: `sandbox.rs`, which replays a recording.

use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use walgate_core::Lsn;
use walgate_wire::{Chunk, Connection, Frame, PumpStats, SourceOptions, StartOptions, TlsMode, channel, own_thread};

use crate::pass::Pass;
use crate::process::{CpuWatch, own_cpu};
use crate::source::{DEADLINE, Source, Stretch, Transport};

/// Bytes between the socket and the consumer; what the daemon allows.
const CHANNEL_BYTES: usize = 4 << 20;

/// Reads a stretch and throws it away. `lazy` as in [`StartOptions`].
pub(crate) async fn run(source: &Source, stretch: &Stretch, transport: Transport, lazy: bool) -> Result<Pass> {
    read(source, stretch, transport, lazy, drop).await
}

/// Reads a stretch and keeps it.
pub(crate) async fn record(source: &Source, stretch: &Stretch) -> Result<Vec<Bytes>> {
    let mut kept = Vec::new();
    read(source, stretch, Transport::Unix, true, |chunk| kept.push(chunk.bytes().clone())).await?;
    Ok(kept)
}

async fn read(
    source: &Source,
    stretch: &Stretch,
    transport: Transport,
    lazy: bool,
    mut each: impl FnMut(Chunk),
) -> Result<Pass> {
    let slot = source.copy_slot(&stretch.slot).await?;
    let began = Instant::now();
    let mut options = SourceOptions::from_url(&source.url(transport))?;
    options.tls.mode = TlsMode::Disable;
    let start = StartOptions { lazy, ..StartOptions::new(&slot, Lsn::ZERO, vec![stretch.publication.clone()]) };
    let cpu_before = own_cpu()?;
    let (sender, mut chunks) = channel(CHANNEL_BYTES);
    let (flush, mut flushes) = watch::channel(Lsn::ZERO);
    let (stop, mut stops) = watch::channel(false);
    let wire = own_thread("bare-wire", move || async move {
        let mut stream = Connection::connect(&options).await?.start_replication(&start).await?;
        stream.pump(&sender, &mut flushes, &mut stops, &PumpStats::new()).await
    })
    .context("the bare reader has no thread")?;
    let walsender = source.walsender(&slot, || Ok(())).await?;
    let watch = CpuWatch::start(walsender.pid);
    let consume = async {
        while let Some(chunk) = chunks.recv().await {
            let committed = last_commit(&chunk)?;
            if let Some(end) = committed {
                flush.send_replace(end);
            }
            each(chunk);
            if committed > Some(stretch.before_last) {
                return Ok(());
            }
        }
        anyhow::bail!("the stream ended before its last transaction")
    };
    timeout(DEADLINE, consume).await.context("the bare reader did not come to the end of its stretch")??;
    let end = Instant::now();
    let pass = Pass {
        from_spawn: end.duration_since(began),
        streaming: end.duration_since(walsender.seen),
        walsender_cpu: watch.read(),
        reader_cpu: Some(own_cpu()?.saturating_sub(cpu_before)),
        peak_bytes: None,
    };
    drop(watch);
    stop.send_replace(true);
    wire.join().await??;
    source.drop_slot(&slot).await?;
    Ok(pass)
}

/// The end of the last transaction that ends in a chunk.
fn last_commit(chunk: &Chunk) -> Result<Option<Lsn>> {
    let mut last = None;
    for frame in chunk.frames() {
        if let Frame::Data { payload, .. } = frame? {
            last = commit_end(payload).or(last);
        }
    }
    Ok(last)
}

/// The end position in a commit message: after its kind, a byte of flags and the commit position.
fn commit_end(payload: &[u8]) -> Option<Lsn> {
    let (b'C', rest) = payload.split_first()? else { return None };
    let bytes = rest.get(9..17)?.first_chunk()?;
    Some(Lsn::new(u64::from_be_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use walgate_core::pgoutput::Message;

    #[test]
    fn the_end_of_a_commit_is_what_the_decoder_says() {
        let mut message = vec![b'C', 0];
        for number in [0x10_u64, 0x20, 0x30] {
            message.extend(number.to_be_bytes());
        }
        let Message::Commit(commit) = Message::decode(&message).unwrap() else { panic!() };
        assert_eq!(commit_end(&message), Some(commit.end));
        assert_eq!(commit_end(b"C"), None);
        assert_eq!(commit_end(b"I"), None);
    }
}
