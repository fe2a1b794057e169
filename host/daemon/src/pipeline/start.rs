//! Everything before the first byte of the stream: connect and check, open each plugin, find where each begins.
//!
//! Holds: the order of a start, and the rule where a plugin's stream begins. Refuses to know the running pipeline
//! (see `running.rs`). Nothing in it needs to end in an orderly way: a stop that comes meanwhile drops it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use walgate_core::minimize::Minimizer;
use walgate_core::{Cursor, Lineage, Lsn};
use walgate_plugin::{Mode, OnFailure, OpenContext};
use walgate_store::{Entered, Generation, PipelineRow, StateLimits, Store, ran_before};

use super::absent::{hold, warn_of_absent};
use super::checkpoint::{PACE, Position};
use super::deliver::{self, Lane, LanePolicy};
use super::granted::{excepts_what_is_there, warn_unpublished};
use super::outputs::{Files, Outputs};
use super::target::{self, Target};
use super::turn::{Beside, Turning};
use super::witness::{self, Witness};
use super::{columns, delivered_to, source, swaps};
use crate::config::Config;
use crate::connect::state_failure;
use crate::exit::{Exit, Failure};
use crate::halt::{Halt, HaltClass};
use crate::plugins::{Change, Loaded, Loader, NotRunning};
use crate::preflight;
use crate::status::{Board, PluginStatus};
use crate::telemetry::events;
use source::{History, Ready};

/// Columns that one plugin has met: far more tables than a publication has.
const KNOWN_COLUMNS: StateLimits = StateLimits { max_keys: 1_000_000, max_bytes: 256 << 20 };
/// Opens of one process count below the epoch that the state database gave it.
const OPENS_PER_EPOCH: u64 = 1 << 20;

/// Which start of the stages in this process it is.
pub(super) enum Beginning {
    First,
    /// After a turn, for the changes of these plugins, or back from one.
    Again {
        with: Vec<String>,
    },
}

impl Beginning {
    /// With the changes that are under way.
    pub(super) fn again(turning: &[Turning]) -> Self {
        Self::Again { with: turning.iter().map(|turned| turned.plugin.clone()).collect() }
    }
}

/// Everything one plugin needs before the stream starts.
pub(super) struct Prepared {
    pub(super) lane: Lane,
    pub(super) minimizer: Minimizer,
    pub(super) position: Position,
    /// Where its rows go, if they go anywhere.
    pub(super) target: Option<Target>,
    /// What was loaded, to be compared with what comes later.
    pub(super) loaded: Loaded,
    /// Its version as it is on record.
    pub(super) entered: Entered,
    /// The version to go back to, with its number, while this one has not proven itself.
    pub(super) before: Option<(u64, Loaded)>,
}

/// What a start leaves: where the pipeline stands, its lanes, and the positions that only hold the acknowledgement back.
/// Not the connection that was checked: the wire connects anew, on a thread of its own.
pub(super) struct Started {
    pub(super) stored: PipelineRow,
    /// By what the source is known again; none where that cannot be told.
    pub(super) witness: Option<Witness>,
    /// The slot is kept on standbys, and nothing but walgate keeps it from being ahead of them.
    pub(super) unguarded: bool,
    pub(super) prepared: Vec<Prepared>,
    pub(super) held: Vec<Position>,
}

