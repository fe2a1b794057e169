//! Waits that end: a condition, a deadline, and the caller's line when the deadline passes.
//!
//! Holds: the only pause tests may use. Never knows: what is waited for.
//! Read next: nothing, this is a leaf.

use std::panic::Location;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep};

/// How long a poll rests between two questions.
const POLL: Duration = Duration::from_millis(20);

/// Waits until `condition` answers true.
///
/// Fails with `what`, the deadline and the caller's line when the deadline passes first, and at once when the
/// condition itself fails.
#[track_caller]
pub fn wait_until<F>(deadline: Duration, what: &str, mut condition: F) -> impl Future<Output = Result<()>>
where
    F: AsyncFnMut() -> Result<bool>,
{
    wait_for(deadline, what, async move || Ok(condition().await?.then_some(())))
}

/// Waits until `question` has an answer, and returns it; fails like [`wait_until`].
#[track_caller]
pub fn wait_for<T, F>(deadline: Duration, what: &str, mut question: F) -> impl Future<Output = Result<T>>
where
    F: AsyncFnMut() -> Result<Option<T>>,
{
    let caller = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        loop {
            if let Some(answer) = question().await.with_context(|| format!("{caller}: while waiting: {what}"))? {
                return Ok(answer);
            }
            if Instant::now() >= end {
                bail!("{caller}: waited {deadline:?} in vain: {what}");
            }
            sleep(POLL).await; // tidy: sleep ok, this is the poll that everything else waits with
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_ends_the_wait() {
        let mut asked = 0;
        let answer = wait_for(Duration::from_secs(10), "third time", async || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_wait_in_vain_names_the_callers_line() {
        let line = line!() + 1;
        let error = wait_until(Duration::ZERO, "pigs fly", async || Ok(false)).await.unwrap_err().to_string();
        assert!(error.contains("pigs fly") && error.contains(&format!("wait.rs:{line}:")), "{error}");
    }

    #[tokio::test]
    async fn a_failed_question_ends_the_wait_at_once() {
        let wait = wait_until(Duration::from_secs(3600), "never", async || anyhow::bail!("broken"));
        assert!(format!("{:#}", wait.await.unwrap_err()).contains("broken"));
    }
}
