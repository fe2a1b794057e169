//! The monitor of the source: how much log the slot keeps, what holds it back, and a sign of life for quiet databases.
//!
//! Holds: a small task beside the pipeline, with ordinary SQL connections of its own. It tells the status board, the
//! metrics and two watches what it finds. Refuses to know the stages, and never fails the pipeline: what goes wrong here
//! stands in the status and is tried again.
//! Read next: `lags.rs` and `blockers.rs` (what is asked), `alarm.rs` (when it is worth a warning), `guard.rs`,
//! `heartbeat.rs`.

mod alarm;
mod blockers;
mod guard;
mod heartbeat;
mod lags;
mod session;

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use walgate_core::Lsn;
use walgate_wire::{Backoff, Class, SourceOptions};

use crate::exit::chain;
use crate::status::Board;
use alarm::Alarm;
pub(crate) use guard::HOLD;
pub(crate) use lags::Lags;
use session::{MonitorError, Session};

/// Between two looks at the slot: a figure for people and alerts, and two cheap queries.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at the standbys: while they are guarded, the acknowledgement follows them no faster than this.
const GUARD_EVERY: Duration = Duration::from_secs(1);

/// What the monitor needs.
pub(crate) struct Monitor {
    /// The server of the slot.
    pub(crate) source: SourceOptions,
    /// Where heartbeats are written, which must be a primary, and how often.
    pub(crate) heartbeat: Option<(SourceOptions, Duration)>,
    pub(crate) slot: String,
    pub(crate) board: Board,
    /// What the acknowledgement must not pass, for a failover slot that the server itself does not hold back: `None` in
    /// it when no standby is there, zero while that is not known. Make it with zero inside, so that nothing passes
    /// before the first answer.
    pub(crate) guard: Option<watch::Sender<Option<Lsn>>>,
    /// The last answer; `None` before the first, while the slot is being created, and when it is gone.
    pub(crate) lags: watch::Sender<Option<Lags>>,
}

impl Monitor {
    /// Watches until a stop is asked for, or the sender of `stop` is gone.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let beating = async {
            if let Some((options, interval)) = &self.heartbeat {
                heartbeat::write(options, *interval, &self.board).await;
            }
        };
        // Nothing here has an end to wait for, so a stop may cut it anywhere.
        tokio::select! {
            _ = async { tokio::join!(self.watch(), beating) } => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn watch(&self) {
        self.hold();
        let mut session = Session::new(&self.source);
        let mut backoff = Backoff::new();
        let mut alarm = Alarm::default();
        let mut next_look = Instant::now();
        loop {
            let pause = match self.ask(&mut session, &mut alarm, &mut next_look).await {
                Ok(()) => {
                    self.answered();
                    backoff.reset();
                    let next_guard = self.guard.as_ref().map(|_| GUARD_EVERY);
                    next_guard.unwrap_or(Duration::MAX).min(next_look.saturating_duration_since(Instant::now()))
                }
                Err(error) => {
                    self.failed(&error);
                    backoff.next_delay()
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Everything that is due.
    async fn ask(
        &self,
        session: &mut Session<'_>,
        alarm: &mut Alarm,
        next_look: &mut Instant,
    ) -> Result<(), MonitorError> {
        if let Some(guard) = &self.guard {
            let position = guard::ask(session).await?;
            guard.send_if_modified(|published| std::mem::replace(published, position) != position);
        }
        if Instant::now() < *next_look {
            return Ok(());
        }
        let reading = lags::ask(session, &self.slot).await?;
        let blockers = blockers::ask(session, &self.slot).await?;
        *next_look = Instant::now() + LOOK_EVERY;
        for warning in alarm.look(&reading, &blockers) {
            tracing::warn!(slot = self.slot, "{warning}");
        }
        reading.publish();
        self.lags.send_replace(reading.lags());
        self.board.write(|status| {
            let source = &mut status.source;
            (source.confirmed_lag_bytes, source.restart_lag_bytes) = (reading.confirmed_lag(), reading.restart_lag());
            source.wal_status = reading.wal_status.map(str::to_owned);
            source.safe_wal_bytes = reading.safe_wal_bytes;
            source.blockers = blockers;
        });
        Ok(())
    }

    /// Nothing passes until it is known again how far the standbys are: one may come while nobody can be asked.
    fn hold(&self) {
        if let Some(guard) = &self.guard {
            guard.send_if_modified(|published| {
                let unknown = published.is_none();
                if unknown {
                    *published = guard::HOLD;
                }
                unknown
            });
        }
    }

    fn answered(&self) {
        let mut before = None;
        self.board.write(|status| before = status.source.monitor_error.take());
        if before.is_some() {
            tracing::info!("the monitor can ask the source again");
        }
    }

    fn failed(&self, error: &MonitorError) {
        self.hold();
        if matches!(error, MonitorError::SlotMissing { .. }) {
            self.lags.send_replace(None);
        }
        let why = chain(error);
        let mut before = None;
        self.board.write(|status| before = status.source.monitor_error.replace(why.clone()));
        if before.is_none() {
            log("the monitor cannot ask the source, it is tried again", error, &why);
        }
    }
}

/// Logs a failure as loudly as its class deserves.
fn log(what: &str, error: &MonitorError, why: &str) {
    match error.class() {
        Class::Retry => tracing::warn!("{what}: {why}"),
        Class::Operator | Class::Bug => tracing::error!("{what}: {why}"),
    }
}

#[cfg(test)]
mod pretended_standby;
#[cfg(test)]
mod tests;
