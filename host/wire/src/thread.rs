//! A thread of its own for one connection, so that a pause really is one.
//!
//! Holds: the thread, its small runtime, and the mark that tells the pump it may block. Refuses to know what runs there.
//!
//! Why a thread: while a shared runtime waits, each arriving packet wakes one of its threads, and the *server* pays for
//! that in every send. A thread that sleeps in the kernel is not woken, and its millisecond is one: a timer of the
//! runtime took 1.6 ms on a quiet machine and 2 ms on a busy one. Measured on two cores, loopback TCP, 500,000 small
//! rows, 100 a transaction, seconds of wall time / server CPU / own CPU: eager 2.5 / 1.6 / 1.2, lazy by timer
//! 1.4 / 1.1 / 0.2, lazy on a thread of its own 1.25 / 1.1 / 0.05.

use std::cell::Cell;
use std::io;
use std::thread;

use tokio::runtime;
use tokio::sync::oneshot;

thread_local! {
    /// Nothing but one connection runs on this thread.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller may block this thread for a millisecond.
pub(crate) fn is_own() -> bool {
    OWN.get()
}

/// A thread that runs one future.
#[derive(Debug)]
pub struct OwnThread<T> {
    result: oneshot::Receiver<T>,
    thread: thread::JoinHandle<()>,
}

/// The future on the thread panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the thread of the replication connection panicked; report this")]
pub struct Panicked;

/// Runs the future that `make` builds on a new thread with a runtime of its own.
///
/// Connect, start replication and pump in there, and keep everything else out: the pump blocks the thread for a
/// millisecond at a time while it is behind. Channels, watches and [`crate::PumpStats`] reach across. Fails when the
/// system has no thread or no descriptors left. Dropping the handle does not end the thread; use the pump's `stop`.
pub fn own_thread<T, F>(name: &str, make: impl FnOnce() -> F + Send + 'static) -> io::Result<OwnThread<T>>
where
    F: Future<Output = T>,
    T: Send + 'static,
{
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, result) = oneshot::channel();
    let run = move || {
        OWN.set(true);
        // Nobody may be left who wants to know.
        let _ = sender.send(runtime.block_on(make()));
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(OwnThread { result, thread })
}

impl<T> OwnThread<T> {
    /// What the future gave, once it has ended. Dropping this future leaves the thread running.
    pub async fn join(self) -> Result<T, Panicked> {
        self.result.await.map_err(|_| Panicked)
    }

    /// True once the future has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_the_result_and_is_marked() {
        assert!(!is_own());
        let thread = own_thread("test", || async { (is_own(), thread::current().name().map(str::to_owned)) }).unwrap();
        assert_eq!(thread.join().await, Ok((true, Some("test".to_owned()))));
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let thread = own_thread("test", || async { panic!("on purpose") }).unwrap();
        let result: Result<(), _> = thread.join().await;
        assert_eq!(result, Err(Panicked));
    }
}
