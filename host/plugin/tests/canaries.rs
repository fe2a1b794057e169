//! Random grants over random streams, up to the memory of a real guest: nothing that a grant hides is in it, nor in what the
//! host says meanwhile.
//!
//! Holds: the way from messages of the source to a delivered batch, as the pipeline goes it. The guest `dump-memory` hands
//! over all that its instance holds, with every call, so that what was there for one call only is seen, too. What is handed
//! over has to be found there, or the search would prove nothing. Read next: `canaries.rs` of the harness.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};

use walgate_core::Cursor;
use walgate_core::assemble::Assembler;
use walgate_core::minimize::{Bounds, HashKey, Item, Minimizer};
use walgate_core::pgoutput::build::{self, Value, column};
use walgate_harness::canaries::{Change, Dice, Grant, Step, Stream, found, text};

use super::*;
use crate::logged::Log;

/// Streams and grants in one run.
const ROUNDS: u64 = 12;

/// Another one in every run, unless `WALGATE_SEED` names one.
fn first_seed() -> u64 {
    let named = std::env::var("WALGATE_SEED").ok().and_then(|text| text.parse().ok());
    named.unwrap_or_else(|| std::hash::RandomState::new().build_hasher().finish())
}

#[tokio::test]
#[allow(clippy::print_stdout, reason = "a failure is run again from its seed")]
async fn what_a_grant_hides_is_not_in_the_memory_of_a_guest() {
    let log = Log::of_process();
    let seed = first_seed();
    println!("WALGATE_SEED={seed}");
    let (mut hidden, mut handed_over) = (0, 0);
    for seed in (0..ROUNDS).map(|round| seed.wrapping_add(round)) {
        let mut dice = Dice(seed);
        let (stream, grant) = (Stream::random(&mut dice), Grant::random(&mut dice));
        let in_memory = run(&mut dice, &stream, &grant).await;
        let (hides, hands_over) = (grant.hides(&stream), grant.hands_over(&stream));
        let leaked: Vec<_> = hides.intersection(&in_memory).collect();
        assert!(leaked.is_empty(), "seed {seed}: {leaked:?} are in the guest under {grant:?}: {stream:?}");
        let missing: Vec<_> = hands_over.difference(&in_memory).collect();
        assert!(missing.is_empty(), "seed {seed}: {missing:?} were not found under {grant:?}");
        hidden += hides.len();
        handed_over += hands_over.len();
    }
    assert!(hidden > 0 && handed_over > 0, "seed {seed}: {hidden} hidden and {handed_over} handed over prove nothing");
    let log = log.text();
    assert!(log.contains("plugin called"), "the log is not captured");
    assert_eq!(found(log.as_bytes()), BTreeSet::new(), "seed {seed}: in the log");
}

/// Every canary that the guest had in its memory at any time.
async fn run(dice: &mut Dice, stream: &Stream, grant: &Grant) -> BTreeSet<u32> {
    let name = "dump-memory";
    let output = "[grant.output.memory]\nkind = \"stdout\"\n[limits]\ncall_deadline_ms = 20000\n";
    let manifest = Manifest::parse("plugin.toml".as_ref(), &format!("{}{output}", grant.toml())).expect("a manifest");
    let worker = Worker::start(load(name), manifest.policy(name)).expect("a thread");
    let asked = worker.describe().await.expect("it describes itself");
    let effective = manifest.effective(&asked).expect("all that it asks for");
    let bounds = Bounds { max_rows: 1 + dice.below(9), max_bytes: 1 + dice.below(2_000) };
    let key = HashKey::new(&[7; 32]).expect("long enough");
    let mut minimizer = Minimizer::new(effective.grant, "test", bounds, Cursor::default()).hashing(key);
    let mut assembler = Assembler::new();
    worker.open(context(name, BTreeMap::new())).await.expect("it opens");
    let mut in_memory = BTreeSet::new();
    let mut search = |staged: walgate_plugin::Staged| {
        assert!(staged.outputs.iter().any(|(_, bytes)| bytes.len() > 65_536), "no memory was handed over");
        staged.outputs.iter().for_each(|(_, bytes)| in_memory.extend(found(bytes)));
    };
    for message in messages(stream) {
        let event = assembler.push(Lsn::ZERO, &message).expect("a good stream");
        minimizer.apply(&event).expect("a good grant");
        minimizer.cut().expect("a good grant");
        while let Some(item) = minimizer.next_item() {
            match item {
                Item::Relation { current, previous } => {
                    let verdict = worker.relation_changed(&current, previous.as_ref()).await;
                    assert_eq!(verdict, Ok(Verdict::Accept));
                }
                Item::Batch(batch) => {
                    let delivery = worker.deliver(batch).await;
                    assert!(delivery.outcome.is_ok(), "{:?}", delivery.outcome);
                    search(delivery.staged);
                    // As in the pipeline: the next batch is built in the buffers of this one.
                    minimizer.recycle(delivery.batch);
                }
            }
        }
    }
    in_memory
}

fn messages(stream: &Stream) -> Vec<Vec<u8>> {
    let columns = [
        column("id", 20, true),
        column("tenant", 23, true),
        column("a", 25, true),
        column("b", 25, true),
        column("c", 20, true),
        column("d", 1700, true),
        column("e", 17, true),
    ];
    let mut messages = Vec::new();
    for (at, steps) in (1_u64..).zip(&stream.transactions) {
        let commit = at * 1_000;
        messages.extend([
            build::begin(commit, 0, 7),
            build::relation(1, "public", "canaries", b'f', &columns),
            build::relation(2, "public", "unseen", b'd', &columns[2..3]),
        ]);
        messages.extend(steps.iter().map(|step| message(step, commit)));
        messages.push(build::commit(commit, commit + 100, 0));
    }
    messages
}

fn message(step: &Step, commit: u64) -> Vec<u8> {
    let change = match step {
        Step::Unseen(number) => return build::insert(2, &[text(0, *number).as_str().into()]),
        Step::Message(number) => return build::message(true, commit, "unseen", text(0, *number).as_bytes()),
        Step::Change(change) => change,
    };
    let row = |numbers: &[u32; 5]| -> Vec<String> {
        let Change { id, tenant, .. } = change;
        let canaries = numbers.iter().enumerate().map(|(at, number)| text(at, *number));
        [id.to_string(), tenant.to_string()].into_iter().chain(canaries).collect()
    };
    let (old, new) = (change.old.as_ref().map(row), change.new.as_ref().map(row));
    let (before, after) = (values(old.as_deref()), values(new.as_deref()));
    match (&old, &new) {
        (None, _) => build::insert(1, &after),
        (Some(_), Some(_)) => build::update(1, Some((b'O', &before)), &after),
        (Some(_), None) => build::delete(1, b'O', &before),
    }
}

fn values(row: Option<&[String]>) -> Vec<Value<'_>> {
    row.into_iter().flatten().map(|text| Value::Text(text.as_bytes())).collect()
}
