//! Tests of a plugin's whole life over the public handle: good calls, refusals, and every way an instance ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use walgate_core::Lsn;
use walgate_core::batch::{Column, Group, Operation, TextValues, Transaction, Values};
use walgate_core::relation::{ReplicaIdentity, SchemaVersion};

use super::*;
use crate::engine::Engine;
use crate::limits::Limits;
use crate::outcome::{DeadlineIn, Disposition, TrapCause};
use crate::output::Output;
use crate::{Manifest, test_guest};

/// Long enough for a loaded machine, short enough to wait for.
const DEADLINE_MS: u64 = 200;

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(None).unwrap())
}

fn policy(limits: Limits) -> Policy {
    let text = "[grant]\ncapabilities = [\"log\", \"metrics\", \"state\"]\n[grant.output.out]\nkind = \"stdout\"\n\
                [settings]\nkey = \"value\"\n";
    let manifest = Manifest::parse(Path::new("plugin.toml"), text).unwrap();
    assert_eq!(manifest.outputs["out"], Output::Stdout);
    Policy { limits, ..manifest.policy("test") }
}

fn start_with(bodies: &[(&str, &str)], policy: Policy) -> Worker {
    let bytes = test_guest::build_with(bodies);
    Worker::start(Component::from_bytes(engine(), Path::new("test.wasm"), &bytes).unwrap(), policy).unwrap()
}

fn start(bodies: &[(&str, &str)]) -> Worker {
    start_with(bodies, policy(Limits { call_deadline_ms: DEADLINE_MS, ..Limits::default() }))
}

fn context() -> OpenContext {
    OpenContext { plugin: "test".into(), generation: 1, pipeline: "p".into(), epoch: 1, ..OpenContext::default() }
}

/// Two rows of text at ordinals 3 and 7.
fn batch() -> Batch {
    let text = Values::Text(TextValues { ends: vec![5, 8], data: "alicebob".into() });
    Batch {
        id: "b-1".into(),
        attempt: 1,
        transactions: vec![Transaction {
            xid: 1,
            commit: Lsn::new(10),
            end: Lsn::new(20),
            commit_time_us: 0,
            origin: None,
            first_ordinal: 0,
            change_count: 8,
            source_ordinal: 0,
            part: 0,
            last_part: true,
        }],
        groups: vec![Group {
            relation: 1,
            operation: Operation::Insert,
            ordinals: vec![3, 7],
            after: vec![Column { index: 0, presence: None, values: text }],
            before: vec![],
        }],
        ..Batch::default()
    }
}

fn relation() -> ProjectedRelation {
    ProjectedRelation {
        id: 1,
        namespace: "public".into(),
        name: "t".into(),
        version: SchemaVersion::default(),
        identity: ReplicaIdentity::Default,
        columns: vec![],
    }
}

async fn opened(bodies: &[(&str, &str)]) -> Worker {
    let worker = start(bodies);
    worker.open(context()).await.unwrap();
    worker
}

/// Delivers and checks that the batch came back as it was.
async fn deliver(worker: &Worker) -> (Result<Receipt, CallError>, Staged) {
    let Delivery { batch: back, outcome, staged } = worker.deliver(batch()).await;
    assert_eq!(back, batch());
    (outcome, staged)
}

#[tokio::test]
async fn a_good_plugin_goes_through_all_its_calls() {
    let worker = start(&[]);
    let description = worker.describe().await.unwrap();
    assert_eq!(description.capabilities, ["log", "metrics", "state", "output:out"]);
    assert_eq!(worker.open(context()).await, Ok(None));
    assert_eq!(worker.relation_changed(&relation(), Some(&relation())).await, Ok(Verdict::Accept));
    let (outcome, staged) = deliver(&worker).await;
    assert_eq!(outcome, Ok(Receipt { durable: true, rejected: vec![] }));
    assert!(staged.is_empty());
    assert!(worker.flush().await.unwrap().is_empty());
    assert_eq!(worker.close().await, Ok(()));
    assert_eq!(worker.flush().await, Err(CallError::Gone));
}

