//! The stream: order, feedback, blocked consumers, giant messages, cancellation.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use walgate_core::Lsn;
use walgate_harness::{Cluster, majors, wait_until};
use walgate_wire::{PumpStats, StreamEnd, channel};

use crate::support::{
    DEADLINE, Received, connect, options, prepare, pump, pump_on_own_thread, start, start_options, wait_active,
};

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_and_the_flush_position_is_told_on_every_version() {
    for major in majors() {
        let cluster = Cluster::start(major).unwrap();
        prepare(&cluster).await.unwrap();
        let mut pumping = pump(start(&cluster).await, 1 << 20);
        for n in 0..3 {
            cluster.execute("postgres", &format!("INSERT INTO t VALUES ({n}, 'x')")).await.unwrap();
        }
        let received = pumping.receive(3).await;
        assert_eq!((received.inserts, received.commits), (3, 3));

        // Told while running.
        pumping.flush.send_replace(received.end);
        let mut connection = connect(&cluster).await;
        wait_until(DEADLINE, "the slot is confirmed up to the flush position", async || {
            Ok(connection.slot("s").await?.and_then(|slot| slot.confirmed_flush) == Some(received.end))
        })
        .await
        .unwrap();

        // Told at the end, without waiting for any timer.
        cluster.execute("postgres", "INSERT INTO t VALUES (10, 'x')").await.unwrap();
        let last = pumping.receive(1).await.end;
        pumping.flush.send_replace(last);
        let end = pumping.stop().await.unwrap();
        assert_eq!(end, StreamEnd::Stopped { flushed: last, confirmed: true });
        wait_active(&cluster, false).await.unwrap();
        assert_eq!(connection.slot("s").await.unwrap().unwrap().confirmed_flush, Some(last));

        // Nothing that was flushed comes again, and nothing else is lost.
        cluster.execute("postgres", "INSERT INTO t VALUES (11, 'x')").await.unwrap();
        let mut pumping = pump(start(&cluster).await, 1 << 20);
        assert_eq!(pumping.receive(1).await.inserts, 1);
        pumping.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stays_while_the_consumer_never_receives() {
    let cluster = Cluster::builder(15).setting("wal_sender_timeout", "1s").start().unwrap();
    prepare(&cluster).await.unwrap();
    let sql = "INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 100000) n";
    cluster.execute("postgres", sql).await.unwrap();
    let mut pumping = pump_on_own_thread(options(&cluster), start_options(), 100_000);
    let since = Instant::now();
    wait_until(DEADLINE, "five server timeouts pass", async || {
        assert!(!pumping.has_ended());
        Ok(since.elapsed() > Duration::from_secs(5))
    })
    .await
    .unwrap();
    let counts = pumping.stats.counts();
    assert!(counts.bytes < 2_000_000, "the budget holds: {counts:?}");
    assert!(counts.statuses_sent >= 10, "{counts:?}");
    assert!(!cluster.log().contains("terminating walsender process due to replication timeout"));
    let received = pumping.receive(100_000).await;
    assert_eq!((received.inserts, received.commits), (100_000, 1));
    pumping.flush.send_replace(received.end);
    pumping.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_stream_is_kept_alive() {
    let cluster = Cluster::builder(18).setting("wal_sender_timeout", "300ms").start().unwrap();
    prepare(&cluster).await.unwrap();
    let pumping = pump(start(&cluster).await, 1 << 20);
    wait_until(DEADLINE, "many timeouts pass", async || {
        assert!(!pumping.has_ended());
        Ok(pumping.stats.counts().statuses_sent >= 20)
    })
    .await
    .unwrap();
    assert_eq!(pumping.stats.counts().pauses, 0, "idle means eager");
    pumping.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_far_above_budget_and_buffer_comes_whole() {
    let cluster = Cluster::start(15).unwrap();
    prepare(&cluster).await.unwrap();
    let mut pumping = pump(start(&cluster).await, 1000);
    let sql = "INSERT INTO t VALUES (1, repeat('x', 30000000)); INSERT INTO t VALUES (2, 'small')";
    cluster.execute("postgres", sql).await.unwrap();
    assert_eq!(pumping.receive(2).await.inserts, 2);
    assert!(pumping.stats.counts().bytes > 30_000_000);
    pumping.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lazy_reading_loses_nothing_and_ends_when_caught_up() {
    let cluster = Cluster::start(15).unwrap();
    prepare(&cluster).await.unwrap();
    let sql = "INSERT INTO t SELECT n, 'some text' FROM generate_series(1, 200000) n";
    cluster.execute("postgres", sql).await.unwrap();
    let mut pumping = pump_on_own_thread(options(&cluster), start_options(), 8 << 20);
    let received = pumping.receive(200_000).await;
    assert_eq!((received.inserts, received.commits), (200_000, 1));
    let behind = pumping.stats.counts();
    assert!(behind.pauses > 10, "{behind:?}");
    assert!(behind.bytes / behind.reads > 4096, "reads are large: {behind:?}");
    for n in 0..20 {
        cluster.execute("postgres", &format!("INSERT INTO t VALUES (-1 - {n}, 'x')")).await.unwrap();
        pumping.receive(1).await;
    }
    let caught_up = pumping.stats.counts();
    assert!(caught_up.pauses <= behind.pauses + 5, "{behind:?} {caught_up:?}");
    pumping.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pump_that_is_dropped_again_and_again_loses_nothing() {
    let cluster = Cluster::start(15).unwrap();
    prepare(&cluster).await.unwrap();
    let sql = "INSERT INTO t SELECT n, repeat('x', n % 300) FROM generate_series(1, 50000) n";
    cluster.execute("postgres", sql).await.unwrap();
    let mut stream = start(&cluster).await;
    let (sender, mut chunks) = channel(50_000);
    let (_flush, mut flush) = watch::channel(Lsn::ZERO);
    let (_stop, mut stop) = watch::channel(false);
    let (stats, mut received, mut drops) = (PumpStats::new(), Received::default(), 0_u32);
    while received.inserts < 50_000 {
        tokio::select! {
            biased;
            chunk = chunks.recv() => {
                // Dropped at whatever point the pump had reached.
                drops += 1;
                for frame in chunk.unwrap().frames() {
                    received.take(&frame.unwrap());
                }
            }
            end = stream.pump(&sender, &mut flush, &mut stop, &stats) => panic!("{end:?}"),
            // tidy: sleep ok, a deadline and not a pause
            () = tokio::time::sleep(DEADLINE) => panic!("stuck after {received:?}"),
        }
    }
    assert!(drops > 50, "{drops}");
    assert_eq!(received.inserts, 50_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_never_moves_back() {
    let cluster = Cluster::start(15).unwrap();
    prepare(&cluster).await.unwrap();
    let mut connection = connect(&cluster).await;
    cluster.execute("postgres", "SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())").await.unwrap();
    let confirmed = connection.slot("s").await.unwrap().unwrap().confirmed_flush.unwrap();
    let mut options = start_options();
    options.start = confirmed;
    let pumping = pump(connect(&cluster).await.start_replication(&options).await.unwrap(), 1 << 20);
    pumping.flush.send_replace(Lsn::new(1));
    // The last status goes out in any case, and must not tell the older position.
    let end = pumping.stop().await.unwrap();
    assert_eq!(end, StreamEnd::Stopped { flushed: Lsn::ZERO, confirmed: true });
    assert_eq!(connection.slot("s").await.unwrap().unwrap().confirmed_flush, Some(confirmed));
}
