//! What a failure means: once more, poison, or the end of the lane.
//!
//! Holds: the count of one operation's attempts, and the judgement. Refuses to know what was attempted.
//! The rule: `reject` is about the batch and never repeated; a trap, a deadline and a broken answer are repeated on a fresh
//! instance and then taken for poison when the policy keeps dead letters; `retry` is about a peer that is away, so that it
//! never makes a dead letter, however often it comes.

use std::time::Duration;

use walgate_plugin::{CallError, Disposition, OnFailure, Retry};
use walgate_wire::Backoff;

use super::Stop;
use crate::halt::HaltClass;

/// How much longer a pause is after `retry` than after a trap: a fresh instance is tried soon, a peer is given time.
const PEER_PATIENCE: u32 = 10;
/// Longest pause between two attempts that a plugin can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Why something could not be delivered.
pub(super) enum Trouble {
    /// A call of the plugin.
    Call(CallError),
    /// The target of its rows refuses them.
    Rows { code: String, detail: String },
}

impl Trouble {
    /// The word under which dead letters are filed.
    pub(super) fn class(&self) -> &'static str {
        match self {
            Self::Call(CallError::Refused(failure)) => match failure.disposition {
                Disposition::Reject => "rejected",
                Disposition::Halt => "halted",
                Disposition::Retry => "refused",
            },
            Self::Call(CallError::Trapped(_)) => "trapped",
            Self::Call(CallError::Deadline { .. }) => "deadline",
            Self::Call(CallError::Garbage(_) | CallError::Gone) => "garbage",
            Self::Rows { .. } => "rows-refused",
        }
    }

    /// What it would halt with, if it halted.
    pub(super) fn halt_class(&self) -> HaltClass {
        match self {
            Self::Call(CallError::Refused(failure)) if failure.disposition == Disposition::Retry => {
                HaltClass::PluginRefused
            }
            Self::Call(CallError::Refused(_)) => HaltClass::PluginHalted,
            Self::Call(_) => HaltClass::PluginFailed,
            Self::Rows { .. } => HaltClass::RowsRefused,
        }
    }

    pub(super) fn code(&self) -> &str {
        match self {
            Self::Call(error) => error.code(),
            Self::Rows { code, .. } => code,
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(error) => error.fmt(f),
            Self::Rows { detail, .. } => f.write_str(detail),
        }
    }
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// What is done about it.
pub(super) enum Judgement {
    /// Once more after a pause.
    Again(Duration),
    /// The content is what cannot be taken.
    Poison,
    /// The failure policy decides what stops.
    Stop(Stop),
}

/// The attempts of one operation.
pub(super) struct Attempts {
    made: u32,
    /// After how many a trap is final.
    most: u32,
    /// After how many a `retry` is final.
    most_retries: u32,
    backoff: Backoff,
}

impl Attempts {
    pub(super) fn new(retry: &Retry) -> Self {
        Self {
            made: 0,
            most: retry.max_attempts.max(1),
            most_retries: retry.max_attempts.max(1),
            backoff: Backoff::between(retry.backoff, retry.max_backoff),
        }
    }

    /// For a piece of something that failed already as a whole: another trap is final at once.
    pub(super) fn of_piece(retry: &Retry) -> Self {
        Self { most: 1, ..Self::new(retry) }
    }

    pub(super) fn made(&self) -> u32 {
        self.made
    }

    pub(super) fn failed(&mut self) {
        self.made = self.made.saturating_add(1);
    }

    pub(super) fn used_up(&self) -> bool {
        self.made >= self.most
    }

