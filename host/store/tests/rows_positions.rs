//! Rows and position move together, once, and only for the epoch that may.

use walgate_core::batch::Operation;
use walgate_core::rows::RowSet;
use walgate_core::{Cursor, Lineage, Lsn};
use walgate_store::{
    Class, OutputLength, OutputMark, RowsDone, RowsError, RowsPlace, RowsSink, StateLimits, StateWrite,
};

use crate::rows::{V, far, in_state, near, rest, rows, set, work};
use crate::{PIPELINE, PLUGIN, Place, lineage, on_both};

on_both! { a_far_position_comes_back_at_open two_installations_of_one_name_write_side_by_side a_repeated_commit_writes_nothing a_lower_epoch_never_writes_again
an_earlier_leader_never_writes_rows_again a_takeover_amid_rows_leaves_none
rows_state_and_outputs_commit_together a_refused_row_leaves_everything_where_it_was another_history_writes_no_rows
a_schema_of_a_newer_version_is_refused a_work_without_rows_moves_the_position a_second_commit_waits_for_the_first }

const LEDGER: &str = "CREATE TABLE ledger (a int CHECK (a < 100))";

fn added(a: i32) -> Vec<RowSet> {
    vec![set("ledger", Operation::Insert, &[0], &[], &[("a", vec![V::I4(a)])])]
}

async fn opened(place: &Place, epoch: u64) -> (RowsSink, Option<Cursor>) {
    let mut sink = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), far(epoch)).await.unwrap();
    let cursor = sink.open().await.unwrap();
    (sink, cursor)
}

async fn a_far_position_comes_back_at_open(major: u32) {
    let place = Place::make(major).await;
    place.execute(LEDGER).await;
    let (mut sink, cursor) = opened(&place, 1).await;
    assert_eq!(cursor, None);
    let mut first = work(0x200, vec![added(1)]);
    first.cursor.cursor = Cursor { end: Lsn::new(0x200), commit: Lsn::new(0x210), ordinal: 7 };
    sink.commit(&first).await.unwrap();
    let (_, cursor) = opened(&place, 1).await;
    assert_eq!(cursor, Some(first.cursor.cursor));
    let writers = "SELECT count(DISTINCT x) FROM (SELECT xmin::text x FROM ledger
        UNION ALL SELECT xmin::text FROM walgate_target.positions) t";
    assert_eq!(rows(&place, writers).await, ["(1)"]);
    // Another history, another plugin: no position.
    let elsewhere = RowsPlace::Far { pipeline: PIPELINE.into(), lineage: "another".into(), epoch: 1 };
    let mut other = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), elsewhere).await.unwrap();
    assert_eq!(other.open().await.unwrap(), None);
    let mut other = RowsSink::connect(place.config(), None, "other", rest("public"), far(1)).await.unwrap();
    assert_eq!(other.open().await.unwrap(), None);
}

async fn a_repeated_commit_writes_nothing(major: u32) {
    let place = Place::make(major).await;
    place.execute(LEDGER).await;
    let (mut sink, _) = opened(&place, 1).await;
    let once = work(0x200, vec![added(1)]);
    assert_eq!(sink.commit(&once).await.unwrap().upserted, 1);
    assert_eq!(sink.commit(&once).await.unwrap(), RowsDone::default());
    let (mut after_restart, _) = opened(&place, 1).await;
    assert_eq!(after_restart.commit(&once).await.unwrap(), RowsDone::default());
    assert_eq!(after_restart.commit(&work(0x1FF, vec![added(2)])).await.unwrap(), RowsDone::default());
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)"]);

    let (place, _store, mut sink) = in_state(major, LEDGER).await;
    assert_eq!(sink.commit(&once).await.unwrap().upserted, 1);
    assert_eq!(sink.commit(&once).await.unwrap(), RowsDone::default());
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)"]);
}

