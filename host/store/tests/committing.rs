//! The checkpoint: all of it or nothing, never backwards, never for another history, never a value in an error.

use std::collections::BTreeMap;

use walgate_core::{Cursor, Lsn};
use walgate_store::{Checkpoint, Class, OutputLength, OutputMark, PluginCursor, StateLimits, StateWrite, Store};

use crate::{PIPELINE, PLUGIN, SECRET, check, check_silent, lineage, on_both, started, to};

on_both! { everything_commits_together a_refused_write_leaves_everything positions_never_move_back
outputs_never_shrink a_plugin_without_a_cursor_is_refused an_idle_advance_needs_no_plugin
the_last_write_to_a_key_counts a_changed_column_type_halts_at_once a_commit_is_one_transaction
a_repeated_commit_is_harmless }

const LIMITS: StateLimits = StateLimits { max_keys: 100, max_bytes: 1 << 20 };

fn write(key: &str, value: Option<&str>) -> StateWrite {
    StateWrite { plugin: PLUGIN.into(), key: key.into(), value: value.map(|v| v.as_bytes().to_vec()) }
}

fn output(name: &str, sequence: u64, length: u64) -> OutputLength {
    OutputLength { plugin: PLUGIN.into(), name: name.into(), mark: OutputMark { sequence, length } }
}

/// Cursor and acknowledged position, state, outputs.
type Stored = (Cursor, Lsn, BTreeMap<String, Vec<u8>>, BTreeMap<String, OutputMark>);

async fn stored(store: &mut Store) -> Stored {
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    let state = store.plugin_state(PIPELINE, PLUGIN, LIMITS).await.unwrap();
    (row.cursors[PLUGIN], row.acked, state, store.output_lengths(PIPELINE, PLUGIN).await.unwrap())
}

async fn everything_commits_together(major: u32) {
    let (_place, mut store) = started(major).await;
    let mut first = to(0x200);
    first.state = vec![write("kept", Some("1")), write("deleted", Some("2"))];
    first.outputs = vec![output("audit", 0, 10)];
    assert_eq!(store.commit(PIPELINE, &lineage(), &first).await.unwrap().acked(), Lsn::new(0x200));

    let inside = Cursor { end: Lsn::new(0x200), commit: Lsn::new(0x280), ordinal: 3 };
    let second = Checkpoint {
        acked: Lsn::new(0x200),
        cursors: vec![PluginCursor { plugin: PLUGIN.into(), cursor: inside, generation: 2 }],
        state: vec![write("deleted", None), write("never was", None)],
        outputs: vec![output("audit", 1, 5), output("other", 0, 1)],
        ..Checkpoint::default()
    };
    store.commit(PIPELINE, &lineage(), &second).await.unwrap();
    let outputs = BTreeMap::from([
        ("audit".to_owned(), OutputMark { sequence: 1, length: 5 }),
        ("other".to_owned(), OutputMark { sequence: 0, length: 1 }),
    ]);
    let state = BTreeMap::from([("kept".to_owned(), b"1".to_vec())]);
    assert_eq!(stored(&mut store).await, (inside, Lsn::new(0x200), state, outputs));
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().generations[PLUGIN], 2);
}

/// Whichever table refuses, none of the others has moved, and the next commit after the repair has no trace of it.
async fn a_refused_write_leaves_everything(major: u32) {
    let (place, mut store) = started(major).await;
    let mut first = to(0x200);
    first.state = vec![write("k", Some("old"))];
    first.outputs = vec![output("audit", 0, 10)];
    store.commit(PIPELINE, &lineage(), &first).await.unwrap();
    let before = stored(&mut store).await;

    let mut next = to(0x300);
    next.state = vec![write("k", Some(SECRET)), write(SECRET, Some(SECRET))];
    next.outputs = vec![output("audit", 0, 20)];
    let faults = [
        ("pipelines", "acked <= '0/200'"),
        ("checkpoints", "end_lsn <= '0/200'"),
        ("plugin_state", "value = 'old'"),
        ("outputs", "length <= 10"),
    ];
    for (table, rule) in faults {
        // NOT VALID: what is there is not looked at, exactly the next write violates it.
        let add = format!("ALTER TABLE walgate.{table} ADD CONSTRAINT fault CHECK ({rule}) NOT VALID");
        place.execute(&add).await;
        let error = check(store.commit(PIPELINE, &lineage(), &next).await, Class::Retry, "checkpoint_store(write)");
        assert!(error.to_string().contains("23514"), "{error}");
        check_silent(&error);
        assert_eq!(stored(&mut store).await, before, "fault in {table}");
        place.execute(&format!("ALTER TABLE walgate.{table} DROP CONSTRAINT fault")).await;
    }
    store.commit(PIPELINE, &lineage(), &next).await.unwrap();
    assert_eq!(stored(&mut store).await.0, Cursor::at(Lsn::new(0x300)));
}

async fn positions_never_move_back(major: u32) {
    let (_place, mut store) = started(major).await;
    let inside = |end, commit, ordinal| Cursor { end: Lsn::new(end), commit: Lsn::new(commit), ordinal };
    let at = |cursor| Checkpoint {
        acked: Lsn::new(0x100),
        cursors: vec![PluginCursor { plugin: PLUGIN.into(), cursor, generation: 1 }],
        ..Checkpoint::default()
    };
    store.commit(PIPELINE, &lineage(), &at(inside(0x200, 0x280, 5))).await.unwrap();
    let before = stored(&mut store).await;
    for back in [inside(0x1FF, 0x280, 9), inside(0x200, 0x280, 4), inside(0x200, 0, 0)] {
        let mut checkpoint = at(back);
        checkpoint.acked = Lsn::new(0x180);
        checkpoint.state = vec![write("k", Some("v"))];
        let refused =
            check(store.commit(PIPELINE, &lineage(), &checkpoint).await, Class::Bug, "checkpoint_store(regress)");
        assert!(refused.to_string().contains(PLUGIN), "{refused}");
        assert_eq!(stored(&mut store).await, before);
    }
    let mut ack_back = at(inside(0x300, 0, 0));
    ack_back.acked = Lsn::new(0xFF);
    let refused = check(store.commit(PIPELINE, &lineage(), &ack_back).await, Class::Bug, "checkpoint_store(regress)");
    assert!(refused.to_string().contains("0/FF"), "{refused}");
    assert_eq!(stored(&mut store).await, before);
}

