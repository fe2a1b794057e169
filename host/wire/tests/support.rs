//! What the tests share: options for a cluster, and a pump with its ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use walgate_core::Lsn;
use walgate_harness::{Cluster, wait_for};
use walgate_wire::{
    ChunkReceiver, Connection, CopyStream, Frame, PumpStats, SlotOptions, SourceOptions, StartOptions, StreamEnd,
    TlsMode, WireError, channel, own_thread,
};

/// No wait in these tests is meant to take longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Options for the superuser over TCP, without TLS.
pub(crate) fn options(cluster: &Cluster) -> SourceOptions {
    let mut options = SourceOptions::from_url(&cluster.url("postgres")).unwrap();
    options.tls.mode = TlsMode::Disable;
    options
}

/// A replication connection of the superuser.
pub(crate) async fn connect(cluster: &Cluster) -> Connection {
    Connection::connect(&options(cluster)).await.unwrap()
}

/// A table `t`, a publication `p` of it and a slot `s`.
pub(crate) async fn prepare(cluster: &Cluster) -> Result<Lsn> {
    cluster.execute("postgres", "CREATE TABLE t (id int PRIMARY KEY, v text)").await?;
    cluster.execute("postgres", "CREATE PUBLICATION p FOR TABLE t").await?;
    let created = connect(cluster).await.create_slot("s", SlotOptions::default()).await?;
    Ok(created.consistent_point)
}

pub(crate) fn start_options() -> StartOptions {
    StartOptions::new("s", Lsn::ZERO, vec!["p".to_owned()])
}

pub(crate) async fn start(cluster: &Cluster) -> CopyStream {
    connect(cluster).await.start_replication(&start_options()).await.unwrap()
}

/// A stream and its pump on a thread of their own, as the daemon runs them.
pub(crate) fn pump_on_own_thread(options: SourceOptions, start: StartOptions, budget: usize) -> Pumping {
    let (sender, chunks) = channel(budget);
    let (flush, mut flush_watch) = watch::channel(Lsn::ZERO);
    let (stop, mut stop_watch) = watch::channel(false);
    let stats = Arc::new(PumpStats::new());
    let counts = Arc::clone(&stats);
    let thread = own_thread("wire", move || async move {
        let mut stream = Connection::connect(&options).await?.start_replication(&start).await?;
        stream.pump(&sender, &mut flush_watch, &mut stop_watch, &counts).await
    });
    let thread = thread.unwrap();
    let task = tokio::spawn(async move { thread.join().await.expect("no panic") });
    Pumping { chunks, flush, stop, stats, task }
}

/// A pump on a task of its own.
pub(crate) struct Pumping {
    pub(crate) chunks: ChunkReceiver,
    pub(crate) flush: watch::Sender<Lsn>,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) stats: Arc<PumpStats>,
    task: JoinHandle<Result<StreamEnd, WireError>>,
}

pub(crate) fn pump(mut stream: CopyStream, budget: usize) -> Pumping {
    let (sender, chunks) = channel(budget);
    let (flush, mut flush_watch) = watch::channel(Lsn::ZERO);
    let (stop, mut stop_watch) = watch::channel(false);
    let stats = Arc::new(PumpStats::new());
    let task = tokio::spawn({
        let stats = Arc::clone(&stats);
        async move { stream.pump(&sender, &mut flush_watch, &mut stop_watch, &stats).await }
    });
    Pumping { chunks, flush, stop, stats, task }
}

impl Pumping {
    /// How the pump ends.
    pub(crate) async fn end(self) -> Result<StreamEnd, WireError> {
        timeout(DEADLINE, self.task).await.expect("the pump ends").expect("it does not panic")
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops it in the orderly way.
    pub(crate) async fn stop(self) -> Result<StreamEnd, WireError> {
        self.stop.send_replace(true);
        self.end().await
    }

    /// Receives until that many inserts have come and the transaction of the last one is committed.
    pub(crate) async fn receive(&mut self, inserts: usize) -> Received {
        let mut received = Received::default();
        while received.inserts < inserts || received.open {
            let chunk = timeout(DEADLINE, self.chunks.recv()).await.expect("data comes").expect("the pump goes on");
            for frame in chunk.frames() {
                received.take(&frame.unwrap());
            }
        }
        received
    }
}

/// What came through a stream, as far as the framing of pgoutput shows it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) inserts: usize,
    pub(crate) commits: usize,
    /// The end position of the last transaction.
    pub(crate) end: Lsn,
    open: bool,
}

impl Received {
    pub(crate) fn take(&mut self, frame: &Frame<'_>) {
        let Frame::Data { payload, .. } = frame else { return };
        match payload[0] {
            b'B' => self.open = true,
            b'I' => self.inserts += 1,
            b'C' => {
                self.open = false;
                self.commits += 1;
                // The kind, one byte of flags, the commit position, then the end position.
                self.end = Lsn::new(u64::from_be_bytes(payload[10..18].try_into().unwrap()));
            }
            _ => {}
        }
    }
}

/// Waits until the slot `s` is free, or in use.
pub(crate) async fn wait_active(cluster: &Cluster, active: bool) -> Result<()> {
    let mut connection = connect(cluster).await;
    wait_for(DEADLINE, "the slot changes hands", async || {
        let Some(slot) = connection.slot("s").await? else { bail!("the slot is gone") };
        Ok((slot.active == active).then_some(()))
    })
    .await
}