    /// Counts a failure and says what follows from it.
    pub(super) fn judge(&mut self, trouble: &Trouble, on_failure: OnFailure) -> Judgement {
        self.failed();
        let stop = |class, detail| Judgement::Stop(Stop::Plugin { class, detail });
        let keeps_letters = on_failure == OnFailure::DeadLetter;
        let error = match trouble {
            Trouble::Rows { .. } if keeps_letters => return Judgement::Poison,
            Trouble::Rows { detail, .. } => return stop(HaltClass::RowsRefused, detail.clone()),
            Trouble::Call(error) => error,
        };
        let attempts = self.made;
        match error {
            CallError::Refused(failure) => match failure.disposition {
                Disposition::Reject => Judgement::Poison,
                Disposition::Halt if keeps_letters => Judgement::Poison,
                Disposition::Halt => stop(HaltClass::PluginHalted, error.to_string()),
                Disposition::Retry if attempts >= self.most_retries => {
                    stop(HaltClass::PluginRefused, format!("{error}; {attempts} attempts were made"))
                }
                Disposition::Retry => Judgement::Again(self.pause(error)),
            },
            _ if attempts < self.most => Judgement::Again(self.pause(error)),
            _ if keeps_letters => Judgement::Poison,
            _ => stop(HaltClass::PluginFailed, format!("{error}; {attempts} attempts were made")),
        }
    }

    pub(super) fn pause(&mut self, error: &CallError) -> Duration {
        let pause = self.backoff.next_delay();
        match error {
            CallError::Refused(failure) => {
                let asked = failure.retry_after_ms.map(|ms| Duration::from_millis(u64::from(ms)));
                asked.unwrap_or(pause * PEER_PATIENCE).max(pause).min(MAX_RETRY_AFTER)
            }
            _ => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use walgate_plugin::{Failure, TrapCause};

    use super::*;

    fn retry(max_attempts: u32) -> Retry {
        Retry { max_attempts, backoff: Duration::from_millis(1), max_backoff: Duration::from_millis(8) }
    }

    fn refused(disposition: Disposition) -> Trouble {
        Trouble::Call(CallError::Refused(Failure {
            disposition,
            code: "x".into(),
            retry_after_ms: None,
            message: None,
        }))
    }

    /// The judgements of the same failure, one after the other, as words.
    fn judged(attempts: &mut Attempts, trouble: &Trouble, on_failure: OnFailure) -> &'static str {
        match attempts.judge(trouble, on_failure) {
            Judgement::Again(_) => "again",
            Judgement::Poison => "poison",
            Judgement::Stop(Stop::Plugin { class, .. } | Stop::Trial { class, .. }) => class.name(),
            Judgement::Stop(Stop::Abandoned) => "abandoned",
        }
    }

    #[test]
    fn each_failure_has_its_consequence() {
        use OnFailure::{DeadLetter, Halt};
        let trap = Trouble::Call(CallError::Trapped(TrapCause::Unreachable));
        for (trouble, on_failure, expect) in [
            (&trap, Halt, ["again", "plugin_failed"]),
            (&trap, DeadLetter, ["again", "poison"]),
            (&refused(Disposition::Reject), Halt, ["poison", "poison"]),
            (&refused(Disposition::Halt), Halt, ["plugin_halted", "plugin_halted"]),
            (&refused(Disposition::Halt), DeadLetter, ["poison", "poison"]),
            (&refused(Disposition::Retry), Halt, ["again", "plugin_refused"]),
            // A peer that is away says nothing about the data.
            (&refused(Disposition::Retry), DeadLetter, ["again", "plugin_refused"]),
        ] {
            let mut attempts = Attempts::new(&retry(2));
            let got = [(); 2].map(|()| judged(&mut attempts, trouble, on_failure));
            assert_eq!(got, expect, "{} under {on_failure:?}", trouble.class());
        }
    }

    #[test]
    fn a_piece_traps_once_and_may_still_wait_for_a_peer() {
        let mut attempts = Attempts::of_piece(&retry(3));
        let retry = refused(Disposition::Retry);
        assert_eq!(judged(&mut attempts, &retry, OnFailure::DeadLetter), "again");
        let trap = Trouble::Call(CallError::Trapped(TrapCause::Unreachable));
        assert_eq!(judged(&mut attempts, &trap, OnFailure::DeadLetter), "poison");
    }
}
