//! What is stored before the first batch: lineage, cursors, epochs, state bounds, outputs.

use std::collections::BTreeMap;

use walgate_core::{Cursor, Lsn};
use walgate_store::{Class, ORDINAL_SCHEME, OutputMark, StateLimits, StateWrite, StoreReader, StoredHalt};

use crate::{PIPELINE, PLUGIN, Place, check, lineage, migrated, on_both, started, started_alone, to};

on_both! { a_pipeline_is_loaded_as_it_was_adopted another_lineage_is_refused forgetting_takes_everything
a_plugin_keeps_its_first_cursor epochs_always_rise state_is_bounded another_ordinal_scheme_is_refused
an_output_is_registered_once a_reader_reads_beside_a_writer a_halt_is_kept_until_cleared }

async fn a_pipeline_is_loaded_as_it_was_adopted(major: u32) {
    let (_place, mut store) = migrated(major).await;
    assert_eq!(store.load(PIPELINE).await.unwrap(), None);
    let mut far = lineage();
    (far.timeline, far.slot_created_at) = (u32::MAX, Lsn::new(u64::MAX));
    store.adopt(PIPELINE, &far, Lsn::new(0xFFFF_FFFF_0000_0001)).await.unwrap();
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    assert_eq!((row.lineage, row.acked, row.cursors), (far, Lsn::new(0xFFFF_FFFF_0000_0001), BTreeMap::new()));
    // A later start adopts again, and does not take the acknowledged position back.
    let mut again = lineage();
    (again.timeline, again.slot_created_at) = (u32::MAX, Lsn::new(u64::MAX));
    store.adopt(PIPELINE, &again, Lsn::new(1)).await.unwrap();
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().acked, Lsn::new(0xFFFF_FFFF_0000_0001));
}

async fn another_lineage_is_refused(major: u32) {
    let (_place, mut store) = started(major).await;
    let mut others = [lineage(), lineage(), lineage(), lineage(), lineage()];
    others[0].system_id = "7400000000000000002".to_owned();
    others[1].timeline = 2;
    others[2].database = "other".to_owned();
    others[3].slot = "other".to_owned();
    others[4].slot_created_at = Lsn::new(0x200);
    let names = ["system identifier", "timeline", "database", "slot", "slot creation point 0/100 stored, 0/200 now"];
    for (other, name) in others.iter().zip(names) {
        let adopted = store.adopt(PIPELINE, other, Lsn::new(0x300)).await;
        let error = check(adopted, Class::Operator, "checkpoint_store(lineage_changed)");
        assert!(error.to_string().contains(name), "{error}");
        let committed = store.commit(PIPELINE, other, &to(0x300)).await;
        check(committed, Class::Operator, "checkpoint_store(lineage_changed)");
    }
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    assert_eq!((row.lineage, row.acked), (lineage(), Lsn::new(0x100)));
}

async fn forgetting_takes_everything(major: u32) {
    let (place, mut store) = started(major).await;
    store.register_output(PIPELINE, PLUGIN, "audit").await.unwrap();
    let mut checkpoint = to(0x200);
    checkpoint.state.push(StateWrite { plugin: PLUGIN.into(), key: "k".into(), value: Some(vec![1]) });
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    assert!(store.forget(PIPELINE).await.unwrap());
    assert!(!store.forget(PIPELINE).await.unwrap());
    let client = place.client().await;
    for table in ["pipelines", "checkpoints", "plugin_state", "outputs"] {
        let count = client.query_one(&format!("SELECT count(*) FROM walgate.{table}"), &[]).await.unwrap();
        assert_eq!(count.get::<_, i64>(0), 0, "{table}");
    }
    check(store.commit(PIPELINE, &lineage(), &to(0x300)).await, Class::Operator, "checkpoint_store(lineage_changed)");
}

async fn a_plugin_keeps_its_first_cursor(major: u32) {
    let (_place, mut store) = started(major).await;
    let inside = Cursor { end: Lsn::new(0x100), commit: Lsn::new(0x180), ordinal: u32::MAX };
    assert_eq!(store.start_plugin(PIPELINE, "second", inside, 7).await.unwrap(), inside);
    assert_eq!(store.start_plugin(PIPELINE, "second", Cursor::at(Lsn::new(0x900)), 8).await.unwrap(), inside);
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    let cursors = BTreeMap::from([("second".to_owned(), inside), (PLUGIN.to_owned(), Cursor::at(Lsn::new(0x100)))]);
    assert_eq!((row.cursors, row.generations["second"]), (cursors, 7));
    let nowhere = store.start_plugin("no such pipeline", PLUGIN, Cursor::default(), 1).await;
    check(nowhere, Class::Operator, "checkpoint_store(lineage_changed)");
}

