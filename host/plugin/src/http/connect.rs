//! From a grant to a connection: resolved once, every address checked, the checked one dialled, TLS under the name.
//!
//! Holds: the connection with the task that drives it, and how TLS is set up. Refuses to know requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::io::TokioIo;

use super::address::may_be_dialled;
use super::fault::Fault;
use super::grant::HttpGrant;
use super::resolve::Resolver;
use super::url::{Host, Scheme};

/// Bytes that the head of an answer may have; also what is read ahead of a guest. Browsers and proxies stop at 8 to 64 KiB.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Headers that an answer may have.
const MAX_HEADERS: usize = 100;

/// A connection to a checked address. Dropping it ends it.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Who is trusted. Read at the first request that needs it: reading all certificates of a machine takes a while.
#[derive(Default)]
pub(super) struct Tls(OnceLock<Option<TlsConnector>>);

impl Tls {
    /// Trusts these certificates alone.
    #[cfg(test)]
    pub(super) fn trusting(roots: RootCertStore) -> Self {
        Self(OnceLock::from(connector(roots)))
    }

    fn connector(&self) -> Result<&TlsConnector, Fault> {
        let made = self.0.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                tracing::error!(
                    "the system has no trusted CA certificates, so no plugin can use https; install ca-certificates or set SSL_CERT_FILE"
                );
                return None;
            }
            connector(roots)
        });
        made.as_ref().ok_or(Fault::Certificate)
    }
}

/// The provider is the one of all our TLS. HTTP/1.1 alone: one request a connection at a time is what the caps count.
fn connector(roots: RootCertStore) -> Option<TlsConnector> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().ok()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(TlsConnector::from(Arc::new(config)))
}

/// Makes a connection within `patience`.
pub(super) async fn connect(
    plugin: &str,
    grant: &HttpGrant,
    resolver: &dyn Resolver,
    tls: &Tls,
    patience: Duration,
) -> Result<Connection, Fault> {
    let deadline = Instant::now() + patience;
    let addresses = match &grant.origin.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            let found = timeout_at(deadline, resolver.resolve(name)).await.map_err(|_| Fault::ConnectTimeout)?;
            found.map_err(|_| Fault::NoAddress)?
        }
    };
    // Every one: an answer that mixes what may be reached with what may not is not to be trusted in part.
    if let Some(address) = addresses.iter().find(|address| !may_be_dialled(**address, &grant.addresses)) {
        prohibited(plugin, grant, *address);
        return Err(Fault::Prohibited);
    }
    let mut fault = Fault::NoAddress;
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        // An address that never answers leaves time for the others.
        let turn = Instant::now() + deadline.saturating_duration_since(Instant::now()) / left.max(1);
        left = left.saturating_sub(1);
        match timeout_at(turn, dial(grant, address, tls)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(failed)) => fault = failed,
            Err(_) => fault = Fault::ConnectTimeout,
        }
    }
    Err(fault)
}

/// The address is what a resolver answered for the operator's own name, so it may be told.
fn prohibited(plugin: &str, grant: &HttpGrant, address: IpAddr) {
    let host = grant.origin.authority();
    if grant.addresses.is_empty() {
        tracing::warn!(
            plugin,
            %host,
            "the host has the address {address}, which is not public; to allow it, its [[grant.http]] needs: addresses = [\"{address}\"]"
        );
    } else {
        tracing::warn!(plugin, %host, "the host has the address {address}, which `addresses` of its [[grant.http]] do not name");
    }
}

async fn dial(grant: &HttpGrant, address: IpAddr, tls: &Tls) -> Result<Connection, Fault> {
    let stream = TcpStream::connect(SocketAddr::new(address, grant.origin.port));
    let stream = stream.await.map_err(|error| Fault::of_connect(&error))?;
    // Small requests must not wait for each other's confirmations.
    let _ = stream.set_nodelay(true);
    match grant.origin.scheme {
        Scheme::Http => shake_hands(stream).await,
        Scheme::Https => {
            let name = match &grant.origin.host {
                Host::Name(name) => ServerName::try_from(name.clone()).map_err(|_| Fault::Certificate)?,
                Host::Address(address) => ServerName::from(*address),
            };
            let secured = tls.connector()?.connect(name, stream).await;
            shake_hands(secured.map_err(|error| Fault::of_tls(&error))?).await
        }
    }
}

async fn shake_hands(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Connection, Fault> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| Fault::of_hyper(&error))?;
    // How it ends is told to the request, if there is one.
    let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
    Ok(Connection { sender, driver })
}
