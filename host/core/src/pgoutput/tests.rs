//! Every message, whole and damaged. A damaged one gives a typed error with an offset, and no byte of a row.

use super::build::{self, Value, column};
use super::*;
use crate::Lsn;
use crate::fuzzing;
use crate::relation::ReplicaIdentity;

/// In every value of the samples; must not be in anything printed.
const CANARY: &str = "c4n4ry";

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let id = Value::from("1");
    let secret = Value::from(CANARY);
    let columns = [column("id", 23, true), column("größe", 25, false), column("c", 1184, false)];
    vec![
        ("begin", build::begin(0x16_B374_D848, 7, 42)),
        ("commit", build::commit(0x16_B374_D848, 0x16_B374_D880, 7)),
        ("origin", build::origin(9, "other")),
        ("relation", build::relation(16_385, "public", "t", b'd', &columns)),
        ("relation without columns", build::relation(16_385, "", "empty", b'n', &[])),
        ("type", build::type_name(20_000, "public", "mood")),
        ("insert", build::insert(16_385, &[id, secret, Value::Null])),
        ("update", build::update(16_385, None, &[id, Value::Unchanged, secret])),
        (
            "key update",
            build::update(16_385, Some((b'K', &[id, Value::Null, Value::Null])), &[id, secret, Value::Null]),
        ),
        (
            "full update",
            build::update(16_385, Some((b'O', &[id, secret, Value::Null])), &[id, Value::Unchanged, secret]),
        ),
        ("delete", build::delete(16_385, b'K', &[id, Value::Null, Value::Null])),
        ("full delete", build::delete(16_385, b'O', &[id, secret, Value::Null])),
        ("empty row", build::insert(16_385, &[])),
        ("truncate", build::truncate(&[16_385, 16_386])),
        ("message", build::message(true, 77, "prefix", CANARY.as_bytes())),
    ]
}

/// The message and, for a row, a walk over all of it.
fn walked(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let message = Message::decode(bytes)?;
    if let Message::Row(row) = &message {
        fuzzing::walk(row)?;
    }
    Ok(message)
}

#[track_caller]
fn assert_silent(printed: &str) {
    assert!(!printed.contains(CANARY), "a value was printed: {printed}");
    // As a list of bytes, the other way values leak.
    assert!(!printed.contains("52, 110, 52"), "a value was printed: {printed}");
}

