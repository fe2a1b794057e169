//! What was measured, for people and for machines.
//!
//! Holds: goals and bars against `pg_recvlogical`, the tables, the JSON. A figure over its bar is marked, never an error.
//! Never knows: how a figure came about.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::comparison::Comparison;
use crate::figures::{Spread, ratio};
use crate::latency::Latency;
use crate::layout::{cell, insert, short, table, words};
use crate::source::Transport;
use crate::swap::Swaps;
use crate::throughput::Measured;

/// Where we want to be, and what must not be exceeded; streaming time as a multiple of `pg_recvlogical`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Target {
    goal: f64,
    bar: f64,
}

/// The p99 of the latency as a multiple of `pg_recvlogical`'s.
const LATENCY: Target = Target { goal: 1.5, bar: 2.0 };
/// Milliseconds in which nothing is delivered while a version takes over, at most.
const SWAP_GOAL_MS: f64 = 50.0;
/// CPU with the sandbox as a multiple of that without: a goal, no bar.
const SANDBOX_GOAL: f64 = 1.05;

impl Target {
    fn of(workload: &str, transport: Transport) -> Self {
        match (transport, workload) {
            (Transport::Unix, _) => Self { goal: 1.0, bar: 1.0 },
            (Transport::Tcp, "a") => Self { goal: 0.50, bar: 0.65 },
            (Transport::Tcp, "d") => Self { goal: 0.40, bar: 0.65 },
            (Transport::Tcp, _) => Self { goal: 0.70, bar: 1.0 },
        }
    }

    fn verdict(self, figure: Option<Spread>) -> &'static str {
        match figure.map(|spread| spread.median) {
            None => "not measured",
            Some(median) if median <= self.goal => "goal met",
            Some(median) if median <= self.bar => "within the bar",
            Some(_) => "OVER THE BAR",
        }
    }
}

/// A part whose sides are compared with each other.
#[derive(Debug)]
pub(crate) struct Compared {
    /// Its name in JSON.
    pub(crate) part: &'static str,
    /// What the table says, for people.
    pub(crate) about: &'static str,
}

/// Everything that was measured so far.
#[derive(Debug)]
pub(crate) struct Report {
    server: String,
    rounds: usize,
    measured: Vec<Measured>,
    compared: Vec<(&'static Compared, Vec<Comparison>)>,
    latency: Vec<Latency>,
    swaps: Option<Swaps>,
    skipped: Vec<String>,
}

impl Report {
    /// Nothing yet, on a server of that version.
    pub(crate) fn new(server: String, rounds: usize) -> Self {
        Self {
            server,
            rounds,
            measured: Vec::new(),
            compared: Vec::new(),
            latency: Vec::new(),
            swaps: None,
            skipped: Vec::new(),
        }
    }

    /// Adds a workload.
    pub(crate) fn add(&mut self, measured: Vec<Measured>) {
        self.measured.extend(measured);
    }

    /// Adds a workload of a part.
    pub(crate) fn add_comparison(&mut self, part: &'static Compared, comparison: Comparison) {
        match self.compared.iter_mut().find(|(known, _)| known.part == part.part) {
            Some((_, comparisons)) => comparisons.push(comparison),
            None => self.compared.push((part, vec![comparison])),
        }
    }

    /// Adds a latency.
    pub(crate) fn add_latency(&mut self, latency: Latency) {
        self.latency.push(latency);
    }

    /// Sets the exchanges.
    pub(crate) fn add_swaps(&mut self, swaps: Swaps) {
        self.swaps = Some(swaps);
    }

    /// Says that a side is missing, and why.
    pub(crate) fn skipped(&mut self, what: String) {
        self.skipped.push(what);
    }

