//! Dead letters once more: on an instance of their own, oldest first, each under its own id.
//!
//! Holds: one redelivery, and the rule of order: behind a letter that is refused again, no other of the same tables is
//! tried. Refuses to know who asked for it (see [`super::super::letters`]).
//! An instance of its own, because a letter may be of an older shape than the stream has by now, and the versions that an
//! instance sees only rise.

use std::collections::BTreeSet;

use walgate_core::batch::image;
use walgate_plugin::{CallError, Staged, Verdict};
use walgate_store::DeadLetter;

use super::settle::Given;
use super::work::Work;
use super::{Letters, Stop};
use crate::telemetry::events;

/// In the place of a number of attempts: it was taken.
const TAKEN: u32 = u32::MAX;

impl Work {
    pub(super) async fn redrive(&mut self, letters: Vec<(DeadLetter, Vec<u8>)>) -> Result<(), Stop> {
        self.flush_accepted().await?;
        self.settle_earlier().await?;
        let mut held = BTreeSet::new();
        for (letter, image) in letters {
            if letter.tables.iter().any(|table| held.contains(table)) {
                // And nothing behind this one either.
                held.extend(letter.tables);
                continue;
            }
            match self.tried.insert(letter.id, letter.attempts) {
                Some(TAKEN) => {
                    self.tried.insert(letter.id, TAKEN);
                    continue;
                }
                // A copy from before its last attempt was stored, which it did not survive.
                Some(at) if at >= letter.attempts => {
                    held.extend(letter.tables);
                    continue;
                }
                _ => {}
            }
            if self.redrive_one(&letter, &image).await? {
                self.tried.insert(letter.id, TAKEN);
            } else {
                held.extend(letter.tables);
            }
        }
        // The next instance is told what the stream has.
        self.is_open = false;
        Ok(())
    }

    /// False when it was refused again.
    async fn redrive_one(&mut self, letter: &DeadLetter, image: &[u8]) -> Result<bool, Stop> {
        walgate_failpoint::hit("redrive.before");
        self.settle_for(1).await?;
        // A commit that moves no cursor is told from its own repetition by the letters that it takes.
        let name = self.lane.name.clone();
        let cursor = self.lane.reached;
        let before = std::mem::replace(&mut self.one_by_one, true);
        let (staged, code) = match self.deliver_letter(letter, image).await {
            Ok(staged) => (Some(staged), None),
            Err(code) => (None, Some(code)),
        };
        walgate_failpoint::hit("redrive.taken");
        let letters = match staged {
            Some(_) => Letters { redriven: vec![letter.id], ..Letters::default() },
            None => Letters { refused_again: vec![letter.id], ..Letters::default() },
        };
        let taken = staged.is_some();
        let given = Given { cursor, staged: staged.unwrap_or_default(), letters, ..Given::default() };
        let (seq, _) = self.give(given).await?;
        let settled = if self.lane.policy.applies { self.settle(seq).await? } else { Ok(()) };
        self.one_by_one = before;
        let refusal = settled.err().map(|trouble| trouble.code().to_owned());
        if refusal.is_some() {
            // Nothing of it was applied, so the letter is as it was.
            self.forget_unsettled();
            let letters = Letters { refused_again: vec![letter.id], ..Letters::default() };
            self.give(Given { cursor, letters, ..Given::default() }).await?;
        }
        let code = code.or(refusal);
        match &code {
            None => events::redriven(&name, 1),
            Some(code) => tracing::warn!(plugin = name, code, "a dead letter was refused again and stays"),
        }
        Ok(taken && code.is_none())
    }

    /// Answers what it staged, or the code of the refusal.
    async fn deliver_letter(&mut self, letter: &DeadLetter, bytes: &[u8]) -> Result<Staged, String> {
        let code = |error: CallError| error.code().to_owned();
        let (mut batch, relations) = image::read(bytes).map_err(|_| "image-unreadable".to_owned())?;
        self.lane.open().await.map_err(code)?;
        for relation in &relations {
            match self.lane.worker.relation_changed(relation, None).await.map_err(code)? {
                Verdict::Accept => {}
                Verdict::Resync | Verdict::Decline => return Err("relation-declined".to_owned()),
            }
        }
        batch.attempt = letter.attempts.saturating_add(1);
        let delivery = self.lane.worker.deliver(batch).await;
        let receipt = delivery.outcome.map_err(code)?;
        if let Some(rejection) = receipt.rejected.first() {
            return Err(rejection.code.clone());
        }
        let mut staged = delivery.staged;
        if !receipt.durable {
            let more = self.lane.worker.flush().await.map_err(code)?;
            staged.state.extend(more.state);
            staged.outputs.extend(more.outputs);
            staged.rows.extend(more.rows);
        }
        Ok(staged)
    }
}
