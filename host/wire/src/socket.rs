//! Opens the socket: TCP or a socket directory, with TLS if it is asked for.
//!
//! Holds: socket options, and the TLS request of the protocol. Refuses to know anything said after it.
//! Read next: [`crate::link`], [`crate::tls`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::config::{Host, SourceOptions, TlsMode};
use crate::error::{Kind, WireError};
use crate::tls::{self, TlsError};

const CONNECTING: &str = "connecting to the source";

/// When the kernel asks an idle peer for a sign of life, and how long it waits for acknowledgements of what was sent.
///
/// Probes after 30 s, every 10 s, 3 times: a vanished host is noticed within a minute even while the stream is idle.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(60);

/// Any byte stream towards a server. One virtual call a read, of many messages each, costs nothing measurable.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// An open socket.
pub(crate) struct Socket {
    pub(crate) stream: Box<dyn Stream>,
    /// Whether nobody else can read along: TLS, a socket directory, or the loopback interface.
    pub(crate) private: bool,
    /// Whether letting data pile up makes the sender coalesce it. On a socket directory it does not: the small buffer
    /// there just fills, and the sender waits (measured: rows of 2 kB took twice as long).
    pub(crate) coalesces: bool,
}

/// Opens the socket. Bounded by the caller: this function itself waits as long as the kernel does.
pub(crate) async fn open(options: &SourceOptions) -> Result<Socket, WireError> {
    match &options.host {
        Host::Unix(directory) => {
            let path = options.socket_path(directory);
            let stream = UnixStream::connect(path).await.map_err(|e| WireError::io(CONNECTING, e))?;
            Ok(Socket { stream: Box::new(stream), private: true, coalesces: false })
        }
        Host::Tcp(host) => {
            let stream = open_tcp(host, options).await?;
            let loopback = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
            secure(stream, host, loopback, options).await
        }
    }
}

async fn open_tcp(host: &str, options: &SourceOptions) -> Result<TcpStream, WireError> {
    let failed = |e| WireError::io(CONNECTING, e);
    let addresses = lookup_host((host, options.port)).await.map_err(failed)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in addresses {
        match dial(address, options.receive_buffer_bytes).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

async fn dial(address: SocketAddr, receive_buffer: u32) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Before the connection is made, for the window scale is agreed on in the handshake.
    socket.set_recv_buffer_size(receive_buffer)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY).with_retries(KEEPALIVE_PROBES);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT))?;
    Ok(stream)
}

/// Asks for TLS as the mode says.
async fn secure(
    mut stream: TcpStream,
    host: &str,
    loopback: bool,
    options: &SourceOptions,
) -> Result<Socket, WireError> {
    let mode = options.tls.mode;
    if mode == TlsMode::Disable {
        return Ok(Socket { stream: Box::new(stream), private: loopback, coalesces: true });
    }
    if !server_has_tls(&mut stream).await? {
        return match mode {
            TlsMode::Prefer => Ok(Socket { stream: Box::new(stream), private: loopback, coalesces: true }),
            _ => Err(Kind::TlsRefused.into()),
        };
    }
    let config = tls::client_config(&options.tls)?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::HostName)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|e| WireError::io("agreeing on TLS with the source", e))?;
    Ok(Socket { stream: Box::new(stream), private: true, coalesces: true })
}

/// Sends the TLS request and reads the one byte of the answer.
///
/// Exactly one: bytes that somebody slipped in behind it must reach the TLS library, which refuses them, and must
/// never count as an answer of the server.
async fn server_has_tls(stream: &mut TcpStream) -> Result<bool, WireError> {
    let failed = |e| WireError::io(CONNECTING, e);
    let mut request = bytes::BytesMut::new();
    postgres_protocol::message::frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(failed)?;
    match stream.read_u8().await.map_err(failed)? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        // An error in clear text, for example because no process could be started. It is unauthenticated, so its
        // words are not read; trying again is right for all that a server says at this point.
        b'E' => Err(Kind::Closed { doing: CONNECTING }.into()),
        _ => Err(WireError::protocol("an answer to the TLS request")),
    }
}
