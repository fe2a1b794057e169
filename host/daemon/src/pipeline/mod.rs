//! One pipeline, from socket to acknowledgement. The only file that names every stage.
//!
//! ```text
//! source ─ chunks ─ flow ─ items ─ deliver (one lane a plugin) ─ delivered ─ checkpoint ─ durable ─ ack ─┐
//!   ▲                                                                                                    │
//!   └──────────────────────────── position, as a value on a watch ───────────────────────────────────────┘
//! ```
//!
//! Holds: start, wiring and the order of a stop. A stop runs with the data: the flow hands over what is whole, the lanes
//! finish, the checkpoint commits, the position is told, the wire says goodbye. A halt does the same, except that no
//! lane begins another attempt.
//! Read next: `source.rs`, `flow.rs`, `deliver.rs`, `checkpoint.rs`, `ack.rs`.

mod ack;
mod checkpoint;
mod columns;
mod deliver;
mod flow;
mod source;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use walgate_core::assemble::Assembler;
use walgate_core::minimize::Minimizer;
use walgate_core::{Cursor, Lineage, Lsn};
use walgate_plugin::{OnFailure, OpenContext, Output as Target};
use walgate_store::{Output, OutputFile, PipelineRow, RetryPolicy, StandardOutput, StateLimits, Store, StoredHalt};
use walgate_wire::PumpStats;

use crate::config::Config;
use crate::connect::state_failure;
use crate::exit::{Failure, Halt, chain};
use crate::plugins::{Directory, Loaded};
use crate::preflight;
use crate::status::{Board, Phase, PluginStatus};
use ack::Ack;
use checkpoint::{Checkpoint, Position};
use deliver::{Channels, Lane};
use flow::{Feed, Flow};
use source::{History, Ready, Source};

/// Deliveries between the lanes and the checkpoint; what waits here is in memory twice at most.
const DELIVERED_QUEUE: usize = 16;
/// Columns that one plugin has met: far more tables than a publication has.
const KNOWN_COLUMNS: StateLimits = StateLimits { max_keys: 1_000_000, max_bytes: 256 << 20 };
/// Opens of one process count below the epoch that the state database gave it.
const OPENS_PER_EPOCH: u64 = 1 << 20;

/// Everything one plugin needs before the stream starts.
struct Prepared {
    lane: Lane,
    minimizer: Minimizer,
    position: Position,
}

/// What a start leaves: where the pipeline stands, its connection, its lanes, and the positions that only hold the
/// acknowledgement back.
type Started = (PipelineRow, Ready, Vec<Prepared>, Vec<Position>);

/// Runs until a stop is asked for or something halts.
pub(crate) async fn run(
    config: Config,
    plugins: Directory,
    mut store: Store,
    board: Board,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let mut stopped = stop.clone();
    // A start may wait long: for a plugin that refuses to open, or for a server that hangs. Nothing in it needs to end.
    let started = tokio::select! {
        started = start(config.clone(), plugins, &mut store, &board, &mut stop) => started,
        _ = stopped.wait_for(|stop| *stop) => Ok(None),
    };
    match started {
        Ok(None) => Ok(()),
        Ok(Some((stored, ready, prepared, held))) => {
            store.clear_halt(&config.slot).await.map_err(state_failure)?;
            // The wire connects anew, on a thread of its own.
            drop(ready);
            Running::start(config, store, stored, (prepared, held), board).until(stop).await
        }
        Err(failure) => {
            // A slot in use belongs to a running pipeline, whose row is not ours to write to.
            if let Some(halt) = failure.halt.as_ref().filter(|halt| halt.name != "slot_active") {
                keep_halt(&mut store, &config.slot, halt).await;
            }
            Err(failure)
        }
    }
}

