//! Trying again, a bounded number of times.
//!
//! Holds: the policy and the count of one operation. Refuses to know what the operation is.
//! Invariant: an operation that may not be retried is called once; one that may, at most `1 + max_retries` times.
//! Read next: [`crate::error`].

use std::time::Duration;

use crate::error::{Class, Kind, StoreError};

/// Longest pause between two attempts, however often the backoff was doubled.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// How often and how patiently a failed operation is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub max_retries: u32,
    /// Pause before the first retry; doubled for each further one, at most 30 s.
    pub backoff: Duration,
}

impl Default for RetryPolicy {
    /// 5 retries from 1 s: half a minute in all, enough for a restart or a failover of the state database, and short
    /// enough that a pipeline does not hold WAL unnoticed.
    fn default() -> Self {
        Self { max_retries: 5, backoff: Duration::from_secs(1) }
    }
}

/// The failures of one operation so far. Made anew for each operation, so success starts the count again.
///
/// ```no_run
/// # use walgate_store::{Checkpoint, Durable, Retries, RetryPolicy, Store, StoreError};
/// # use walgate_core::Lineage;
/// # async fn example(store: &mut Store, lineage: &Lineage, checkpoint: &Checkpoint) -> Result<Durable, StoreError> {
/// let mut retries = Retries::new(RetryPolicy::default());
/// loop {
///     match store.commit("orders", lineage, checkpoint).await {
///         Ok(durable) => return Ok(durable),
///         Err(error) => retries.after(error).await?,
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Retries {
    policy: RetryPolicy,
    failures: u32,
}

impl Retries {
    /// No failure yet.
    pub fn new(policy: RetryPolicy) -> Self {
        Self { policy, failures: 0 }
    }

    /// How often the operation has failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure and pauses; after `Ok` the operation may be tried again.
    ///
    /// Each retry is a tracing event of level warn with `attempt` and `max_retries`.
    ///
    /// # Errors
    /// The error itself, at once, when trying again cannot help; an Operator error with the same halt name once the
    /// retries are used up.
    pub async fn after(&mut self, error: StoreError) -> Result<(), StoreError> {
        if error.class() != Class::Retry {
            self.failures = self.failures.saturating_add(1);
            return Err(error);
        }
        let (attempt, max_retries) = (self.failures.saturating_add(1), self.policy.max_retries);
        if attempt <= max_retries {
            tracing::warn!(attempt, max_retries, error = %error, "state database operation is tried again");
        }
        if self.pause().await {
            return Ok(());
        }
        Err(Kind::Exhausted { attempts: self.failures, last: Box::new(error) }.into())
    }

    /// Counts a failure that may pass and pauses; false, at once, when the retries are used up.
    pub async fn pause(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        let RetryPolicy { max_retries, backoff } = self.policy;
        if self.failures > max_retries {
            return false;
        }
        let doubled = 1_u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        tokio::time::sleep(backoff.saturating_mul(doubled).min(MAX_PAUSE)).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy { max_retries: 3, backoff: Duration::from_secs(1) };

    fn passing() -> StoreError {
        StoreError::unavailable("testing", "no reason")
    }

    /// Fails until the given attempt; answers the attempts made and how it ended.
    async fn run(fails_before: u32, fault: fn() -> StoreError) -> (u32, Result<(), StoreError>) {
        let mut retries = Retries::new(POLICY);
        for attempt in 1.. {
            if attempt >= fails_before {
                return (attempt, Ok(()));
            }
            if let Err(error) = retries.after(fault()).await {
                assert_eq!(retries.failures(), attempt);
                return (attempt, Err(error));
            }
        }
        unreachable!("attempts do not end")
    }

    #[tokio::test(start_paused = true)]
    async fn retries_are_bounded_and_doubled() {
        let started = tokio::time::Instant::now();
        let (attempts, result) = run(u32::MAX, passing).await;
        let error = result.unwrap_err();
        assert_eq!(attempts, 4, "one attempt and three retries, no more");
        assert_eq!(error.class(), Class::Operator);
        assert_eq!(error.halt_name(), "checkpoint_store(unavailable)");
        assert_eq!(started.elapsed().as_secs(), 1 + 2 + 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_get_better_is_tried_once() {
        let (attempts, result) = run(u32::MAX, || Kind::Range { what: "a test" }.into()).await;
        assert_eq!((attempts, result.unwrap_err().class()), (1, Class::Bug));
    }

    #[tokio::test(start_paused = true)]
    async fn it_may_heal_on_the_last_retry() {
        let (attempts, result) = run(4, passing).await;
        assert_eq!(attempts, 4);
        result.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_has_a_ceiling() {
        let mut retries = Retries::new(RetryPolicy { max_retries: u32::MAX, backoff: Duration::from_secs(1) });
        for _ in 0..40 {
            retries.after(passing()).await.unwrap();
        }
        let before = tokio::time::Instant::now();
        retries.after(passing()).await.unwrap();
        assert_eq!(before.elapsed(), MAX_PAUSE);
    }
}
