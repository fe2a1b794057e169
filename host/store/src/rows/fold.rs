//! The net effect of the rows of a step: for each key what is left to do when the last row has been applied.
//!
//! Holds: a state a key, and chains of rows whose cells complete each other. Refuses to know SQL and values.
//! Invariant: what [`Fold::next`] answers, applied answer after answer, is what the rows do one by one. Whenever one
//! statement a group could not give that, the fold is cut: what there is gets applied, and the rest begins from a table
//! of which nothing is assumed. Read next: [`super::group`].

use walgate_core::batch::Operation;

use super::error::Kind;
use super::key::{KeyNumber, Keys, Pair};
use super::mask::{EMPTY, Mask, Masks};
use super::plan::{Change, Step, Table};

/// The number of a link.
pub(super) type LinkNumber = u32;

/// One row of a chain: cells that it does not have are those of the link before.
#[derive(Clone, Copy)]
pub(super) struct Link {
    /// The row.
    pub(super) change: Change,
    /// The link before, if any.
    pub(super) before: Option<LinkNumber>,
    /// The columns outside the key that the chain has up to here.
    pub(super) mask: Mask,
}

/// What is known of the row of one key.
#[derive(Clone, Copy)]
enum State {
    /// What the table holds.
    Unknown,
    /// The table has none: it was emptied.
    Empty,
    /// It is to be deleted.
    Absent,
    /// It is to be written.
    Row {
        link: LinkNumber,
        /// It is inserted when it is not there.
        creates: bool,
        /// What was there is deleted before.
        replaces: bool,
    },
    /// It is to be the row of another key under this one, with some columns written and others kept.
    Moved { link: LinkNumber, from: KeyNumber, kept: Mask },
    /// It moves away to another key.
    Taken,
}

/// What is to be done for one key.
pub(super) enum Net {
    /// Delete the row.
    Delete,
    /// Take the row of another key, write some columns, keep others.
    Move { from: KeyNumber, kept: Mask },
    /// Write to the row if it is there.
    Update,
    /// Write the row.
    Upsert,
}

/// Part of the net effect.
pub(super) struct Effect {
    /// What to do, in the order of the first row of each key; a delete of a key comes before an upsert of it.
    pub(super) keys: Vec<(Net, KeyNumber, Option<LinkNumber>)>,
    /// Updates that found no row, as far as that was known without asking.
    pub(super) missed: u64,
}

enum Outcome {
    Applied,
    /// The row cannot be folded onto what there is.
    Cut,
}

/// Folds the rows of one step.
pub(super) struct Fold<'a> {
    step: &'a Step,
    at: usize,
    states: Vec<State>,
    touched: Vec<KeyNumber>,
    missed: u64,
    /// The rows so far that are still needed.
    pub(super) links: Vec<Link>,
}

impl<'a> Fold<'a> {
    /// Nothing folded yet.
    pub(super) fn new(step: &'a Step, keys: &Keys) -> Self {
        let state = if step.fresh { State::Empty } else { State::Unknown };
        let rows = step.changes.len();
        Self {
            step,
            at: 0,
            states: vec![state; keys.places.len()],
            touched: Vec::with_capacity(rows),
            missed: 0,
            links: Vec::with_capacity(rows),
        }
    }

    /// The effect up to the end or to the next cut; `None` when all was answered.
    pub(super) fn next(&mut self, table: &mut Table<'_>, keys: &mut Keys) -> Result<Option<Effect>, Kind> {
        if self.at == self.step.changes.len() {
            return Ok(None);
        }
        while let Some(change) = self.step.changes.get(self.at).copied() {
            let Some(pair) = keys.pairs.get(self.at).copied() else { return Err(Kind::Range { what: "a work" }) };
            match self.apply(table, keys, change, pair)? {
                Outcome::Applied => self.at += 1,
                Outcome::Cut => break,
            }
        }
        Ok(Some(self.settle()))
    }

    fn apply(&mut self, table: &mut Table<'_>, keys: &mut Keys, change: Change, pair: Pair) -> Result<Outcome, Kind> {
        let Some(view) = table.views.get(change.view as usize) else { return Err(Kind::Range { what: "a work" }) };
        if view.operation == Operation::Delete {
            return Ok(self.delete(pair.old));
        }
        let (mask, kept) = view.masks_of(change.row as usize, &mut table.masks);
        let link = Link { change, before: None, mask };
        let masks = &mut table.masks;
        let outcome = if view.operation != Operation::Update {
            self.upsert(pair.new, link, masks)?
        } else if pair.old == pair.new {
            if kept == EMPTY { self.upsert(pair.new, link, masks)? } else { self.update(pair.new, link, masks)? }
        } else if kept == EMPTY {
            self.replace(pair, link, masks)?
        } else {
            self.shift(pair, link, kept, masks)?
        };
        if matches!(outcome, Outcome::Applied) {
            keys.respell(pair.new, change);
        }
        Ok(outcome)
    }

    fn state(&self, key: KeyNumber) -> State {
        self.states.get(key as usize).copied().unwrap_or(State::Unknown)
    }

    fn set(&mut self, key: KeyNumber, state: State) {
        if let Some(slot) = self.states.get_mut(key as usize) {
            if matches!(slot, State::Unknown | State::Empty) {
                self.touched.push(key);
            }
            *slot = state;
        }
    }