async fn epochs_always_rise(major: u32) {
    let (mut cluster, mut store) = started_alone(major).await;
    let first = store.next_epoch().await.unwrap();
    let second = store.next_epoch().await.unwrap();
    store.forget(PIPELINE).await.unwrap();
    let third = store.next_epoch().await.unwrap();
    cluster.stop_immediate().unwrap();
    cluster.launch().unwrap();
    let after_crash = loop {
        // The first call after the crash may still meet the dead session.
        match store.next_epoch().await {
            Ok(epoch) => break epoch,
            Err(error) => assert_eq!(error.class(), Class::Retry, "{error}"),
        }
    };
    assert!(first < second && second < third && third < after_crash, "{first} {second} {third} {after_crash}");
}

async fn state_is_bounded(major: u32) {
    let (_place, mut store) = started(major).await;
    let mut checkpoint = to(0x200);
    for key in ["a\0b", "ü"] {
        checkpoint.state.push(StateWrite { plugin: PLUGIN.into(), key: key.into(), value: Some(vec![0, 255]) });
    }
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    // 3 + 2 bytes of keys, 2 + 2 bytes of values.
    let state = store.plugin_state(PIPELINE, PLUGIN, StateLimits { max_keys: 2, max_bytes: 9 }).await.unwrap();
    assert_eq!(state, BTreeMap::from([("a\0b".to_owned(), vec![0, 255]), ("ü".to_owned(), vec![0, 255])]));
    for limits in [StateLimits { max_keys: 1, max_bytes: 9 }, StateLimits { max_keys: 2, max_bytes: 8 }] {
        let refused = store.plugin_state(PIPELINE, PLUGIN, limits).await;
        check(refused, Class::Operator, "checkpoint_store(state_too_large)");
    }
}

async fn another_ordinal_scheme_is_refused(major: u32) {
    let (place, mut store) = started(major).await;
    let other = format!("UPDATE walgate.pipelines SET ordinal_scheme = {}", ORDINAL_SCHEME + 1);
    place.execute(&other).await;
    check(store.load(PIPELINE).await, Class::Operator, "checkpoint_store(ordinal_scheme)");
}

async fn an_output_is_registered_once(major: u32) {
    let (_place, mut store) = started(major).await;
    assert_eq!(store.output_lengths(PIPELINE, PLUGIN).await.unwrap(), BTreeMap::new());
    store.register_output(PIPELINE, PLUGIN, "audit").await.unwrap();
    let mark = OutputMark { sequence: 3, length: 1 << 40 };
    let mut checkpoint = to(0x200);
    checkpoint.outputs.push(walgate_store::OutputLength { plugin: PLUGIN.into(), name: "audit".into(), mark });
    store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap();
    store.register_output(PIPELINE, PLUGIN, "audit").await.unwrap();
    let marks = store.output_lengths(PIPELINE, PLUGIN).await.unwrap();
    assert_eq!(marks, BTreeMap::from([("audit".to_owned(), mark)]));
    let nowhere = store.register_output("no such pipeline", PLUGIN, "audit").await;
    check(nowhere, Class::Operator, "checkpoint_store(lineage_changed)");
}

async fn a_reader_reads_beside_a_writer(major: u32) {
    let place = Place::make(major).await;
    let config = place.config();
    let mut reader = StoreReader::connect(config.clone(), None).await.unwrap();
    assert_eq!(reader.pipelines().await.unwrap(), Vec::<String>::new(), "walgate never ran here");
    assert_eq!(reader.load(PIPELINE).await.unwrap(), None);
    assert_eq!(reader.halt(PIPELINE).await.unwrap(), None);
    let mut store = walgate_store::Store::connect(config, None).await.unwrap();
    store.migrate().await.unwrap();
    store.adopt(PIPELINE, &lineage(), Lsn::new(5)).await.unwrap();
    assert_eq!(reader.pipelines().await.unwrap(), [PIPELINE]);
    assert_eq!(reader.load(PIPELINE).await.unwrap().unwrap().acked, Lsn::new(5));
    let client = place.client().await;
    let backends = client
        .query(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(backends[0].get::<_, i64>(0), 2, "one session each");
}

async fn a_halt_is_kept_until_cleared(major: u32) {
    let (place, mut store) = migrated(major).await;
    let mut reader = StoreReader::connect(place.config(), None).await.unwrap();
    let halt = |name: &str, plugin: Option<&str>| StoredHalt {
        name: name.to_owned(),
        plugin: plugin.map(str::to_owned),
        detail: "what to do".to_owned(),
    };
    // Before the pipeline was ever adopted.
    for kept in [halt("slot_missing", None), halt("sink_failed", Some(PLUGIN))] {
        store.set_halt(PIPELINE, &kept).await.unwrap();
        assert_eq!(reader.halt(PIPELINE).await.unwrap(), Some(kept));
    }
    store.clear_halt("another").await.unwrap();
    assert!(reader.halt(PIPELINE).await.unwrap().is_some());
    store.clear_halt(PIPELINE).await.unwrap();
    assert_eq!(reader.halt(PIPELINE).await.unwrap(), None);
}