/// Everything up to the first byte of the stream; nothing when a stop was asked for meanwhile.
pub(super) async fn start(
    config: Config,
    beside: &Beside,
    beginning: &Beginning,
    store: &mut Store,
    board: &Board,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<Started>, Failure> {
    let mut plugins = beside.plugins.read();
    let pipeline = config.slot.clone();
    // Once a stream ran, the source is tried for as long as it takes.
    let most = matches!(beginning, Beginning::First).then_some(source::START_ATTEMPTS);
    let Some(mut ready) = source::connect(&config, History::Stored(store), most, board, stop).await? else {
        return Ok(None);
    };
    walgate_failpoint::hit("takeover.loaded");
    super::post_source(board, &config, &ready);
    source::warn_of(&config, &mut ready).await;
    let stored = ready.stored.take();
    let stored = adopt(store, &pipeline, &config, &ready, stored).await?;
    walgate_failpoint::hit("start.adopted");
    let unchanged = same_publications(store, &pipeline, &config, &stored).await?;
    let kept = store.plugin_state(&pipeline, witness::SHADOW, KNOWN_COLUMNS).await.map_err(state_failure)?;
    // Other publications send other transactions.
    let witness = Witness::read(&kept).filter(|_| unchanged);
    warn_of_absent(&stored, &plugins);
    let mut prepared = Vec::with_capacity(plugins.loaded.len());
    let mut held = Vec::new();
    let mut first_failure = None;
    let parked: BTreeMap<String, String> = board
        .read()
        .plugins
        .into_iter()
        .filter(|(_, plugin)| plugin.state == "parked")
        .map(|(name, plugin)| (name, plugin.cause.unwrap_or_default()))
        .collect();
    let source_end = ready.found.identity.xlog_pos;
    let mut start = Start { store, pipeline, config, source_end, files: Files::default(), board };
    // Something beside a plugin that is there, under its name, is no plugin of its own.
    plugins.not_running.retain(|entry| plugins.loaded.iter().all(|plugin| plugin.name != entry.name));
    if let Beginning::First = beginning {
        for rejected in std::mem::take(&mut plugins.not_running) {
            match start.stands_in(&rejected, beside).await? {
                Some(loaded) => plugins.loaded.push(loaded),
                None => plugins.not_running.push(rejected),
            }
        }
    }
    // Whoever came later is told of what it shares with others.
    plugins.loaded.sort_by_key(|plugin| !stored.cursors.contains_key(&plugin.name));
    let names: Vec<String> = plugins.loaded.iter().map(|plugin| plugin.name.clone()).collect();
    let others_run = |name: &str| names.iter().any(|other| other != name && !parked.contains_key(other));
    for plugin in plugins.loaded {
        let known = start.store.generations(&start.pipeline, &plugin.name).await.map_err(state_failure)?;
        let plugin = match start.not_blocked(plugin, &known, beside).await {
            Ok(plugin) => plugin,
            Err(quarantined) => {
                let NotRunning { name, cause, required, .. } = &quarantined;
                tracing::error!(plugin = name, "quarantined: {cause}");
                board.plugin_state(name, "quarantined", Some(cause.clone()));
                first_failure.get_or_insert_with(|| Failure::usage(format!("plugin {name}: {cause}")));
                let cursor = stored.cursors.get(name).copied().unwrap_or(Cursor::at(stored.acked));
                held.extend(hold(name, *required, cursor, &stored, board));
                beside.plugins.change(|plugins| plugins.quarantine(quarantined));
                continue;
            }
        };
        warn_unpublished(&start.config, &mut ready, &plugin).await;
        let index = prepared.len();
        let (name, required, policy) = (plugin.name.clone(), plugin.manifest.required, plugin.manifest.on_failure);
        // A turn is for what changes. The others must not wait for what another one was parked for, and a candidate has one
        // attempt, as it has in a lane: what cannot be opened changes nothing.
        let enters = matches!(beginning, Beginning::Again { with } if with.contains(&name));
        let stays = matches!(beginning, Beginning::Again { .. }) && !enters && others_run(&name);
        if let Some(cause) = parked.get(&name).filter(|_| stays) {
            tracing::warn!(plugin = name, cause, "it stays parked: drop it in again to have it tried");
            let cursor = stored.cursors.get(&name).copied().unwrap_or(Cursor::at(stored.acked));
            held.extend(hold(&name, required, cursor, &stored, board));
            continue;
        }
        let never_ran = known.iter().all(|one| one.opened_at.is_none());
        let is_new = !known.iter().any(|one| one.fingerprint == plugin.fingerprint && one.opened_at.is_some());
        let others_ran = stored.cursors.keys().any(|other| *other != name);
        let mut outcome = Ok(());
        if is_new && !never_ran {
            outcome = excepts_what_is_there(&start.config, &mut ready, &plugin).await;
        }
        let outcome = match outcome {
            Ok(()) => start.prepare(&stored, plugin, index, (&known, &beside.loader), enters).await,
            Err(halt) => Err(halt.into()),
        };
        // What walgate.toml lacks for it is the matter of that plugin, where others are there.
        let outcome = outcome.map_err(|failure| match failure {
            Failure { halt: None, exit: Exit::Usage, message } if enters || never_ran && others_ran => {
                Halt::of_plugin(HaltClass::GrantDoesNotFit, &name, message).into()
            }
            failure => failure,
        });
        match outcome {
            Ok(ready) => prepared.push(ready),
            // Nor do those that have run before end for one that never did.
            Err(failure)
                if (policy == OnFailure::Park || never_ran && others_ran)
                    && !enters
                    && failure.halt.as_ref().is_some_and(|halt| halt.plugin.is_some()) =>
            {
                let class = failure.halt.as_ref().map_or(HaltClass::PluginFailed, |halt| halt.class);
                events::parked(&name, class, &failure.message);
                board.plugin_state(&name, "parked", Some(failure.message.clone()));
                first_failure.get_or_insert(failure);
                let cursor = stored.cursors.get(&name).copied().unwrap_or(Cursor::at(stored.acked));
                held.extend(hold(&name, required, cursor, &stored, board));
            }
            Err(failure) => return Err(failure),
        }
    }
    // A plugin that ran before and cannot be loaded now would miss what is acknowledged meanwhile.
    for plugin in plugins.not_running {
        if let Some(cursor) = stored.cursors.get(&plugin.name).copied() {
            held.extend(hold(&plugin.name, plugin.required, cursor, &stored, board));
        }
    }
    if prepared.is_empty() {
        let dir = start.config.plugins.dir.display().to_string();
        return Err(first_failure
            .unwrap_or_else(|| Failure::usage(format!("no plugin in {dir} can run; see: walgate plugin list"))));
    }
    let guard = preflight::failover_guard(&mut ready.connection, &start.config).await;
    let unguarded = guard.is_ok_and(|guard| guard == preflight::Guard::Unguarded);
    Ok(Some(Started { stored, witness, unguarded, prepared, held }))
}

/// False when they changed. Changing what is published changes how the rest of a transaction is counted, so that a plugin that stands inside of one
/// would take other rows for its own.
async fn same_publications(
    store: &mut Store,
    pipeline: &str,
    config: &Config,
    stored: &PipelineRow,
) -> Result<bool, Failure> {
    let mut now = config.publications.clone();
    now.sort_unstable();
    now.dedup();
    if stored.publications.as_ref() == Some(&now) {
        return Ok(true);
    }
    let inside = stored.cursors.iter().find(|(_, cursor)| cursor.ordinal > 0);
    if let (Some(before), Some((plugin, cursor))) = (&stored.publications, inside) {
        let detail = format!(
            "source.publications names others than before ({}), while the plugin stands inside the transaction that commits \
             at {}: its changes would be counted another way. Start once with the old publications, let the transaction pass, \
             then change them",
            before.join(", "),
            cursor.commit
        );
        return Err(Halt::of_plugin(HaltClass::PublicationsChanged, plugin, detail).into());
    }
    store.set_publications(pipeline, &now).await.map_err(state_failure)?;
    Ok(false)
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
    stored.ok_or_else(|| Halt::bug("the pipeline row is gone right after it was written").into())
}

/// What every plugin's start needs.
struct Start<'a> {
    store: &'a mut Store,
    pipeline: String,
    config: Config,
    source_end: Lsn,
    /// The outputs of those that were prepared.
    files: Files,
    board: &'a Board,
}

