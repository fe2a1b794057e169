//! Guests that end nothing: refusals, rejections, verdicts, and answers that must not leak.

use walgate_plugin::{ContractError, Disposition, Failure, Receipt};

use super::*;
use crate::logged::Log;

async fn delivered(name: &str) -> (Worker, Delivery) {
    let worker = start(name);
    open(&worker, name).await;
    let delivery = deliver(&worker).await;
    (worker, delivery)
}

#[track_caller]
fn refused(outcome: Result<Receipt, CallError>) -> Failure {
    match outcome {
        Err(CallError::Refused(failure)) => failure,
        other => panic!("not a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn loop_in_open() {
    let limits = Limits { open_deadline_ms: DEADLINE_MS, ..Limits::default() };
    let worker = Worker::start(load("loop-in-open"), Policy { limits, ..policy("loop-in-open") }).expect("a thread");
    let answer = worker.open(context("loop-in-open", BTreeMap::new())).await;
    assert_eq!(answer, Err(CallError::Deadline { limit_ms: DEADLINE_MS, place: DeadlineIn::Guest }));
}

#[tokio::test]
async fn loop_in_describe() {
    let limits = Limits { open_deadline_ms: DEADLINE_MS, ..Limits::default() };
    let worker = Worker::start(load("loop-in-describe"), Policy { limits, ..Policy::default() }).expect("a thread");
    let expect = CallError::Deadline { limit_ms: DEADLINE_MS, place: DeadlineIn::Guest };
    assert_eq!(worker.describe().await, Err(expect));
}

#[tokio::test]
async fn recurse() {
    check_end("recurse", CallError::Trapped(TrapCause::StackOverflow)).await;
}

#[tokio::test]
async fn write_in_describe() {
    let description = start("write-in-describe").describe().await.expect("it describes itself");
    assert_eq!(description.name, "set-not-granted-get-not-granted");
}

#[tokio::test]
async fn invalid_code() {
    let (_, delivery) = delivered("invalid-code").await;
    assert_eq!(refused(delivery.outcome).code, "invalid-code");
}

#[tokio::test]
async fn retry_forever_and_reject_and_halt() {
    for (name, disposition) in [
        ("retry-forever", Disposition::Retry),
        ("reject-batch", Disposition::Reject),
        ("halt-in-deliver", Disposition::Halt),
    ] {
        let (worker, delivery) = delivered(name).await;
        assert_eq!(refused(delivery.outcome).disposition, disposition, "{name}");
        // The instance is still there and says the same again.
        assert_eq!(refused(deliver(&worker).await.outcome).disposition, disposition, "{name}");
    }
}

#[tokio::test]
async fn halt_in_open() {
    let worker = start("halt-in-open");
    let answer = worker.open(context("halt-in-open", BTreeMap::new())).await;
    assert!(matches!(answer, Err(CallError::Refused(Failure { disposition: Disposition::Halt, .. }))), "{answer:?}");
}

#[tokio::test]
async fn retry_then_ok() {
    let worker = start("retry-then-ok");
    open(&worker, "retry-then-ok").await;
    for attempt in 1..=2 {
        let delivery = worker.deliver(Batch { attempt, ..batch() }).await;
        assert_eq!(refused(delivery.outcome).disposition, Disposition::Retry);
        assert!(delivery.staged.is_empty(), "a failed attempt staged something");
    }
    let delivery = worker.deliver(Batch { attempt: 3, ..batch() }).await;
    assert!(delivery.outcome.is_ok(), "{:?}", delivery.outcome);
}

#[tokio::test]
async fn reject_odd() {
    let (_, delivery) = delivered("reject-odd").await;
    let rejected = delivery.outcome.expect("a receipt").rejected;
    assert_eq!(rejected.iter().map(|r| (r.ordinal, r.code.as_str())).collect::<Vec<_>>(), [(1, "odd")]);
}

#[tokio::test]
async fn relation_decline() {
    let worker = start("relation-decline");
    open(&worker, "relation-decline").await;
    let next = ProjectedRelation { version: SchemaVersion { commit: Lsn::new(9), message: Lsn::new(8) }, ..relation() };
    assert_eq!(worker.relation_changed(&next, Some(&relation())).await, Ok(Verdict::Decline));
}

#[tokio::test]
async fn accepted_not_durable() {
    let (worker, delivery) = delivered("accepted-not-durable").await;
    assert!(!delivery.outcome.expect("a receipt").durable);
    worker.flush().await.expect("it flushes");
    worker.close().await.expect("it closes");
}

#[test]
fn unknown_contract() {
    let error = Component::load(engine(), &guest_path("unknown-contract")).err().expect("refused");
    let LoadError::Contract { reason: ContractError::UnknownVersion { found }, .. } = &error else { panic!("{error}") };
    assert_eq!(found, "9.9.0");
}

#[test]
fn not_a_sink() {
    let error = Component::load(engine(), &guest_path("not-a-sink")).err().expect("refused");
    assert!(matches!(error, LoadError::Contract { reason: ContractError::NoSink, .. }), "{error}");
}

#[tokio::test]
async fn panic_with_value() {
    let log = Log::of_process();
    let (_, delivery) = delivered("panic-with-value").await;
    let error = delivery.outcome.expect_err("it panics");
    assert_eq!(error, CallError::Trapped(TrapCause::Unreachable));
    let text = log.text();
    assert!(text.contains("about-to-panic"), "the log of the worker's thread is not captured: {text}");
    for shown in [text, error.to_string(), format!("{error:?} {:?}", delivery.staged)] {
        assert!(!shown.contains("alice"), "{shown}");
    }
}