#[tokio::test]
async fn nothing_is_called_before_open() {
    let worker = start(&[]);
    assert_eq!(deliver(&worker).await.0, Err(CallError::Gone));
    assert_eq!(worker.relation_changed(&relation(), None).await, Err(CallError::Gone));
}

#[tokio::test]
async fn rejections_are_handed_over() {
    let worker = opened(&[("deliver", "(i32.const 1232)")]).await;
    let receipt = deliver(&worker).await.0.unwrap();
    assert_eq!((receipt.rejected[0].ordinal, receipt.rejected[0].code.as_str()), (7, "peer-away"));
}

#[tokio::test]
async fn a_refusal_keeps_the_instance() {
    let counting = "(i32.store (i32.const 1296) (i32.add (i32.load (i32.const 1296)) (i32.const 1)))
        (select (i32.const 1104) (i32.const 1040) (i32.eq (i32.load (i32.const 1296)) (i32.const 1)))";
    let worker = opened(&[("deliver", counting)]).await;
    let Err(CallError::Refused(failure)) = deliver(&worker).await.0 else { panic!("not refused") };
    assert_eq!((failure.disposition, failure.code.as_str()), (Disposition::Retry, "peer-away"));
    assert_eq!((failure.retry_after_ms, failure.message), (Some(250), None));
    assert!(deliver(&worker).await.0.is_ok());
}

#[tokio::test]
async fn a_refused_open_leaves_nothing_open() {
    let worker = start(&[("open", "(i32.const 1168)")]);
    assert!(matches!(worker.open(context()).await, Err(CallError::Refused(_))));
    assert_eq!(deliver(&worker).await.0, Err(CallError::Gone));
}

#[tokio::test]
async fn a_position_is_answered_and_checked() {
    let at = |ordinal: u32| {
        format!(
            "(i32.store8 (i32.const 1352) (i32.const 1)) (i64.store (i32.const 1360) (i64.const 16))
             (i64.store (i32.const 1368) (i64.const 0)) (i32.store (i32.const 1376) (i32.const {ordinal}))
             (i32.const 1344)"
        )
    };
    let worker = start(&[("open", &at(0))]);
    assert_eq!(worker.open(context()).await, Ok(Some(Cursor::at(Lsn::new(16)))));
    let worker = start(&[("open", &at(3))]);
    assert!(matches!(worker.open(context()).await, Err(CallError::Garbage(_))));
}

/// A bad call ends the instance, hands the batch back, stages nothing, and the next open is fresh and works.
async fn check_end(body: &str, limits: Limits, expect: CallError) {
    // The second instance must not run into the same: the flag that makes it bad comes from the state given at open.
    let bad_first = format!(
        "(call $get (i32.const 4000) (i32.const 3) (i32.const 1344))
         (call $append (i32.const 4003) (i32.const 3) (i32.const 4015) (i32.const 5) (i32.const 1400))
         (if (result i32) (i32.load8_u (i32.const 1348)) (then {body}) (else (i32.const 1040)))"
    );
    let worker = start_with(&[("deliver", &bad_first)], policy(limits));
    let bad = BTreeMap::from([("key".to_owned(), vec![1])]);
    worker.open(OpenContext { state: bad, ..context() }).await.unwrap();
    let began = Instant::now();
    let (outcome, staged) = deliver(&worker).await;
    assert_eq!(outcome, Err(expect));
    assert!(staged.is_empty());
    assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());
    assert_eq!(deliver(&worker).await.0, Err(CallError::Gone));
    worker.open(context()).await.unwrap();
    let (outcome, staged) = deliver(&worker).await;
    assert!(outcome.is_ok());
    assert_eq!(staged.outputs, [("out".to_owned(), b"value".to_vec())]);
}

fn short() -> Limits {
    Limits { call_deadline_ms: DEADLINE_MS, ..Limits::default() }
}

#[tokio::test]
async fn a_trap_ends_the_instance() {
    check_end("unreachable", short(), CallError::Trapped(TrapCause::Unreachable)).await;
}

