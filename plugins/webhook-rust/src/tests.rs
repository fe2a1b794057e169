//! What is posted, and what every answer does to the batch.
//!
//! Holds: tests against the double of the host; real servers that misbehave are in the integration suite.

use serde_json::{Value as Json, json};
use walgate_sdk::host::http::Response;
use walgate_sdk::testing::{BatchBuilder, Host, Run, Table, TestBatch};
use walgate_sdk::{Disposition, Failure, Receipt, cells};

use crate::Webhook;

const TO: &str = "https://hooks.example.com/in/customers";

fn open(answer: impl Fn() -> Response + 'static) -> Run<Webhook> {
    Host::new().grant_asked::<Webhook>().setting("url", TO).http(move |_| Ok(answer())).open().unwrap()
}

fn customers() -> Table {
    Table::new("public", "customers").key("id", "int8").column("name", "text")
}

fn batch() -> TestBatch {
    let customers = customers();
    BatchBuilder::new("b-1")
        .transaction(0x16_B374_D848)
        .insert(&customers, cells![7i64, "Ada \"the\" first"])
        .transaction(0x16_B374_D8F0)
        .delete(&customers, cells![7i64, NOT_SENT])
        .build()
}

#[test]
fn a_batch_is_one_document_under_its_id() {
    let mut run = open(|| Response::new(204));
    assert!(run.deliver(&batch()).unwrap().is_durable());
    run.deliver(&batch().redelivered()).unwrap();
    let requests = run.requests();
    let [first, second] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(first.url(), TO);
    for (name, value) in [("content-type", "application/json"), ("webhook-id", "b-1"), ("idempotency-key", "b-1")] {
        assert_eq!(first.header_value(name), Some(value));
        assert_eq!(second.header_value(name), Some(value));
    }
    let document: Json = serde_json::from_slice(first.body_bytes()).unwrap();
    let transaction = |lsn: &str, xid: u32| json!({"commit_lsn": lsn, "xid": xid, "committed_at": "1970-01-01T00:00:00+00:00", "part": 0, "last_part": true});
    let want = json!({
        "id": "b-1",
        "attempt": 1,
        "transactions": [transaction("16/B374D848", 1), transaction("16/B374D8F0", 2)],
        "changes": [
            {"commit_lsn": "16/B374D848", "xid": 1, "ord": 0, "op": "insert", "schema": "public", "table": "customers",
             "after": {"id": 7, "name": "Ada \"the\" first"}},
            {"commit_lsn": "16/B374D8F0", "xid": 2, "ord": 0, "op": "delete", "schema": "public", "table": "customers",
             "key": {"id": 7}, "before": {"id": 7}},
        ],
    });
    assert_eq!(document, want);
    let mut again: Json = serde_json::from_slice(second.body_bytes()).unwrap();
    assert_eq!(again["attempt"].take(), 2);
    again["attempt"] = 1.into();
    assert_eq!(again, want);
}

#[test]
fn a_snapshot_says_which_piece_it_is() {
    let customers = customers();
    let mut run = open(|| Response::new(200));
    let batch = BatchBuilder::new("s").snapshot(&customers, 3, false, true).read(&customers, cells![1i64, "a"]).build();
    run.deliver(&batch).unwrap();
    let document: Json = serde_json::from_slice(run.requests()[0].body_bytes()).unwrap();
    assert_eq!(document["snapshot"], json!({"chunk": 3, "first": false, "last": true}));
    assert_eq!(document["transactions"], json!([]));
}

#[test]
fn nothing_is_posted_for_nothing() {
    let mut run = open(|| Response::new(500));
    let empty = BatchBuilder::new("b").transaction(1).hidden().build();
    assert!(run.deliver(&empty).unwrap().is_durable());
    assert!(run.requests().is_empty());
}

#[test]
fn every_status_has_its_meaning() {
    use Disposition::{Halt, Reject, Retry};
    let outcome = |answer: Response| -> Result<Receipt, Failure> { open(move || answer.clone()).deliver(&batch()) };
    for status in [200, 201, 202, 204, 299] {
        assert!(outcome(Response::new(status)).unwrap().is_durable(), "{status}");
    }
    for (status, disposition, code) in [
        (301, Halt, "http-redirect"),
        (304, Halt, "http-redirect"),
        (307, Halt, "http-redirect"),
        (400, Reject, "http-400"),
        (401, Reject, "http-401"),
        (404, Reject, "http-404"),
        (410, Reject, "http-410"),
        (422, Reject, "http-422"),
        (408, Retry, "http-408"),
        (425, Retry, "http-425"),
        (429, Retry, "http-429"),
        (500, Retry, "http-500"),
        (502, Retry, "http-502"),
        (503, Retry, "http-503"),
        (504, Retry, "http-504"),
        (199, Halt, "http-status"),
        (600, Halt, "http-status"),
    ] {
        let failure = outcome(Response::new(status).header("Location", "https://evil.example/")).unwrap_err();
        assert_eq!(
            (failure.disposition(), failure.code(), failure.retry_after_ms()),
            (disposition, code, None),
            "{status}"
        );
    }
    for (status, after) in [(429, Some(2_000)), (503, Some(2_000)), (500, None), (400, None)] {
        let failure = outcome(Response::new(status).header("retry-after", "2")).unwrap_err();
        assert_eq!(failure.retry_after_ms(), after, "{status}");
    }
}

#[test]
fn a_request_that_fails_is_tried_again_and_one_that_is_denied_stops() {
    for (code, retryable, disposition) in
        [("http-timeout", true, Disposition::Retry), ("not-granted", false, Disposition::Halt)]
    {
        let mut run = open(|| Response::new(200));
        run.fail_next("http.send", code, retryable);
        let failure = run.deliver(&batch()).unwrap_err();
        assert_eq!((failure.disposition(), failure.code()), (disposition, code));
    }
}

#[test]
fn without_a_url_it_does_not_open() {
    let refused = Host::new().grant_asked::<Webhook>().open::<Webhook>().err().unwrap();
    assert_eq!((refused.disposition(), refused.code()), (Disposition::Halt, "no-url-setting"));
}
