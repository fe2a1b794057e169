//! The stages at work, and the order of their end.
//!
//! Holds: wiring and the order of a stop. A stop runs with the data: the flow hands over what is whole, the lanes finish,
//! the checkpoint commits, the position is told, the wire says goodbye. A halt does the same, except that no lane begins
//! another attempt. Refuses to know what a stage does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use walgate_core::Lsn;
use walgate_core::assemble::Assembler;
use walgate_plugin::OnFailure;
use walgate_store::{RetryPolicy, Store};
use walgate_wire::PumpStats;

use super::ack::Ack;
use super::apply::Apply;
use super::bounds;
use super::checkpoint::{Checkpoint, LetterRoom};
use super::deliver::{Back, Channels, Delivered, Probation};
use super::flow::{Feed, Flow};
use super::letters::Keeper;
use super::source::{self, Source};
use super::start::Started;
use super::swaps::{self, Handle, Swaps, Trial};
use super::turn::Beside;
use super::witness;
use crate::config::Config;
use crate::halt::Halt;
use crate::monitor::{HOLD, Monitor};
use crate::plugins::{Candidate, Plugins};
use crate::status::{Board, Phase, PluginStatus};
use crate::telemetry::events;

/// Deliveries between the lanes and the checkpoint; what waits here is in memory twice at most.
const DELIVERED_QUEUE: usize = 16;

/// The stages at work.
pub(super) struct Running {
    flow_stop: watch::Sender<bool>,
    wire_stop: watch::Sender<bool>,
    side_stop: watch::Sender<bool>,
    abandon: watch::Sender<bool>,
    /// Kept until the flow has ended: lanes that are all parked must not look like a stop that was asked for.
    open: Option<mpsc::Sender<Delivered>>,
    tasks: JoinSet<Ended>,
    drain: Duration,
    turns: mpsc::Receiver<Vec<Candidate>>,
    on_probation: Vec<OnProbation>,
    /// What runs.
    plugins: Plugins,
    /// The plugin that is to be parked for what a shared stage met.
    parks: Option<String>,
    board: Board,
}

/// How a pipeline ended without a halt.
pub(super) enum Outcome {
    /// As asked.
    Stopped,
    /// For changes that only a start can make. No store when the stages did not end in time and were cut off.
    Turn(Option<Store>, Vec<Candidate>),
    /// With a halt. No store when its connection was cut off.
    Halted(Halt, Option<Store>),
    /// Because a stage that all share met what is wrong with one plugin, which is to be parked for it.
    Parks(String, Halt, Option<Store>),
}

/// A plugin whose failure is no halt yet: it entered by a turn, and can be turned back.
#[derive(Clone)]
pub(super) struct OnProbation {
    pub(super) plugin: String,
    pub(super) until: tokio::time::Instant,
}

impl OnProbation {
    /// Whether the halt is of its making.
    pub(super) fn explains(&self, halt: &Halt) -> bool {
        halt.plugin.as_ref() == Some(&self.plugin) && tokio::time::Instant::now() < self.until
    }
}

/// A stage that ended.
enum Ended {
    Wire(Result<(), Halt>),
    Flow(Result<Option<walgate_wire::ChunkReceiver>, Halt>),
    Lane(Result<(), Halt>),
    Apply(Result<(), Halt>),
    /// Something that works beside the stream.
    Beside(Result<(), Halt>),
    Ack,
    Checkpoint(Box<Result<Store, (Store, Halt)>>),
}

