//! The order rules, ordinals, and what is remembered about relations and types.

use super::*;
use crate::pgoutput::RowKind;
use crate::pgoutput::build::{self, Value, column};

/// What an event was, without its borrows.
#[derive(Debug, PartialEq, Eq)]
enum Saw {
    Nothing,
    Begin(u64),
    Origin(Option<String>),
    Relation(Arc<Relation>),
    Row(RowKind, u32, u32),
    Truncate(Vec<u32>, u32),
    Message(bool, u32),
    Commit(u64, u32),
}

fn push(assembler: &mut Assembler, bytes: &[u8]) -> Result<Saw, AssembleErrorKind> {
    let event = assembler.push(Lsn::new(5), bytes).map_err(|error| {
        assert_eq!(error.lsn, Lsn::new(5), "an error names the message");
        error.kind
    })?;
    Ok(match event {
        Event::Nothing => Saw::Nothing,
        Event::Begin(head) => Saw::Begin(head.begin.commit.get()),
        Event::Origin(head) => Saw::Origin(head.origin.clone()),
        Event::Relation(relation) => Saw::Relation(relation.clone()),
        Event::Row(_, relation, body, ordinal) => Saw::Row(body.kind(), relation.id, ordinal),
        Event::Truncate(_, relations, first) => Saw::Truncate(relations.iter().map(|r| r.id).collect(), first),
        Event::Message(message, ordinal) => Saw::Message(message.transactional, ordinal),
        Event::Commit(_, commit, ordinals) => Saw::Commit(commit.commit.get(), ordinals),
    })
}

/// An assembler that has taken these messages.
#[track_caller]
fn after(messages: &[Vec<u8>]) -> Assembler {
    let mut assembler = Assembler::new();
    for message in messages {
        push(&mut assembler, message).unwrap();
    }
    assembler
}

fn relation(id: u32) -> Vec<u8> {
    build::relation(id, "public", "t", b'd', &[column("id", 23, true)])
}

fn begin(commit: u64) -> Vec<u8> {
    build::begin(commit, 0, 1)
}

fn commit(at: u64) -> Vec<u8> {
    build::commit(at, at + 8, 0)
}

fn insert(id: u32) -> Vec<u8> {
    build::insert(id, &["1".into()])
}

#[test]
fn ordinals_count_changes_of_one_transaction() {
    let mut assembler = after(&[begin(100), relation(1), relation(2)]);
    assert_eq!(push(&mut assembler, &insert(1)), Ok(Saw::Row(RowKind::Insert, 1, 0)));
    assert_eq!(push(&mut assembler, &build::truncate(&[2, 1])), Ok(Saw::Truncate(vec![2, 1], 1)));
    assert_eq!(push(&mut assembler, &build::message(true, 1, "p", b"")), Ok(Saw::Message(true, 3)));
    assert_eq!(push(&mut assembler, &build::delete(2, b'K', &["1".into()])), Ok(Saw::Row(RowKind::Delete, 2, 4)));
    assert!(assembler.in_transaction());
    assert_eq!(push(&mut assembler, &commit(100)), Ok(Saw::Commit(100, 5)));
    assert!(!assembler.in_transaction());
    assert_eq!(push(&mut assembler, &build::message(false, 1, "p", b"")), Ok(Saw::Message(false, 0)));
    assert_eq!(push(&mut assembler, &begin(200)), Ok(Saw::Begin(200)));
    assert_eq!(push(&mut assembler, &insert(1)), Ok(Saw::Row(RowKind::Insert, 1, 0)), "counted anew");
}

#[track_caller]
fn refuse(before: &[Vec<u8>], message: Vec<u8>, expect: AssembleErrorKind) {
    assert_eq!(push(&mut after(before), &message), Err(expect));
}

#[test]
fn changes_belong_inside_a_transaction() {
    use AssembleErrorKind::{InsideTransaction, NestedBegin, OutsideTransaction};
    refuse(&[relation(1)], insert(1), OutsideTransaction);
    refuse(&[relation(1)], build::truncate(&[1]), OutsideTransaction);
    refuse(&[], commit(100), OutsideTransaction);
    refuse(&[], build::origin(1, "o"), OutsideTransaction);
    refuse(&[], build::message(true, 1, "p", b""), OutsideTransaction);
    refuse(&[begin(100)], begin(200), NestedBegin);
    refuse(&[begin(100)], build::message(false, 1, "p", b""), InsideTransaction);
}

