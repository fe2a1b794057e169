//! Guests in Python and JavaScript, built straight from the contract: what crosses the boundary is the same in every
//! language, and nothing of the host suits Rust alone.
//!
//! Each test has the name of its language in its own, because it can only run where that guest could be built.

use std::sync::{Mutex, PoisonError};

use walgate_core::batch::{ByteValues, LogicalMessage};
use walgate_plugin::{Capabilities, Disposition};

use super::*;

const PYTHON: &str = "counter-python";
const JAVASCRIPT: &str = "counter-javascript";

/// What a guest needs for itself, without room for something that grows, in MiB. JavaScript collects late.
const SNUG: [(&str, u64); 2] = [(PYTHON, 24), (JAVASCRIPT, 128)];

/// Less than the memory that a guest begins with, in MiB.
const TOO_SMALL_MIB: u64 = 4;

/// Calls, and the bytes of the message in each: all together they fit into none of the limits of this file.
const CALLS: u32 = 10_000;
const MESSAGE_BYTES: u32 = 16 << 10;

/// Compiled once for all tests, because that takes seconds.
fn component(name: &'static str) -> Component {
    static COMPILED: Mutex<BTreeMap<&str, Component>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.entry(name).or_insert_with(|| load(name)).clone()
}

fn start_with(name: &'static str, limits: Limits, capabilities: Capabilities) -> Worker {
    let policy = Policy { limits, capabilities, ..manifest().policy(name) };
    Worker::start(component(name), policy).expect("a thread")
}

fn granted() -> Capabilities {
    manifest().capabilities
}

fn count(worker: &Worker, name: &str) -> Option<u64> {
    worker.metrics().counters.get(name).copied()
}

fn staged(delivery: &Delivery, key: &str) -> String {
    let value = delivery.staged.state.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.clone());
    String::from_utf8(value.unwrap_or_else(|| panic!("nothing was kept under {key}"))).expect("text")
}

/// The table of [`every_type`].
fn wide() -> ProjectedRelation {
    let names =
        ["bool", "int2", "int4", "int8", "float4", "float8", "date", "time", "timestamptz", "uuid", "bytea", "text"];
    let mut wide = relation();
    let column = wide.columns[1].clone();
    let named =
        |name: &&str| ProjectedColumn { name: (*name).to_owned(), type_name: (*name).to_owned(), ..column.clone() };
    wide.columns = names.iter().map(named).collect();
    wide
}

/// Opens and tells of the wide table alone.
async fn open_wide(worker: &Worker, name: &str) {
    worker.open(context(name, BTreeMap::new())).await.expect("it opens");
    assert_eq!(worker.relation_changed(&wide(), None).await, Ok(Verdict::Accept));
}

/// Rows at the ends of every type's range, and one that holds NULL, was not touched, was not sent, or is all zero.
fn every_type() -> Batch {
    let texts = ["plain", "", "zwei Wörter, 三, 😀\u{0}", ""];
    let bytes: [&[u8]; 4] = [&[0, 1, 127, 128, 255], &[], &[0xFF; 300], &[]];
    let ends = |lengths: [usize; 4]| {
        let sum = |end: &mut u32, length: usize| {
            *end += u32::try_from(length).expect("a length");
            Some(*end)
        };
        lengths.into_iter().scan(0, sum).collect::<Vec<_>>()
    };
    let values = [
        Values::Boolean(vec![1, 0, 1, 0]),
        Values::Int16(vec![1, i16::MIN, i16::MAX, 0]),
        Values::Int32(vec![-1, i32::MIN, i32::MAX, 0]),
        Values::Int64(vec![-1, i64::MIN, i64::MAX, 0]),
        Values::Float32(vec![0.1, -0.0, f32::INFINITY, 0.0]),
        Values::Float64(vec![0.1, -0.0, f64::NAN, 0.0]),
        Values::DateDays(vec![9_000, i32::MIN, i32::MAX, 0]),
        Values::TimeUs(vec![0, 1, 86_400_000_000, 0]),
        Values::TimestampUs(vec![-1, i64::MIN, i64::MAX, 0]),
        Values::Uuid((0..64).map(|at| if at < 48 { at * 5 } else { 0 }).collect()),
        Values::Bytes(ByteValues { ends: ends(bytes.map(<[u8]>::len)), data: bytes.concat() }),
        Values::Text(TextValues { ends: ends(texts.map(str::len)), data: texts.concat() }),
    ];
    let column = |index, presence: Option<[u8; 4]>, values: &Values| Column {
        index,
        presence: presence.map(|codes| codes.to_vec()),
        values: values.clone(),
    };
    let columns = |presence| (0..).zip(&values).map(|(index, values)| column(index, presence, values)).collect();
    let group = |operation, first: u32, after, before| Group {
        relation: 100,
        operation,
        ordinals: (first..first + 4).collect(),
        after,
        before,
    };
    let mut batch = batch();
    batch.groups = vec![
        group(Operation::Insert, 0, columns(Some([0, 0, 0, 1])), vec![]),
        group(Operation::Update, 4, columns(Some([0, 0, 0, 2])), columns(Some([0, 0, 0, 3]))),
        group(Operation::Delete, 8, vec![], columns(None)),
    ];
    (batch.rows, batch.transactions[0].change_count) = (12, 12);
    batch
}

