//! How long to wait before the next attempt.
//!
//! Holds: exponential growth with jitter. Refuses to know what is attempted and whether it should be (see
//! [`crate::WireError::class`]).

use std::time::Duration;

/// The first wait is at most this. A server that restarts is often back within a second.
const BASE: Duration = Duration::from_millis(100);

/// No wait is longer: an outage that ends is noticed within ten seconds.
const CAP: Duration = Duration::from_secs(10);

/// Waits that double from 100 ms to 10 s unless said otherwise, each shortened at random by up to half.
///
/// The jitter keeps many clients of one server from coming back in the same instant.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    attempts: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::between(BASE, CAP)
    }
}

impl Backoff {
    /// Starts at the shortest wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// The longest first wait, and the longest of all.
    pub fn between(base: Duration, cap: Duration) -> Self {
        Self { base, cap, attempts: 0 }
    }

    /// The wait before the next attempt; each call doubles the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let longest = self.cap.min(self.base.saturating_mul(1 << self.attempts.min(16)));
        self.attempts = self.attempts.saturating_add(1);
        longest.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// How many waits were handed out since the last success.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// After a success: the next wait is a short one again.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap_and_starts_over() {
        let mut backoff = Backoff::new();
        for n in 0..40 {
            let longest = CAP.min(BASE * (1 << n.min(10)));
            let delay = backoff.next_delay();
            assert!(delay >= longest / 2 && delay <= longest, "attempt {n}: {delay:?}");
        }
        assert_eq!(backoff.attempts(), 40);
        backoff.reset();
        assert!(backoff.next_delay() <= BASE);
    }

    #[test]
    fn two_clients_do_not_wait_alike() {
        let waits = || {
            (0..20)
                .map({
                    let mut b = Backoff::new();
                    move |_| b.next_delay()
                })
                .collect::<Vec<_>>()
        };
        assert_ne!(waits(), waits());
    }
}