/// Everything up to the first byte of the stream; nothing when a stop was asked for meanwhile.
async fn start(
    config: Config,
    plugins: Directory,
    store: &mut Store,
    board: &Board,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<Started>, Failure> {
    let pipeline = config.slot.clone();
    let most = Some(source::START_ATTEMPTS);
    let Some(mut ready) = source::connect(&config, History::Stored(store), most, board, stop).await? else {
        return Ok(None);
    };
    post_source(board, &config, &ready);
    let stored = ready.stored.take();
    let stored = adopt(store, &pipeline, &config, &ready, stored).await?;
    let mut prepared = Vec::with_capacity(plugins.loaded.len());
    let mut held = Vec::new();
    let mut first_failure = None;
    for plugin in plugins.loaded {
        warn_unpublished(&config, &mut ready, &plugin).await;
        let index = prepared.len();
        let (name, required, policy) = (plugin.name.clone(), plugin.manifest.required, plugin.manifest.on_failure);
        let source_end = ready.found.identity.xlog_pos;
        match prepare(store, &pipeline, &config, &stored, source_end, plugin, index, board).await {
            Ok(ready) => prepared.push(ready),
            Err(failure)
                if policy == OnFailure::Park && failure.halt.as_ref().is_some_and(|halt| halt.plugin.is_some()) =>
            {
                tracing::error!(plugin = name, "plugin parked at its start, the others go on: {}", failure.message);
                metrics::gauge!("walgate_parked", "plugin" => name.clone()).set(1.0);
                board.plugin_state(&name, "parked", Some(failure.message.clone()));
                first_failure.get_or_insert(failure);
                let cursor = stored.cursors.get(&name).copied().unwrap_or(Cursor::at(stored.acked));
                held.extend(required.then(|| hold(name, cursor, &stored, board)));
            }
            Err(failure) => return Err(failure),
        }
    }
    // A plugin that ran before and cannot be loaded now would miss what is acknowledged meanwhile.
    for plugin in plugins.not_running.into_iter().filter(|plugin| plugin.required) {
        if let Some(cursor) = stored.cursors.get(&plugin.name).copied() {
            held.push(hold(plugin.name, cursor, &stored, board));
        }
    }
    if prepared.is_empty() {
        return Err(first_failure.unwrap_or_else(|| {
            Failure::usage(format!("no plugin in {} can run; see: walgate plugin list", config.plugins.dir.display()))
        }));
    }
    Ok(Some((stored, ready, prepared, held)))
}

/// Tables can be published later, so this is no reason not to start; but nothing of them comes until then.
async fn warn_unpublished(config: &Config, ready: &mut Ready, plugin: &Loaded) {
    // A failure of the question shows where the stream is started.
    let missing = preflight::unpublished(&mut ready.connection, config, &plugin.grant).await.unwrap_or_default();
    if !missing.is_empty() {
        let tables = missing.join(", ");
        tracing::warn!(
            plugin = plugin.name,
            tables,
            "granted, but no publication carries them: no change of them will come"
        );
    }
}

/// The position of a required plugin without a lane: it keeps its place, and with it the source's log.
fn hold(name: String, cursor: Cursor, stored: &PipelineRow, board: &Board) -> Position {
    tracing::warn!(
        plugin = name,
        at = %cursor.end,
        "a required plugin does not run and holds the acknowledgement; mend it, or remove its folder to let go of it"
    );
    board.plugin(&name, |status| {
        status.required = true;
        status.cursor = cursor.end.to_string();
    });
    let generation = stored.generations.get(&name).copied().unwrap_or(1);
    Position {
        plugin: name,
        required: true,
        generation,
        cursor,
        stored: cursor,
        sink_owned: false,
        outputs: std::collections::BTreeMap::new(),
    }
}

/// Keeps a halt for `status` after the process is gone. Failing to is no reason to hide the halt itself.
async fn keep_halt(store: &mut Store, pipeline: &str, halt: &Halt) {
    let kept = StoredHalt { name: halt.name.clone(), plugin: halt.plugin.clone(), detail: halt.detail.clone() };
    if let Err(error) = store.set_halt(pipeline, &kept).await {
        tracing::warn!("the halt cannot be kept in the state database: {}", chain(&error));
    }
}

/// The durable row that has to exist before the first acknowledgement.
async fn adopt(
    store: &mut Store,
    pipeline: &str,
    config: &Config,
    ready: &Ready,
    stored: Option<PipelineRow>,
) -> Result<PipelineRow, Failure> {
    if let Some(stored) = stored {
        return Ok(stored);
    }
    let lineage = Lineage {
        system_id: ready.found.identity.system_id.clone(),
        timeline: ready.found.identity.timeline,
        database: config.source.database.clone(),
        slot: config.slot.clone(),
        slot_created_at: ready.found.confirmed,
    };
    tracing::info!(slot = config.slot, from = %ready.found.confirmed, "no checkpoint yet: starting where the slot stands");
    store.adopt(pipeline, &lineage, ready.found.confirmed).await.map_err(state_failure)?;
    let stored = store.load(pipeline).await.map_err(state_failure)?;
    stored.ok_or_else(|| {
        Halt::new("bug", "the pipeline row is gone right after it was written; please report this").into()
    })
}

#[expect(clippy::too_many_arguments, reason = "one call site; a struct would only repeat the names")]
async fn prepare(
    store: &mut Store,
    pipeline: &str,
    config: &Config,
    stored: &PipelineRow,
    source_end: Lsn,
    plugin: Loaded,
    index: usize,
    board: &Board,
) -> Result<Prepared, Failure> {
    let name = plugin.name;
    let generation = stored.generations.get(&name).copied().unwrap_or(1);
    let cursor =
        store.start_plugin(pipeline, &name, Cursor::at(stored.acked), generation).await.map_err(state_failure)?;
    let limits = &plugin.manifest.limits;
    let state_limits = StateLimits { max_keys: limits.state_keys, max_bytes: limits.state_total_bytes };
    let context = OpenContext {
        plugin: name.clone(),
        generation,
        pipeline: pipeline.to_owned(),
        lineage: stored.lineage.token(),
        epoch: store.next_epoch().await.map_err(state_failure)?.saturating_mul(OPENS_PER_EPOCH),
        state: store.plugin_state(pipeline, &name, state_limits).await.map_err(state_failure)?,
    };
    let known = store.plugin_state(pipeline, &columns::shadow(&name), KNOWN_COLUMNS).await.map_err(state_failure)?;
    let outputs = open_outputs(store, pipeline, &name, &plugin.manifest.outputs).await?;
    board.write(|status| {
        let required = plugin.manifest.required;
        let version = plugin.description.version.clone();
        status.plugins.insert(name.clone(), PluginStatus { required, version, generation, ..PluginStatus::default() });
    });
    board.plugin_state(&name, "opening", None);
    let mut lane = Lane {
        index,
        name: name.clone(),
        worker: plugin.worker,
        on_failure: plugin.manifest.on_failure,
        max_attempts: plugin.manifest.max_attempts,
        context,
        reached: cursor,
        learned: Vec::new(),
        board: board.clone(),
    };
    let own = lane.open_first().await?;
    let from = start_of(&name, plugin.manifest.required, cursor, own, stored.acked, source_end)?;
    lane.reached = from;
    board.plugin(&name, |status| status.cursor = from.end.to_string());
    Ok(Prepared {
        lane,
        minimizer: Minimizer::new(plugin.grant, &lineage_tag(&stored.lineage), config.bounds, from)
            .knowing(columns::read(known)),
        position: Position {
            plugin: name,
            required: plugin.manifest.required,
            generation,
            cursor: from,
            stored: cursor,
            sink_owned: own.is_some(),
            outputs,
        },
    })
}

/// Where a plugin's stream begins: its own position if it keeps one, else the stored one; never before what the source
/// still has.
fn start_of(
    name: &str,
    required: bool,
    cursor: Cursor,
    own: Option<Cursor>,
    acked: Lsn,
    source_end: Lsn,
) -> Result<Cursor, Halt> {
    let from = own.unwrap_or(cursor);
    if own.is_some() && from.end > source_end {
        let detail = format!(
            "the sink says it has everything up to {}, but the source has written only up to {source_end}: the position is of \
             another history",
            from.end
        );
        return Err(Halt::of_plugin("position_ahead", name, detail));
    }
    if from.end >= acked {
        return Ok(from);
    }
    // Its stored cursor moves with its batches alone, so a sink that has those missed only what was not for it.
    if required && own.is_some_and(|own| deliver::place(own) >= deliver::place(cursor)) {
        let within = from.ordinal > 0 && from.commit >= acked;
        return Ok(if within { Cursor { end: acked, ..from } } else { Cursor::at(acked) });
    }
    let gap = format!("it stands at {}, but the source may have freed its log up to {acked}", from.end);
    if required {
        let detail = format!(
            "{gap}: changes in between are lost to it. Give its sink a fresh copy of the tables, then start it under another \
             name, which begins at the present"
        );
        return Err(Halt::of_plugin("data_gap", name, detail));
    }
    if from.ordinal > 0 && from.commit >= acked {
        // It stands inside a transaction that comes again whole.
        return Ok(Cursor { end: acked, ..from });
    }
    tracing::warn!(plugin = name, from = %from.end, to = %acked, "an optional plugin missed changes: {gap}");
    Ok(Cursor::at(acked))
}

async fn open_outputs(
    store: &mut Store,
    pipeline: &str,
    plugin: &str,
    targets: &std::collections::BTreeMap<String, Target>,
) -> Result<std::collections::BTreeMap<String, Output>, Failure> {
    let marks = store.output_lengths(pipeline, plugin).await.map_err(state_failure)?;
    let mut outputs = std::collections::BTreeMap::new();
    for (name, target) in targets {
        let mark = marks.get(name).copied();
        let output = match target {
            Target::File { path, rotate_mib } => {
                let opened = OutputFile::open(path, mark, rotate_mib.map(|mib| mib.saturating_mul(1 << 20)));
                Output::File(opened.map_err(|error| {
                    Halt::of_plugin(error.halt_name(), plugin, format!("output {name:?}: {}", chain(&error)))
                })?)
            }
            Target::Stdout => Output::Standard(StandardOutput::open(mark.unwrap_or_default())),
        };
        if mark.is_none() {
            store.register_output(pipeline, plugin, name).await.map_err(state_failure)?;
        }
        outputs.insert(name.clone(), output);
    }
    Ok(outputs)
}

fn post_source(board: &Board, config: &Config, ready: &Ready) {
    board.write(|status| {
        let source = &mut status.source;
        source.database.clone_from(&config.source.database);
        source.slot.clone_from(&config.slot);
        source.publications.clone_from(&config.publications);
        source.server_major = ready.found.major;
        source.system_id.clone_from(&ready.found.identity.system_id);
        source.timeline = ready.found.identity.timeline;
    });
}

/// Eight letters and digits that differ between lineages, so that batch ids of two histories never meet (FNV-1a).
fn lineage_tag(lineage: &Lineage) -> String {
    let hash =
        lineage.token().bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// The stages at work.
struct Running {
    flow_stop: watch::Sender<bool>,
    wire_stop: watch::Sender<bool>,
    abandon: watch::Sender<bool>,
    tasks: JoinSet<Ended>,
    drain: Duration,
    pipeline: String,
    state: walgate_wire::SourceOptions,
    board: Board,
}

/// A stage that ended.
enum Ended {
    Wire(Result<(), Halt>),
    Flow(Result<Option<walgate_wire::ChunkReceiver>, Halt>),
    Lane(Result<(), Halt>),
    Ack,
    Checkpoint(Box<Result<Store, (Store, Halt)>>),
}

impl Running {
    fn start(
        config: Config,
        store: Store,
        stored: PipelineRow,
        (prepared, held): (Vec<Prepared>, Vec<Position>),
        board: Board,
    ) -> Self {
        let pipeline = config.slot.clone();
        let (flow_stop, flow_stopped) = watch::channel(false);
        let (wire_stop, wire_stopped) = watch::channel(false);
        let (abandon, abandoned) = watch::channel(false);
        let (position, positions) = watch::channel(stored.acked);
        let (is_connected, connected) = watch::channel(true);
        let hang_up = Arc::new(Notify::new());
        let (streams, incoming) = watch::channel(source::NewestStream::default());
        let (events, lane_events) = mpsc::unbounded_channel();
        let (delivered, deliveries) = mpsc::channel(DELIVERED_QUEUE);
        let (durable, proofs) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let mut feeds = Vec::new();
        let mut stored_positions = Vec::new();
        for plugin in prepared {
            let (todo, queue) = mpsc::unbounded_channel();
            feeds.push(Feed::new(plugin.position.plugin.clone(), plugin.minimizer, todo));
            stored_positions.push(plugin.position);
            let channels = Channels {
                todo: queue,
                delivered: delivered.clone(),
                events: events.clone(),
                abandon: abandoned.clone(),
            };
            tasks.spawn(async move { Ended::Lane(plugin.lane.run(channels).await) });
        }
        // Behind those of the lanes, which are known by their number.
        stored_positions.extend(held);
        drop((delivered, events));
        let checkpoint = Checkpoint {
            store,
            pipeline: pipeline.clone(),
            lineage: stored.lineage.clone(),
            retries: RetryPolicy {
                max_retries: config.state_max_retries,
                backoff: Duration::from_millis(config.state_retry_backoff_ms),
            },
            positions: stored_positions,
            acked: stored.acked,
            durable,
            // Another database of the same server goes away together with it, too.
            shared: (config.state.host == config.source.host && config.state.port == config.source.port)
                .then(|| (connected, Arc::clone(&hang_up))),
            board: board.clone(),
        };
        tasks.spawn(async move { Ended::Checkpoint(Box::new(checkpoint.run(deliveries).await)) });
        let ack = Ack::new(position, board.clone());
        tasks.spawn(async move {
            ack.run(proofs).await;
            Ended::Ack
        });
        let flow = Flow {
            feeds,
            max_waiting_bytes: config.max_inflight_bytes,
            events: lane_events,
            board: board.clone(),
            assembler: Assembler::new(),
            idle_at: Lsn::ZERO,
            others: false,
        };
        tasks.spawn(async move { Ended::Flow(flow.run(incoming, flow_stopped).await) });
        let drain = Duration::from_millis(config.drain_ms);
        let state = config.state.clone();
        let source = Source {
            config,
            stored,
            position: positions,
            streams,
            stop: wire_stopped,
            connected: is_connected,
            hang_up,
            stats: PumpStats::new(),
            board: board.clone(),
        };
        tasks.spawn(async move { Ended::Wire(source.run().await) });
        Self { flow_stop, wire_stop, abandon, tasks, drain, pipeline, state, board }
    }

    async fn until(mut self, mut stop: watch::Receiver<bool>) -> Result<(), Failure> {
        let mut halt: Option<Halt> = None;
        let mut deadline = None;
        // The last stream stays open, unread, so that the wire answers the server until everything is settled.
        let mut last_stream = None;
        let mut store = None;
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
                        self.halt(&mut halt, Halt::new("bug", "a stage ended unexpectedly; please report this"));
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
                () = out_of_time => {
                    tracing::warn!("stopping took longer than delivery.drain_ms; what was not finished is delivered again later");
                    self.tasks.abort_all();
                    break;
                }
            };
            let stopped = match ended {
                Ended::Wire(result) => result,
                Ended::Lane(result) => result,
                Ended::Ack => {
                    // Everything is told to the wire that ever will be: it may say goodbye.
                    let _ = self.wire_stop.send(true);
                    Ok(())
                }
                Ended::Flow(Ok(stream)) => {
                    last_stream = stream;
                    Ok(())
                }
                Ended::Flow(Err(halt)) => Err(halt),
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
        match halt {
            Some(halt) => {
                // The checkpoint stage had the only connection; when it was cut off, the halt is kept over another.
                if store.is_none() {
                    store = crate::connect::state(&self.state).await.ok();
                }
                match &mut store {
                    Some(store) => keep_halt(store, &self.pipeline, &halt).await,
                    None => tracing::warn!("the halt cannot be kept: the state database does not answer"),
                }
                Err(halt.into())
            }
            None => {
                self.board.write(|status| status.phase = Phase::Stopped);
                Ok(())
            }
        }
    }

    /// The first halt counts; the others follow from it.
    fn halt(&self, first: &mut Option<Halt>, halt: Halt) {
        tracing::error!(class = halt.name, plugin = halt.plugin, "{halt}");
        metrics::gauge!("walgate_halted").set(1.0);
        if first.is_none() {
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