#[tokio::test]
async fn a_loop_ends_at_the_deadline() {
    let expect = CallError::Deadline { limit_ms: DEADLINE_MS, place: DeadlineIn::Guest };
    check_end("(loop $l (br $l)) unreachable", short(), expect).await;
}

#[tokio::test]
async fn a_sleep_in_a_host_call_ends_at_the_deadline() {
    let expect = CallError::Deadline { limit_ms: DEADLINE_MS, place: DeadlineIn::HostCall };
    check_end("(call $block (call $timer (i64.const 3600000000000))) (i32.const 1040)", short(), expect).await;
}

#[tokio::test]
async fn many_short_sleeps_end_at_the_deadline() {
    let body = "(loop $l (call $block (call $timer (i64.const 1000000))) (br $l)) unreachable";
    let worker = start_with(&[("deliver", body)], policy(short()));
    worker.open(context()).await.unwrap();
    let ended = deliver(&worker).await.0;
    // Where it is when its time is up: between two sleeps, or in one that a busy machine has drawn out.
    assert!(matches!(ended, Err(CallError::Deadline { limit_ms: DEADLINE_MS, .. })), "{ended:?}");
}

#[tokio::test]
async fn a_refused_growth_names_memory_as_the_cause() {
    let body = "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    let limits = Limits { memory_mib: 8, ..short() };
    check_end(body, limits, CallError::Trapped(TrapCause::MemoryLimit)).await;
}

#[tokio::test]
async fn a_refused_table_names_tables_as_the_cause() {
    let grow =
        "(loop $l (br_if $l (i32.ne (table.grow $t (ref.null func) (i32.const 100)) (i32.const -1)))) unreachable";
    let bytes = test_guest::build_full(&[("deliver", grow)], "(table $t 1 funcref)");
    let component = Component::from_bytes(engine(), Path::new("test.wasm"), &bytes).unwrap();
    let worker = Worker::start(component, policy(Limits { table_elements: 1_000, ..short() })).unwrap();
    worker.open(context()).await.unwrap();
    assert_eq!(deliver(&worker).await.0, Err(CallError::Trapped(TrapCause::TableLimit)));
}

#[tokio::test]
async fn a_table_larger_than_its_limit_does_not_start() {
    let bytes = test_guest::build("(table $second 2000 funcref)");
    let component = Component::from_bytes(engine(), Path::new("test.wasm"), &bytes).unwrap();
    let worker = Worker::start(component, policy(Limits { table_elements: 1_000, ..short() })).unwrap();
    assert_eq!(worker.open(context()).await, Err(CallError::Trapped(TrapCause::TableLimit)));
}

#[tokio::test]
async fn an_instance_is_worn_by_batches_and_a_fresh_one_is_not() {
    let worker = start_with(&[], policy(Limits { recycle_calls: 2, ..short() }));
    for _ in 0..2 {
        worker.open(context()).await.unwrap();
        assert_eq!(worker.worn(), None);
        for worn in [None, Some(Worn::Calls), Some(Worn::Calls)] {
            assert!(deliver(&worker).await.0.is_ok());
            assert_eq!(worker.worn(), worn);
        }
    }
    worker.close().await.unwrap();
    assert_eq!(worker.worn(), None);
}

#[tokio::test]
async fn an_instance_is_worn_by_memory_that_it_has_grown() {
    // Sixteen pages are a mebibyte.
    let body = "(drop (memory.grow (i32.const 16))) (i32.const 1040)";
    let worker = start_with(&[("deliver", body)], policy(Limits { recycle_memory_mib: 2, ..short() }));
    worker.open(context()).await.unwrap();
    for worn in [None, Some(Worn::Memory)] {
        assert!(deliver(&worker).await.0.is_ok());
        assert_eq!(worker.worn(), worn);
    }
}