/// One row, and a logical message beside it that nobody reads: what the host hands over costs the guest memory all the same.
fn large() -> Batch {
    let mut batch = batch();
    let group = &mut batch.groups[0];
    group.ordinals = vec![0];
    group.after[0].values = Values::Int32(vec![1]);
    group.after[1].values = Values::Text(TextValues { ends: vec![512], data: "x".repeat(512) });
    batch.messages = vec![LogicalMessage {
        ordinal: 1,
        transactional: true,
        prefix: "large".to_owned(),
        content: vec![0xFF; MESSAGE_BYTES as usize],
    }];
    (batch.rows, batch.transactions[0].change_count) = (1, 2);
    batch
}

async fn every_value_is_what_rust_reads(name: &'static str) {
    let rust = start("counter-rust");
    open_wide(&rust, "counter-rust").await;
    let expected = rust.deliver(every_type()).await;
    assert!(expected.outcome.is_ok(), "{:?}", expected.outcome);
    let totals = staged(&expected, "totals");
    let fingerprint = totals.split("fingerprint=").nth(1).expect("a fingerprint");
    assert_eq!(count(&rust, "values"), Some(12 * (3 + 3 + 3 + 4)));

    let worker = start_with(name, Limits::default(), granted());
    open_wide(&worker, name).await;
    let delivery = worker.deliver(every_type()).await;
    let receipt = delivery.outcome.as_ref().expect("a receipt");
    assert!(receipt.durable && receipt.rejected.is_empty());
    assert_eq!((staged(&delivery, "rows"), staged(&delivery, "fingerprint").as_str()), ("12".to_owned(), fingerprint));
    assert_eq!((count(&worker, "rows"), count(&worker, "values")), (Some(12), count(&rust, "values")));
}

async fn an_ungranted_state_is_denied_at_call_time(name: &'static str) {
    let capabilities = Capabilities { state: false, ..granted() };
    let worker = start_with(name, Limits::default(), capabilities);
    open(&worker, name).await;
    for calls in 1..=2 {
        let delivery = deliver(&worker).await;
        assert!(delivery.outcome.is_ok() && delivery.staged.is_empty(), "{:?}", delivery.outcome);
        assert_eq!((count(&worker, "state_get_denied"), count(&worker, "rows")), (Some(calls), Some(2 * calls)));
    }
}

async fn a_fault_becomes_the_failure_of_the_guest(name: &'static str) {
    let worker = start_with(name, Limits { state_value_bytes: 0, ..Limits::default() }, granted());
    open(&worker, name).await;
    let Err(CallError::Refused(failure)) = deliver(&worker).await.outcome else { panic!("it was not refused") };
    assert_eq!((failure.disposition, failure.code.as_str()), (Disposition::Halt, "over-limit"));
    // A refusal is an answer: the instance goes on.
    assert_eq!(worker.flush().await.map(|staged| staged.is_empty()), Ok(true));
}

async fn too_little_memory_is_named(name: &'static str) {
    let worker = start_with(name, Limits { memory_mib: TOO_SMALL_MIB, ..Limits::default() }, granted());
    let refused = worker.open(context(name, BTreeMap::new())).await;
    assert_eq!(refused, Err(CallError::Trapped(TrapCause::MemoryLimit)));
}

async fn ten_thousand_calls_do_not_grow(name: &'static str) {
    let memory_mib = SNUG.iter().find(|(known, _)| *known == name).expect("a limit").1;
    let handed_over = u64::from(CALLS) * u64::from(MESSAGE_BYTES);
    assert!(handed_over > memory_mib << 20, "what is handed over has to be more than what fits");
    let worker = start_with(name, Limits { memory_mib, ..Limits::default() }, granted());
    open(&worker, name).await;
    let mut batch = large();
    for call in 1..=CALLS {
        let delivery = worker.deliver(batch).await;
        assert!(delivery.outcome.is_ok(), "call {call}: {:?}", delivery.outcome);
        if call == CALLS {
            assert_eq!(staged(&delivery, "rows"), CALLS.to_string());
        }
        batch = delivery.batch;
    }
    assert_eq!(count(&worker, "values"), Some(2 * u64::from(CALLS)));
    assert_eq!(worker.close().await, Ok(()));
}

/// Makes a test of each, for each language.
macro_rules! languages {
    ($($name:ident),* $(,)?) => {
        mod python {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::PYTHON).await;
            })*
        }
        mod javascript {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::JAVASCRIPT).await;
            })*
        }
    };
}

languages! {
    every_value_is_what_rust_reads,
    an_ungranted_state_is_denied_at_call_time,
    a_fault_becomes_the_failure_of_the_guest,
    too_little_memory_is_named,
    ten_thousand_calls_do_not_grow,
}
