//! Servers that stop, slots that are gone: each error has the right class.

use walgate_harness::{Cluster, wait_until};
use walgate_wire::{Class, SlotOptions, channel};

use crate::support::{DEADLINE, connect, prepare, pump, start, start_options, wait_active};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_is_retried() {
    let mut cluster = Cluster::start(15).unwrap();
    prepare(&cluster).await.unwrap();
    let pumping = pump(start(&cluster).await, 1 << 20);
    wait_active(&cluster, true).await.unwrap();
    cluster.stop_immediate().unwrap();
    let error = pumping.end().await.unwrap_err();
    assert!(error.is_connection_loss() && error.class() == Class::Retry, "{error:?}");

    cluster.launch().unwrap();
    let mut pumping = pump(start(&cluster).await, 1 << 20);
    wait_active(&cluster, true).await.unwrap();
    // An orderly shutdown waits until everything is confirmed.
    let (mut chunks, flush) = (std::mem::replace(&mut pumping.chunks, channel(1).1), pumping.flush.clone());
    tokio::spawn(async move {
        while let Some(chunk) = chunks.recv().await {
            for frame in chunk.frames() {
                flush.send_replace(frame.unwrap().lsn());
            }
        }
    });
    cluster.stop_fast().unwrap();
    let error = pumping.end().await.unwrap_err();
    assert!(error.is_connection_loss() && error.class() == Class::Retry, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_ended_by_an_administrator_is_retried() {
    let cluster = Cluster::start(18).unwrap();
    prepare(&cluster).await.unwrap();
    let pumping = pump(start(&cluster).await, 1 << 20);
    wait_active(&cluster, true).await.unwrap();
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'";
    cluster.execute("postgres", sql).await.unwrap();
    let error = pumping.end().await.unwrap_err();
    assert_eq!((error.class(), error.sqlstate()), (Class::Retry, Some("57P01")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_slot_is_for_an_operator() {
    let cluster = Cluster::start(15).unwrap();
    let error = connect(&cluster).await.start_replication(&start_options()).await.unwrap_err();
    assert_eq!((error.class(), error.halt_name()), (Class::Operator, "slot_missing"));
    assert!(error.to_string().contains("\"s\" does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_the_slot_does_not_know_is_for_an_operator() {
    for major in [15, 18] {
        let cluster = Cluster::start(major).unwrap();
        cluster.execute("postgres", "CREATE TABLE t (id int PRIMARY KEY, v text)").await.unwrap();
        connect(&cluster).await.create_slot("s", SlotOptions::default()).await.unwrap();
        cluster.execute("postgres", "INSERT INTO t VALUES (1, 'x')").await.unwrap();
        let mut pumping = pump(start(&cluster).await, 1 << 20);
        if major >= 18 {
            // Since 18 it is skipped with a warning; the check before the start is what names it.
            let missing = connect(&cluster).await.missing_publications(&["p".to_owned()]).await.unwrap();
            assert_eq!(missing, ["p"]);
            pumping.chunks.recv().await.unwrap();
            pumping.stop().await.unwrap();
            continue;
        }
        let error = pumping.end().await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (Class::Operator, "publication_missing"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidated_slot_is_for_an_operator() {
    for major in [15, 18] {
        let cluster = Cluster::builder(major)
            .setting("max_slot_wal_keep_size", "1MB")
            .setting("min_wal_size", "32MB")
            .setting("max_wal_size", "32MB")
            .start()
            .unwrap();
        prepare(&cluster).await.unwrap();
        let mut connection = connect(&cluster).await;
        let client = cluster.client("postgres").await.unwrap();
        wait_until(DEADLINE, "the slot is invalidated", async || {
            client.batch_execute("INSERT INTO t SELECT max(id) + 1, 'x' FROM t").await.ok();
            client.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()", &[]).await?;
            client.batch_execute("CHECKPOINT").await?;
            Ok(connection.slot("s").await?.is_some_and(|slot| slot.invalidated().is_some()))
        })
        .await
        .unwrap();
        let error = connection.start_replication(&start_options()).await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (Class::Operator, "slot_invalidated"), "{error:?}");
    }
}