async fn a_lower_epoch_never_writes_again(major: u32) {
    let place = Place::make(major).await;
    place.execute(LEDGER).await;
    let (mut old, _) = opened(&place, 4).await;
    old.commit(&work(0x200, vec![added(1)])).await.unwrap();
    let (mut new, cursor) = opened(&place, 5).await;
    assert_eq!(cursor, Some(Cursor::at(Lsn::new(0x200))));
    for error in [old.commit(&work(0x300, vec![added(2)])).await.unwrap_err(), old.open().await.unwrap_err()] {
        assert_eq!((error.class(), error.halt_name()), (Class::Operator, "fenced"), "{error}");
        assert!(error.to_string().contains("epoch 4") && error.to_string().contains('5'), "{error}");
    }
    new.commit(&work(0x300, vec![added(3)])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)", "(3)"]);
}

/// Each state database counts epochs for itself.
async fn two_installations_of_one_name_write_side_by_side(major: u32) {
    let place = Place::make(major).await;
    place.execute(LEDGER).await;
    let (mut one, _) = opened(&place, 9).await;
    let elsewhere = RowsPlace::Far { pipeline: PIPELINE.into(), lineage: "another".into(), epoch: 1 };
    let mut other = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), elsewhere).await.unwrap();
    other.open().await.unwrap();
    other.commit(&work(0x200, vec![added(1)])).await.unwrap();
    one.commit(&work(0x200, vec![added(2)])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)", "(2)"]);
}

#[track_caller]
fn check_fenced(error: &RowsError) {
    assert_eq!((error.class(), error.halt_name(), error.refusal()), (Class::Operator, "fenced", false), "{error}");
}

async fn an_earlier_leader_never_writes_rows_again(major: u32) {
    let (place, _store, mut old) = in_state(major, LEDGER).await;
    old.commit(&work(0x200, vec![added(1)])).await.unwrap();
    let epoch = place.store().await.take_over(PIPELINE, "test:2").await.unwrap();
    let mut new = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), near(epoch)).await.unwrap();
    assert_eq!(new.open().await.unwrap(), None);
    // Also where nothing is left to write, and where there are no rows: the old process has to learn it.
    for work in [work(0x300, vec![added(2)]), work(0x200, vec![added(1)]), work(0x300, Vec::new())] {
        check_fenced(&old.commit(&work).await.unwrap_err());
    }
    new.commit(&work(0x300, vec![added(3)])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)", "(3)"]);
}

/// The epoch is taken away while rows are being written: the checkpoint is refused, and the rows with it.
async fn a_takeover_amid_rows_leaves_none(major: u32) {
    let (place, _store, mut old) = in_state(major, LEDGER).await;
    let blocker = place.client().await;
    blocker.batch_execute("BEGIN; LOCK TABLE ledger").await.unwrap();
    let writing = tokio::spawn(async move { old.commit(&work(0x200, vec![added(1)])).await });
    wait_for_a_lock(&place).await;
    place.store().await.take_over(PIPELINE, "test:2").await.unwrap();
    blocker.batch_execute("COMMIT").await.unwrap();
    check_fenced(&writing.await.unwrap().unwrap_err());
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, [""; 0]);
}

async fn rows_state_and_outputs_commit_together(major: u32) {
    let (place, mut store, mut sink) = in_state(major, LEDGER).await;
    let mut full = work(0x200, vec![added(1)]);
    full.state = vec![StateWrite { plugin: PLUGIN.into(), key: "k".into(), value: Some(b"v".to_vec()) }];
    let mark = OutputMark { sequence: 0, length: 9 };
    full.outputs = vec![OutputLength { plugin: PLUGIN.into(), name: "audit".into(), mark }];
    sink.commit(&full).await.unwrap();
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    // The acknowledged position is not the rows' to move.
    assert_eq!((row.cursors[PLUGIN], row.acked), (Cursor::at(Lsn::new(0x200)), Lsn::new(0x100)));
    let limits = StateLimits { max_keys: 10, max_bytes: 1000 };
    assert_eq!(store.plugin_state(PIPELINE, PLUGIN, limits).await.unwrap()["k"], b"v");
    assert_eq!(store.output_lengths(PIPELINE, PLUGIN).await.unwrap()["audit"], mark);
    let writers = "SELECT count(DISTINCT x) FROM (SELECT xmin::text x FROM ledger
        UNION ALL SELECT xmin::text FROM walgate.checkpoints UNION ALL SELECT xmin::text FROM walgate.plugin_state
        UNION ALL SELECT xmin::text FROM walgate.outputs) t";
    assert_eq!(rows(&place, writers).await, ["(1)"]);
}