impl Running {
    pub(super) fn start(
        config: Config,
        store: Store,
        started: Started,
        letter_bytes: u64,
        beside: Beside,
        on_probation: Vec<OnProbation>,
        board: Board,
    ) -> Self {
        let Started { stored, witness, unguarded, prepared, held } = started;
        let pipeline = config.slot.clone();
        let (flow_stop, flow_stopped) = watch::channel(false);
        let (wire_stop, wire_stopped) = watch::channel(false);
        let (side_stop, side_stopped) = watch::channel(false);
        let (abandon, abandoned) = watch::channel(false);
        let (position, positions) = watch::channel(stored.acked);
        let taken = Arc::new(AtomicU64::new(0));
        let (is_connected, connected) = watch::channel(true);
        let (guard, guarded) = watch::channel(if unguarded { HOLD } else { None });
        let hang_up = Arc::new(Notify::new());
        let (streams, incoming) = watch::channel(source::NewestStream::default());
        let (seen, was_seen) = watch::channel(None);
        let (events, lane_events) = mpsc::unbounded_channel();
        let (delivered, deliveries) = mpsc::channel(DELIVERED_QUEUE);
        let (durable, proofs) = mpsc::unbounded_channel();
        let retries = RetryPolicy {
            max_retries: config.state_max_retries,
            backoff: Duration::from_millis(config.state_retry_backoff_ms),
        };
        let changed = Arc::new(Notify::new());
        let letters = LetterRoom {
            max_bytes: config.letters.max_bytes,
            bytes: Arc::new(AtomicU64::new(letter_bytes)),
            changed: Arc::clone(&changed),
        };
        let epoch = store.epoch();
        let hurry = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        let mut feeds = Vec::new();
        let mut stored_positions = Vec::new();
        let mut lanes = Vec::new();
        let mut handles = BTreeMap::new();
        let mut trials = BTreeMap::new();
        let (rolled_back, back) = mpsc::unbounded_channel();
        let (turn, turns) = mpsc::channel(1);
        board.reading_waits(None);
        let plugins = beside.plugins.clone();
        let probation = Probation { window: config.plugins.probation, failures: config.plugins.probation_failures };
        for plugin in prepared {
            let (todo, queue) = mpsc::unbounded_channel();
            let (too_slow, is_too_slow) = watch::channel(false);
            lanes.push((plugin.position.plugin.clone(), todo.downgrade()));
            let (swaps, swapped) = mpsc::channel(1);
            // What entered by a turn goes back by one.
            let turned = on_probation.iter().any(|one| one.plugin == plugin.position.plugin);
            let before = plugin.before.filter(|_| !turned);
            if !plugin.entered.proven {
                let trial =
                    Trial::new(plugin.entered.number, probation.window, before.clone().map(|(_, before)| before));
                trials.insert(plugin.position.plugin.clone(), trial);
            }
            let back = match before {
                _ if turned => Some(Back::ByTurn),
                Some((number, before)) => Some(Back::To(swaps::generation(number, &before, &plugin.lane.policy))),
                None => None,
            };
            let handle = Handle { swaps, policy: plugin.lane.policy.clone(), loaded: plugin.loaded };
            handles.insert(plugin.position.plugin.clone(), handle);
            feeds.push(Feed::new(plugin.position.plugin.clone(), plugin.minimizer, todo, too_slow));
            let mut to = delivered.clone();
            if let Some(target) = plugin.target {
                let (through, applied) = mpsc::channel(DELIVERED_QUEUE);
                let apply = Apply::new(target, &plugin.position, retries, letters.clone(), board.clone());
                let behind = std::mem::replace(&mut to, through);
                tasks.spawn(async move { Ended::Apply(apply.run(applied, behind).await) });
            }
            stored_positions.push(plugin.position);
            let channels = Channels {
                todo: queue,
                delivered: to,
                events: events.clone(),
                abandon: abandoned.clone(),
                too_slow: is_too_slow,
                swaps: swapped,
                probation,
                back,
                rolled_back: rolled_back.clone(),
                hurry: Arc::clone(&hurry),
            };
            tasks.spawn(async move { Ended::Lane(plugin.lane.run(channels).await) });
        }
        // Behind those of the lanes, which are known by their number.
        stored_positions.extend(held);
        drop(events);
        let checkpoint = Checkpoint {
            store,
            pipeline: pipeline.clone(),
            lineage: stored.lineage.clone(),
            retries,
            positions: stored_positions,
            acked: stored.acked,
            witness,
            seen: was_seen,
            hurry,
            letters: letters.clone(),
            durable,
            // Another database of the same server goes away together with it, too.
            shared: (config.state.host == config.source.host && config.state.port == config.source.port)
                .then(|| (connected, Arc::clone(&hang_up))),
            board: board.clone(),
        };
        tasks.spawn(async move { Ended::Checkpoint(Box::new(checkpoint.run(deliveries).await)) });
        let ack = Ack::new(position, guarded, board.clone());
        tasks.spawn(async move {
            ack.run(proofs).await;
            Ended::Ack
        });
        let flow = Flow {
            feeds,
            max_waiting_bytes: config.max_inflight_bytes,
            max_stalled: config.max_stalled,
            events: lane_events,
            board: board.clone(),
            assembler: Assembler::new(),
            idle_at: Lsn::ZERO,
            others: false,
            paused: false,
            witness,
            seen,
            watch: witness::Watch::default(),
            taken: Arc::clone(&taken),
        };
        tasks.spawn(async move { Ended::Flow(flow.run(incoming, flow_stopped).await) });
        let keeper = Keeper {
            pipeline: pipeline.clone(),
            state: config.state.clone(),
            limits: config.letters,
            lanes,
            epoch,
            room: letters,
            asked: Arc::clone(&beside.redrive),
            board: board.clone(),
        };
        let stopped = side_stopped.clone();
        tasks.spawn(async move { Ended::Beside(keeper.run(stopped).await) });
        let swaps = Swaps {
            pipeline: pipeline.clone(),
            state: config.state.clone(),
            epoch,
            lanes: handles,
            trials,
            probation: probation.window,
            beside: beside.clone(),
            turn,
            rolled_back: back,
            board: board.clone(),
        };
        let stopped = side_stopped.clone();
        tasks.spawn(async move {
            swaps.run(stopped).await;
            Ended::Beside(Ok(()))
        });
        let (board_of_bounds, parked) = (board.clone(), config.max_parked_bytes);
        let stopped = side_stopped.clone();
        tasks.spawn(async move { Ended::Beside(bounds::watch(board_of_bounds, parked, stopped).await) });
        let monitor = Monitor {
            source: config.source.clone(),
            heartbeat: config.heartbeat.map(|every| (config.ddl.clone().unwrap_or(config.source.clone()), every)),
            slot: pipeline.clone(),
            board: board.clone(),
            guard: unguarded.then_some(guard),
            lags: watch::channel(None).0,
        };
        tasks.spawn(async move {
            monitor.run(side_stopped).await;
            Ended::Beside(Ok(()))
        });
        let drain = Duration::from_millis(config.drain_ms);
        let source = Source {
            config,
            stored,
            epoch,
            position: positions,
            taken,
            streams,
            stop: wire_stopped,
            connected: is_connected,
            hang_up,
            stats: PumpStats::new(),
            board: board.clone(),
        };
        tasks.spawn(async move { Ended::Wire(source.run().await) });
        let open = Some(delivered);
        Self {
            flow_stop,
            wire_stop,
            side_stop,
            abandon,
            open,
            tasks,
            drain,
            turns,
            on_probation,
            plugins,
            parks: None,
            board,
        }
    }

