//! The handle of the checkpoint stage on the state database.
//!
//! Holds: the one connection of its owner. Refuses to know what is stored: each group of operations is a file of its
//! own. Read next: [`crate::migrate`], [`crate::leader`], [`crate::pipeline`], [`crate::plugin`], [`crate::commit`].

use tokio_postgres::Config;

use crate::connection::Connection;
use crate::error::StoreError;
use crate::leader::Fence;
use crate::pipeline::{self, PipelineRow};
use crate::{commit, migrate};

/// The state database, writable. One task owns it; every operation waits for the one before.
///
/// A lost connection fails the operation that met it with class [`crate::Class::Retry`]; the next operation opens
/// another. Every operation may be repeated after such a failure, also when it is not known whether it took effect.
///
/// The connection has to be a session of its own: session settings and a prepared statement do not survive a pooler in
/// transaction mode.
pub struct Store {
    pub(crate) connection: Connection,
    pub(crate) fence: Option<Fence>,
}

impl Store {
    /// Connects, without TLS when `tls` is `None` or the host is a socket file. Settings a state database needs
    /// (`synchronous_commit`, timeouts) are set on the session; `application_name` comes with `config`.
    ///
    /// # Errors
    /// Retry when the server does not answer, Operator when it refuses.
    pub async fn connect(config: Config, tls: Option<rustls::ClientConfig>) -> Result<Self, StoreError> {
        Ok(Self { connection: Connection::open(config, tls, false).await?, fence: None })
    }

    /// Brings the schema `walgate` to this version and answers how many scripts that took; 0 on every later start,
    /// which then changes nothing at all.
    ///
    /// # Errors
    /// Operator when an applied script has another text, when the ledger names a script of a newer version, or when the
    /// role may not create the schema.
    pub async fn migrate(&mut self) -> Result<usize, StoreError> {
        migrate::run(self.connection.session().await?).await
    }

    /// Moves a pipeline forward: cursors, plugin state, output lengths and the acknowledged position, or none of them.
    ///
    /// One statement, one round trip and one flush of the state database. Nothing moves back. Repeating a commit is
    /// harmless, so it may be tried again when the answer was lost. An idle advance is a checkpoint of `acked` alone.
    ///
    /// # Errors
    /// Retry when the database does not answer or refuses the write; Operator `checkpoint_store(lineage_changed)` when
    /// the pipeline row is gone or is not of `lineage`; Operator `fenced` when another process took over; Bug when a
    /// position would move back.
    pub async fn commit(
        &mut self,
        pipeline: &str,
        lineage: &walgate_core::Lineage,
        checkpoint: &commit::Checkpoint,
    ) -> Result<commit::Durable, StoreError> {
        let epoch = self.epoch_for(pipeline);
        commit::run(self.connection.session().await?, pipeline, lineage, epoch, checkpoint).await
    }
}

/// The state database, read only: what `status` uses beside a running daemon. Never migrates.
pub struct StoreReader {
    pub(crate) connection: Connection,
}

impl StoreReader {
    /// Connects like [`Store::connect`], for reading.
    ///
    /// # Errors
    /// Retry when the server does not answer, Operator when it refuses.
    pub async fn connect(config: Config, tls: Option<rustls::ClientConfig>) -> Result<Self, StoreError> {
        Ok(Self { connection: Connection::open(config, tls, true).await? })
    }

    /// Whether a table was ever made here; a reader meets databases where walgate never ran, or an older version did.
    pub(crate) async fn has_table(&mut self, name: &'static str) -> Result<bool, StoreError> {
        const DOING: &str = "looking for a table";
        let session = self.connection.session().await?;
        let row = session.query_one(DOING, "SELECT to_regclass($1) IS NOT NULL", &[&name]).await?;
        row.try_get(0).map_err(|error| StoreError::server(DOING, &error))
    }

    /// The pipelines that have a row, by name. Empty also when walgate never ran on this database.
    ///
    /// # Errors
    /// As every read: Retry when the database does not answer, Operator when it refuses.
    pub async fn pipelines(&mut self) -> Result<Vec<String>, StoreError> {
        pipeline::list(self.connection.session().await?).await
    }

    /// Like [`Store::load`]; also `None` when walgate never ran on this database.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub async fn load(&mut self, pipeline: &str) -> Result<Option<PipelineRow>, StoreError> {
        let session = self.connection.session().await?;
        if pipeline::exists(session).await? { pipeline::load(session, pipeline).await } else { Ok(None) }
    }
}
