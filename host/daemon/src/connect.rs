//! The two connections of a pipeline: replication to the source, SQL to the state database.
//!
//! Holds: the way from checked options to open connections, and what their failures mean for the process.
//! Refuses to know what is asked over them.

use std::time::Duration;

use secrecy::ExposeSecret as _;
use walgate_store::{Class as StoreClass, Store, StoreError, StoreReader};
use walgate_wire::{Class, Connection, Host, SourceOptions, TlsMode, WireError};

use crate::exit::{Failure, chain};
use crate::halt::{Halt, HaltClass};

/// Opens the state database and brings its schema up to date.
pub(crate) async fn state(options: &SourceOptions) -> Result<Store, Failure> {
    let mut store = Store::connect(state_config(options), state_tls(options)?).await.map_err(state_failure)?;
    let applied = match store.migrate().await {
        Ok(applied) => applied,
        Err(error) => return Err(on_standby(options).await.unwrap_or_else(|| state_failure(error))),
    };
    if applied > 0 {
        tracing::info!(applied, "the schema walgate of the state database was brought up to date");
    }
    Ok(store)
}

/// The state database beside a pipeline that runs: its schema is up to date already.
pub(crate) async fn state_plain(options: &SourceOptions) -> Result<Store, Failure> {
    Store::connect(state_config(options), state_tls(options)?).await.map_err(state_failure)
}

/// The same for what works beside the checkpoint stage: its writes carry the epoch of this process, too.
pub(crate) async fn state_beside(
    options: &SourceOptions,
    pipeline: &str,
    epoch: Option<u64>,
) -> Result<Store, Failure> {
    let mut store = state_plain(options).await?;
    if let Some(epoch) = epoch {
        store.carry(pipeline, epoch);
    }
    Ok(store)
}

/// A standby takes no write, however often it is tried.
async fn on_standby(options: &SourceOptions) -> Option<Failure> {
    let asked = async { Connection::connect_sql(options).await?.in_recovery().await }.await;
    let halt = || {
        Halt::new(
            HaltClass::StandbyUnsupported,
            "the state database is on a standby, where no checkpoint can be written; set url in the section [state] of \
             walgate.toml to a database on a primary",
        )
    };
    asked.is_ok_and(|standby| standby).then(|| halt().into())
}

/// The state database as it is, without changing it.
pub(crate) async fn state_reader(options: &SourceOptions) -> Result<StoreReader, Failure> {
    StoreReader::connect(state_config(options), state_tls(options)?).await.map_err(state_failure)
}

/// Opens a replication connection.
pub(crate) async fn source(options: &SourceOptions) -> Result<Connection, Failure> {
    Connection::connect(options).await.map_err(|error| source_failure(&error))
}

/// What an error of the source means for a command that cannot wait.
pub(crate) fn source_failure(error: &WireError) -> Failure {
    match error.class() {
        Class::Retry => Failure::unavailable(format!("source: {}", chain(error))),
        Class::Operator | Class::Bug => source_halt(error).into(),
    }
}

/// A permanent error of the source.
pub(crate) fn source_halt(error: &WireError) -> Halt {
    Halt::new(HaltClass::named(error.halt_name()), format!("source: {}", chain(error)))
}

/// What an error of the state database means before anything runs.
pub(crate) fn state_failure(error: StoreError) -> Failure {
    match error.class() {
        StoreClass::Retry if error.is_unavailable() => {
            Failure::unavailable(format!("state database: {}", chain(&error)))
        }
        // A write that is refused before anything runs is refused the next time, too.
        StoreClass::Retry => state_halt(&error).into(),
        StoreClass::Operator | StoreClass::Bug => state_halt(&error).into(),
    }
}

/// A permanent error of the state database.
pub(crate) fn state_halt(error: &StoreError) -> Halt {
    Halt::new(HaltClass::named(error.halt_name()), format!("state database: {}", chain(error)))
}

pub(crate) fn state_config(options: &SourceOptions) -> tokio_postgres::Config {
    config_of(options, "state")
}

/// An ordinary connection with these options; `purpose` ends its application name.
pub(crate) fn config_of(options: &SourceOptions, purpose: &str) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    match &options.host {
        Host::Tcp(host) => config.host(host),
        Host::Unix(directory) => config.host_path(directory),
    };
    config
        .port(options.port)
        .user(&options.user)
        .dbname(&options.database)
        .application_name(format!("{}-{purpose}", options.application_name))
        .connect_timeout(options.connect_timeout)
        .keepalives_idle(Duration::from_secs(30));
    if let Some(password) = &options.password {
        config.password(password.expose_secret());
    }
    config.ssl_mode(match (&options.host, options.tls.mode) {
        (Host::Unix(_), _) | (_, TlsMode::Disable) => tokio_postgres::config::SslMode::Disable,
        (_, TlsMode::Prefer) => tokio_postgres::config::SslMode::Prefer,
        (_, TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull) => tokio_postgres::config::SslMode::Require,
    });
    config
}

fn state_tls(options: &SourceOptions) -> Result<Option<rustls::ClientConfig>, Failure> {
    tls_of(options, "state")
}

/// Its TLS, when it has any; `section` names it in walgate.toml.
pub(crate) fn tls_of(options: &SourceOptions, section: &str) -> Result<Option<rustls::ClientConfig>, Failure> {
    if matches!(options.host, Host::Unix(_)) || options.tls.mode == TlsMode::Disable {
        return Ok(None);
    }
    let tls = walgate_wire::client_config(&options.tls);
    tls.map(Some).map_err(|error| Failure::usage(format!("{section}.url: {}", chain(&error))))
}
