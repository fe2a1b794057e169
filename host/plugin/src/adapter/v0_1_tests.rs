//! Tests of the adapter: what is lent comes back the same in the same buffers, and bad answers are told apart.

use super::*;
use walgate_core::batch::{ByteValues, TextValues};

pub(crate) fn batch() -> Batch {
    let column = |index, values| Column { index, presence: None, values };
    let text = Values::Text(TextValues { ends: vec![1, 3], data: "abc".into() });
    let after = vec![
        column(0, Values::Boolean(vec![0, 1])),
        column(1, Values::Int16(vec![1, -2])),
        column(2, Values::Int32(vec![1, -2])),
        column(3, Values::Int64(vec![1, -2])),
        column(4, Values::Float32(vec![0.5, -0.0])),
        column(5, Values::Float64(vec![0.5, f64::INFINITY])),
        column(6, Values::DateDays(vec![i32::MIN, 1])),
        column(7, Values::TimeUs(vec![86_400_000_000, 1])),
        column(8, Values::TimestampUs(vec![i64::MAX, 1])),
        column(9, Values::Uuid(vec![7; 32])),
        column(10, Values::Bytes(ByteValues { ends: vec![0, 2], data: vec![1, 2] })),
        Column { index: 11, presence: Some(vec![0, 2]), values: text.clone() },
    ];
    let group = |operation, ordinals, after, before| Group { relation: 9, operation, ordinals, after, before };
    Batch {
        id: "batch-1".into(),
        attempt: 2,
        transactions: vec![Transaction {
            xid: 5,
            commit: Lsn::new(10),
            end: Lsn::new(20),
            commit_time_us: 3,
            origin: Some("other".into()),
            first_ordinal: 0,
            change_count: 6,
            source_ordinal: 0,
            part: 0,
            last_part: true,
        }],
        groups: vec![
            group(Operation::Insert, vec![0, 2], after, vec![]),
            group(Operation::Delete, vec![3, 4], vec![], vec![column(0, text)]),
        ],
        messages: vec![LogicalMessage { ordinal: 5, transactional: true, prefix: "p".into(), content: vec![1] }],
        reaches: Cursor::at(Lsn::new(20)),
        rows: 4,
        bytes: 100,
    }
}

#[test]
fn a_lent_batch_comes_back_in_the_same_buffers() {
    let mut lent_out = batch();
    let buffer = |b: &Batch| match &b.groups[0].after[11].values {
        Values::Text(text) => (text.data.as_ptr(), text.ends.as_ptr()),
        _ => panic!("not text"),
    };
    let before = buffer(&lent_out);
    let mut lent = lend(&mut lent_out);
    assert_eq!(lent.groups[0].after.len(), 12);
    assert_eq!(lent.transactions[0].end_lsn, 20);
    assert!(lent_out.groups[0].ordinals.is_empty() && lent_out.id.is_empty());
    give_back(&mut lent_out, &mut lent);
    assert_eq!(lent_out, batch());
    assert_eq!(buffer(&lent_out), before, "the bytes were copied");
}

#[track_caller]
fn check_receipt(rejected: &[(u32, &str)], expect: Result<&[(u32, &str)], &str>) {
    let rejected =
        rejected.iter().map(|(ordinal, code)| wit_outcome::Rejection { ordinal: *ordinal, code: (*code).into() });
    let answer = receipt(wit_outcome::Receipt { durable: true, rejected: rejected.collect() }, &lend(&mut batch()));
    match (answer, expect) {
        (Ok(receipt), Ok(expect)) => {
            let got: Vec<_> = receipt.rejected.iter().map(|r| (r.ordinal, r.code.as_str())).collect();
            assert_eq!(got, expect);
        }
        (Err(garbage), Err(words)) => assert!(garbage.to_string().contains(words), "{garbage}"),
        (got, want) => panic!("got {got:?}, want {want:?}"),
    }
}

#[test]
fn rejections_are_of_this_batch_and_unique() {
    check_receipt(&[], Ok(&[]));
    check_receipt(&[(5, "b"), (0, "a")], Ok(&[(0, "a"), (5, "b")]));
    check_receipt(&[(4, "Value: alice")], Ok(&[(4, "invalid-code")]));
    check_receipt(&[(1, "hidden")], Err("does not have"));
    check_receipt(&[(6, "beyond")], Err("does not have"));
    check_receipt(&[(2, "a"), (2, "b")], Err("twice"));
}

#[test]
fn a_position_is_between_two_transactions_or_within_one() {
    let at = |end_lsn, commit_lsn, ordinal| cursor(Some(wit::Position { end_lsn, commit_lsn, ordinal }));
    assert_eq!(cursor(None).unwrap(), None);
    assert_eq!(at(10, 0, 0).unwrap(), Some(Cursor::at(Lsn::new(10))));
    assert!(at(10, 12, 3).unwrap().is_some());
    assert!(at(10, 12, 0).is_err());
    assert!(at(10, 0, 3).is_err());
    assert!(at(10, 9, 3).is_err());
}

#[test]
fn guest_text_stays_out_of_a_failure_unless_allowed() {
    let failed = || wit_outcome::Failure {
        disposition: wit_outcome::Disposition::Retry,
        code: "alice@example.com".into(),
        message: format!("alice {}", "é".repeat(MAX_MESSAGE_BYTES)),
        retry_after_ms: Some(u32::MAX),
    };
    let quiet = failure(failed(), &Policy::default());
    assert_eq!((quiet.code.as_str(), quiet.message), ("invalid-code", None));
    assert_eq!(quiet.retry_after_ms, Some(MAX_RETRY_AFTER_MS));
    let loud = Policy { diagnostics: Diagnostics::GuestText, ..Policy::default() };
    let text = failure(failed(), &loud).message.unwrap();
    assert!(text.starts_with("alice") && text.len() <= MAX_MESSAGE_BYTES);
}

#[test]
fn descriptions_are_bounded_and_plain() {
    let good = || wit_sink::Description {
        name: "n".into(),
        version: "1".into(),
        tables: vec![wit_sink::TableRequest {
            namespace: "public".into(),
            name: "t".into(),
            columns: vec!["a".into()],
            optional_columns: vec![],
            operations: vec!["insert".into()],
        }],
        capabilities: vec!["log".into()],
        settings_schema: String::new(),
    };
    let accepted = description(good()).unwrap();
    assert!(accepted.tables[0].operations.contains(Operation::Insert));
    assert!(!accepted.tables[0].operations.contains(Operation::Delete));
    let refused = |change: fn(&mut wit_sink::Description)| {
        let mut bad = good();
        change(&mut bad);
        description(bad).unwrap_err().to_string()
    };
    assert!(refused(|d| d.name = "x".repeat(256)).contains("255"));
    assert!(refused(|d| d.version = "a\nb".into()).contains("version"));
    assert!(refused(|d| d.tables[0].operations = vec!["upsert".into()]).contains("table request 0"));
    assert!(refused(|d| d.tables[0].columns = vec!["c".into(); MAX_COLUMNS + 1]).contains("columns"));
    assert!(refused(|d| d.capabilities = vec!["log".into(); 65]).contains("65 capabilities"));
    assert!(refused(|d| d.settings_schema = "x".repeat(MAX_SCHEMA_BYTES + 1)).contains("settings-schema"));
}