impl Start<'_> {
    /// The plugin, or in the place of a version that was rolled back the one that it was rolled back to: a restart changes
    /// nothing. Without a copy of any it is quarantined.
    async fn not_blocked(&self, plugin: Loaded, known: &[Generation], beside: &Beside) -> Result<Loaded, NotRunning> {
        let Some(cause) = swaps::blocked_by(known, &plugin) else { return Ok(plugin) };
        let Some((_, before)) = beside.loader.before(&plugin, known).await else {
            let (name, required) = (plugin.name, plugin.manifest.required);
            return Err(NotRunning { name, state: "quarantined", cause, required });
        };
        tracing::warn!(plugin = plugin.name, "the version before runs, from its copy: {cause}");
        self.board.plugin_state(&plugin.name, "opening", None);
        self.board.candidate(&plugin.name, Some(format!("rolled-back: {cause}")));
        beside.plugins.change(|plugins| plugins.apply(Change::Enters(Box::new(before.clone()))));
        Ok(before)
    }

    /// The version that ran last, in the place of files that cannot be loaded.
    async fn stands_in(&mut self, rejected: &NotRunning, beside: &Beside) -> Result<Option<Loaded>, Failure> {
        let NotRunning { name, state, cause, .. } = rejected;
        let known = self.store.generations(&self.pipeline, name).await.map_err(state_failure)?;
        let Some(loaded) = beside.loader.stand_in(rejected, &known).await else { return Ok(None) };
        tracing::warn!(
            plugin = name,
            "the version that ran last goes on, from its copy: what lies there is {state}: {cause}"
        );
        self.board.plugin_state(name, "opening", None);
        self.board.candidate(name, Some(format!("{state}: {cause}")));
        beside.plugins.change(|plugins| plugins.apply(Change::Enters(Box::new(loaded.clone()))));
        Ok(Some(loaded))
    }

    async fn prepare(
        &mut self,
        stored: &PipelineRow,
        plugin: Loaded,
        index: usize,
        (known, loader): (&[Generation], &Loader),
        enters: bool,
    ) -> Result<Prepared, Failure> {
        let loaded = plugin.clone();
        let (name, manifest) = (plugin.name, plugin.manifest);
        let version = &plugin.description.version;
        let entered = self.store.enter_generation(&self.pipeline, &name, &plugin.fingerprint, version);
        let entered = entered.await.map_err(state_failure)?;
        let generation = entered.number;
        let cursor = stored.cursors.get(&name).copied().unwrap_or(Cursor::at(stored.acked));
        self.files.take(&name, &manifest.outputs)?;
        let target = target::open(&self.config, &manifest, &name, self.store, &self.pipeline, stored).await?;
        let context = self.context(&name, generation, stored, &manifest.limits).await?;
        let shadow = columns::shadow(&name);
        let met = self.store.plugin_state(&self.pipeline, &shadow, KNOWN_COLUMNS).await.map_err(state_failure)?;
        let board = self.board.clone();
        let outputs = Outputs::open(self.store, &self.pipeline, &name, &manifest.outputs, board.clone()).await?;
        let mode = Mode::of(&plugin.capabilities, &manifest, false);
        board.write(|status| {
            let version = plugin.description.version.clone();
            let mode = mode.name().to_owned();
            let required = manifest.required;
            // What became of another version is what this start may be for.
            let candidate = status.plugins.get(&name).and_then(|before| before.candidate.clone());
            let fresh = PluginStatus { required, version, generation, mode, candidate, ..PluginStatus::default() };
            status.plugins.insert(name.clone(), fresh);
        });
        board.plugin_state(&name, "opening", None);
        let mut lane = Lane {
            index,
            name: name.clone(),
            version: plugin.description.version.clone(),
            worker: plugin.worker,
            policy: LanePolicy {
                on_failure: manifest.on_failure,
                retry: manifest.retry,
                flush: manifest.flush,
                checkpoint: manifest.checkpoint,
                mode,
                applies: target.is_some(),
                effects: plugin.capabilities.state || !plugin.capabilities.outputs.is_empty() || target.is_some(),
            },
            context,
            reached: cursor,
            answered: None,
            source_end: self.source_end,
            board: board.clone(),
        };
        let own = lane.open_first(enters).await?;
        lane.answered = own;
        // A probation does not end with a process. It is about code: whoever has mended a policy does not want the old one
        // back, and what was changed while nothing ran is what was meant.
        let ran = ran_before(known, None).is_some_and(|last| last.number == generation);
        let before = if ran && !entered.proven { loader.before(&loaded, known).await } else { None };
        let before = before
            .filter(|(_, before)| before.component != loaded.component && before.is_set_up_like(&loaded))
            .filter(|(_, before)| before.manifest.http == loaded.manifest.http);
        walgate_failpoint::hit("start.opened");
        if own.is_some() {
            lane.policy.mode = Mode::of(&plugin.capabilities, &manifest, true);
            board.plugin(&name, |status| lane.policy.mode.name().clone_into(&mut status.mode));
        }
        // A target elsewhere has the position that its rows were committed with, before it was stored here.
        let far = target.as_ref().and_then(|target| target.position);
        if let Some(far) = far.filter(|far| deliver::place(*far) < deliver::place(cursor)) {
            let detail = format!(
                "its rows are committed up to {} in their database, but up to {} by the checkpoint here: that database was \
                 restored to an earlier state. Give it a fresh copy of the tables, then start the plugin under another name, \
                 which begins at the present",
                far.end, cursor.end
            );
            return Err(Halt::of_plugin(HaltClass::DataGapPlugin, &name, detail).into());
        }
        // With effects in two databases the one that is behind decides; the other has them already and takes no row twice.
        let far = far.filter(|_| lane.policy.mode == Mode::HostTransactionalFar);
        let shadow = delivered_to::shadow(&name);
        let kept = self.store.plugin_state(&self.pipeline, &shadow, KNOWN_COLUMNS).await.map_err(state_failure)?;
        let delivered_to = delivered_to::read(&kept);
        let stands = Stands {
            cursor,
            delivered_to,
            acked: stored.acked,
            source_end: self.source_end,
            effects: lane.policy.effects,
        };
        let from = start_of(&name, manifest.required, own, far, stands)?;
        // Only now it has a place: what could not begin does so at the present, whenever that is.
        let cursor = self.store.start_plugin(&self.pipeline, &name, cursor, generation).await.map_err(state_failure)?;
        self.store.opened_generation(&self.pipeline, &name, generation).await.map_err(state_failure)?;
        lane.reached = from;
        board.cursor(&name, from.end);
        let pace = match (lane.policy.mode, &lane.policy.checkpoint) {
            (Mode::HostCheckpointed, Some(every)) => every.max_delay,
            (Mode::HostCheckpointed, None) => Duration::ZERO,
            _ => PACE,
        };
        // What commits with the rows is written where they are.
        let together = target.as_ref().is_some_and(|target| target.together);
        let nothing = Outputs::none(&name, board.clone());
        let (target, outputs) = match target {
            Some(target) if together => (Some(Target { outputs: Some(outputs), ..target }), nothing),
            target => (target, outputs),
        };
        let minimizer = Minimizer::new(plugin.grant, &lineage_tag(&stored.lineage), self.config.bounds, from)
            .knowing(columns::read(met));
        let minimizer = match plugin.hash_key {
            Some(key) => minimizer.hashing(key),
            None => minimizer,
        };
        Ok(Prepared {
            lane,
            minimizer,
            position: Position {
                plugin: name,
                required: manifest.required,
                generation,
                cursor: from,
                stored: cursor,
                delivered_to: (own.or(delivered_to), delivered_to),
                outputs,
                together,
                pace,
            },
            target,
            loaded,
            entered,
            before,
        })
    }

    async fn context(
        &mut self,
        name: &str,
        generation: u64,
        stored: &PipelineRow,
        limits: &walgate_plugin::Limits,
    ) -> Result<OpenContext, Failure> {
        let state_limits = StateLimits { max_keys: limits.state_keys, max_bytes: limits.state_total_bytes };
        Ok(OpenContext {
            plugin: name.to_owned(),
            generation,
            pipeline: self.pipeline.clone(),
            lineage: stored.lineage.token(),
            epoch: self.store.next_epoch().await.map_err(state_failure)?.saturating_mul(OPENS_PER_EPOCH),
            state: self.store.plugin_state(&self.pipeline, name, state_limits).await.map_err(state_failure)?,
        })
    }
}

