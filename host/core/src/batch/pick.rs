//! A part of a batch as a batch of its own: whole transactions of it, or single changes.
//!
//! Holds: the cut of rows, columns, messages and counts. Refuses to know why a part is wanted (a bisection, a dead
//! letter). Invariants: the stable key of a change, (commit, source ordinal), is the same in every part; nothing is in two
//! parts that do not overlap; a part looks as if it had been built that way, but for its estimate of bytes.

use std::collections::BTreeSet;
use std::ops::Range;

use super::name::{Named, Place, name, name_of_some};
use super::{Batch, ByteValues, Column, Group, LogicalMessage, NOT_SENT, TextValues, Transaction, VALUE, Values};
use crate::Cursor;

/// What one slot weighs when the bytes of a batch are shared out among its parts.
const SLOT_BYTES: u64 = 8;

/// Behind the ordinals of every batch.
const END: u64 = u64::MAX;

impl Batch {
    /// The number of transactions that can be cut apart: 1 for a part of a transaction, 0 when there are only messages.
    pub fn cuttable(&self) -> usize {
        self.transactions.len()
    }

    /// The transactions of `range`, indexes into `transactions`, as a batch of their own with ordinals from 0. What lies
    /// outside `transactions` is ignored.
    ///
    /// Messages that belong to no transaction go with the transaction they precede, and the ones behind the last with the
    /// last. `reaches` is the end of the last transaction in the part; the last part keeps the one of the whole. The part
    /// is named by its content and counts attempts anew; `bytes` is its share, and the shares of all parts add up. All
    /// transactions give an unchanged copy.
    pub fn transactions_in(&self, range: Range<usize>) -> Batch {
        let count = self.transactions.len();
        let (from, to) = (range.start.min(count), range.end.min(count));
        if (from, to) == (0, count) {
            return self.clone();
        }
        let to = to.max(from);
        self.piece(from..to, self.bound(from)..self.bound(to))
    }

    /// The changes and messages with these ordinals, whatever their order; ordinals that the batch does not have are
    /// ignored. One batch for each transaction they belong to, with its transaction record: what becomes a dead letter.
    /// A message that belongs to no transaction is a batch alone.
    ///
    /// A batch whose whole content is asked for is an unchanged copy; other choices of changes have names of their own.
    /// `reaches` tells what lies before the end of the transaction. It is never to be stored as a plugin's place for the
    /// sake of a dead letter.
    pub fn only(&self, ordinals: &[u32]) -> Vec<Batch> {
        let wanted: BTreeSet<u32> = ordinals.iter().copied().collect();
        let mut picked = Vec::new();
        for (at, owner) in self.transactions.iter().enumerate() {
            let own = owner.ordinals();
            let base = owner.first_ordinal;
            let chosen = wanted.range(base..).take_while(|ordinal| u64::from(**ordinal) < own.end);
            let chosen: BTreeSet<u32> = chosen.map(|ordinal| ordinal - base).collect();
            if chosen.is_empty() {
                continue;
            }
            let alone = self.transactions.len() == 1 && base == 0 && self.messages.iter().all(|m| m.transactional);
            let whole = if alone { self.clone() } else { self.piece(at..at + 1, own) };
            picked.extend(whole.keep(&chosen).map(|batch| (base, batch)));
        }
        let loose = self.messages.iter().filter(|message| !message.transactional && wanted.contains(&message.ordinal));
        picked.extend(loose.map(|message| (message.ordinal, self.loose(message))));
        picked.sort_by_key(|(ordinal, _)| *ordinal);
        picked.into_iter().map(|(_, batch)| batch).collect()
    }

    /// The first ordinal that belongs to the transaction at this index, with the messages before it.
    fn bound(&self, at: usize) -> u64 {
        match at.checked_sub(1).and_then(|before| self.transactions.get(before)) {
            _ if at >= self.transactions.len() => END,
            Some(before) => before.ordinals().end,
            None => 0,
        }
    }

    fn piece(&self, transactions: Range<usize>, ordinals: Range<u64>) -> Batch {
        let base = u32::try_from(ordinals.start).unwrap_or(u32::MAX);
        let owners = self.transactions.get(transactions.clone()).unwrap_or_default().iter();
        let bytes = self.share(ordinals.end).saturating_sub(self.share(ordinals.start));
        let groups = self.groups.iter().filter_map(|group| {
            let at = |bound: u64| group.ordinals.partition_point(|ordinal| u64::from(*ordinal) < bound);
            let rows = at(ordinals.start)..at(ordinals.end);
            group.pick(std::slice::from_ref(&rows), base)
        });
        let messages = self.messages.iter().filter(|message| ordinals.contains(&u64::from(message.ordinal)));
        let mut piece = Batch {
            id: String::new(),
            attempt: 1,
            transactions: owners.map(|owner| owner.shifted(base)).collect(),
            groups: groups.collect(),
            messages: messages.map(|message| message.shifted(base)).collect(),
            reaches: self.reaches_after(transactions.end),
            rows: 0,
            bytes,
        };
        piece.rows = piece.count();
        piece.id = self.name_of(&piece, &transactions);
        piece
    }

