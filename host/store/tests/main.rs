//! The state database against real servers of both ends of the supported range, and outputs on real files.
//!
//! Holds: what the cases share. Each case has a database of its own, and a cluster of its own when it ends servers.
//! Read next: [`committing`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests fail loudly; clippy's own exemption does not reach the shared parts of a test binary"
)]

mod committing;
mod connecting;
mod leading;
mod leasing;
mod letters;
mod migrating;
mod outputs;
mod pipelines;
mod retrying;
mod rows;
mod rows_effects;
mod rows_positions;
mod rows_property;
mod rows_refusals;
mod rows_tables;
mod rows_values;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio_postgres::{Client, Config};
use walgate_core::{Cursor, Lineage, Lsn};
use walgate_harness::Cluster;
use walgate_store::{Checkpoint, Class, PluginCursor, Store, StoreError};

/// Runs each case on Postgres 15 and on 18.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod postgres_15 { $( #[tokio::test] async fn $case() { super::$case(15).await } )* }
        mod postgres_18 { $( #[tokio::test] async fn $case() { super::$case(18).await } )* }
    };
}
pub(crate) use on_both;

pub(crate) const PIPELINE: &str = "orders";
pub(crate) const PLUGIN: &str = "warehouse";

pub(crate) fn lineage() -> Lineage {
    Lineage {
        system_id: "7400000000000000001".to_owned(),
        timeline: 1,
        database: "shop".to_owned(),
        slot: "walgate".to_owned(),
        slot_created_at: Lsn::new(0x100),
    }
}

/// An empty database of its own, on a cluster that cases of one major version share while they overlap.
pub(crate) struct Place {
    cluster: Arc<Cluster>,
    pub(crate) database: String,
}

impl Place {
    pub(crate) async fn make(major: u32) -> Self {
        static SHARED: Mutex<BTreeMap<u32, Weak<Cluster>>> = Mutex::new(BTreeMap::new());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let cluster = {
            // A case that failed to start a cluster leaves the map as it was.
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            shared.get(&major).and_then(Weak::upgrade).unwrap_or_else(|| {
                let cluster = Arc::new(Cluster::start(major).unwrap());
                shared.insert(major, Arc::downgrade(&cluster));
                cluster
            })
        };
        let database = format!("case_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        cluster.execute("postgres", &format!("CREATE DATABASE {database}")).await.unwrap();
        Self { cluster, database }
    }

    pub(crate) fn config(&self) -> Config {
        self.config_as("postgres")
    }

    pub(crate) fn config_as(&self, role: &str) -> Config {
        self.cluster.url_as(role, "", &self.database).parse().unwrap()
    }

    pub(crate) async fn store(&self) -> Store {
        Store::connect(self.config(), None).await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        self.cluster.client(&self.database).await.unwrap()
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.cluster.execute(&self.database, sql).await.unwrap();
    }
}

/// A database with a migrated store.
pub(crate) async fn migrated(major: u32) -> (Place, Store) {
    let place = Place::make(major).await;
    let mut store = place.store().await;
    store.migrate().await.unwrap();
    (place, store)
}

/// The same with a pipeline that acknowledged 0x100 and a plugin that starts there.
pub(crate) async fn started(major: u32) -> (Place, Store) {
    let (place, mut store) = migrated(major).await;
    start(&mut store).await;
    (place, store)
}

/// The same on a cluster that the case may stop.
pub(crate) async fn started_alone(major: u32) -> (Cluster, Store) {
    let cluster = Cluster::start(major).unwrap();
    let mut store = Store::connect(cluster.url("postgres").parse().unwrap(), None).await.unwrap();
    store.migrate().await.unwrap();
    start(&mut store).await;
    (cluster, store)
}

async fn start(store: &mut Store) {
    store.adopt(PIPELINE, &lineage(), Lsn::new(0x100)).await.unwrap();
    store.start_plugin(PIPELINE, PLUGIN, Cursor::at(Lsn::new(0x100)), 1).await.unwrap();
}

/// A checkpoint that moves the plugin and the acknowledged position to one place.
pub(crate) fn to(end: u64) -> Checkpoint {
    Checkpoint {
        acked: Lsn::new(end),
        cursors: vec![PluginCursor { plugin: PLUGIN.to_owned(), cursor: Cursor::at(Lsn::new(end)), generation: 1 }],
        ..Checkpoint::default()
    }
}

#[track_caller]
pub(crate) fn check<T>(result: Result<T, StoreError>, class: Class, halt_name: &str) -> StoreError {
    let Err(error) = result else { panic!("it succeeded, expected {halt_name}") };
    assert_eq!((error.class(), error.halt_name()), (class, halt_name), "{error}");
    error
}

/// A value that may be seen nowhere but in the table.
pub(crate) const SECRET: &str = "S3CR3T-4111-1111";

/// Neither the text nor the debug form of an error, nor of any of its causes, shows the value.
#[track_caller]
pub(crate) fn check_silent(error: &(dyn std::error::Error + 'static)) {
    let mut cause = Some(error);
    while let Some(error) = cause {
        assert!(!format!("{error} {error:?}").contains(SECRET), "a value leaked into an error");
        cause = error.source();
    }
}