#[tokio::test]
async fn an_instance_that_ended_is_not_worn() {
    let counting = "(i32.store (i32.const 1296) (i32.add (i32.load (i32.const 1296)) (i32.const 1)))
        (if (i32.eq (i32.load (i32.const 1296)) (i32.const 2)) (then unreachable)) (i32.const 1040)";
    let worker = start_with(&[("deliver", counting)], policy(Limits { recycle_calls: 1, ..short() }));
    worker.open(context()).await.unwrap();
    assert!(deliver(&worker).await.0.is_ok());
    assert_eq!(worker.worn(), Some(Worn::Calls));
    assert!(deliver(&worker).await.0.is_err());
    assert_eq!(worker.worn(), None);
}

#[tokio::test]
async fn a_guest_may_survive_a_refused_growth() {
    let body = "(drop (memory.grow (i32.const 60000))) (i32.const 1040)";
    let worker = opened(&[("deliver", body)]).await;
    assert!(deliver(&worker).await.0.is_ok());
}

#[tokio::test]
async fn other_traps_have_their_own_causes() {
    let cases = [
        ("(i32.load (i32.const -4))", TrapCause::OutOfBounds),
        ("(i32.div_u (i32.const 1) (i32.const 0))", TrapCause::Arithmetic),
        ("(call $exit (i32.const 1)) unreachable", TrapCause::Exited),
        ("(i32.const -4)", TrapCause::OutOfBounds),
        (
            "(call $log (i32.const 0) (i32.const -8) (i32.const 4) (i32.const 0) (i32.const 0)) (i32.const 1040)",
            TrapCause::OutOfBounds,
        ),
    ];
    for (body, cause) in cases {
        check_end(body, short(), CallError::Trapped(cause)).await;
    }
}

/// `HTTP-request-denied`, by its place in the list of codes.
const DENIED: u32 = 15;

#[tokio::test]
async fn a_request_that_is_not_granted_is_answered_and_not_a_trap() {
    let check = format!("(if (i32.ne {} (i32.const {DENIED})) (then unreachable))", test_guest::HTTP_CODE);
    let send = test_guest::SEND_HTTP;
    let deliver_body = format!("{send} {check} (i32.const 1040)");
    let describe = format!("{send} {check} (i32.const 2048)");
    let bodies = [("describe", describe.as_str()), ("deliver", deliver_body.as_str())];
    let worker = start_with(&bodies, policy(short()));
    worker.open(context()).await.unwrap();
    for _ in 0..2 {
        assert!(deliver(&worker).await.0.is_ok());
    }
    // Granted and not asked for is denied as well.
    let manifest = "[[grant.http]]\nurl = \"https://value/\"\nmethods = [\"GET\"]\n";
    let manifest = Manifest::parse(Path::new("plugin.toml"), manifest).unwrap();
    let http = crate::HttpAccess::new(&manifest.http, |name| Err(name.to_owned())).unwrap();
    let worker = start_with(&bodies, Policy { http, ..policy(short()) });
    worker.open(context()).await.unwrap();
    assert!(deliver(&worker).await.0.is_ok());
}

#[tokio::test]
async fn endless_recursion_is_a_stack_overflow() {
    let deep = "(func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))";
    let bytes = test_guest::build_full(&[("deliver", "(call $deep (i32.const 0))")], deep);
    let component = Component::from_bytes(engine(), Path::new("test.wasm"), &bytes).unwrap();
    let worker = Worker::start(component, policy(short())).unwrap();
    worker.open(context()).await.unwrap();
    assert_eq!(deliver(&worker).await.0, Err(CallError::Trapped(TrapCause::StackOverflow)));
}

#[tokio::test]
async fn too_much_in_one_host_call_is_its_own_cause() {
    let body = "(call $append (i32.const 4003) (i32.const 3) (i32.const 0) (i32.const 8192) (i32.const 1344)) (i32.const 1040)";
    let limits = Limits { host_call_bytes: 4096, ..short() };
    check_end(body, limits, CallError::Trapped(TrapCause::HostCallBytes)).await;
}

