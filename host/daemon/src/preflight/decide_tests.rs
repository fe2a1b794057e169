//! Every cell of the decision table.
//!
//! Holds: slot × checkpoint × intent, then timelines and positions. Never knows: servers; `tests/integration` has them.

use super::*;

const GO: Option<StartMode> = Some(StartMode::GoForward);

fn slots() -> Vec<Slot> {
    let reader = |ours| Reader { pid: 7, application: "walgate".to_owned(), ours };
    vec![
        Slot::Absent,
        Slot::Creating,
        Slot::Physical,
        Slot::ForeignPlugin("test_decoding".to_owned()),
        Slot::ForeignDatabase("other".to_owned()),
        Slot::Invalidated("wal_removed".to_owned()),
        Slot::SyncedUnpromoted,
        Slot::Active(reader(true)),
        Slot::Active(reader(false)),
        Slot::Ready(Lsn::new(100)),
    ]
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        system_id: "1".to_owned(),
        timeline: 1,
        database: "shop".to_owned(),
        slot: "walgate".to_owned(),
        acked: Lsn::new(100),
        cursors: vec![Cursor::at(Lsn::new(120))],
    }
}

fn source() -> Source {
    Source {
        system_id: "1".to_owned(),
        timeline: 1,
        database: "shop".to_owned(),
        slot: "walgate".to_owned(),
        end: Lsn::new(500),
        in_recovery: false,
        history: None,
    }
}

/// One word for a decision, as the tables below spell it.
fn word(decision: &Decision) -> String {
    match decision {
        Decision::Resume { follow: None, .. } => "resume".to_owned(),
        Decision::Resume { follow: Some(timeline), .. } => format!("resume, follow {timeline}"),
        Decision::Adopt(at) => format!("adopt {at}"),
        Decision::CreateSlot => "create".to_owned(),
        Decision::Wait(halt) => format!("wait {}", halt.class),
        Decision::Halt(halt) => format!("halt {}", halt.class),
    }
}

#[track_caller]
fn check(slot: &Slot, stored: Option<&Checkpoint>, intent: Option<StartMode>, source: &Source, expect: &str) {
    let decision = decide(slot, stored, intent, source);
    assert_eq!(word(&decision), expect, "{slot:?} {stored:?} {intent:?} {source:?}");
    // Every refusal says what to do.
    if let Decision::Wait(halt) | Decision::Halt(halt) = &decision {
        let says = |word: &str| halt.detail.contains(word);
        assert!(["walgate slot", "correct", "stop that reader", "start ="].iter().any(|word| says(word)), "{halt}");
    }
}

#[test]
fn every_slot_with_every_checkpoint_and_intent() {
    // Without a checkpoint: no intent, go-forward; then with one, where the intent means nothing any more.
    let table = [
        ["halt go_forward_required", "create", "halt data_gap(slot_missing_with_checkpoint)"],
        ["wait slot_creating", "wait slot_creating", "wait slot_creating"],
        ["halt slot_plugin", "halt slot_plugin", "halt slot_plugin"],
        ["halt slot_plugin", "halt slot_plugin", "halt slot_plugin"],
        ["halt slot_database", "halt slot_database", "halt slot_database"],
        ["halt slot_invalidated", "halt slot_invalidated", "halt slot_invalidated"],
        ["halt slot_synced_unpromoted", "halt slot_synced_unpromoted", "halt slot_synced_unpromoted"],
        ["wait slot_active", "wait slot_active", "wait slot_active"],
        ["halt slot_active", "halt slot_active", "halt slot_active"],
        ["halt go_forward_required", "adopt 0/64", "resume"],
    ];
    let slots = slots();
    assert_eq!(slots.len(), table.len());
    for (slot, [none, forward, stored]) in slots.iter().zip(table) {
        check(slot, None, None, &source(), none);
        check(slot, None, GO, &source(), forward);
        check(slot, Some(&checkpoint()), None, &source(), stored);
        check(slot, Some(&checkpoint()), GO, &source(), stored);
    }
}

/// Whatever the slot looks like there: it is not the slot the checkpoints are about.
#[test]
fn another_source_voids_every_other_answer() {
    let others = [
        Source { system_id: "2".to_owned(), ..source() },
        Source { database: "other".to_owned(), ..source() },
        Source { slot: "other".to_owned(), ..source() },
    ];
    for other in others {
        for slot in slots() {
            for intent in [None, GO] {
                check(&slot, Some(&checkpoint()), intent, &other, "halt lineage_changed");
            }
        }
    }
    // Without checkpoints there is nothing that could differ.
    check(&Slot::Ready(Lsn::new(1)), None, GO, &Source { system_id: "2".to_owned(), ..source() }, "adopt 0/1");
}

