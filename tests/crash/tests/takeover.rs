//! Two processes on one pipeline: whoever is killed, and wherever in a takeover, the file holds everything once.
//!
//! Holds: the pair, what is done to it, and the proof. Never knows: how one of them comes to lead.

use std::fmt;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walgate_harness::{Walgate, majors, wait_until};

use crate::mode::{Mode, STARTING};
use crate::progress::{say, seed_of};
use crate::scene::{SOON, Scene, UNAVAILABLE};

const NAMES: [&str; 2] = ["one", "other"];
/// Blows at random, beside each point of a takeover.
const BLOWS: usize = 6;
const NIGHTLY_BLOWS: usize = 60;

/// What is done to a pair.
#[derive(Clone, Copy, Debug)]
enum Strike {
    Leader,
    Waiting,
    Both,
    /// The leader is killed, and the one that waits, at that point of its takeover.
    Successor(&'static str),
    /// The leader hangs, loses its connections, and wakes up when another leads.
    Freeze,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => f.write_str("kill the leader"),
            Self::Waiting => f.write_str("kill the one that waits"),
            Self::Both => f.write_str("kill both"),
            Self::Successor(point) => write!(f, "kill the leader, and its successor at {point}"),
            Self::Freeze => f.write_str("freeze the leader"),
        }
    }
}

/// A pipeline and two processes.
struct Pair {
    scene: Scene,
    both: [Option<Walgate>; 2],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_survives_every_kill() -> Result<()> {
    for major in majors() {
        let part = format!("takeover on {major}");
        let mut random = StdRng::seed_from_u64(seed_of(&part));
        let apart = random.random_bool(0.5);
        let scene = Scene::new(major, Mode::Transactional, apart, seed_of(&format!("{part}, load"))).await?;
        let mut pair = Pair { scene, both: [None, None] };
        let chance = if std::env::var_os("WALGATE_NIGHTLY").is_some() { NIGHTLY_BLOWS } else { BLOWS };
        let at_random = (0..chance).map(|_| match random.random_range(0..4) {
            0 => Strike::Leader,
            1 => Strike::Waiting,
            2 => Strike::Both,
            _ => Strike::Freeze,
        });
        let strikes: Vec<Strike> = STARTING.into_iter().map(Strike::Successor).chain(at_random).collect();
        for strike in strikes {
            let began = Instant::now();
            let place = || format!("{part}: {strike}");
            pair.deal(strike, &mut random).await.with_context(place)?;
            let found = pair.prove().await.with_context(place)?;
            say(&format!("{}: {found}, {:.1} s", place(), began.elapsed().as_secs_f64()));
        }
    }
    Ok(())
}

impl Pair {
    /// Starts whoever is missing. A process that found another in its place is started again by its supervisor.
    fn keep(&mut self) -> Result<()> {
        for (slot, name) in self.both.iter_mut().zip(NAMES) {
            if let Some(process) = slot
                && let Some(status) = process.ended()?
            {
                let said = process.stderr();
                let expected = status.code() == Some(UNAVAILABLE) || said.contains("fenced");
                ensure!(expected, "{name} ended by itself, with {status}: {said}");
                *slot = None;
            }
            if slot.is_none() {
                *slot = Some(self.scene.spawn(name, None)?);
            }
        }
        Ok(())
    }

    /// Waits until one of them leads.
    async fn leader(&mut self) -> Result<usize> {
        let mut found = 0;
        let leads = wait_until(SOON, "one of them leads", async || {
            self.keep()?;
            for (number, process) in self.both.iter().enumerate() {
                if let Some(process) = process
                    && process.get("/readyz").await.is_ok_and(|response| response.status == 200)
                {
                    found = number;
                    return Ok(true);
                }
            }
            Ok(false)
        });
        if let Err(error) = leads.await {
            return Err(error.context(self.last_words()));
        }
        Ok(found)
    }

    async fn deal(&mut self, strike: Strike, random: &mut StdRng) -> Result<()> {
        self.scene.load.resume();
        let leader = self.leader().await?;
        let from = self.scene.ledger_size().await?;
        let grown = random.random_range(1..20_000);
        let scene = &self.scene;
        wait_until(SOON, "the ledger grows", async || Ok(scene.ledger_size().await? >= from + grown)).await?;
        let waiting = 1 - leader;
        match strike {
            Strike::Leader => self.kill(leader),
            Strike::Waiting => self.kill(waiting),
            Strike::Both => {
                self.kill(leader)?;
                self.kill(waiting)
            }
            Strike::Successor(point) => {
                self.kill(waiting)?;
                let mut successor = self.scene.spawn(NAMES[waiting], Some((point, 1)))?;
                successor.wait_line("stand", SOON).await.context("the second does not stand by")?;
                self.kill(leader)?;
                let ended = successor.wait_exit(SOON).await.context("the successor did not come that far");
                ensure!(ended.is_ok() && self.scene.has_reached(point), "{ended:?}: {}", successor.stderr());
                Ok(())
            }
            Strike::Freeze => self.freeze(leader).await,
        }
    }

    async fn freeze(&mut self, leader: usize) -> Result<()> {
        let signal = |process: &Option<Walgate>, name: &str| -> Result<()> {
            let pid = process.as_ref().context("a process is missing")?.pid().to_string();
            ensure!(Command::new("kill").args([name, &pid]).status()?.success());
            Ok(())
        };
        let before = self.scene.epoch().await?;
        signal(&self.both[leader], "-STOP")?;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walgate%'";
        self.scene.source.execute("postgres", sql).await?;
        self.scene.at().execute("postgres", sql).await?;
        let scene = &self.scene;
        let raised = wait_until(SOON, "another epoch", async || Ok(scene.epoch().await? > before)).await;
        signal(&self.both[leader], "-CONT")?;
        raised
    }

    fn kill(&mut self, which: usize) -> Result<()> {
        match self.both[which].take() {
            Some(mut process) => process.sigkill(),
            None => Ok(()),
        }
    }

    async fn prove(&mut self) -> Result<crate::judge::Found> {
        let last = self.scene.last_entry().await?;
        let arrived = wait_until(SOON, "the last change is in the ledger", async || {
            self.keep()?;
            self.scene.holds(last).await
        });
        if let Err(error) = arrived.await {
            return Err(error.context(self.last_words()));
        }
        for process in self.both.iter_mut().flatten() {
            // One that has just found itself fenced is ending anyway.
            let _ = process.sigterm();
        }
        for process in self.both.iter_mut().filter_map(Option::take) {
            let mut process = process;
            let status = process.wait_exit(SOON).await?;
            let said = process.stderr();
            ensure!(status.code() == Some(0) || said.contains("fenced"), "a stop as asked: {status}: {said}");
        }
        self.scene.judge().await
    }

    fn last_words(&self) -> anyhow::Error {
        let said: Vec<String> = self.both.iter().flatten().map(Walgate::stderr).collect();
        anyhow!("they said:\n{}", said.join("\n--\n"))
    }
}