    fn push(&mut self, link: Link) -> Result<LinkNumber, Kind> {
        let number = u32::try_from(self.links.len()).map_err(|_| Kind::Range { what: "a work" })?;
        self.links.push(link);
        Ok(number)
    }

    fn mask(&self, link: LinkNumber) -> Mask {
        self.links.get(link as usize).map_or(EMPTY, |link| link.mask)
    }

    fn delete(&mut self, key: KeyNumber) -> Outcome {
        match self.state(key) {
            State::Empty | State::Absent => {}
            State::Unknown | State::Row { .. } => self.set(key, State::Absent),
            State::Moved { .. } | State::Taken => return Outcome::Cut,
        }
        Outcome::Applied
    }

    /// Writes the row whether or not it is there.
    fn upsert(&mut self, key: KeyNumber, mut link: Link, masks: &mut Masks) -> Result<Outcome, Kind> {
        let replaces = match self.state(key) {
            State::Unknown | State::Empty => false,
            State::Absent => true,
            State::Row { link: before, creates, replaces } => {
                let known = self.mask(before);
                if !masks.covers(link.mask, known) {
                    // What an update wrote counts only if it found a row; and a chain has one row before each.
                    if !creates || link.before.is_some() {
                        return Ok(Outcome::Cut);
                    }
                    link = Link { before: Some(before), mask: masks.union(link.mask, known), ..link };
                }
                replaces
            }
            State::Moved { .. } | State::Taken => return Ok(Outcome::Cut),
        };
        let link = self.push(link)?;
        self.set(key, State::Row { link, creates: true, replaces });
        Ok(Outcome::Applied)
    }

    /// Writes to the row if it is there.
    fn update(&mut self, key: KeyNumber, link: Link, masks: &mut Masks) -> Result<Outcome, Kind> {
        let mut after = |fold: &mut Self, before| {
            let known = fold.mask(before);
            let covers = masks.covers(link.mask, known);
            let before = (!covers).then_some(before);
            fold.push(Link { before, mask: masks.union(link.mask, known), ..link })
        };
        let state = match self.state(key) {
            State::Empty | State::Absent => {
                self.missed += 1;
                return Ok(Outcome::Applied);
            }
            State::Unknown => State::Row { link: self.push(link)?, creates: false, replaces: false },
            State::Row { link, creates, replaces } => State::Row { link: after(self, link)?, creates, replaces },
            // Whether the move finds its row, the table alone knows; this one may find another under the key.
            State::Moved { .. } | State::Taken => return Ok(Outcome::Cut),
        };
        self.set(key, state);
        Ok(Outcome::Applied)
    }

    /// The key changes and every cell is there: the old row goes, the new one is written.
    fn replace(&mut self, pair: Pair, link: Link, masks: &mut Masks) -> Result<Outcome, Kind> {
        if matches!(self.state(pair.old), State::Moved { .. } | State::Taken) {
            return Ok(Outcome::Cut);
        }
        let outcome = self.upsert(pair.new, link, masks)?;
        if matches!(outcome, Outcome::Applied) {
            self.delete(pair.old);
        }
        Ok(outcome)
    }

    /// The key changes and some columns are to stay as they are in the old row.
    fn shift(&mut self, pair: Pair, link: Link, kept: Mask, masks: &mut Masks) -> Result<Outcome, Kind> {
        match self.state(pair.old) {
            State::Empty | State::Absent => {
                self.missed += 1;
                Ok(Outcome::Applied)
            }
            State::Unknown if matches!(self.state(pair.new), State::Unknown | State::Empty) => {
                let link = self.push(link)?;
                self.set(pair.new, State::Moved { link, from: pair.old, kept });
                self.set(pair.old, State::Taken);
                Ok(Outcome::Applied)
            }
            State::Row { link: before, creates: true, .. } => {
                // All that the old row is must be known here, and nothing of it may be lost.
                let known = self.mask(before);
                let whole = masks.union(link.mask, kept);
                if !masks.covers(known, kept) || !masks.covers(whole, known) {
                    return Ok(Outcome::Cut);
                }
                self.replace(pair, Link { before: Some(before), mask: whole, ..link }, masks)
            }
            _ => Ok(Outcome::Cut),
        }
    }

    /// Reads the states out and forgets them: after this, the table is asked again.
    fn settle(&mut self) -> Effect {
        let mut keys = Vec::with_capacity(self.touched.len());
        for key in std::mem::take(&mut self.touched) {
            match self.state(key) {
                State::Unknown | State::Empty | State::Taken => {}
                State::Absent => keys.push((Net::Delete, key, None)),
                State::Row { link, creates, replaces } => {
                    if replaces {
                        keys.push((Net::Delete, key, None));
                    }
                    keys.push((if creates { Net::Upsert } else { Net::Update }, key, Some(link)));
                }
                State::Moved { link, from, kept } => keys.push((Net::Move { from, kept }, key, Some(link))),
            }
            if let Some(slot) = self.states.get_mut(key as usize) {
                *slot = State::Unknown;
            }
        }
        Effect { keys, missed: std::mem::take(&mut self.missed) }
    }
}
