//! Real guests, built by real toolchains, misbehaving on purpose: the host, the batch and the next instance survive each.
//!
//! The guests are the programs of `tests/programs`, as components in the folder that `WALGATE_GUESTS` names. A missing one
//! fails its test and says how to build it. What needs no toolchain is tested beside the code, with guests in text.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "the fixtures of a test may fail loudly"
)]

mod answers;
mod canaries;
mod languages;
mod leaks;
mod logged;
mod rows;
mod sinks;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use walgate_core::Lsn;
use walgate_core::batch::{Batch, Column, Group, Operation, TextValues, Transaction, Values};
use walgate_core::relation::{ProjectedColumn, ProjectedRelation, ReplicaIdentity, SchemaVersion};
use walgate_plugin::{
    CallError, Component, DeadlineIn, Delivery, Engine, GrantError, Limits, LoadError, Manifest, OpenContext, Policy,
    TrapCause, Verdict, Worker,
};

/// Where components lie when nothing else is said; `cargo xtask plugins` puts them there.
const DEFAULT_GUESTS: &str = "/var/cache/walgate/guests";

/// The deadline of calls that are meant to run into it, in milliseconds.
const DEADLINE_MS: u64 = 1_000;

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(None).expect("engine"))
}

fn guest_path(name: &str) -> PathBuf {
    let folder = std::env::var_os("WALGATE_GUESTS").map_or(PathBuf::from(DEFAULT_GUESTS), PathBuf::from);
    let path = folder.join(format!("{name}.wasm"));
    assert!(path.is_file(), "{} is missing; run `cargo xtask plugins`", path.display());
    path
}

fn load(name: &str) -> Component {
    Component::load(engine(), &guest_path(name)).unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

fn manifest() -> Manifest {
    let text = "[[grant.table]]\nschema = \"public\"\nname = \"t\"\ncolumns = \"*\"\n\
        [grant]\ncapabilities = [\"log\", \"metrics\", \"state\"]\n\
        [grant.output.lines]\nkind = \"stdout\"\n[grant.output.changes]\nkind = \"stdout\"\n";
    Manifest::parse("plugin.toml".as_ref(), text).expect("the manifest of the tests")
}

fn policy(name: &str) -> Policy {
    let limits = Limits { call_deadline_ms: DEADLINE_MS, memory_mib: 64, ..Limits::default() };
    Policy { limits, ..manifest().policy(name) }
}

fn start(name: &str) -> Worker {
    Worker::start(load(name), policy(name)).expect("a thread")
}

fn context(name: &str, state: BTreeMap<String, Vec<u8>>) -> OpenContext {
    OpenContext {
        plugin: name.to_owned(),
        generation: 1,
        pipeline: "test".to_owned(),
        lineage: "1/1/0-1/slot/db".to_owned(),
        epoch: 1,
        state,
    }
}

async fn open(worker: &Worker, name: &str) {
    worker.open(context(name, BTreeMap::new())).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let accepted = worker.relation_changed(&relation(), None).await;
    assert_eq!(accepted, Ok(Verdict::Accept), "{name}");
}

fn relation() -> ProjectedRelation {
    let column = |name: &str, type_name: &str, type_oid, key_position| ProjectedColumn {
        name: name.to_owned(),
        type_name: type_name.to_owned(),
        type_oid,
        type_modifier: -1,
        key_position,
        treatment: "plain".to_owned(),
    };
    ProjectedRelation {
        id: 100,
        namespace: "public".to_owned(),
        name: "t".to_owned(),
        version: SchemaVersion { commit: Lsn::new(5), message: Lsn::new(4) },
        identity: ReplicaIdentity::Default,
        columns: vec![column("id", "int4", 23, Some(0)), column("name", "text", 25, None)],
    }
}

/// Two inserted rows.
fn batch() -> Batch {
    let column = |index, values| Column { index, presence: None, values };
    Batch {
        id: "batch-1".to_owned(),
        attempt: 1,
        transactions: vec![Transaction {
            xid: 7,
            commit: Lsn::new(10),
            end: Lsn::new(20),
            commit_time_us: 0,
            origin: None,
            first_ordinal: 0,
            change_count: 2,
            source_ordinal: 0,
            part: 0,
            last_part: true,
        }],
        groups: vec![Group {
            relation: 100,
            operation: Operation::Insert,
            ordinals: vec![0, 1],
            after: vec![
                column(0, Values::Int32(vec![1, 2])),
                column(1, Values::Text(TextValues { ends: vec![5, 8], data: "alicebob".to_owned() })),
            ],
            before: vec![],
        }],
        rows: 2,
        bytes: 16,
        ..Batch::default()
    }
}

async fn deliver(worker: &Worker) -> Delivery {
    let began = Instant::now();
    let delivery = worker.deliver(batch()).await;
    assert!(delivery.batch == batch(), "the batch came back changed");
    assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());
    delivery
}

/// The call fails as expected, the instance is gone, and a fresh one opens; the host is as it was.
async fn check_end(name: &str, expect: CallError) {
    let worker = start(name);
    for _ in 0..2 {
        open(&worker, name).await;
        let delivery = deliver(&worker).await;
        assert_eq!(delivery.outcome, Err(expect.clone()), "{name}");
        assert!(delivery.staged.is_empty());
        assert_eq!(deliver(&worker).await.outcome, Err(CallError::Gone), "{name}");
    }
}

#[tokio::test]
async fn loop_in_deliver() {
    check_end("loop-in-deliver", CallError::Deadline { limit_ms: DEADLINE_MS, place: DeadlineIn::Guest }).await;
}

