//! Finding what cannot be taken: cutting a batch until the transaction stands alone that poisons it, and laying that aside.
//!
//! Holds: the search, and what becomes a dead letter. Refuses to know where letters are kept.
//! Invariant: what can be taken is taken in commit order; a letter is durable in the same commit as the cursor that passes
//! over it.

use std::ops::Range;

use walgate_core::batch::{Batch, image};
use walgate_core::relation::ProjectedRelation;
use walgate_plugin::{OnFailure, Rejection};
use walgate_store::NewDeadLetter;

use super::attempt::{Attempts, Trouble};
use super::settle::Given;
use super::work::{Outcome, Work, stop_for, whereabouts};
use super::{Letters, Stop};
use crate::telemetry::events;

/// The class of changes that the plugin named itself, one by one.
const REJECTED_ROWS: &str = "rejected-rows";

impl Work {
    /// Delivers the halves of a batch that cannot be taken as a whole, then their halves, until what is left of it is in the
    /// dead letters. Gives the batch back.
    pub(super) async fn bisect(&mut self, batch: Batch, trouble: Trouble) -> Result<Batch, Stop> {
        self.settle_earlier().await?;
        let cuttable = batch.cuttable();
        if cuttable <= 1 {
            self.bury(&batch, &trouble).await?;
            return Ok(batch);
        }
        events::bisected(&self.lane.name, batch.transactions.len() as u64);
        let before = std::mem::replace(&mut self.one_by_one, true);
        let mut pieces: Vec<Range<usize>> = std::iter::once(0..cuttable).collect();
        let mut known = Some(trouble);
        while let Some(range) = pieces.pop() {
            let piece = batch.transactions_in(range.clone());
            let (piece, trouble) = match known.take() {
                Some(trouble) => (piece, trouble),
                None => match self.attempt(piece, Attempts::of_piece(&self.lane.policy.retry)).await? {
                    Outcome::Taken(_) => continue,
                    Outcome::Poison(piece, trouble) => (piece, trouble),
                },
            };
            if range.len() <= 1 {
                self.bury(&piece, &trouble).await?;
            } else {
                let middle = range.start + range.len() / 2;
                pieces.push(middle..range.end);
                pieces.push(range.start..middle);
            }
        }
        self.one_by_one = before;
        Ok(batch)
    }

    /// Everything that was accepted, and what follows it, once more on a fresh instance, each made durable before the next.
    pub(super) async fn one_by_one(&mut self, more: Vec<Batch>) -> Result<(), Stop> {
        self.settle_earlier().await?;
        let accepted = std::mem::take(&mut self.accepted);
        let covered = accepted.covered;
        self.each(accepted.batches.into_iter().chain(more).collect()).await?;
        match covered {
            Some(cursor) if cursor > self.lane.reached => {
                self.give(Given { cursor, ..Given::default() }).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// What a target refused, and everything behind it, once more.
    pub(super) async fn redo(&mut self, trouble: Trouble) -> Result<(), Stop> {
        // It delivers, and what it delivers may have to wait for something that is refused as well.
        Box::pin(self.redo_all(trouble)).await
    }

    async fn redo_all(&mut self, trouble: Trouble) -> Result<(), Stop> {
        if self.lane.policy.on_failure != OnFailure::DeadLetter {
            return Err(stop_for(&trouble));
        }
        let reached = self.lane.reached;
        let mut batches = Vec::new();
        for entry in self.take_unsettled() {
            // The commit that would have stored them is void.
            self.learned.extend(entry.learned);
            batches.extend(entry.batch);
        }
        let accepted = std::mem::take(&mut self.accepted);
        let reached = accepted.covered.unwrap_or(reached).max(reached);
        batches.extend(accepted.batches);
        self.each(batches).await?;
        if reached > self.lane.reached {
            self.give(Given { cursor: reached, ..Given::default() }).await?;
        }
        Ok(())
    }

    /// What was given on before may be refused, too, and must not be taken for a part of what comes next.
    pub(super) async fn settle_earlier(&mut self) -> Result<(), Stop> {
        match self.settle(self.seq).await? {
            Ok(()) => Ok(()),
            Err(earlier) => self.redo(earlier).await,
        }
    }

    async fn each(&mut self, batches: Vec<Batch>) -> Result<(), Stop> {
        // The instance holds what is delivered once more now.
        self.is_open = false;
        let before = std::mem::replace(&mut self.one_by_one, true);
        for batch in batches {
            let batch = match self.attempt(batch, Attempts::new(&self.lane.policy.retry)).await? {
                Outcome::Taken(batch) => batch,
                Outcome::Poison(batch, trouble) => Some(self.bisect(batch, trouble).await?),
            };
            self.tell_kept(batch);
        }
        self.one_by_one = before;
        Ok(())
    }

    /// Lays a whole piece aside and passes over it.
    async fn bury(&mut self, piece: &Batch, trouble: &Trouble) -> Result<(), Stop> {
        let new = vec![self.letter(piece, trouble.class(), trouble.code())];
        let letters = Letters { new, ..Letters::default() };
        self.give(Given { cursor: piece.reaches, letters, ..Given::default() }).await?;
        self.lane.board.recovered(&self.lane.name);
        Ok(())
    }

    /// What the plugin rejected of a batch that it took.
    pub(super) fn letters_of(&self, batch: &Batch, rejected: &[Rejection]) -> Letters {
        let mut letters = Letters::default();
        // One letter a transaction and code: most batches reject for one reason.
        let mut codes: Vec<&str> = rejected.iter().map(|rejection| rejection.code.as_str()).collect();
        codes.sort_unstable();
        codes.dedup();
        for code in codes {
            let ordinals: Vec<u32> =
                rejected.iter().filter(|rejection| rejection.code == code).map(|rejection| rejection.ordinal).collect();
            let pieces = batch.only(&ordinals);
            letters.new.extend(pieces.iter().map(|piece| self.letter(piece, REJECTED_ROWS, code)));
        }
        letters
    }

    fn letter(&self, piece: &Batch, class: &str, code: &str) -> NewDeadLetter {
        let relations: Vec<ProjectedRelation> =
            piece.groups.iter().filter_map(|group| self.told.get(&group.relation)).cloned().collect();
        let mut tables: Vec<String> = relations.iter().map(|r| format!("{}.{}", r.namespace, r.name)).collect();
        tables.sort_unstable();
        tables.dedup();
        let (commit, end, source_ordinal) = whereabouts(piece);
        let rows = u32::try_from(piece.rows).unwrap_or(u32::MAX);
        NewDeadLetter {
            plugin: self.lane.name.clone(),
            generation: self.lane.context.generation,
            batch_id: piece.id.clone(),
            commit,
            end,
            source_ordinal,
            class: class.to_owned(),
            code: code.to_owned(),
            tables,
            rows,
            image: image::write(piece, &relations),
        }
    }
}