#[tokio::test]
async fn an_instance_larger_than_its_memory_limit_does_not_start() {
    let bytes = test_guest::build("(memory $second 32)");
    let component = Component::from_bytes(engine(), Path::new("test.wasm"), &bytes).unwrap();
    let worker = Worker::start(component, policy(Limits { memory_mib: 1, ..short() })).unwrap();
    assert_eq!(worker.open(context()).await, Err(CallError::Trapped(TrapCause::MemoryLimit)));
}

#[tokio::test]
async fn garbage_answers_end_the_instance() {
    // The rejection of ordinal 7, changed to name one the batch does not have.
    let worker = opened(&[("deliver", "(i32.store (i32.const 1248) (i32.const 6)) (i32.const 1232)")]).await;
    let Err(CallError::Garbage(garbage)) = deliver(&worker).await.0 else { panic!("accepted") };
    assert!(garbage.to_string().contains("ordinal"), "{garbage}");
    assert_eq!(deliver(&worker).await.0, Err(CallError::Gone));
    let worker = start(&[("describe", "(i32.store (i32.const 2052) (i32.const 0)) (i32.const 2048)")]);
    assert!(matches!(worker.describe().await, Err(CallError::Garbage(_))));
    assert!(matches!(worker.open(context()).await, Err(CallError::Garbage(_))));
}

/// Adds one to the byte at `key`, which starts as 0.
const COUNT_IN_STATE: &str = "(call $get (i32.const 4000) (i32.const 3) (i32.const 1344))
    (i32.store8 (i32.const 1296) (i32.add (i32.const 1) (if (result i32) (i32.load8_u (i32.const 1348))
        (then (i32.load8_u (i32.load (i32.const 1352)))) (else (i32.const 0)))))
    (call $set (i32.const 4000) (i32.const 3) (i32.const 1296) (i32.const 1) (i32.const 1400))";

#[tokio::test]
async fn state_is_staged_with_the_delivery_and_read_back() {
    let body = format!("{COUNT_IN_STATE} (i32.const 1040)");
    let worker = start(&[("deliver", &body)]);
    let given = BTreeMap::from([("key".to_owned(), vec![41]), ("other".to_owned(), vec![])]);
    worker.open(OpenContext { state: given, ..context() }).await.unwrap();
    for expect in [42, 43] {
        let (outcome, staged) = deliver(&worker).await;
        assert!(outcome.is_ok());
        assert_eq!(staged.state, [("key".to_owned(), Some(vec![expect]))]);
    }
}

#[tokio::test]
async fn a_refused_delivery_leaves_no_trace_in_the_state() {
    let body = format!(
        "{COUNT_IN_STATE} (i32.store (i32.const 1300) (i32.add (i32.load (i32.const 1300)) (i32.const 1)))
         (select (i32.const 1104) (i32.const 1040) (i32.lt_u (i32.load (i32.const 1300)) (i32.const 3)))"
    );
    let worker = opened(&[("deliver", &body)]).await;
    for _ in 0..2 {
        let (outcome, staged) = deliver(&worker).await;
        assert!(outcome.is_err() && staged.is_empty());
    }
    assert_eq!(deliver(&worker).await.1.state, [("key".to_owned(), Some(vec![1]))]);
}

#[tokio::test]
async fn what_flush_stages_comes_with_the_flush() {
    let worker = opened(&[("flush", &format!("{COUNT_IN_STATE} (i32.const 1024)"))]).await;
    assert_eq!(worker.flush().await.unwrap().state, [("key".to_owned(), Some(vec![1]))]);
    assert!(deliver(&worker).await.1.is_empty());
}

#[tokio::test]
async fn metrics_outlive_the_instance_and_settings_are_read() {
    let body = "(call $setting (i32.const 4000) (i32.const 3) (i32.const 1344))
        (call $count (i32.const 4020) (i32.const 4) (i64.load32_u (i32.const 1352))) (i32.const 1040)";
    let worker = opened(&[("deliver", body)]).await;
    assert!(deliver(&worker).await.0.is_ok());
    worker.open(context()).await.unwrap();
    assert!(deliver(&worker).await.0.is_ok());
    // Twice the length of the setting "value".
    assert_eq!(worker.metrics().counters["rows"], 10);
}