#[tokio::test]
async fn trap_in_deliver() {
    check_end("trap-in-deliver", CallError::Trapped(TrapCause::Unreachable)).await;
}

#[tokio::test]
async fn eat_memory() {
    check_end("eat-memory", CallError::Trapped(TrapCause::MemoryLimit)).await;
}

#[tokio::test]
async fn sleep_in_deliver() {
    check_end("sleep-in-deliver", CallError::Deadline { limit_ms: DEADLINE_MS, place: DeadlineIn::HostCall }).await;
}

#[tokio::test]
async fn trap_in_open() {
    let worker = start("trap-in-open");
    for _ in 0..2 {
        let answer = worker.open(context("trap-in-open", BTreeMap::new())).await;
        assert_eq!(answer, Err(CallError::Trapped(TrapCause::Unreachable)));
        assert_eq!(deliver(&worker).await.outcome, Err(CallError::Gone));
    }
}

#[tokio::test]
async fn garbage_receipt() {
    let worker = start("garbage-receipt");
    open(&worker, "garbage-receipt").await;
    assert!(matches!(deliver(&worker).await.outcome, Err(CallError::Garbage(_))));
    assert_eq!(deliver(&worker).await.outcome, Err(CallError::Gone));
}

#[tokio::test]
async fn ask_for_everything() {
    let asked = start("ask-for-everything").describe().await.expect("it describes itself");
    let error = manifest().effective(&asked).expect_err("more than is granted");
    let GrantError::Table { lines, .. } = &error else { panic!("{error}") };
    assert!(lines.contains("[[grant.table]]") && lines.contains("email"), "{lines}");
    let starter = Manifest::starter(&asked);
    let granted = Manifest::parse("plugin.toml".as_ref(), &starter).expect("a starter parses");
    granted.effective(&asked).expect("a starter grants what is asked");
}

#[tokio::test]
async fn state_counter() {
    let worker = start("state-counter");
    open(&worker, "state-counter").await;
    let mut kept = BTreeMap::new();
    let mut commit = |staged: walgate_plugin::Staged| {
        assert!(!staged.state.is_empty());
        for (key, value) in staged.state {
            match value {
                Some(value) => kept.insert(key, value),
                None => kept.remove(&key),
            };
        }
        kept.clone()
    };
    let first = deliver(&worker).await;
    assert!(first.outcome.is_ok(), "{:?}", first.outcome);
    let after_one = commit(first.staged);
    let after_two = commit(deliver(&worker).await.staged);
    assert_ne!(after_one, after_two);
    // A fresh instance opened from the first commit stages what the second delivery staged.
    worker.open(context("state-counter", after_one)).await.expect("it opens");
    worker.relation_changed(&relation(), None).await.expect("it accepts");
    let again: BTreeMap<_, _> =
        deliver(&worker).await.staged.state.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
    assert_eq!(again, after_two);
}

#[tokio::test]
async fn output_lines() {
    let worker = start("output-lines");
    open(&worker, "output-lines").await;
    let delivery = deliver(&worker).await;
    assert!(delivery.outcome.is_ok(), "{:?}", delivery.outcome);
    let [(name, bytes)] = delivery.staged.outputs.as_slice() else { panic!("one output was expected") };
    assert_eq!((name.as_str(), bytes.iter().filter(|b| **b == b'\n').count()), ("lines", 2));
}

#[tokio::test]
async fn log_flood() {
    let worker = start("log-flood");
    open(&worker, "log-flood").await;
    let delivery = deliver(&worker).await;
    let ended = matches!(delivery.outcome, Ok(_) | Err(CallError::Deadline { .. }));
    assert!(ended, "{:?}", delivery.outcome);
}

#[tokio::test]
async fn call_ungranted() {
    let name = "call-ungranted";
    let worker = Worker::start(load(name), Policy { plugin: name.to_owned(), ..Policy::default() }).expect("a thread");
    open(&worker, name).await;
    let delivery = deliver(&worker).await;
    assert!(delivery.staged.is_empty());
    assert!(!matches!(delivery.outcome, Err(CallError::Trapped(_))), "{:?}", delivery.outcome);
}

#[test]
fn unknown_import() {
    let error = Component::load(engine(), &guest_path("unknown-import")).err().expect("refused");
    assert!(matches!(error, LoadError::Contract { .. }) && error.to_string().contains("imports"), "{error}");
}

#[tokio::test]
async fn counter_rust() {
    let worker = start("counter-rust");
    open(&worker, "counter-rust").await;
    let delivery = deliver(&worker).await;
    assert!(delivery.outcome.is_ok(), "{:?}", delivery.outcome);
    assert!(worker.metrics().counters.values().any(|count| *count == 2), "{:?}", worker.metrics());
}

#[tokio::test]
async fn a_cached_component_is_loaded_not_compiled() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = dir.path().join("cache");
    let engine = Engine::new(Some(&cache)).expect("engine");
    let path = guest_path("counter-rust");
    let first = Component::load(&engine, &path).expect("it loads");
    let kept = || std::fs::read_dir(&cache).expect("the cache").count();
    assert_eq!(kept(), 1);
    let second = Component::load(&engine, &path).expect("it loads again");
    assert_eq!((first.digest(), kept()), (second.digest(), 1));
    let worker = Worker::start(second, policy("counter-rust")).expect("a thread");
    open(&worker, "counter-rust").await;
    assert!(deliver(&worker).await.outcome.is_ok());
}