async fn a_refused_row_leaves_everything_where_it_was(major: u32) {
    let (place, mut store, mut sink) = in_state(major, LEDGER).await;
    let mut refused = work(0x200, vec![added(1), added(100)]);
    refused.state = vec![StateWrite { plugin: PLUGIN.into(), key: "k".into(), value: Some(b"v".to_vec()) }];
    assert!(sink.commit(&refused).await.unwrap_err().refusal());
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, [""; 0]);
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().cursors[PLUGIN], Cursor::at(Lsn::new(0x100)));
    // The other way round: rows that were fine are not there when the checkpoint is refused.
    place.execute("ALTER TABLE walgate.checkpoints ADD CONSTRAINT fault CHECK (end_lsn <= '0/100') NOT VALID").await;
    let error = sink.commit(&work(0x200, vec![added(1)])).await.unwrap_err();
    assert_eq!((error.class(), error.halt_name()), (Class::Retry, "checkpoint_store(write)"), "{error}");
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, [""; 0]);
    place.execute("ALTER TABLE walgate.checkpoints DROP CONSTRAINT fault").await;
    sink.commit(&work(0x200, vec![added(1)])).await.unwrap();
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)"]);
}

async fn another_history_writes_no_rows(major: u32) {
    let (place, store, _sink) = in_state(major, LEDGER).await;
    let stranger = Lineage { slot: "another".into(), ..lineage() };
    let other = RowsPlace::State { pipeline: PIPELINE.into(), lineage: stranger, epoch: store.epoch().unwrap() };
    let mut sink = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), other).await.unwrap();
    // Lower than what is stored, too: positions of two histories are not compared.
    for end in [0x50, 0x200] {
        let error = sink.commit(&work(end, vec![added(1)])).await.unwrap_err();
        assert_eq!(error.halt_name(), "checkpoint_store(lineage_changed)", "{error}");
    }
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, [""; 0]);
}

async fn a_schema_of_a_newer_version_is_refused(major: u32) {
    let place = Place::make(major).await;
    let (mut sink, _) = opened(&place, 1).await;
    let ledger = "SELECT applied_at, xmin FROM walgate_target.schema_migrations";
    let before = rows(&place, ledger).await;
    sink.open().await.unwrap();
    assert_eq!(rows(&place, ledger).await, before);
    place.execute("INSERT INTO walgate_target.schema_migrations VALUES ('999_later', '', now(), '9')").await;
    let error = sink.open().await.unwrap_err();
    assert_eq!((error.class(), error.halt_name()), (Class::Operator, "rows_target"));
    assert!(error.to_string().contains("999_later"), "{error}");
}

async fn a_work_without_rows_moves_the_position(major: u32) {
    let place = Place::make(major).await;
    let (mut sink, _) = opened(&place, 1).await;
    assert_eq!(sink.commit(&work(0x200, Vec::new())).await.unwrap(), RowsDone::default());
    assert_eq!(opened(&place, 1).await.1, Some(Cursor::at(Lsn::new(0x200))));
}

/// Until someone in the database waits for a lock.
async fn wait_for_a_lock(place: &Place) {
    let watcher = place.client().await;
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    walgate_harness::wait_until(std::time::Duration::from_secs(20), "a commit waits", async || {
        Ok(watcher.query_one(waiting, &[]).await?.get(0))
    })
    .await
    .unwrap();
}

/// A commit whose answer was lost may still be under way when it is repeated.
async fn a_second_commit_waits_for_the_first(major: u32) {
    let place = Place::make(major).await;
    place.execute(LEDGER).await;
    let (mut sink, _) = opened(&place, 1).await;
    let first = place.client().await;
    first
        .batch_execute("BEGIN; INSERT INTO ledger VALUES (1); UPDATE walgate_target.positions SET end_lsn = '0/200'")
        .await
        .unwrap();
    let second = tokio::spawn(async move { sink.commit(&work(0x200, vec![added(1)])).await });
    wait_for_a_lock(&place).await;
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), RowsDone::default());
    assert_eq!(rows(&place, "SELECT * FROM ledger").await, ["(1)"]);
}