    /// The name of what was cut out of this batch.
    fn name_of(&self, piece: &Batch, transactions: &Range<usize>) -> String {
        let named = Named::of(self);
        let (Some(first), Some(last)) = (piece.transactions.first(), piece.transactions.last()) else {
            return name(named.prefix, "", "");
        };
        let before = transactions.start.checked_sub(1).and_then(|before| self.transactions.get(before));
        let starts = match before {
            _ if !piece.messages.iter().any(|m| !m.transactional && m.ordinal < first.first_ordinal) => {
                first.first_place().to_string()
            }
            // Messages come first. Where they may begin is the same on every replay.
            Some(before) => Place::Message(before.end).to_string(),
            None => named.starts.to_owned(),
        };
        let ends = match piece.messages.last() {
            Some(message) if u64::from(message.ordinal) >= last.ordinals().end => named.ends.to_owned(),
            _ => last.last_place().to_string(),
        };
        name(named.prefix, starts, ends)
    }

    /// A batch of one message that belongs to no transaction.
    fn loose(&self, message: &LogicalMessage) -> Batch {
        if self.rows == 1 && self.transactions.is_empty() {
            return self.clone();
        }
        let before = self.transactions.partition_point(|owner| owner.first_ordinal < message.ordinal);
        let at = u64::from(message.ordinal);
        let mut piece = self.piece(before..before, at..at + 1);
        // Named by what it follows, and by its number from there.
        let named = Named::of(self);
        let owner = before.checked_sub(1).and_then(|before| self.transactions.get(before));
        let from = owner.map_or(0, |owner| owner.ordinals().end);
        let number = at.saturating_sub(from);
        let starts = owner.map_or_else(|| named.starts.to_owned(), |owner| Place::Message(owner.end).to_string());
        piece.id = name(named.prefix, starts, format_args!("n{number:x}"));
        piece
    }

    /// Only the chosen ordinals of a batch of one transaction; none when it has none of them.
    fn keep(self, chosen: &BTreeSet<u32>) -> Option<Batch> {
        let groups = self.groups.iter().filter_map(|group| {
            let at = group.ordinals.iter().enumerate().filter(|(_, ordinal)| chosen.contains(ordinal));
            let runs: Vec<Range<usize>> = at.map(|(row, _)| row..row + 1).collect();
            group.pick(&runs, 0)
        });
        let messages = self.messages.iter().filter(|message| chosen.contains(&message.ordinal));
        let mut kept = Batch {
            id: String::new(),
            attempt: 1,
            transactions: self.transactions.clone(),
            groups: groups.collect(),
            messages: messages.cloned().collect(),
            reaches: self.reaches,
            rows: 0,
            bytes: 0,
        };
        kept.rows = kept.count();
        if kept.rows == 0 {
            return None;
        }
        if kept.rows == self.count() {
            return Some(self);
        }
        kept.bytes = share(self.bytes, kept.weight_before(END), self.weight_before(END));
        let owner = self.transactions.first()?;
        let in_source =
            |ordinal: &u32| owner.source_ordinal.saturating_add(ordinal.saturating_sub(owner.first_ordinal));
        let rows = kept.groups.iter().flat_map(|group| &group.ordinals);
        let kept_ordinals: BTreeSet<u32> =
            rows.chain(kept.messages.iter().map(|message| &message.ordinal)).map(in_source).collect();
        let kept_ordinals: Vec<u32> = kept_ordinals.into_iter().collect();
        kept.id = name_of_some(Named::of(&self).prefix, owner.commit, &kept_ordinals);
        Some(kept)
    }

    /// How far a plugin has come when it took the first `count` transactions.
    fn reaches_after(&self, count: usize) -> Cursor {
        match count.checked_sub(1).and_then(|last| self.transactions.get(last)) {
            Some(last) if count < self.transactions.len() => Cursor::at(last.end),
            None if !self.transactions.is_empty() => Cursor::default(),
            _ => self.reaches,
        }
    }

    /// Changes and messages, counted.
    fn count(&self) -> usize {
        self.groups.iter().map(|group| group.ordinals.len()).sum::<usize>() + self.messages.len()
    }

    /// How many of `bytes` fall on what lies before an ordinal. Values do not keep the length Postgres printed them in,
    /// so this goes by what they take here; a change without values weighs something, too.
    fn share(&self, before: u64) -> usize {
        if before == END { self.bytes } else { share(self.bytes, self.weight_before(before), self.weight_before(END)) }
    }

    fn weight_before(&self, bound: u64) -> u64 {
        let rows = self.groups.iter().map(|group| {
            let rows = group.ordinals.partition_point(|ordinal| u64::from(*ordinal) < bound);
            let values = group.after.iter().chain(&group.before).map(|column| column.values.weight(rows));
            rows as u64 + values.sum::<u64>()
        });
        let messages = self.messages.iter().filter(|message| u64::from(message.ordinal) < bound);
        rows.sum::<u64>() + messages.map(|message| 1 + message.content.len() as u64).sum::<u64>()
    }
}

