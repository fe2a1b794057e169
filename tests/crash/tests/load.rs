//! Writers at the source: small and large transactions, updates and deletes, savepoints and rollbacks, all at once.
//!
//! Holds: the tables and what is done to them. Each row of `entries` has a number of its own and the number of its
//! transaction, and is never touched again. `accounts` has few rows that change all the time; a trigger keeps what
//! committed, in the order in which it happened to each row, in `journal`, which is not published.
//! Never knows: which of it committed; the source is asked at the end (`truth.rs`), because whoever loses the answer to a
//! commit does not know either.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::{Client, NoTls};
use walgate_harness::Cluster;

use crate::mode::MAX_BATCH_ROWS;

/// The tables, before anything is written.
pub(crate) const TABLES: &str = "
    CREATE TABLE entries (
        id  bigserial PRIMARY KEY,
        tx  bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
        pad text NOT NULL);
    CREATE TABLE accounts (id int PRIMARY KEY, version bigint NOT NULL);
    CREATE TABLE journal (seq bigserial PRIMARY KEY, id int NOT NULL, op text NOT NULL, version bigint);
    CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO journal (id, op) VALUES (OLD.id, 'delete');
        ELSE
            INSERT INTO journal (id, op, version) VALUES (NEW.id, lower(TG_OP), NEW.version);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER keep AFTER INSERT OR UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION keep();
    CREATE PUBLICATION crash FOR TABLE entries, accounts;";

const WRITERS: u64 = 3;
/// The pace of one writer. A small load: the suite is after the number of crashes, not of rows.
const PACE: Duration = Duration::from_millis(20);
/// A transaction of one row that certain plugins refuse, with a text of its own to be known by.
const POISON: &str = "INSERT INTO entries (pad) VALUES ('poison-' || gen_random_uuid() || ';')";
/// Rows that all writers fight for.
const ACCOUNTS: i32 = 30;

/// The writers. They begin paused, and end when this is dropped.
pub(crate) struct Load {
    gate: Arc<RwLock<()>>,
    held: Option<OwnedRwLockWriteGuard<()>>,
    writers: Vec<JoinHandle<()>>,
    poison: Arc<AtomicBool>,
}

impl Load {
    pub(crate) async fn new(source: &Cluster, seed: u64) -> Self {
        let poison = Arc::new(AtomicBool::new(false));
        let gate = Arc::new(RwLock::new(()));
        let held = Some(Arc::clone(&gate).write_owned().await);
        let writers = (0..WRITERS)
            .map(|writer| {
                tokio::spawn(write_on(
                    source.unix_url("postgres"),
                    seed ^ writer,
                    Arc::clone(&gate),
                    Arc::clone(&poison),
                ))
            })
            .collect();
        Self { gate, held, writers, poison }
    }

    /// From now on some rows have a text that certain plugins refuse.
    pub(crate) fn poison(&self) {
        self.poison.store(true, Ordering::Relaxed);
    }

    /// Returns when every writer has ended its transaction; none begins another.
    pub(crate) async fn pause(&mut self) {
        if self.held.is_none() {
            self.held = Some(Arc::clone(&self.gate).write_owned().await);
        }
    }

    pub(crate) fn resume(&mut self) {
        self.held = None;
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.writers.iter().for_each(JoinHandle::abort);
    }
}

async fn write_on(url: String, seed: u64, gate: Arc<RwLock<()>>, poison: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut client = None;
    loop {
        pace.tick().await;
        let _turn = gate.read().await;
        // The server may be away at any moment, which is the point of the suite; the next turn tries again.
        if client.is_none() {
            client = connect(&url).await.ok();
        }
        let mut sql = transaction(&mut random);
        if poison.load(Ordering::Relaxed) && random.random_bool(0.15) {
            sql = POISON.to_owned();
        }
        if let Some(open) = &client
            && open.batch_execute(&sql).await.is_err()
        {
            client = None;
        }
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn transaction(random: &mut StdRng) -> String {
    match random.random_range(0..16) {
        0..=4 => format!("BEGIN; {} COMMIT", entries(random, 3)),
        5..=8 => format!("BEGIN; {} COMMIT", accounts(random)),
        9..=11 => format!("BEGIN; {}{}{} COMMIT", entries(random, 2), accounts(random), entries(random, 2)),
        12..=13 => format!(
            "BEGIN; {}SAVEPOINT a; {}SAVEPOINT b; {}{}ROLLBACK TO a; {}COMMIT",
            entries(random, 2),
            entries(random, 2),
            accounts(random),
            entries(random, 2),
            entries(random, 2)
        ),
        14 => format!("BEGIN; {}{}ROLLBACK", entries(random, 5), accounts(random)),
        // Larger than a batch, so that it comes in parts; sometimes by a hair.
        _ => {
            let most = if random.random_bool(0.5) { 2 } else { 4 } * MAX_BATCH_ROWS;
            format!("BEGIN; {}{} COMMIT", many_entries(random, MAX_BATCH_ROWS, most), accounts(random))
        }
    }
}

fn entries(random: &mut StdRng, most: usize) -> String {
    many_entries(random, 1, most)
}

fn many_entries(random: &mut StdRng, least: usize, most: usize) -> String {
    let (rows, length) = (random.random_range(least..=most), random.random_range(0..100));
    format!("INSERT INTO entries (pad) SELECT repeat('x', {length}) FROM generate_series(1, {rows}); ")
}

/// In rising order, so that two writers wait for each other only one way.
fn accounts(random: &mut StdRng) -> String {
    let mut ids: Vec<i32> = (0..random.random_range(1..=4)).map(|_| random.random_range(1..=ACCOUNTS)).collect();
    ids.sort_unstable();
    ids.dedup();
    let change = |id: &i32| {
        if random.random_bool(0.25) {
            format!("DELETE FROM accounts WHERE id = {id}; ")
        } else {
            format!(
                "INSERT INTO accounts AS a VALUES ({id}, 1) ON CONFLICT (id) DO UPDATE SET version = a.version + 1; "
            )
        }
    };
    ids.iter().map(change).collect()
}