/// What is known of a plugin's place before it starts.
#[derive(Clone, Copy)]
struct Stands {
    /// What is stored.
    cursor: Cursor,
    /// The end of the last batch it was given, where the cursor lies beyond that; see [`super::delivered_to`].
    delivered_to: Option<Cursor>,
    acked: Lsn,
    source_end: Lsn,
    /// The host makes effects of it durable.
    effects: bool,
}

/// Where a plugin's stream begins: its own position if it keeps one, else the stored one; never before what the source
/// still has.
fn start_of(
    name: &str,
    required: bool,
    own: Option<Cursor>,
    far: Option<Cursor>,
    stands: Stands,
) -> Result<Cursor, Halt> {
    let Stands { cursor, delivered_to, acked, source_end, effects } = stands;
    if let Some(own) = own.or(far).filter(|own| own.end > source_end) {
        let detail = format!(
            "the sink says it has everything up to {}, but the source has written only up to {source_end}: the position is of \
             another history",
            own.end
        );
        return Err(Halt::of_plugin(HaltClass::PositionAhead, name, detail));
    }
    // What the host makes durable for a sink that is further must not be skipped: then the cursor decides.
    let own = own.map(|own| if effects && deliver::place(own) > deliver::place(cursor) { cursor } else { own }).or(far);
    // What it must have: all that was delivered to it. Between that and its cursor nothing was for it.
    let must = delivered_to.filter(|last| deliver::place(*last) < deliver::place(cursor)).unwrap_or(cursor);
    let has_all = own.is_none_or(|own| deliver::place(own) >= deliver::place(must));
    let from = match own {
        Some(own) if has_all && deliver::place(own) < deliver::place(cursor) => cursor,
        Some(own) => own,
        None => cursor,
    };
    if from.reaches(acked) {
        // One that stands inside a transaction had all that committed before it.
        return Ok(Cursor { end: from.end.max(acked), ..from });
    }
    // While it ran, its cursor was stored no later than what was acknowledged. So it did not run, or its sink went back.
    let gap = format!("it stands at {}, but the source may have freed its log up to {acked}", from.end);
    if required {
        let detail = format!(
            "{gap}: changes in between are lost to it. Give its sink a fresh copy of the tables, then start it under another \
             name, which begins at the present"
        );
        return Err(Halt::of_plugin(HaltClass::DataGapPlugin, name, detail));
    }
    tracing::warn!(plugin = name, from = %from.end, to = %acked, "an optional plugin missed changes: {gap}");
    Ok(Cursor::at(acked))
}