#[tokio::test]
async fn without_a_grant_every_interface_is_denied() {
    // Each denied call leaves an error in its result; their sum is counted in the receipt's place.
    let body = "(call $set (i32.const 4000) (i32.const 3) (i32.const 4015) (i32.const 5) (i32.const 1344))
        (call $append (i32.const 4003) (i32.const 3) (i32.const 4015) (i32.const 5) (i32.const 1408))
        (call $apply (i32.const 0) (i32.const 0) (i32.const 1472))
        (call $reveal (i32.const 4000) (i32.const 3) (i32.const 1536))
        (call $by_key (i32.const 4000) (i32.const 3) (i32.const 4000) (i32.const 3) (i32.const 1600))
        (call $log (i32.const 2) (i32.const 4006) (i32.const 9) (i32.const 4015) (i32.const 5))
        (call $count (i32.const 4020) (i32.const 4) (i64.const 1))
        (if (i32.ne (i32.const 6) (i32.add (i32.add (i32.load8_u (i32.const 1344)) (i32.load8_u (i32.const 1408)))
            (i32.add (i32.load8_u (i32.const 1472)) (i32.add (i32.load8_u (i32.const 1536)) (i32.load8_u (i32.const 1600))))))
          (then unreachable))
        (i32.const 1040)";
    let worker = start_with(&[("deliver", body)], Policy { limits: short(), ..Policy::default() });
    worker.open(context()).await.unwrap();
    let (outcome, staged) = deliver(&worker).await;
    assert_eq!(outcome, Ok(Receipt { durable: true, rejected: vec![] }));
    assert!(staged.is_empty());
    assert!(worker.metrics().counters.is_empty());
}

#[tokio::test]
async fn what_was_not_asked_for_is_denied_although_allowed() {
    // The description's list of capabilities is made empty before it is answered.
    let bodies = [
        ("describe", "(i32.store (i32.const 2076) (i32.const 0)) (i32.const 2048)"),
        ("deliver", "(call $count (i32.const 4020) (i32.const 4) (i64.const 1)) (i32.const 1040)"),
    ];
    let worker = opened(&bodies).await;
    assert!(deliver(&worker).await.0.is_ok());
    assert!(worker.metrics().counters.is_empty());
}

#[tokio::test]
async fn a_cancelled_call_ends_the_instance() {
    let body = "(call $block (call $timer (i64.const 50000000))) (i32.const 1040)";
    let worker = opened(&[("deliver", body)]).await;
    let cut = tokio::time::timeout(Duration::from_millis(5), worker.deliver(batch())).await;
    assert!(cut.is_err(), "the delivery was over before it could be cancelled");
    assert_eq!(worker.flush().await, Err(CallError::Gone));
    worker.open(context()).await.unwrap();
    assert!(worker.flush().await.is_ok());
}

#[tokio::test]
async fn a_looping_plugin_starves_no_other() {
    let looping = opened(&[("deliver", "(loop $l (br $l)) unreachable")]).await;
    let good = opened(&[]).await;
    let (ended, ()) = tokio::join!(deliver(&looping), async {
        for _ in 0..20 {
            assert!(deliver(&good).await.0.is_ok());
        }
    });
    assert!(matches!(ended.0, Err(CallError::Deadline { .. })));
}

struct Counter(usize);

impl NativeSink for Counter {
    fn relation_changed(&mut self, _: &ProjectedRelation, _: Option<&ProjectedRelation>) -> Verdict {
        Verdict::Accept
    }

    fn deliver(&mut self, batch: &Batch) -> Receipt {
        self.0 += batch.groups.len();
        Receipt { durable: self.0 == 2, rejected: vec![] }
    }
}

#[tokio::test]
async fn a_native_sink_takes_the_same_path() {
    let worker = Worker::native(Box::new(Counter(0))).unwrap();
    worker.open(context()).await.unwrap();
    assert_eq!(deliver(&worker).await.0.map(|r| r.durable), Ok(false));
    assert_eq!(deliver(&worker).await.0.map(|r| r.durable), Ok(true));
}
