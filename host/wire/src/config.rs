//! Where the source is and how to reach it.
//!
//! Holds: the options of a connection and their URL form. Refuses to know files of configuration, and never prints or
//! repeats a password: no error quotes any part of a URL except the name of a parameter. Read next: [`crate::tls`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use crate::config_url;

/// Time for DNS, TCP, TLS and authentication together, when nothing else is said.
///
/// Ten seconds cover a slow resolver and two lost packets; more would only delay the next attempt.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Receive buffer of a TCP socket, in bytes, set before the connection is made.
///
/// A fixed size keeps the sender limited by the window while the reader pauses, so that its small messages coalesce:
/// 128, 256 and 512 KiB were steady in every run, 64 KiB and autotuning were not. Over a path with a long round trip it
/// caps the throughput at one buffer a round trip: there, set twice the bandwidth-delay product.
pub const DEFAULT_RECEIVE_BUFFER_BYTES: u32 = 256 << 10;

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A host name or an address.
    Tcp(String),
    /// The directory of the socket, as in `unix_socket_directories`.
    Unix(PathBuf),
}

/// How much TLS is asked for, in the words of libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Never.
    Disable,
    /// If the server has it. Protects from nothing but a passive listener.
    #[default]
    Prefer,
    /// Always, without looking at the certificate, unless an own CA file is given.
    Require,
    /// Always, with a certificate of a trusted CA, whatever name it carries.
    VerifyCa,
    /// Always, with a certificate of a trusted CA for exactly this host.
    VerifyFull,
}

impl TlsMode {
    /// The mode of that name in `sslmode`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "disable" => Some(Self::Disable),
            "prefer" => Some(Self::Prefer),
            "require" => Some(Self::Require),
            "verify-ca" => Some(Self::VerifyCa),
            "verify-full" => Some(Self::VerifyFull),
            _ => None,
        }
    }
}

/// TLS towards one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsOptions {
    /// How much is asked for.
    pub mode: TlsMode,
    /// A PEM file of trusted CAs instead of those of the system. Given with `prefer` or `require`, it is checked too,
    /// as libpq does.
    pub root_cert: Option<PathBuf>,
    /// A PEM file with the client certificate and its chain; needs `client_key`.
    pub client_cert: Option<PathBuf>,
    /// A PEM file with the unencrypted key of the client certificate.
    pub client_key: Option<PathBuf>,
}

/// Everything needed to open a replication connection.
///
/// `Debug` shows a password as redacted.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Where the server listens.
    pub host: Host,
    /// Its port; for a socket directory the number in the name of the socket.
    pub port: u16,
    /// The role to log in as.
    pub user: String,
    /// Its password, if it needs one. Any characters: nothing is decoded or trimmed.
    pub password: Option<SecretString>,
    /// The database that the slot belongs to.
    pub database: String,
    /// The name shown in `pg_stat_activity` and `pg_stat_replication`.
    pub application_name: String,
    /// Time for the whole of connecting, authentication included.
    pub connect_timeout: Duration,
    /// TLS. Not used on a socket directory, as in libpq.
    pub tls: TlsOptions,
    /// See [`DEFAULT_RECEIVE_BUFFER_BYTES`].
    pub receive_buffer_bytes: u32,
}

impl SourceOptions {
    /// Options with the defaults: no password, the application name `walgate`, ten seconds to connect, `prefer`.
    pub fn new(host: Host, user: impl Into<String>, database: impl Into<String>) -> Self {
        Self {
            host,
            port: 5432,
            user: user.into(),
            password: None,
            database: database.into(),
            application_name: "walgate".to_owned(),
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            tls: TlsOptions::default(),
            receive_buffer_bytes: DEFAULT_RECEIVE_BUFFER_BYTES,
        }
    }

    /// Reads `postgres://user:password@host:port/database?parameter=value&…`.
    ///
    /// Parameters: `host` (a directory means a socket), `port`, `user`, `password`, `dbname`, `sslmode`, `sslrootcert`,
    /// `sslcert`, `sslkey`, `application_name`, `connect_timeout` in seconds. Every part is percent-decoded exactly
    /// once. An unknown or repeated parameter is refused.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        config_url::parse(url)
    }

    /// The same with another password, taken as it is.
    #[must_use]
    pub fn with_password(mut self, password: SecretString) -> Self {
        self.password = Some(password);
        self
    }

    /// The path of the socket below a socket directory.
    pub(crate) fn socket_path(&self, directory: &Path) -> PathBuf {
        directory.join(format!(".s.PGSQL.{}", self.port))
    }
}

/// A URL or option that cannot be used; an operator has to correct it. Holds no part of the URL but parameter names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Another scheme, or none.
    #[error("the source URL must begin with postgres:// or postgresql://")]
    Scheme,
    /// Broken percent-encoding, no UTF-8, or a NUL.
    #[error("the {part} in the source URL is not valid percent-encoded UTF-8; write a literal % as %25")]
    Encoding {
        /// Which part.
        part: &'static str,
    },
    /// An `@` behind the host: some earlier part holds a character that must be encoded.
    #[error(
        "the source URL has an @ after its first / or ?; write these characters in the password as %40, %2F and %3F, or use password_file"
    )]
    StrayAt,
    /// A part that must not be missing.
    #[error("the source URL names no {part}")]
    Missing {
        /// Which part.
        part: &'static str,
    },
    /// Several hosts.
    #[error("the source URL names several hosts; a replication slot lives on one")]
    SeveralHosts,
    /// A value outside what is allowed.
    #[error("{name} in the source URL must be {allowed}")]
    Value {
        /// The parameter or part.
        name: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A parameter that does not exist here.
    #[error("the source URL has a parameter {name:?}, which is not known; known are {known}", known = config_url::KNOWN)]
    UnknownParameter {
        /// Its name; `(unnamed)` when it does not look like one.
        name: String,
    },
    /// A parameter given twice, or also in the front part of the URL.
    #[error("the source URL gives {name} more than once")]
    Repeated {
        /// The parameter.
        name: &'static str,
    },
    /// One of the two files of a client certificate.
    #[error("sslcert and sslkey in the source URL need each other")]
    HalfClientCertificate,
}