/// Eight letters and digits that differ between lineages, so that batch ids of two histories never meet (FNV-1a).
fn lineage_tag(lineage: &Lineage) -> String {
    let hash =
        lineage.token().bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(end: u64) -> Cursor {
        Cursor::at(Lsn::new(end))
    }

    #[track_caller]
    fn check(
        required: bool,
        own: Option<u64>,
        cursor: u64,
        delivered_to: Option<u64>,
        acked: u64,
        expect: Result<u64, &str>,
    ) {
        let stands = Stands {
            cursor: at(cursor),
            delivered_to: delivered_to.map(at),
            acked: Lsn::new(acked),
            source_end: Lsn::new(1000),
            effects: false,
        };
        let got = start_of("plugin", required, own.map(at), None, stands);
        match (got, expect) {
            (Ok(from), Ok(expect)) => assert_eq!(from, at(expect)),
            (Err(halt), Err(class)) => assert_eq!(halt.class.name(), class),
            (got, expect) => panic!("{got:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn each_place_leads_to_its_start() {
        let gap = Err("data_gap(plugin_behind)");
        // Without a position of its own: what is stored.
        check(true, None, 50, None, 50, Ok(50));
        check(true, None, 70, None, 50, Ok(70));
        check(true, None, 40, None, 50, gap);
        check(false, None, 40, None, 50, Ok(50));
        // With one: that, unless it lacks something that is gone.
        check(true, Some(60), 50, None, 50, Ok(60));
        check(true, Some(55), 60, None, 50, Ok(55));
        check(true, Some(40), 60, None, 50, gap);
        check(true, Some(2000), 60, None, 50, Err("position_ahead"));
        // A quiet time before it showed one: nothing was for it in between.
        check(true, Some(30), 60, Some(30), 50, Ok(60));
        check(true, Some(30), 60, Some(40), 50, gap);
        // It was away while others went on: a position of its own says nothing of what came meanwhile.
        check(true, Some(30), 30, Some(30), 50, gap);
        check(true, Some(30), 70, Some(70), 80, gap);
        check(false, Some(30), 30, Some(30), 50, Ok(50));
    }

    #[test]
    fn effects_of_the_host_are_not_skipped_for_a_sink_that_is_further() {
        let stands = Stands {
            cursor: at(50),
            delivered_to: None,
            acked: Lsn::new(50),
            source_end: Lsn::new(1000),
            effects: true,
        };
        assert_eq!(start_of("plugin", true, Some(at(60)), None, stands).unwrap(), at(50));
        assert_eq!(start_of("plugin", true, None, Some(at(60)), stands).unwrap(), at(60), "rows elsewhere have them");
        assert!(start_of("plugin", true, Some(at(2000)), None, stands).is_err());
    }
}
