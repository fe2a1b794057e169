//! The lock that one process of a pipeline holds, so that a second one waits instead of taking over from a live one.
//!
//! Holds: the lock, its session, and the task that takes it again after a loss. Refuses to know what the process does
//! with it. The lock keeps two processes from trying; that only one can write is for the epoch of [`crate::leader`].
//! Read next: [`crate::leader`].

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use tokio_postgres::Error as PgError;

use crate::connection::Connection;
use crate::error::{Kind, StoreError};
use crate::store::{Store, StoreReader};

/// First half of the key of every such lock. Arbitrary ("walg" in ASCII), fixed for good.
const NAMESPACE: i32 = 0x7761_6C67;

/// How often a kept lock is looked after: how long a loss stays unnoticed, and the pause between attempts to take it again.
const PERIOD: Duration = Duration::from_millis(200);

/// Takes the lock and tells the server to notice within half a minute that a client is gone without a word: until then
/// its lock stands. A session limit of the server's own must not end a session that is idle by its nature.
const LOCK: &str = "SELECT pg_try_advisory_lock($1, $2), set_config('tcp_keepalives_idle', '10', false), \
     set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false), \
     set_config('idle_session_timeout', '0', false)";

/// The lock of a pipeline, held by a session of its own. Dropping it gives the lock up; so does the loss of the session,
/// until [`Lease::keep`] looks after it.
#[must_use = "dropping a lease gives the lock up"]
pub struct Lease {
    connection: Connection,
    pipeline: String,
}

/// Keeps the lock of a pipeline for as long as it lives. Dropping it gives the lock up.
#[must_use = "dropping the guard gives the lock up"]
pub struct LeaseGuard {
    keeper: JoinHandle<()>,
}

impl Store {
    /// The lock that one process of a pipeline holds: on a session of its own. None while another process has it.
    ///
    /// The server knows the lock by 32 bits of a hash of the name. Two pipelines whose names meet there, one pair in four
    /// billion, can never be led at the same time in one state database: the second one is told so by an error that
    /// names both, as soon as the first has taken over once (until then it gets `None`).
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses; Operator `checkpoint_store(lock_shared)` when
    /// the lock is held and a pipeline of another name that has led here shares it.
    pub async fn try_lead(&mut self, pipeline: &str) -> Result<Option<Lease>, StoreError> {
        let mut lease = Lease { connection: self.connection.another(), pipeline: pipeline.to_owned() };
        if lease.lock().await? {
            return Ok(Some(lease));
        }
        match self.namesake(pipeline).await? {
            Some(other) => Err(Kind::LockShared { pipeline: pipeline.to_owned(), other }.into()),
            None => Ok(None),
        }
    }

    /// Another pipeline that has led and shares the lock.
    async fn namesake(&mut self, pipeline: &str) -> Result<Option<String>, StoreError> {
        const DOING: &str = "comparing the names of leaders";
        let session = self.connection.session().await?;
        let sql = "SELECT pipeline FROM walgate.leaders WHERE pipeline <> $1 ORDER BY pipeline";
        let rows = session.query(DOING, sql, &[&pipeline]).await?;
        let names = rows.iter().map(|row| row.try_get::<_, String>(0)).collect::<Result<Vec<_>, PgError>>();
        let names = names.map_err(|error| StoreError::server(DOING, &error))?;
        Ok(names.into_iter().find(|other| key(other) == key(pipeline)))
    }
}

impl StoreReader {
    /// Whether some process holds the lock of a pipeline now.
    ///
    /// # Errors
    /// Retry when the database does not answer.
    pub async fn is_led(&mut self, pipeline: &str) -> Result<bool, StoreError> {
        const DOING: &str = "looking at the lock of a pipeline";
        // The server shows each half of the key as an unsigned number.
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
                      AND l.classid = $1::bigint::oid AND l.objid = $2::bigint::oid)";
        let [namespace, key] = [NAMESPACE, key(pipeline)].map(|half| i64::from(half.cast_unsigned()));
        let row = self.connection.session().await?.query_one(DOING, sql, &[&namespace, &key]).await?;
        row.try_get(0).map_err(|error| StoreError::server(DOING, &error))
    }
}

impl Lease {
    /// Keeps the lock for as long as the answer lives, taking it again after a lost session (every 200 ms, logged once);
    /// never fails. Whether another process came in between is not told here: it has taken over, so the next write is
    /// refused. Must be called within a runtime.
    pub fn keep(self) -> LeaseGuard {
        LeaseGuard { keeper: tokio::spawn(self.look_after()) }
    }

    async fn look_after(mut self) {
        let mut held = true;
        loop {
            tokio::time::sleep(PERIOD).await;
            if held && self.connection.is_live() {
                continue;
            }
            if held {
                tracing::warn!(pipeline = self.pipeline, "the session that holds the lock was lost; taking it again");
            }
            held = matches!(self.lock().await, Ok(true));
            if held {
                tracing::info!(pipeline = self.pipeline, "the lock is held again");
            }
        }
    }

    /// False while another session has it. Not to be called while it is held.
    async fn lock(&mut self) -> Result<bool, StoreError> {
        const DOING: &str = "taking the lock of a pipeline";
        let session = self.connection.session().await?;
        let row = session.query_one(DOING, LOCK, &[&NAMESPACE, &key(&self.pipeline)]).await?;
        row.try_get(0).map_err(|error| StoreError::server(DOING, &error))
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Second half of the key. Fixed for good: processes of different versions must agree.
fn key(pipeline: &str) -> i32 {
    let digest: [u8; 32] = Sha256::digest(pipeline.as_bytes()).into();
    let [a, b, c, d, ..] = digest;
    i32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_first_bytes_of_sha256() {
        // The digest of "abc" begins with ba7816bf.
        assert_eq!(key("abc"), 0xBA78_16BF_u32.cast_signed());
    }
}