async fn outputs_never_shrink(major: u32) {
    let (_place, mut store) = started(major).await;
    let mut first = to(0x200);
    first.outputs = vec![output("audit", 1, 10)];
    store.commit(PIPELINE, &lineage(), &first).await.unwrap();
    let before = stored(&mut store).await;
    for (sequence, length) in [(1, 9), (0, 100)] {
        let mut back = to(0x300);
        back.outputs = vec![output("audit", sequence, length)];
        check(store.commit(PIPELINE, &lineage(), &back).await, Class::Bug, "checkpoint_store(regress)");
        assert_eq!(stored(&mut store).await, before);
    }
    let mut twice = to(0x300);
    twice.outputs = vec![output("audit", 1, 11), output("audit", 1, 12)];
    check(store.commit(PIPELINE, &lineage(), &twice).await, Class::Bug, "checkpoint_store(write)");
    let mut huge = to(0x300);
    huge.outputs = vec![output("audit", 1, u64::MAX)];
    check(store.commit(PIPELINE, &lineage(), &huge).await, Class::Bug, "checkpoint_store(write)");
    assert_eq!(stored(&mut store).await, before);
}

async fn a_plugin_without_a_cursor_is_refused(major: u32) {
    let (_place, mut store) = started(major).await;
    let before = stored(&mut store).await;
    let cursor = Cursor::at(Lsn::new(0x200));
    let mut unknown = to(0x200);
    unknown.cursors.push(PluginCursor { plugin: "stranger".into(), cursor, generation: 1 });
    let refused = store.commit(PIPELINE, &lineage(), &unknown).await;
    let error = check(refused, Class::Operator, "checkpoint_store(cursor_missing)");
    assert!(error.to_string().contains("stranger"), "{error}");
    let mut twice = to(0x200);
    twice.cursors.push(PluginCursor { plugin: PLUGIN.into(), cursor, generation: 1 });
    check(store.commit(PIPELINE, &lineage(), &twice).await, Class::Bug, "checkpoint_store(write)");
    assert_eq!(stored(&mut store).await, before);
}

async fn an_idle_advance_needs_no_plugin(major: u32) {
    let (_place, mut store) = started(major).await;
    let idle = Checkpoint { acked: Lsn::new(0x500), ..Checkpoint::default() };
    assert_eq!(store.commit(PIPELINE, &lineage(), &idle).await.unwrap().acked(), Lsn::new(0x500));
    let (cursor, acked, ..) = stored(&mut store).await;
    assert_eq!((cursor, acked), (Cursor::at(Lsn::new(0x100)), Lsn::new(0x500)));
}

async fn the_last_write_to_a_key_counts(major: u32) {
    let (_place, mut store) = started(major).await;
    let mut checkpoint = to(0x200);
    checkpoint.state = vec![
        write("a", Some("1")),
        write("b", None),
        write("a", Some("2")),
        write("b", Some("3")),
        write("c", Some("4")),
        write("c", None),
    ];
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    let state = BTreeMap::from([("a".to_owned(), b"2".to_vec()), ("b".to_owned(), b"3".to_vec())]);
    assert_eq!(stored(&mut store).await.2, state);
}

async fn a_changed_column_type_halts_at_once(major: u32) {
    let (place, mut store) = started(major).await;
    store.commit(PIPELINE, &lineage(), &to(0x200)).await.unwrap();
    let change = "ALTER TABLE walgate.checkpoints ALTER COLUMN generation TYPE boolean USING true";
    place.execute(change).await;
    check(store.commit(PIPELINE, &lineage(), &to(0x300)).await, Class::Operator, "checkpoint_store(schema)");
    check(store.load(PIPELINE).await, Class::Operator, "checkpoint_store(schema)");
    place.execute("DROP FUNCTION walgate.commit_checkpoint").await;
    check(store.commit(PIPELINE, &lineage(), &to(0x300)).await, Class::Operator, "checkpoint_store(schema)");
}

async fn a_commit_is_one_transaction(major: u32) {
    let (place, mut store) = started(major).await;
    let mut checkpoint = to(0x200);
    checkpoint.state = vec![write("a", Some("1")), write("b", Some("2"))];
    checkpoint.outputs = vec![output("audit", 0, 10)];
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    let client = place.client().await;
    let writers = "SELECT count(DISTINCT x) FROM (SELECT xmin::text x FROM walgate.pipelines
        UNION ALL SELECT xmin::text FROM walgate.checkpoints UNION ALL SELECT xmin::text FROM walgate.plugin_state
        UNION ALL SELECT xmin::text FROM walgate.outputs) t";
    assert_eq!(client.query_one(writers, &[]).await.unwrap().get::<_, i64>(0), 1);
}

async fn a_repeated_commit_is_harmless(major: u32) {
    let (_place, mut store) = started(major).await;
    let mut checkpoint = to(0x200);
    checkpoint.state = vec![write("a", Some("1"))];
    checkpoint.outputs = vec![output("audit", 0, 10)];
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    let once = stored(&mut store).await;
    // As after a lost answer: the caller cannot know that the first one took effect.
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    assert_eq!(stored(&mut store).await, once);
}