#[test]
fn a_slot_ahead_or_a_source_behind() {
    let (stored, ready) = (checkpoint(), |at| Slot::Ready(Lsn::new(at)));
    check(&ready(99), Some(&stored), None, &source(), "resume");
    check(&ready(100), Some(&stored), None, &source(), "resume");
    check(&ready(101), Some(&stored), None, &source(), "halt slot_moved");
    let at = |end, in_recovery| Source { end: Lsn::new(end), in_recovery, ..source() };
    check(&ready(100), Some(&stored), None, &at(120, false), "resume");
    // The cursor at 120 counts, not only what was acknowledged.
    check(&ready(100), Some(&stored), None, &at(119, false), "halt source_behind");
    check(&ready(100), Some(&stored), None, &at(119, true), "wait source_behind");
    check(&ready(100), Some(&stored), None, &at(120, true), "resume");
    let none = Checkpoint { cursors: Vec::new(), ..stored };
    check(&ready(100), Some(&none), None, &at(100, false), "resume");
    check(&ready(100), Some(&none), None, &at(99, false), "halt source_behind");
}

#[test]
fn a_promotion_is_followed_only_when_everything_came_before_it() {
    let ready = Slot::Ready(Lsn::new(100));
    let promoted = |now, history: &str| Source {
        timeline: now,
        history: Some(TimelineHistory::parse(now, history).unwrap()),
        ..source()
    };
    let stored = checkpoint();
    // 0x78 is 120, where the furthest cursor stands.
    check(&ready, Some(&stored), None, &promoted(2, "1\t0/78\tx"), "resume, follow 2");
    check(&ready, Some(&stored), None, &promoted(2, "1\t0/77\tx"), "halt lineage_changed");
    check(&ready, Some(&stored), None, &promoted(3, "1\t0/78\tx\n2\t0/90\tx"), "resume, follow 3");
    check(&ready, Some(&stored), None, &promoted(3, "2\t0/90\tx"), "halt lineage_changed");
    // Back on an older timeline, or nothing is known of the new one.
    let later = Checkpoint { timeline: 2, ..checkpoint() };
    check(&ready, Some(&later), None, &promoted(1, ""), "halt lineage_changed");
    check(&ready, Some(&stored), None, &Source { timeline: 2, ..source() }, "halt lineage_changed");
    // The history of another timeline proves nothing.
    let other = Source { timeline: 3, ..promoted(2, "1\t0/78\tx") };
    check(&ready, Some(&stored), None, &other, "halt lineage_changed");
    // A slot that someone made on the promoted server stands where it was made.
    let made = Slot::Ready(Lsn::new(0x80));
    check(&made, Some(&stored), None, &promoted(2, "1\t0/78\tx"), "halt slot_moved");
    check(
        &Slot::Absent,
        Some(&stored),
        None,
        &promoted(2, "1\t0/78\tx"),
        "halt data_gap(slot_missing_with_checkpoint)",
    );
    check(&Slot::SyncedUnpromoted, Some(&stored), None, &promoted(2, "1\t0/78\tx"), "halt slot_synced_unpromoted");
}

#[test]
fn a_transaction_delivered_in_part_must_have_committed_before_the_fork() {
    let cursor = Cursor { end: Lsn::new(100), commit: Lsn::new(0x90), ordinal: 3 };
    let stored = Checkpoint { cursors: vec![cursor], ..checkpoint() };
    let promoted = |switch: &str| Source {
        timeline: 2,
        history: Some(TimelineHistory::parse(2, &format!("1\t{switch}\tx")).unwrap()),
        ..source()
    };
    let ready = Slot::Ready(Lsn::new(100));
    check(&ready, Some(&stored), None, &promoted("0/91"), "resume, follow 2");
    check(&ready, Some(&stored), None, &promoted("0/90"), "halt lineage_changed");
}

#[test]
fn reasons_and_timelines_are_named() {
    for (reason, fix) in [
        ("wal_removed", "max_slot_wal_keep_size"),
        ("idle_timeout", "idle_replication_slot_timeout"),
        ("rows_removed", "hot_standby_feedback"),
        ("conflicting", "hot_standby_feedback"),
        ("wal_level_insufficient", "wal_level = logical"),
        ("something newer", "something newer"),
    ] {
        let Decision::Halt(halt) = decide(&Slot::Invalidated(reason.to_owned()), None, GO, &source()) else { panic!() };
        assert!(halt.detail.contains(reason) && halt.detail.contains(fix), "{halt}");
    }
    let history = TimelineHistory::parse(2, "1\t0/77\tx").ok();
    let promoted = Source { timeline: 2, history, ..source() };
    let Decision::Halt(halt) = decide(&Slot::Ready(Lsn::new(1)), Some(&checkpoint()), None, &promoted) else {
        panic!()
    };
    for word in ["1 then", "2 now", "0/77", "0/78"] {
        assert!(halt.detail.contains(word), "no {word} in {halt}");
    }
}
