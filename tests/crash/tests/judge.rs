//! The proof: a ledger against what the source committed.
//!
//! Holds: what counts as lost, repeated, invented and out of order. Pure, and tested on ledgers that are wrong, because a
//! judge that finds nothing is worth what it would have found. Never knows: processes, files, servers.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, bail, ensure};

use crate::ledger::{Change, Life, Place, What};
use crate::mode::Promise;
use crate::truth::{Step, Truth};

/// What a good ledger holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Different changes.
    pub(crate) changes: usize,
    /// Changes that came again, in all.
    pub(crate) repeated: usize,
    /// Changes that came again after one crash, at most.
    pub(crate) repeated_at_once: usize,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes, 0 lost, {} repeated", self.changes, self.repeated)?;
        if self.repeated > 0 {
            write!(f, ", {} after one crash at most", self.repeated_at_once)?;
        }
        Ok(())
    }
}

/// Fails with the first thing that is wrong, and where.
pub(crate) fn judge(lives: &[Life], truth: &Truth, promise: Promise) -> Result<Found> {
    let mut found = Found::default();
    let mut seen: BTreeMap<Place, &What> = BTreeMap::new();
    for (number, life) in lives.iter().enumerate() {
        let again = one_life(life, &mut seen).map_err(|error| error.context(format!("process {number}")))?;
        let allowed = match promise {
            Promise::AtLeastOnce(most) if life.after_crash => most,
            Promise::AtLeastOnce(_) | Promise::EffectOnce => 0,
        };
        let after = if life.after_crash { "a crash" } else { "a stop as asked" };
        ensure!(again <= allowed, "process {number}, after {after}, repeated {again} changes; {allowed} are allowed");
        found.repeated += again;
        found.repeated_at_once = found.repeated_at_once.max(again);
    }
    found.changes = seen.len();
    complete(&seen, truth)?;
    Ok(found)
}

/// Takes what one process wrote into account; answers how much of it was there before.
fn one_life<'a>(life: &'a Life, seen: &mut BTreeMap<Place, &'a What>) -> Result<usize> {
    let before = seen.last_key_value().map(|(place, _)| *place);
    let mut again = 0;
    let mut last: Option<Place> = None;
    for Change { place, what } in &life.changes {
        ensure!(last < Some(*place), "{} comes after {}", At(*place), At(last.unwrap_or_default()));
        ensure!(!life.from.covers(*place), "{} was durable before the process was started and came again", At(*place));
        last = Some(*place);
        match seen.insert(*place, what) {
            Some(first) => {
                ensure!(first == what, "{} came again as another change: {first:?}, then {what:?}", At(*place));
                again += 1;
            }
            // What came first may not have left anything out.
            None => ensure!(before < Some(*place), "{} was left out by an earlier process", At(*place)),
        }
    }
    Ok(again)
}

/// Each change of the source is there, no other is, and each row has its history in order.
fn complete(seen: &BTreeMap<Place, &What>, truth: &Truth) -> Result<()> {
    let mut entries = BTreeMap::new();
    let mut accounts: BTreeMap<i32, Vec<Step>> = BTreeMap::new();
    for (place, what) in seen {
        match what {
            What::Entry { id, tx, xid } => {
                ensure!(*tx & 0xFFFF_FFFF == *xid, "entry {id} of transaction {tx} came in {xid}, at {}", At(*place));
                if entries.insert(*id, *tx).is_some() {
                    bail!("entry {id} came under two positions, the second is {}", At(*place));
                }
            }
            What::Account { id, op, version } => accounts.entry(*id).or_default().push((op.clone(), *version)),
        }
    }
    let lost: Vec<_> = truth.entries.iter().filter(|(id, _)| !entries.contains_key(id)).collect();
    ensure!(lost.is_empty(), "{} entries lost, as (number, transaction): {:?}", lost.len(), first(&lost));
    let invented: Vec<_> = entries.iter().filter(|(id, tx)| truth.entries.get(id) != Some(tx)).collect();
    ensure!(invented.is_empty(), "{} entries were never committed: {:?}", invented.len(), first(&invented));
    for id in truth.accounts.keys().chain(accounts.keys()) {
        let (there, here) = (truth.accounts.get(id), accounts.get(id));
        let at = there.into_iter().flatten().zip(here.into_iter().flatten()).take_while(|(a, b)| a == b).count();
        let steps = |history: Option<&Vec<Step>>| history.map_or(0, Vec::len);
        ensure!(
            there == here,
            "account {id} has {} changes at the source and {} in the ledger; they differ from number {at}: {:?}, {:?}",
            steps(there),
            steps(here),
            there.and_then(|history| history.get(at)),
            here.and_then(|history| history.get(at))
        );
    }
    Ok(())
}