    pub(super) async fn until(mut self, mut stop: watch::Receiver<bool>) -> Outcome {
        let mut halt: Option<Halt> = None;
        let mut deadline = None;
        // The last stream stays open, unread, so that the wire answers the server until everything is settled.
        let mut last_stream = None;
        let mut store = None;
        let mut turn = None;
        loop {
            let out_of_time = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let ended = tokio::select! {
                ended = self.tasks.join_next() => match ended {
                    None => break,
                    Some(Ok(ended)) => ended,
                    Some(Err(error)) if error.is_cancelled() => continue,
                    Some(Err(_)) => {
                        self.halt(&mut halt, Halt::bug("a stage ended unexpectedly"));
                        deadline.get_or_insert(tokio::time::Instant::now() + self.drain);
                        continue;
                    }
                },
                _ = stop.wait_for(|stop| *stop), if deadline.is_none() => {
                    tracing::info!("stopping: finishing what is in flight");
                    self.board.write(|status| status.phase = Phase::Draining);
                    let _ = self.flow_stop.send(true);
                    deadline = Some(tokio::time::Instant::now() + self.drain);
                    continue;
                }
                Some(candidates) = self.turns.recv(), if deadline.is_none() => {
                    turn = Some(candidates);
                    let _ = self.flow_stop.send(true);
                    deadline = Some(tokio::time::Instant::now() + self.drain);
                    continue;
                }
                () = out_of_time => {
                    tracing::warn!("stopping took longer than delivery.drain_ms; what was not finished is delivered again later");
                    self.tasks.abort_all();
                    break;
                }
            };
            let stopped = match ended {
                Ended::Wire(result) => result,
                Ended::Lane(result) | Ended::Apply(result) | Ended::Beside(result) => result,
                Ended::Ack => {
                    // Everything is told to the wire that ever will be: it may say goodbye.
                    let _ = self.wire_stop.send(true);
                    let _ = self.side_stop.send(true);
                    Ok(())
                }
                Ended::Flow(outcome) => {
                    self.open = None;
                    outcome.map(|stream| last_stream = stream)
                }
                Ended::Checkpoint(result) => {
                    let (back, result) = match *result {
                        Ok(back) => (back, Ok(())),
                        Err((back, halt)) => (back, Err(halt)),
                    };
                    store = Some(back);
                    result
                }
            };
            if let Err(why) = stopped {
                self.halt(&mut halt, why);
                deadline.get_or_insert(tokio::time::Instant::now() + self.drain);
            }
        }
        drop(last_stream);
        match (halt, turn, store) {
            (Some(halt), _, store) => match self.parks {
                Some(plugin) => Outcome::Parks(plugin, halt, store),
                None => Outcome::Halted(halt, store),
            },
            (None, Some(candidates), store) if !*stop.borrow() => Outcome::Turn(store, candidates),
            (None, ..) => {
                self.board.write(|status| status.phase = Phase::Stopped);
                Outcome::Stopped
            }
        }
    }