#[test]
fn every_message_is_decoded_whole() {
    for (name, bytes) in samples() {
        let message = walked(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_silent(&format!("{message:?}"));
    }
}

#[test]
fn fields_are_what_the_protocol_says() {
    let begin = build::begin(0x16_B374_D848, 5, 42);
    let Message::Begin(begin) = Message::decode(&begin).unwrap() else { panic!("not a begin") };
    assert_eq!((begin.commit, begin.xid), (Lsn::new(0x16_B374_D848), 42));
    assert_eq!(begin.commit_time_us, 946_684_800_000_005, "counted from 1970");

    let relation = build::relation(7, "", "T \"x\"", b'i', &[column("größe", 25, true), column("b", 23, false)]);
    let Message::Relation(relation) = Message::decode(&relation).unwrap() else { panic!("not a relation") };
    assert_eq!((relation.id, relation.namespace, relation.name), (7, "pg_catalog", "T \"x\""));
    assert_eq!(relation.identity, ReplicaIdentity::Index);
    let columns: Vec<_> = relation.columns.iter().map(|column| (column.key, column.name, column.type_oid)).collect();
    assert_eq!(columns, [(true, "größe", 25), (false, "b", 23)]);

    let truncate = build::truncate(&[3, 1, 2]);
    let Message::Truncate(truncate) = Message::decode(&truncate).unwrap() else { panic!("not a truncate") };
    assert_eq!(truncate.relations, [3, 1, 2], "in the order of the message");

    let message = build::message(false, 9, "p", b"xyz");
    let Message::Message(message) = Message::decode(&message).unwrap() else { panic!("not a message") };
    assert_eq!((message.transactional, message.lsn, message.prefix), (false, Lsn::new(9), "p"));
    assert_eq!(message.content, b"xyz");
}

#[test]
fn clocks_saturate() {
    let begin = build::begin(1, i64::MAX, 1);
    let Message::Begin(begin) = Message::decode(&begin).unwrap() else { panic!("not a begin") };
    assert_eq!(begin.commit_time_us, i64::MAX);
}

#[test]
fn a_message_cut_short_anywhere_is_an_error_inside_it() {
    for (name, bytes) in samples() {
        for end in 0..bytes.len() {
            let error = walked(&bytes[..end]).expect_err(&format!("{name} cut at {end}"));
            assert!(error.offset <= end, "{name} cut at {end}: {error}");
            assert!(
                matches!(error.kind, DecodeErrorKind::Truncated | DecodeErrorKind::Length),
                "{name} cut at {end}: {error}"
            );
        }
    }
}

#[test]
fn a_message_with_a_byte_more_is_an_error_at_its_end() {
    for (name, mut bytes) in samples() {
        let end = bytes.len();
        bytes.push(0);
        let error = walked(&bytes).expect_err(name);
        assert_eq!(error, DecodeError { offset: end, kind: DecodeErrorKind::Trailing }, "{name}");
    }
}

#[test]
fn a_flipped_byte_never_panics_and_never_prints_a_value() {
    for (_, bytes) in samples() {
        for at in 0..bytes.len() {
            for flip in [0x01, 0x20, 0x80, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                if let Err(error) = walked(&damaged) {
                    assert!(error.offset <= damaged.len());
                    assert_silent(&format!("{error} {error:?}"));
                }
            }
        }
    }
}

#[track_caller]
fn check(bytes: &[u8], offset: usize, kind: DecodeErrorKind) {
    assert_eq!(walked(bytes).unwrap_err(), DecodeError { offset, kind });
}

#[test]
fn counts_and_lengths_that_do_not_fit_allocate_nothing() {
    let mut relation = build::relation(1, "n", "t", b'd', &[]);
    let count = relation.len() - 2;
    relation[count..].copy_from_slice(&u16::MAX.to_be_bytes());
    check(&relation, count, DecodeErrorKind::Length);

    let mut truncate = build::truncate(&[1]);
    truncate[1..5].copy_from_slice(&u32::MAX.to_be_bytes());
    check(&truncate, 1, DecodeErrorKind::Length);

    let mut message = build::message(true, 1, "p", b"abc");
    let length = message.len() - 7;
    message[length..length + 4].copy_from_slice(&(-1_i32).to_be_bytes());
    check(&message, length, DecodeErrorKind::Length);

    // Tag, relation, tuple tag, column count, cell tag: the length of the cell is at 9.
    for length in [-1_i32, 4, i32::MAX, i32::MIN] {
        let mut insert = build::insert(1, &["abc".into()]);
        insert[9..13].copy_from_slice(&length.to_be_bytes());
        check(&insert, 9, DecodeErrorKind::Length);
    }
}

#[test]
fn tags_have_their_places() {
    check(b"X", 0, DecodeErrorKind::UnknownMessage(b'X'));
    check(b"", 0, DecodeErrorKind::Truncated);
    check(&build::relation(1, "n", "t", b'x', &[]), 9, DecodeErrorKind::UnknownTag);
    check(&build::insert(1, &[Value::Binary(b"x")]), 8, DecodeErrorKind::Binary);
    let mut insert = build::insert(1, &[Value::Null]);
    insert[8] = b'z';
    check(&insert, 8, DecodeErrorKind::UnknownTag);
    insert[5] = b'K';
    check(&insert, 5, DecodeErrorKind::UnknownTag);
    check(&build::delete(1, b'N', &[Value::Null]), 5, DecodeErrorKind::UnknownTag);
    let twice_old = build::update(1, Some((b'K', &[])), &[]);
    let mut twice_old = twice_old;
    twice_old[8] = b'O';
    check(&twice_old, 8, DecodeErrorKind::UnknownTag);
}

#[test]
fn names_are_utf8_and_end() {
    let mut origin = build::origin(1, "ab");
    origin[9] = 0xFF;
    check(&origin, 9, DecodeErrorKind::Name);
    origin.pop();
    check(&origin, 9, DecodeErrorKind::Truncated);
}

#[test]
fn the_relation_decides_the_number_of_columns() {
    let bytes = build::insert(1, &["1".into(), Value::Null]);
    let Message::Row(row) = Message::decode(&bytes).unwrap() else { panic!("not a row") };
    let mut walk = row.walk();
    assert_eq!(walk.old().unwrap(), OldRow::Absent);
    let error = walk.columns(3).unwrap_err();
    assert_eq!(error.kind, DecodeErrorKind::ColumnCount { row: 2, relation: 3 });
}
