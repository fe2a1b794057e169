//! The instance behind a lane: there when it is needed, and told what it has to know.
//!
//! Holds: opening another one, the shapes it is told, and what is delivered to it once more. Refuses to know why the one
//! before is gone.

use walgate_core::Cursor;
use walgate_core::batch::Batch;
use walgate_core::relation::ProjectedRelation;
use walgate_plugin::{CallError, Mode, Verdict};

use super::attempt::{Attempts, Trouble};
use super::settle::Unsettled;
use super::work::{Work, stop_for};
use super::{Stop, own_position, place};
use crate::halt::HaltClass;

impl Work {
    /// Tells a shape, until it is accepted.
    pub(super) async fn tell(
        &mut self,
        current: &ProjectedRelation,
        previous: Option<&ProjectedRelation>,
    ) -> Result<(), Stop> {
        let mut attempts = Attempts::new(&self.lane.policy.retry);
        loop {
            let error = match self.ready().await? {
                Ok(_) => match self.lane.worker.relation_changed(current, previous).await {
                    Ok(Verdict::Accept) => {
                        self.lane.board.recovered(&self.lane.name);
                        return Ok(());
                    }
                    Ok(_) if self.is_on_probation() => {
                        let (schema, name) = (&current.namespace, &current.name);
                        let cause = format!("it declines the shape of {schema:?}.{name:?}");
                        self.roll_back(HaltClass::RelationDeclined, cause, &mut attempts)?;
                        continue;
                    }
                    Ok(verdict) => return Err(declined(current, verdict)),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            // A shape is no content that a dead letter could hold.
            match self.after(&Trouble::Call(error), &mut attempts).await? {
                None => {}
                Some(trouble) => return Err(stop_for(&trouble)),
            }
        }
    }

    /// An instance that knows the relations and holds what was accepted. Answers the position that a sink of its own says,
    /// when it had to be opened.
    pub(super) async fn ready(&mut self) -> Result<Result<Option<Cursor>, CallError>, Stop> {
        if self.is_open {
            return Ok(Ok(None));
        }
        match self.reopen().await? {
            Ok(position) => {
                self.is_open = true;
                Ok(Ok(position))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn reopen(&mut self) -> Result<Result<Option<Cursor>, CallError>, Stop> {
        let writes = self.unsettled.iter().flat_map(Unsettled::state);
        let position = match self.lane.open_with(writes).await {
            Ok(position) => position,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(detail) = self.set_back(position) {
            return Err(Stop::Plugin { class: HaltClass::DataGapPlugin, detail });
        }
        if let Some(detail) = self.ahead(position) {
            return Err(Stop::Plugin { class: HaltClass::PositionAhead, detail });
        }
        for relation in self.told.values() {
            match self.lane.worker.relation_changed(relation, None).await {
                Ok(Verdict::Accept) => {}
                Ok(verdict) => return Err(declined(relation, verdict)),
                Err(error) => return Ok(Err(error)),
            }
        }
        self.accepted.lose_staged();
        // What is laid aside already is known by its place, and is not laid aside twice.
        let mut again = std::mem::take(&mut self.accepted.batches);
        let outcome = self.deliver_again(&mut again, position).await;
        self.accepted.batches = again;
        outcome.map(|outcome| outcome.map(|()| position))
    }

    /// What a sink has lost that keeps its own position: it said of everything up to there that it is durable, and answers
    /// less now. Nothing of it is given to it again in this process, so it must not go on as if it had it.
    fn set_back(&self, position: Option<Cursor>) -> Option<String> {
        let last = self.last_own?;
        let lost = match position {
            Some(position) if place(position) >= place(last) => return None,
            Some(position) => format!("its sink answers that it has everything up to {}", position.end),
            None if self.lane.policy.mode == Mode::SinkOwned => "its sink answers no position any more".to_owned(),
            None => return None,
        };
        Some(format!(
            "{lost}, but it said that everything up to {} is durable: the sink was set back or lost data. Restore it, then start \
             walgate again; what the source still has is delivered again from the position that it answers then",
            last.end
        ))
    }

    /// A sink cannot have what was handed to nobody: what lies before such a position would be left out in silence.
    fn ahead(&self, position: Option<Cursor>) -> Option<String> {
        let position = position.filter(|position| place(*position) > self.handed)?;
        Some(format!(
            "its sink answers that it has everything up to {}, which was never delivered: the position is of another history. Let \
             it write to the sink of this pipeline, or give it an empty one",
            position.end
        ))
    }

    /// What the last instance had accepted and took along.
    async fn deliver_again(
        &mut self,
        batches: &mut [Batch],
        position: Option<Cursor>,
    ) -> Result<Result<(), CallError>, Stop> {
        for (at, slot) in batches.iter_mut().enumerate() {
            let covered = position.zip(own_position(slot)).is_some_and(|(has, own)| place(has) >= place(own));
            if covered {
                continue;
            }
            let mut batch = std::mem::take(slot);
            batch.attempt = batch.attempt.saturating_add(1);
            let delivery = self.lane.worker.deliver(batch).await;
            *slot = delivery.batch;
            match delivery.outcome {
                Ok(receipt) => {
                    let letters = self.letters_of(slot, &receipt.rejected);
                    self.accepted.add(delivery.staged);
                    self.accepted.reject_again(at, letters);
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(()))
    }
}

fn declined(relation: &ProjectedRelation, verdict: Verdict) -> Stop {
    let class = if verdict == Verdict::Resync { HaltClass::ResyncNeeded } else { HaltClass::RelationDeclined };
    let answer = if verdict == Verdict::Resync {
        "asks for another copy of the table, which this version cannot make"
    } else {
        "declines its shape"
    };
    Stop::Plugin {
        class,
        detail: format!(
            "the plugin {answer}: {:?}.{:?}; no row of that shape was delivered",
            relation.namespace, relation.name
        ),
    }
}