fn share(bytes: usize, weight: u64, of: u64) -> usize {
    let share = (bytes as u128 * u128::from(weight)).checked_div(u128::from(of));
    share.and_then(|share| usize::try_from(share).ok()).unwrap_or(0)
}

impl Transaction {
    /// The ordinals of the batch that belong to it.
    pub(super) fn ordinals(&self) -> Range<u64> {
        let first = u64::from(self.first_ordinal);
        first..first + u64::from(self.change_count)
    }

    fn shifted(&self, by: u32) -> Self {
        Self { first_ordinal: self.first_ordinal.saturating_sub(by), ..self.clone() }
    }
}

impl LogicalMessage {
    fn shifted(&self, by: u32) -> Self {
        Self { ordinal: self.ordinal.saturating_sub(by), ..self.clone() }
    }
}

impl Group {
    /// The rows of `runs`, numbered from `base`; none when there are none.
    fn pick(&self, runs: &[Range<usize>], base: u32) -> Option<Group> {
        let ordinals: Vec<u32> = picked(&self.ordinals, runs, 1).iter().map(|at| at.saturating_sub(base)).collect();
        if ordinals.is_empty() {
            return None;
        }
        let columns = |columns: &[Column]| columns.iter().map(|column| column.pick(runs)).collect::<Vec<_>>();
        let mut before = columns(&self.before);
        before.retain(Column::is_sent);
        Some(Group {
            relation: self.relation,
            operation: self.operation,
            ordinals,
            after: columns(&self.after),
            before,
        })
    }
}

impl Column {
    fn pick(&self, runs: &[Range<usize>]) -> Column {
        let presence = self.presence.as_ref().map(|presence| picked(presence, runs, 1));
        let presence = presence.filter(|presence| presence.iter().any(|code| *code != VALUE));
        Column { index: self.index, presence, values: self.values.pick(runs) }
    }

    /// Whether any row was sent.
    fn is_sent(&self) -> bool {
        self.presence.as_ref().is_none_or(|presence| presence.iter().any(|code| *code != NOT_SENT))
    }
}

impl Values {
    fn pick(&self, runs: &[Range<usize>]) -> Values {
        match self {
            Self::Boolean(v) => Self::Boolean(picked(v, runs, 1)),
            Self::Int16(v) => Self::Int16(picked(v, runs, 1)),
            Self::Int32(v) => Self::Int32(picked(v, runs, 1)),
            Self::Int64(v) => Self::Int64(picked(v, runs, 1)),
            Self::Float32(v) => Self::Float32(picked(v, runs, 1)),
            Self::Float64(v) => Self::Float64(picked(v, runs, 1)),
            Self::DateDays(v) => Self::DateDays(picked(v, runs, 1)),
            Self::TimeUs(v) => Self::TimeUs(picked(v, runs, 1)),
            Self::TimestampUs(v) => Self::TimestampUs(picked(v, runs, 1)),
            Self::Uuid(v) => Self::Uuid(picked(v, runs, 16)),
            Self::Bytes(v) => {
                let (ends, places) = picked_ends(&v.ends, runs);
                let data = places.into_iter().filter_map(|place| v.data.get(place)).collect::<Vec<_>>().concat();
                Self::Bytes(ByteValues { ends, data })
            }
            Self::Text(v) => {
                let (ends, places) = picked_ends(&v.ends, runs);
                let data = places.into_iter().filter_map(|place| v.data.get(place)).collect();
                Self::Text(TextValues { ends, data })
            }
        }
    }

    /// What the first `rows` slots weigh.
    fn weight(&self, rows: usize) -> u64 {
        let ends = match self {
            Self::Bytes(v) => v.ends.as_slice(),
            Self::Text(v) => v.ends.as_slice(),
            _ => &[],
        };
        let data = rows.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0);
        rows as u64 * SLOT_BYTES + u64::from(data)
    }
}

/// The slots of `runs`, each `width` wide.
fn picked<T: Copy>(slots: &[T], runs: &[Range<usize>], width: usize) -> Vec<T> {
    let runs = runs.iter().filter_map(|run| slots.get(run.start.saturating_mul(width)..run.end.saturating_mul(width)));
    runs.collect::<Vec<_>>().concat()
}

/// The ends of the values of `runs` when only they are left, and where their data is.
fn picked_ends(ends: &[u32], runs: &[Range<usize>]) -> (Vec<u32>, Vec<Range<usize>>) {
    let (mut left, mut places, mut total) = (Vec::new(), Vec::with_capacity(runs.len()), 0_u32);
    for run in runs {
        let start = run.start.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0);
        let values = ends.get(run.clone()).unwrap_or_default();
        left.extend(values.iter().map(|end| total.saturating_add(end.saturating_sub(start))));
        let end = values.last().copied().unwrap_or(start);
        total = total.saturating_add(end.saturating_sub(start));
        places.push(start as usize..end as usize);
    }
    (left, places)
}
