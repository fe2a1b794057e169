//! Sides that do one workload in turn, and what each took as a multiple of what another took in the same round.
//!
//! Holds: rounds, ratios with their goals, and both as lines of a table and as JSON. Never knows: what the sides are.
//! Read next: `mirror.rs`, `modes.rs`, which make them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::figures::{Spread, ratio};
use crate::layout::{cell, insert, short};
use crate::pass::Pass;
use crate::source::Transport;

/// What we want a ratio to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
}

/// A ratio that is of interest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) side: &'static str,
    pub(crate) against: &'static str,
    pub(crate) goal: Option<Goal>,
}

/// Everything about one workload.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) workload: &'static str,
    pub(crate) about: String,
    pub(crate) transport: Transport,
    pub(crate) ratios: Vec<Ratio>,
    /// The passes of each round, under the names of their sides.
    pub(crate) rounds: Vec<Vec<(&'static str, Pass)>>,
}

impl Goal {
    fn text(self) -> String {
        match self {
            Self::AtMost(figure) => format!("<= {figure:.2}"),
            Self::Below(figure) => format!("< {figure:.2}"),
        }
    }

    fn verdict(self, figure: Option<Spread>) -> &'static str {
        match figure.map(|spread| spread.median) {
            None => "not measured",
            Some(median) if self.is_met(median) => "goal met",
            Some(_) => "OVER THE GOAL",
        }
    }

    fn is_met(self, median: f64) -> bool {
        match self {
            Self::AtMost(figure) => median <= figure,
            Self::Below(figure) => median < figure,
        }
    }
}

impl Comparison {
    /// The head of the lines.
    pub(crate) const HEAD: [&str; 9] = ["", "", "divided by", "streaming", "from spawn", "s", "divisor s", "goal", ""];

    /// One line of the table for each ratio.
    pub(crate) fn lines(&self) -> Vec<Vec<String>> {
        let line = |one: &Ratio| {
            let figure = self.ratio(one, streaming);
            vec![
                self.workload.to_owned(),
                one.side.to_owned(),
                one.against.to_owned(),
                cell(figure, 2),
                cell(self.ratio(one, from_spawn), 2),
                short(self.spread(one.side, streaming), 2),
                short(self.spread(one.against, streaming), 2),
                one.goal.map_or_else(String::new, Goal::text),
                one.goal.map_or("", |goal| goal.verdict(figure)).to_owned(),
            ]
        };
        self.ratios.iter().map(line).collect()
    }

    /// One object for each ratio.
    pub(crate) fn json<'a>(&'a self, part: &'a str, server: &'a str) -> impl Iterator<Item = Value> + 'a {
        self.ratios.iter().map(move |one| {
            let mut object = Map::new();
            for (name, value) in [
                ("part", part),
                ("workload", self.workload),
                ("transport", self.transport.name()),
                ("server", server),
                ("side", one.side),
                ("against", one.against),
            ] {
                object.insert(name.to_owned(), json!(value));
            }
            object.insert("rounds".to_owned(), json!(self.rounds.len()));
            let figure = self.ratio(one, streaming);
            object.insert("goal".to_owned(), json!(one.goal.map(Goal::text)));
            object.insert("verdict".to_owned(), json!(one.goal.map(|goal| goal.verdict(figure))));
            for (name, spread) in [
                ("ratio", figure),
                ("ratio_from_spawn", self.ratio(one, from_spawn)),
                ("ratio_walsender_cpu", self.ratio(one, |pass| Some(pass.walsender_cpu))),
                ("side_s", self.spread(one.side, streaming)),
                ("against_s", self.spread(one.against, streaming)),
                ("side_cpu_s", self.spread(one.side, |pass| pass.reader_cpu)),
            ] {
                insert(&mut object, name, spread);
            }
            Value::Object(object)
        })
    }

    fn ratio(&self, one: &Ratio, figure: impl Fn(&Pass) -> Option<Duration>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| {
            let of = |side| Some(figure(pass(round, side)?)?.as_secs_f64());
            ratio(of(one.side)?, of(one.against)?)
        }))
    }

    fn spread(&self, side: &str, figure: impl Fn(&Pass) -> Option<Duration>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| Some(figure(pass(round, side)?)?.as_secs_f64())))
    }
}

fn pass<'a>(round: &'a [(&'static str, Pass)], side: &str) -> Option<&'a Pass> {
    round.iter().find(|(name, _)| *name == side).map(|(_, pass)| pass)
}

fn streaming(pass: &Pass) -> Option<Duration> {
    Some(pass.streaming)
}

fn from_spawn(pass: &Pass) -> Option<Duration> {
    Some(pass.from_spawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(millis: &[(u64, u64)], goal: Goal) -> Comparison {
        let pass = |millis| {
            let time = Duration::from_millis(millis);
            Pass { from_spawn: time * 2, streaming: time, walsender_cpu: time, reader_cpu: None, peak_bytes: None }
        };
        Comparison {
            workload: "a",
            about: "10 rows".to_owned(),
            transport: Transport::Tcp,
            ratios: vec![Ratio { side: "far", against: "subscription", goal: Some(goal) }],
            rounds: millis.iter().map(|(a, b)| vec![("subscription", pass(*b)), ("far", pass(*a))]).collect(),
        }
    }

    #[test]
    fn a_ratio_is_made_inside_each_round() {
        let compared = comparison(&[(100, 200), (400, 400), (900, 300)], Goal::AtMost(1.0));
        let json: Vec<Value> = compared.json("mirror", "18.4").collect();
        let one = json.first().unwrap();
        assert_eq!((&one["ratio"], &one["ratio_range"]), (&json!(1.0), &json!([0.5, 3.0])));
        assert_eq!((&one["part"], &one["side"], &one["rounds"]), (&json!("mirror"), &json!("far"), &json!(3)));
        assert_eq!((&one["side_s"], &one["side_cpu_s"]), (&json!(0.4), &Value::Null));
    }

    #[test]
    fn the_median_is_held_against_the_goal() {
        for (goal, verdict) in [
            (Goal::AtMost(1.0), "goal met"),
            (Goal::Below(1.0), "OVER THE GOAL"),
            (Goal::AtMost(0.9), "OVER THE GOAL"),
            (Goal::Below(1.1), "goal met"),
        ] {
            let lines = comparison(&[(300, 300)], goal).lines();
            assert_eq!(lines.first().unwrap().last().unwrap(), verdict, "{goal:?}");
            assert_eq!(lines.first().unwrap().len(), Comparison::HEAD.len());
        }
        assert_eq!(comparison(&[], Goal::Below(1.0)).lines().first().unwrap().last().unwrap(), "not measured");
    }
}
