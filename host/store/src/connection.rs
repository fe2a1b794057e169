//! One connection to the state database, opened again after a loss.
//!
//! Holds: the configuration, the live session, deadlines on every answer. Refuses to know any table.
//! Invariant: a session that lost its server, or whose state is unknown, is never used again.
//! Read next: [`crate::store`].

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error as PgError, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::StoreError;

/// Longest wait for a connection, all hosts and the session settings included. Shorter than any retry budget, long
/// enough for a handshake across continents.
const CONNECT_DEADLINE: Duration = Duration::from_secs(15);

/// Longest wait for one operation. Above the server's own `statement_timeout` in [`SETTINGS`], so that it only fires
/// when the server cannot answer at all: a dead peer must not hold a pipeline for the hours TCP would wait.
const OPERATION_DEADLINE: Duration = Duration::from_secs(45);

/// Silence after which an idle connection asks whether its peer is there, and the pause before it asks again.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Set on every session. A commit that returns before it is on disk would let the source free WAL that is still
/// needed, so `synchronous_commit` does not depend on the server's default. The path is pinned so that no function or
/// operator of another schema can stand in for a built-in one.
const SETTINGS: &str = "SET synchronous_commit = on; SET statement_timeout = '30s'; SET lock_timeout = '10s'; \
     SET idle_in_transaction_session_timeout = '60s'; SET client_min_messages = error; \
     SET search_path = pg_catalog; SET TimeZone = 'UTC'";

/// Added for a reader.
const READ_ONLY: &str = "SET default_transaction_read_only = on";

/// How to reach the state database, and the session if there is one.
pub(crate) struct Connection {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    read_only: bool,
    session: Option<Session>,
}

impl Connection {
    pub(crate) async fn open(
        mut config: Config,
        tls: Option<rustls::ClientConfig>,
        read_only: bool,
    ) -> Result<Self, StoreError> {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_DEADLINE / 2);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(OPERATION_DEADLINE);
        }
        // A socket file has no host name for a certificate to match, and the driver refuses to try.
        let over_network = config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)));
        let tls = tls.filter(|_| over_network).map(MakeRustlsConnect::new);
        let mut connection = Self { config, tls, read_only, session: None };
        connection.session().await?;
        Ok(connection)
    }

    /// A further connection to the same place, not opened yet. It may idle: a dead peer is noticed within half a minute.
    pub(crate) fn another(&self) -> Self {
        let mut config = self.config.clone();
        config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_INTERVAL).keepalives_retries(3);
        Self { config, tls: self.tls.clone(), read_only: self.read_only, session: None }
    }

    /// Whether there is a session and it has not lost its server, as far as is known without asking.
    pub(crate) fn is_live(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_usable)
    }

    /// The live session; opens one when there is none, or the last one was lost.
    pub(crate) async fn session(&mut self) -> Result<&mut Session, StoreError> {
        let session = match self.session.take().filter(Session::is_usable) {
            Some(session) => session,
            None => self.connect().await?,
        };
        Ok(self.session.insert(session))
    }

    async fn connect(&self) -> Result<Session, StoreError> {
        let opening = async {
            let client = match &self.tls {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls.clone()).await?;
                    tokio::spawn(drive(connection));
                    client
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await?;
                    tokio::spawn(drive(connection));
                    client
                }
            };
            client.batch_execute(SETTINGS).await?;
            if self.read_only {
                client.batch_execute(READ_ONLY).await?;
            }
            Ok(client)
        };
        match timeout(CONNECT_DEADLINE, opening).await {
            Ok(Ok(client)) => {
                tracing::debug!("state database session opened");
                Ok(Session { client, prepared: HashMap::new(), broken: false })
            }
            Ok(Err(error)) => Err(StoreError::connecting(&error)),
            Err(_) => Err(StoreError::unavailable("connecting to it", no_answer(CONNECT_DEADLINE))),
        }
    }
}

/// One session. Ends with its value: dropping the client closes the socket.
pub(crate) struct Session {
    client: Client,
    prepared: HashMap<&'static str, Statement>,
    broken: bool,
}

impl Session {
    fn is_usable(&self) -> bool {
        !self.broken && !self.client.is_closed()
    }

    pub(crate) async fn query(
        &mut self,
        doing: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let result = within(doing, self.client.query(sql, params)).await;
        self.settle(result)
    }

    pub(crate) async fn query_one(
        &mut self,
        doing: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, StoreError> {
        let result = within(doing, self.client.query_one(sql, params)).await;
        self.settle(result)
    }

    /// Runs a hot statement: prepared once a session, so that each later call is a single round trip.
    pub(crate) async fn execute_commit(
        &mut self,
        doing: &'static str,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<(), PgOrStore> {
        let statement = match self.prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let result = within(doing, self.client.prepare(sql)).await;
                let statement = self.settle(result).map_err(PgOrStore::Store)?;
                self.prepared.insert(sql, statement.clone());
                statement
            }
        };
        match timeout(OPERATION_DEADLINE, self.client.query(&statement, params)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                self.broken = StoreError::server(doing, &error).is_unavailable();
                Err(PgOrStore::Pg(error))
            }
            Err(_) => {
                self.broken = true;
                Err(PgOrStore::Store(StoreError::unavailable(doing, no_answer(OPERATION_DEADLINE))))
            }
        }
    }

    /// Runs several statements as one transaction; any failure leaves nothing behind.
    pub(crate) async fn transaction<T>(
        &mut self,
        doing: &'static str,
        work: impl AsyncFnOnce(&tokio_postgres::Transaction<'_>) -> Result<T, PgError>,
    ) -> Result<T, StoreError> {
        let result = within(doing, async {
            let transaction = self.client.transaction().await?;
            let value = work(&transaction).await?;
            transaction.commit().await?;
            Ok(value)
        })
        .await;
        self.settle(result)
    }

    fn settle<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if result.as_ref().is_err_and(StoreError::is_unavailable) {
            self.broken = true;
        }
        result
    }
}

/// A failure of the commit statement, still in the driver's form when the caller has its own reading of the state.
pub(crate) enum PgOrStore {
    Pg(PgError),
    Store(StoreError),
}

async fn within<T>(doing: &'static str, work: impl Future<Output = Result<T, PgError>>) -> Result<T, StoreError> {
    match timeout(OPERATION_DEADLINE, work).await {
        Ok(result) => result.map_err(|error| StoreError::server(doing, &error)),
        Err(_) => Err(StoreError::unavailable(doing, no_answer(OPERATION_DEADLINE))),
    }
}

fn no_answer(deadline: Duration) -> String {
    format!("no answer within {} s", deadline.as_secs())
}

/// Moves the bytes of one session until it ends. The end is seen by the next operation, which reports it.
async fn drive(connection: impl Future<Output = Result<(), PgError>>) {
    if let Err(error) = connection.await {
        let state = error.code().map_or("none", |code| code.code());
        tracing::debug!(sqlstate = state, "state database session ended");
    }
}
