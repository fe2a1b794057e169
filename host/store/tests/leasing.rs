//! The lock of a pipeline: one holder, gone with its session or process, back after a restart of the server.

use std::time::Duration;

use tokio_postgres::Client;
use walgate_harness::{wait_for, wait_until};
use walgate_store::{Class, Lease, Store};

use crate::{PIPELINE, check, migrated, on_both, started_alone};

on_both! { one_process_holds_the_lock a_dead_session_gives_the_lock_up a_dead_process_gives_the_lock_up
a_kept_lock_survives_a_cut_session a_kept_lock_survives_a_restart names_that_share_a_lock_are_told }

const DEADLINE: Duration = Duration::from_secs(30);

/// Two names whose digests begin with the same 32 bits.
const NAMESAKES: [&str; 2] = ["p19847", "p42256"];

/// The sessions that hold a lock of a pipeline here.
async fn holders(client: &Client) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Waits until the lock is free and takes it.
async fn lead(store: &mut Store) -> Lease {
    wait_for(DEADLINE, "the lock is free", async || Ok(store.try_lead(PIPELINE).await?)).await.unwrap()
}

async fn one_process_holds_the_lock(major: u32) {
    let (place, mut one) = migrated(major).await;
    let mut two = place.store().await;
    let lease = one.try_lead(PIPELINE).await.unwrap().unwrap();
    assert!(two.try_lead(PIPELINE).await.unwrap().is_none());
    assert!(one.try_lead(PIPELINE).await.unwrap().is_none(), "not even the same store twice");
    let _other = two.try_lead("another").await.unwrap().unwrap();
    let guard = lease.keep();
    assert!(two.try_lead(PIPELINE).await.unwrap().is_none());
    drop(guard);
    drop(lead(&mut two).await);
    // Dropping a lease that is not kept gives it up, too.
    drop(lead(&mut one).await);
}

async fn a_dead_session_gives_the_lock_up(major: u32) {
    let (place, mut one) = migrated(major).await;
    let lease = one.try_lead(PIPELINE).await.unwrap().unwrap();
    let client = place.client().await;
    let pid = holders(&client).await[0];
    client.query("SELECT pg_terminate_backend($1, 10000)", &[&pid]).await.unwrap();
    let mut two = place.store().await;
    let _taken = lead(&mut two).await;
    drop(lease);
    assert!(one.try_lead(PIPELINE).await.unwrap().is_none(), "the first one's end leaves the lock of the second");
}

/// What the end of a process is to the server: every socket of it is closed, and nobody says goodbye.
async fn a_dead_process_gives_the_lock_up(major: u32) {
    let (place, mut two) = migrated(major).await;
    let config = place.config();
    let (says, hears) = tokio::sync::oneshot::channel();
    let (dies, death) = std::sync::mpsc::channel::<()>();
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.block_on(async {
            let mut store = Store::connect(config, None).await.unwrap();
            store.try_lead(PIPELINE).await.unwrap().unwrap().keep()
        });
        says.send(()).unwrap();
        let _ = death.recv();
        runtime.shutdown_background();
        // The guard lives on: it is the runtime that is gone.
        guard
    });
    hears.await.unwrap();
    assert!(two.try_lead(PIPELINE).await.unwrap().is_none());
    drop(dies);
    let _lease = lead(&mut two).await;
    drop(process.join().unwrap());
}

async fn a_kept_lock_survives_a_cut_session(major: u32) {
    let (place, mut one) = migrated(major).await;
    let _guard = one.try_lead(PIPELINE).await.unwrap().unwrap().keep();
    let client = place.client().await;
    let before = holders(&client).await;
    client.query("SELECT pg_terminate_backend($1, 10000)", &[&before[0]]).await.unwrap();
    wait_until(DEADLINE, "another session holds the lock", async || {
        let now = holders(&client).await;
        Ok(now.len() == 1 && now != before)
    })
    .await
    .unwrap();
    assert!(place.store().await.try_lead(PIPELINE).await.unwrap().is_none());
}

async fn a_kept_lock_survives_a_restart(major: u32) {
    let (mut cluster, mut one) = started_alone(major).await;
    let guard = one.try_lead(PIPELINE).await.unwrap().unwrap().keep();
    cluster.restart().unwrap();
    let client = cluster.client("postgres").await.unwrap();
    wait_until(DEADLINE, "the lock is held again", async || Ok(holders(&client).await.len() == 1)).await.unwrap();
    let mut two = Store::connect(cluster.url("postgres").parse().unwrap(), None).await.unwrap();
    assert!(two.try_lead(PIPELINE).await.unwrap().is_none());
    drop(guard);
    let _lease = lead(&mut two).await;
}

async fn names_that_share_a_lock_are_told(major: u32) {
    let (place, mut one) = migrated(major).await;
    let [first, second] = NAMESAKES;
    let lease = one.try_lead(first).await.unwrap().unwrap();
    let mut two = place.store().await;
    assert!(two.try_lead(second).await.unwrap().is_none(), "nobody knows yet who holds it");
    one.take_over(first, "host:1").await.unwrap();
    let Err(error) = two.try_lead(second).await else { panic!("it was not told") };
    let error = check::<()>(Err(error), Class::Operator, "checkpoint_store(lock_shared)");
    assert!(error.to_string().contains(first) && error.to_string().contains(second), "{error}");
    // One after the other works.
    drop(lease);
    wait_until(DEADLINE, "the lock is free", async || Ok(matches!(two.try_lead(second).await, Ok(Some(_)))))
        .await
        .unwrap();
}