#[test]
fn commits_follow_each_other_without_overlap() {
    let (commit_at, last) = (Lsn::new, Lsn::new(108));
    let broken = |commit| AssembleErrorKind::OrderBroken { commit: commit_at(commit), last };
    for at in [0, 99, 100, 107] {
        refuse(&[begin(100), commit(100)], begin(at), broken(at));
    }
    // The end of one commit record and the start of the next may be one position.
    after(&[begin(100), commit(100), begin(108)]);
    refuse(&[], begin(0), AssembleErrorKind::OrderBroken { commit: Lsn::ZERO, last: Lsn::ZERO });
    let other = AssembleErrorKind::OtherCommit { begun: Lsn::new(100), commit: Lsn::new(101) };
    refuse(&[begin(100)], commit(101), other);
    let end = AssembleErrorKind::EndBroken { commit: Lsn::new(100), end: Lsn::new(100) };
    refuse(&[begin(100)], build::commit(100, 100, 0), end);
}

#[test]
fn rows_need_an_announced_relation() {
    refuse(&[begin(100)], insert(7), AssembleErrorKind::UnknownRelation(7));
    refuse(&[begin(100), relation(1)], build::truncate(&[1, 7]), AssembleErrorKind::UnknownRelation(7));
}

#[test]
fn the_origin_is_known_from_its_message_to_the_commit() {
    let mut assembler = after(&[begin(100)]);
    let origin = Saw::Origin(Some("other".to_owned()));
    assert_eq!(push(&mut assembler, &build::origin(1, "other")), Ok(origin));
    let bytes = commit(100);
    let Ok(Event::Commit(head, ..)) = assembler.push(Lsn::ZERO, &bytes) else { panic!("not a commit") };
    assert_eq!(head.origin.as_deref(), Some("other"));
    let bytes = begin(200);
    let Ok(Event::Begin(head)) = assembler.push(Lsn::ZERO, &bytes) else { panic!("not a begin") };
    assert_eq!(head.origin, None, "the next transaction has its own");
}

fn announced(assembler: &mut Assembler, bytes: &[u8]) -> Arc<Relation> {
    match push(assembler, bytes) {
        Ok(Saw::Relation(relation)) => relation,
        other => panic!("not a relation: {other:?}"),
    }
}

#[test]
fn kf_091_domains_travel_as_their_base_type() {
    let mut assembler = after(&[
        begin(100),
        build::type_name(20_001, "", "int4"),
        build::type_name(20_002, "public", "mood"),
        build::type_name(20_003, "public", "int4"),
    ]);
    let columns = [
        column("domain", 20_001, false),
        column("enum", 20_002, false),
        column("impostor", 20_003, false),
        column("unknown", 20_004, false),
        column("builtin", 1184, false),
    ];
    let relation = announced(&mut assembler, &build::relation(1, "public", "t", b'd', &columns));
    let got: Vec<_> = relation.columns.iter().map(|c| (c.name.as_str(), c.type_name.as_str(), c.kind)).collect();
    assert_eq!(
        got,
        [
            ("domain", "int4", Kind::Int32),
            ("enum", "public.mood", Kind::Text),
            ("impostor", "public.int4", Kind::Text),
            ("unknown", "", Kind::Text),
            ("builtin", "timestamptz", Kind::TimestampUs),
        ]
    );
}

#[test]
fn versions_of_one_relation_rise_also_inside_a_transaction() {
    let mut assembler = after(&[begin(100)]);
    let first = announced(&mut assembler, &relation(1)).version;
    push(&mut assembler, &insert(1)).unwrap();
    let second = announced(&mut assembler, &build::relation(1, "public", "t", b'd', &[])).version;
    push(&mut assembler, &build::insert(1, &[])).unwrap();
    push(&mut assembler, &commit(100)).unwrap();
    push(&mut assembler, &begin(200)).unwrap();
    let third = announced(&mut assembler, &relation(1)).version;
    assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
    // A replay that begins with the same transaction gives the same versions.
    let mut again = after(&[begin(100)]);
    assert_eq!(announced(&mut again, &relation(1)).version, first);
}

#[test]
fn no_event_prints_a_value() {
    let mut assembler = after(&[begin(100), relation(1)]);
    let row = build::update(1, Some((b'O', &["s3cr3t".into()])), &[Value::from("s3cr3t")]);
    let message = build::message(true, 1, "s3cr3t", b"s3cr3t");
    for bytes in [row, message] {
        let printed = format!("{:?}", assembler.push(Lsn::ZERO, &bytes).unwrap());
        assert!(!printed.contains("s3cr3t"), "{printed}");
    }
}