    fn turns_back(&self, halt: &Halt) -> bool {
        self.on_probation.iter().any(|one| one.explains(halt))
    }

    /// The plugin that is to be parked instead, while others run beside it. What a lane meets is parked there; what it stages
    /// is written for all.
    fn parks(&self, halt: &Halt) -> Option<String> {
        let name = halt.plugin.as_ref().filter(|_| halt.class.is_of_output())?;
        let policy = self.plugins.running(name)?.manifest.on_failure;
        let runs = |plugin: &PluginStatus| matches!(plugin.state.as_str(), "running" | "retrying" | "draining");
        let others = self.board.read().plugins.into_iter().any(|(other, plugin)| other != *name && runs(&plugin));
        (policy == OnFailure::Park && others).then(|| name.clone())
    }

    /// The first halt counts; the others follow from it.
    fn halt(&mut self, first: &mut Option<Halt>, halt: Halt) {
        if self.turns_back(&halt) {
            first.get_or_insert(halt);
        } else if let (None, Some(plugin)) = (&first, self.parks(&halt)) {
            self.parks = Some(plugin);
            *first = Some(halt);
        } else if first.is_none() {
            events::halted(&halt);
            self.board.write(|status| {
                status.phase = Phase::Halted;
                status.halt = Some(halt.clone());
            });
            *first = Some(halt);
        }
        let _ = self.abandon.send(true);
        let _ = self.flow_stop.send(true);
    }
}