fn first<T>(list: &[T]) -> &[T] {
    list.get(..8).unwrap_or(list)
}

/// A place as people look for it in a log.
struct At(Place);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self((commit, ordinal)) = self;
        write!(f, "change {ordinal} of {:X}/{:X}", commit >> 32, commit & 0xFFFF_FFFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Cursor;

    fn entry(commit: u64, id: i64) -> Change {
        Change { place: (commit, 0), what: What::Entry { id, tx: id, xid: id } }
    }

    fn account(commit: u64, version: i64) -> Change {
        let what = What::Account { id: 1, op: "update".to_owned(), version: Some(version) };
        Change { place: (commit, 1), what }
    }

    fn truth() -> Truth {
        Truth {
            entries: (1..=3).map(|id| (id, id)).collect(),
            accounts: [(1, vec![("update".to_owned(), Some(1)), ("update".to_owned(), Some(2))])].into(),
            ..Truth::default()
        }
    }

    fn good() -> Vec<Change> {
        vec![entry(10, 1), account(10, 1), entry(20, 2), account(20, 2), entry(30, 3)]
    }

    #[track_caller]
    fn check(lives: Vec<Life>, promise: Promise, expect: Result<Found, &str>) {
        match (judge(&lives, &truth(), promise), expect) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
            (Err(error), Err(words)) => assert!(format!("{error:#}").contains(words), "{error:#}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    fn one(changes: Vec<Change>) -> Vec<Life> {
        vec![Life { changes, ..Life::default() }]
    }

    /// A second process that begins again at that change.
    fn again(from: usize, after_crash: bool, stored: u64) -> Vec<Life> {
        let cursor = Cursor { end: stored, ..Cursor::default() };
        let second = Life { changes: good().split_off(from), from: cursor, after_crash };
        vec![Life { changes: good()[..4].to_vec(), ..Life::default() }, second]
    }

    #[test]
    fn a_whole_ledger_is_good() {
        check(one(good()), Promise::EffectOnce, Ok(Found { changes: 5, ..Found::default() }));
    }

    #[test]
    fn every_change_that_is_missing_is_a_loss() {
        for at in 0..5 {
            let mut changes = good();
            changes.remove(at);
            let words = if at == 1 || at == 3 { "account 1 has 2 changes" } else { "1 entries lost" };
            check(one(changes), Promise::AtLeastOnce(2), Err(words));
        }
    }

    #[test]
    fn what_was_never_committed_is_found() {
        let mut changes = good();
        changes.push(entry(40, 4));
        check(one(changes), Promise::EffectOnce, Err("1 entries were never committed"));
        let mut changes = good();
        changes.push(account(40, 3));
        check(one(changes), Promise::EffectOnce, Err("2 changes at the source and 3"));
    }

    #[test]
    fn order_counts() {
        let mut changes = good();
        changes.swap(0, 2);
        check(one(changes), Promise::EffectOnce, Err("comes after"));
        let mut changes = good();
        (changes[1].what, changes[3].what) = (changes[3].what.clone(), changes[1].what.clone());
        check(one(changes), Promise::EffectOnce, Err("differ from number 0"));
    }

    #[test]
    fn repeats_are_counted_where_they_are_allowed() {
        let found = Found { changes: 5, repeated: 2, repeated_at_once: 2 };
        check(again(2, true, 20), Promise::AtLeastOnce(2), Ok(found));
        check(again(2, true, 20), Promise::EffectOnce, Err("after a crash, repeated 2 changes; 0 are"));
        check(again(2, false, 20), Promise::AtLeastOnce(2), Err("after a stop as asked, repeated 2 changes; 0 are"));
        check(again(2, true, 20), Promise::AtLeastOnce(1), Err("repeated 2 changes; 1 are allowed"));
        check(again(2, true, 21), Promise::AtLeastOnce(2), Err("was durable before"));
        check(again(4, true, 21), Promise::EffectOnce, Ok(Found { changes: 5, ..Found::default() }));
    }

    #[test]
    fn a_gap_that_a_later_process_fills_is_still_out_of_order() {
        let mut lives = again(2, true, 10);
        lives[0].changes.remove(2);
        check(lives, Promise::AtLeastOnce(2), Err("was left out by an earlier process"));
    }

    #[test]
    fn a_change_under_two_positions_is_no_repeat() {
        let mut changes = good();
        changes.push(entry(40, 3));
        check(one(changes), Promise::AtLeastOnce(2), Err("under two positions"));
    }
}
