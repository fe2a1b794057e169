//! When a reading of the slot is worth a warning.
//!
//! Holds: the thresholds, and what was warned of already: each warning comes once, and again only after it was over.
//! Refuses to know where readings come from and where warnings go.

use crate::status::Blocker;

use super::lags::Reading;

/// Log that is kept although it was confirmed: ordinary servers move a restart position every few seconds, so this much
/// is many minutes of a busy one.
const PINNED_BYTES: u64 = 1 << 30;
/// A confirmed lag up to an eighth of that is small: then it is not walgate that is late.
const SMALL_BYTES: u64 = PINNED_BYTES / 8;

/// What was warned of and still holds.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    wal_status: Option<&'static str>,
    short: bool,
    pinned: bool,
}

impl Alarm {
    /// The warnings that are new with this reading.
    pub(super) fn look(&mut self, reading: &Reading, blockers: &[Blocker]) -> Vec<String> {
        let mut warnings = Vec::new();
        let status = reading.wal_status.filter(|status| matches!(*status, "extended" | "unreserved"));
        if std::mem::replace(&mut self.wal_status, status) != status {
            warnings.extend(status.map(|status| status_warning(status, reading)));
        }
        if rises(&mut self.short, is_short(reading)) {
            warnings.push(format!(
                "only {} bytes of log may still be written before the slot is lost, less than a fifth of \
                 max_slot_wal_keep_size; raise it, or see what is late: walgate status",
                reading.safe_wal_bytes.unwrap_or_default()
            ));
        }
        if rises(&mut self.pinned, is_pinned(reading)) {
            warnings.push(pinned_warning(reading, blockers));
        }
        warnings
    }
}

/// Whether it holds now and did not before.
fn rises(before: &mut bool, now: bool) -> bool {
    !std::mem::replace(before, now) && now
}

/// Under 20 % of the bound is left.
fn is_short(reading: &Reading) -> bool {
    let (Some(safe), Some(keep)) = (reading.safe_wal_bytes, reading.keep_bytes) else { return false };
    safe < i64::try_from(keep / 5).unwrap_or(i64::MAX)
}

/// The source keeps log that walgate has long confirmed.
fn is_pinned(reading: &Reading) -> bool {
    let (Some(restart), Some(confirmed)) = (reading.restart_lag(), reading.confirmed_lag()) else { return false };
    restart > PINNED_BYTES && confirmed <= SMALL_BYTES
}

fn status_warning(status: &str, reading: &Reading) -> String {
    let kept = reading.restart_lag().unwrap_or_default();
    match status {
        "unreserved" => format!(
            "the server may remove log that the slot still needs at its next checkpoint (wal_status unreserved, {kept} bytes \
             kept): then the slot is lost; raise max_slot_wal_keep_size now, or see what is late: walgate status"
        ),
        _ => format!(
            "the slot keeps more log than max_wal_size (wal_status {status}, {kept} bytes kept): the source's disk fills; see \
             what is late: walgate status"
        ),
    }
}

fn pinned_warning(reading: &Reading, blockers: &[Blocker]) -> String {
    let kept = reading.restart_lag().unwrap_or_default();
    let confirmed = reading.confirmed_lag().unwrap_or_default();
    let cause = match blockers.iter().find(|blocker| blocker.has_xid) {
        Some(blocker) => format!("the oldest that is open: {blocker}; end it"),
        None => {
            "no open transaction is seen; the server moves the slot at its next record of running transactions, which \
                 CHECKPOINT or, from 16 on, SELECT pg_log_standby_snapshot() writes on the primary"
                .to_owned()
        }
    };
    format!("the source keeps {kept} bytes of log although all but {confirmed} are confirmed; {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use walgate_core::Lsn;

    const GIB: u64 = 1 << 30;
    const END: u64 = 100 * GIB;

    fn behind(confirmed: u64, restart: u64) -> Reading {
        let at = |lag| Some(Lsn::new(END - lag));
        Reading { confirmed: at(confirmed), restart: at(restart), current: at(0), ..Reading::default() }
    }

    #[track_caller]
    fn check(alarm: &mut Alarm, reading: Reading, words: &[&str]) {
        let warnings = alarm.look(&reading, &[]);
        assert_eq!(warnings.len(), words.len(), "{warnings:?}");
        for (warning, word) in warnings.iter().zip(words) {
            assert!(warning.contains(word), "no {word:?} in {warning:?}");
        }
    }

    #[test]
    fn a_status_is_warned_of_once_and_again_after_it_was_over() {
        let of = |status| Reading { wal_status: Some(status), ..behind(0, 0) };
        let mut alarm = Alarm::default();
        check(&mut alarm, of("reserved"), &[]);
        check(&mut alarm, of("extended"), &["max_wal_size"]);
        check(&mut alarm, of("extended"), &[]);
        check(&mut alarm, of("unreserved"), &["max_slot_wal_keep_size"]);
        check(&mut alarm, of("reserved"), &[]);
        check(&mut alarm, of("unreserved"), &["unreserved"]);
    }

    #[test]
    fn a_bound_that_comes_near_is_warned_of_once() {
        let left = |safe| Reading { safe_wal_bytes: Some(safe), keep_bytes: Some(1000), ..behind(0, 0) };
        let mut alarm = Alarm::default();
        check(&mut alarm, left(200), &[]);
        check(&mut alarm, left(199), &["only 199 bytes"]);
        check(&mut alarm, left(-5), &[]);
        check(&mut alarm, left(900), &[]);
        check(&mut alarm, left(0), &["only 0 bytes"]);
        check(&mut Alarm::default(), Reading { keep_bytes: None, ..left(0) }, &[]);
    }

    #[test]
    fn kf_026_confirmed_moves_and_restart_does_not() {
        let mut alarm = Alarm::default();
        check(&mut alarm, behind(0, GIB), &[]);
        // Late as a whole: that is walgate's own lag, which other figures tell.
        check(&mut alarm, behind(GIB, 2 * GIB), &[]);
        check(&mut alarm, behind(7, GIB + 1), &["all but 7 are confirmed; no open transaction is seen"]);
        check(&mut alarm, behind(7, 2 * GIB), &[]);
        check(&mut alarm, behind(0, 0), &[]);
        let snapshot = Blocker { kind: "transaction".to_owned(), pid: Some(1), ..Blocker::default() };
        let writer = Blocker { pid: Some(42), has_xid: true, ..snapshot.clone() };
        let warnings = alarm.look(&behind(0, 2 * GIB), &[snapshot, writer]);
        assert!(warnings.concat().contains("transaction of process 42; end it"), "{warnings:?}");
    }
}