    /// One object a workload and transport, then one a ratio of the other parts, then one a latency. A figure is the median of its rounds; its smallest and
    /// largest stand beside it under the same name with `_range`.
    pub(crate) fn json(&self) -> Value {
        let workloads = self.measured.iter().map(|measured| workload_json(measured, &self.server));
        let latencies = self.latency.iter().map(|latency| latency_json(latency, &self.server));
        let compared = self.compared.iter().flat_map(|(part, all)| all.iter().map(move |one| (part.part, one)));
        let compared = compared.flat_map(|(part, one)| one.json(part, &self.server));
        let swaps = self.swaps.iter().map(|swaps| swaps_json(swaps, &self.server));
        Value::Array(workloads.chain(compared).chain(latencies).chain(swaps).collect())
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// The figures of one line, each under its name in JSON.
struct Figures {
    recvlogical_s: Option<Spread>,
    walgate_s: Option<Spread>,
    ratio_recvlogical: Option<Spread>,
    ratio_from_spawn: Option<Spread>,
    ratio_bare: Option<Spread>,
    ratio_eager: Option<Spread>,
    ratio_walstream: Option<Spread>,
    ratio_walsender_cpu: Option<Spread>,
    ratio_host_cpu: Option<Spread>,
    host_cpu_us_per_row: Option<Spread>,
    peak_rss_mib: Option<Spread>,
}

impl Figures {
    fn of(measured: &Measured) -> Self {
        let streaming = |pass: &crate::pass::Pass| seconds(pass.streaming);
        let rows = measured.rows as f64;
        Self {
            recvlogical_s: measured.spread(|round| Some(seconds(round.recvlogical.streaming))),
            walgate_s: measured.spread(|round| Some(seconds(round.walgate.streaming))),
            ratio_recvlogical: measured.against(|round| Some(round.recvlogical), streaming),
            ratio_from_spawn: measured.against(|round| Some(round.recvlogical), |pass| seconds(pass.from_spawn)),
            ratio_bare: measured.against(|round| Some(round.bare), streaming),
            ratio_eager: measured.against(|round| round.eager, streaming),
            ratio_walstream: measured.against(|round| round.walstream, streaming),
            ratio_walsender_cpu: measured.against(|round| Some(round.recvlogical), |pass| seconds(pass.walsender_cpu)),
            ratio_host_cpu: measured
                .spread(|round| ratio(seconds(round.walgate.reader_cpu?), seconds(round.recvlogical.walsender_cpu))),
            host_cpu_us_per_row: measured.spread(|round| Some(seconds(round.walgate.reader_cpu?) * 1e6 / rows)),
            peak_rss_mib: measured.spread(|round| Some(round.walgate.peak_bytes? as f64 / f64::from(1 << 20))),
        }
    }

    fn named(&self) -> [(&'static str, Option<Spread>); 11] {
        [
            ("ratio_recvlogical", self.ratio_recvlogical),
            ("ratio_recvlogical_from_spawn", self.ratio_from_spawn),
            ("ratio_bare", self.ratio_bare),
            ("ratio_eager", self.ratio_eager),
            ("ratio_walstream", self.ratio_walstream),
            ("ratio_walsender_cpu", self.ratio_walsender_cpu),
            ("ratio_host_cpu", self.ratio_host_cpu),
            ("host_cpu_us_per_row", self.host_cpu_us_per_row),
            ("peak_rss_mib", self.peak_rss_mib),
            ("recvlogical_s", self.recvlogical_s),
            ("walgate_s", self.walgate_s),
        ]
    }
}

fn workload_json(measured: &Measured, server: &str) -> Value {
    let figures = Figures::of(measured);
    let target = Target::of(measured.workload, measured.transport);
    let mut object = head(measured.workload, measured.transport, server);
    object.insert("rows".into(), json!(measured.rows));
    object.insert("rounds".into(), json!(measured.rounds.len()));
    object.insert("goal".into(), json!(target.goal));
    object.insert("bar".into(), json!(target.bar));
    object.insert("verdict".into(), json!(target.verdict(figures.ratio_recvlogical)));
    let sandbox = measured.sandbox;
    let more = [
        ("sandbox_ratio", sandbox.ratio),
        ("decode_cpu_ns_per_row", sandbox.decode_ns),
        ("decode_and_deliver_cpu_ns_per_row", sandbox.guest_ns),
    ];
    for (name, spread) in figures.named().into_iter().chain(more) {
        insert(&mut object, name, spread);
    }
    Value::Object(object)
}

fn latency_json(latency: &Latency, server: &str) -> Value {
    let mut object = head("latency", latency.transport, server);
    object.insert("verdict".into(), json!(LATENCY.verdict(latency.ratio_p99)));
    for (name, spread) in [
        ("ratio_latency_p50", latency.ratio_p50),
        ("ratio_latency_p99", latency.ratio_p99),
        ("walgate_p50_us", latency.walgate.p50),
        ("walgate_p99_us", latency.walgate.p99),
        ("recvlogical_p50_us", latency.recvlogical.p50),
        ("recvlogical_p99_us", latency.recvlogical.p99),
    ] {
        insert(&mut object, name, spread);
    }
    Value::Object(object)
}

fn swaps_json(swaps: &Swaps, server: &str) -> Value {
    let mut object = head("swap", Transport::Tcp, server);
    object.insert("verdict".into(), json!(swap_verdict(swaps)));
    insert(&mut object, "pause_ms", swaps.pause);
    insert(&mut object, "gap_ms", swaps.gap);
    Value::Object(object)
}

fn swap_verdict(swaps: &Swaps) -> &'static str {
    match swaps.pause {
        None => "not measured",
        Some(pause) if pause.max <= SWAP_GOAL_MS => "goal met",
        Some(_) => "OVER THE GOAL",
    }
}

fn head(workload: &str, transport: Transport, server: &str) -> Map<String, Value> {
    let pairs = [("workload", workload), ("transport", transport.name()), ("server", server)];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Postgres {}, {} rounds, sides alternating; median (smallest-largest)\n",
            self.server, self.rounds
        )?;
        if !self.measured.is_empty() {
            self.times(f)?;
            self.costs(f)?;
        }
        self.comparisons(f)?;
        self.latencies(f)?;
        self.exchanges(f)?;
        self.workloads(f)?;
        self.skipped.iter().try_for_each(|what| writeln!(f, "SKIPPED {what}"))
    }
}

impl Report {
    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Streaming time of walgate with a counting plugin, checkpoint and acknowledgement on, from the walsender's"
        )?;
        writeln!(
            f,
            "first appearance to the end (start-up of both sides left out, except under \"from spawn\"), divided by that of:"
        )?;
        let head = [
            "",
            "",
            "pg_recvlogical",
            "from spawn",
            "bare wire",
            "eager wire",
            "pg_walstream",
            "walgate s",
            "recvlogical s",
            "goal",
            "",
        ];
        let mut rows = vec![words(&head)];
        for measured in &self.measured {
            let figures = Figures::of(measured);
            let target = Target::of(measured.workload, measured.transport);
            rows.push(vec![
                measured.workload.to_owned(),
                measured.transport.name().to_owned(),
                cell(figures.ratio_recvlogical, 2),
                short(figures.ratio_from_spawn, 2),
                cell(figures.ratio_bare, 2),
                short(figures.ratio_eager, 2),
                short(figures.ratio_walstream, 2),
                short(figures.walgate_s, 2),
                short(figures.recvlogical_s, 2),
                format!("{:.2}", target.goal),
                target.verdict(figures.ratio_recvlogical).to_owned(),
            ]);
        }
        table(f, &rows)?;
        writeln!(f)
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "CPU and memory. Walsender: CPU with walgate / with pg_recvlogical. Host: CPU of walgate / of pg_recvlogical's"
        )?;
        writeln!(
            f,
            "walsender. Sandbox: CPU of decode, minimize and deliver with the plugin / with the same sink compiled in."
        )?;
        let head = [
            "",
            "",
            "walsender",
            "host",
            "host us/row",
            "peak MiB",
            "sandbox",
            "",
            "decode ns/row",
            "decode+deliver ns/row",
        ];
        let mut rows = vec![words(&head)];
        for measured in &self.measured {
            let (figures, sandbox) = (Figures::of(measured), measured.sandbox);
            rows.push(vec![
                measured.workload.to_owned(),
                measured.transport.name().to_owned(),
                cell(figures.ratio_walsender_cpu, 2),
                short(figures.ratio_host_cpu, 2),
                cell(figures.host_cpu_us_per_row, 2),
                short(figures.peak_rss_mib, 0),
                cell(sandbox.ratio, 2),
                if sandbox.ratio.is_some_and(|ratio| ratio.median <= SANDBOX_GOAL) {
                    "goal met"
                } else {
                    "over the goal"
                }
                .to_owned(),
                short(sandbox.decode_ns, 0),
                short(sandbox.guest_ns, 0),
            ]);
        }
        table(f, &rows)?;
        writeln!(f)
    }

    fn comparisons(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, comparisons) in &self.compared {
            writeln!(f, "{}", part.about)?;
            let lines = comparisons.iter().flat_map(Comparison::lines);
            table(f, &std::iter::once(words(&Comparison::HEAD)).chain(lines).collect::<Vec<_>>())?;
            writeln!(f)?;
        }
        Ok(())
    }

    /// Each workload once; in a quick run the parts have it in different sizes.
    fn workloads(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compared = self.compared.iter().flat_map(|(_, all)| all).map(|one| (one.workload, &one.about));
        let measured = self.measured.iter().map(|one| (one.workload, &one.about));
        let all: BTreeSet<_> = measured.chain(compared).collect();
        all.into_iter().try_for_each(|(workload, about)| writeln!(f, "{workload}: {about}"))
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.latency.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "Latency at 1,000 one-row transactions a second, microseconds from the commit's return to the line that walgate"
        )?;
        writeln!(f, "logs when the plugin has taken the batch, and to the commit message that pg_recvlogical prints:")?;
        let head = ["", "walgate p50", "p99", "pg_recvlogical p50", "p99", "ratio p50", "ratio p99", ""];
        let mut rows = vec![words(&head)];
        for latency in &self.latency {
            rows.push(vec![
                latency.transport.name().to_owned(),
                short(latency.walgate.p50, 0),
                short(latency.walgate.p99, 0),
                short(latency.recvlogical.p50, 0),
                short(latency.recvlogical.p99, 0),
                cell(latency.ratio_p50, 2),
                cell(latency.ratio_p99, 2),
                LATENCY.verdict(latency.ratio_p99).to_owned(),
            ]);
        }
        table(f, &rows)?;
        writeln!(f)
    }

    fn exchanges(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(swaps) = &self.swaps else { return Ok(()) };
        writeln!(f, "Another version of a plugin takes over under 1,000 one-row transactions a second, milliseconds:")?;
        let rows = vec![
            words(&["", "pause", "longest time between two deliveries", ""]),
            vec!["swap".to_owned(), cell(swaps.pause, 1), cell(swaps.gap, 1), swap_verdict(swaps).to_owned()],
        ];
        table(f, &rows)?;
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::Pass;
    use crate::sandbox::Sandbox;
    use crate::throughput::Round;

    fn pass(millis: u64) -> Pass {
        let time = Duration::from_millis(millis);
        Pass {
            from_spawn: time * 2,
            streaming: time,
            walsender_cpu: time,
            reader_cpu: Some(time),
            peak_bytes: Some(64 << 20),
        }
    }

    fn report(walgate: &[u64]) -> Report {
        let round = |millis: &u64| Round {
            recvlogical: pass(1000),
            walgate: pass(*millis),
            bare: pass(500),
            eager: None,
            walstream: None,
        };
        let one = Spread { min: 1.0, median: 1.0, max: 1.0 };
        let mut report = Report::new("18.4".to_owned(), walgate.len());
        report.add(vec![Measured {
            workload: "a",
            about: "1000 rows".to_owned(),
            transport: Transport::Tcp,
            rows: 1000,
            rounds: walgate.iter().map(round).collect(),
            sandbox: Sandbox { ratio: Some(one), decode_ns: Some(one), guest_ns: None },
        }]);
        report
    }

    #[test]
    fn the_json_has_the_promised_keys() {
        let json = report(&[500, 400, 600]).json();
        let entry = json.get(0).unwrap();
        let number = |key: &str| entry.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
        assert_eq!((entry["workload"].as_str(), entry["transport"].as_str()), (Some("a"), Some("tcp")));
        assert_eq!((number("ratio_recvlogical"), number("ratio_bare"), number("ratio_walsender_cpu")), (0.5, 1.0, 0.5));
        assert_eq!(
            (number("host_cpu_us_per_row"), number("peak_rss_mib"), number("sandbox_ratio")),
            (500.0, 64.0, 1.0)
        );
        assert_eq!(entry["ratio_recvlogical_range"], json!([0.4, 0.6]));
        assert_eq!(entry["ratio_walstream"], Value::Null);
    }

    #[test]
    fn a_ratio_is_judged_by_goal_and_bar() {
        let check = |millis, expect: &str| {
            let text = report(&[millis]).to_string();
            assert!(text.contains(expect), "{expect} in:\n{text}");
        };
        check(500, "goal met");
        check(600, "within the bar");
        check(700, "OVER THE BAR");
    }
}
