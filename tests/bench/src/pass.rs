//! One side reading one stretch once: what that gives, and how a reader that is a process of its own is run.
//!
//! Holds: the figures of a pass, and the stop watch around a child process. Never knows: which reader it is.
//! Read next: `recvlogical.rs`, `walgate_run.rs`, `bare.rs`, `walstream.rs`.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::process::CpuWatch;
use crate::source::{DEADLINE, Source};

/// What one pass took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// From the start of the reader to its end position.
    pub(crate) from_spawn: Duration,
    /// From the walsender's first appearance on the slot to the end position: without the start-up of the reader.
    pub(crate) streaming: Duration,
    /// CPU of the walsender.
    pub(crate) walsender_cpu: Duration,
    /// CPU of the reader while it streamed, where it was measured.
    pub(crate) reader_cpu: Option<Duration>,
    /// The most memory it had, in bytes, where it was measured.
    pub(crate) peak_bytes: Option<u64>,
}

/// Runs a reader that ends by itself at the end of the stretch, from its start to its end.
pub(crate) async fn of_process(source: &Source, slot: &str, mut command: Command) -> Result<Pass> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut ended = until_end(child, program.clone());
    let walsender = source
        .walsender(slot, || match ended.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => Ok(()),
            Ok(Ok(_)) => bail!("{program} ended before it was seen on its slot"),
            Ok(Err(error)) => Err(error),
            Err(oneshot::error::TryRecvError::Closed) => bail!("{program} was lost"),
        })
        .await?;
    let watch = CpuWatch::start(walsender.pid);
    let end = timeout(DEADLINE, ended)
        .await
        .with_context(|| format!("{program} did not come to the end of its stretch within {DEADLINE:?}"))?
        .with_context(|| format!("{program} was lost"))??;
    Ok(Pass {
        from_spawn: end.duration_since(began),
        streaming: end.duration_since(walsender.seen),
        walsender_cpu: watch.read(),
        reader_cpu: None,
        peak_bytes: None,
    })
}

/// A thread waits for the child: its end is noticed at once, whatever the runtime does. A child that nobody waits for
/// any more ends with its slot, for the server goes away with the bench.
fn until_end(mut child: Child, program: String) -> oneshot::Receiver<Result<Instant>> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let mut words = String::new();
        let outcome = child.stderr.take().map_or(Ok(0), |mut stderr| stderr.read_to_string(&mut words));
        let status = child.wait();
        let end = Instant::now();
        let verdict = match status {
            Ok(status) if status.success() => outcome.map(|_| end).context("its output cannot be read"),
            Ok(status) => Err(anyhow::anyhow!("{program} ended with {status}: {}", words.trim())),
            Err(error) => Err(error).with_context(|| format!("cannot wait for {program}")),
        };
        // The receiver is gone when the bench has failed elsewhere.
        let _ = tell.send(verdict);
    });
    told
}
