//! One HTTP request over plain TCP, enough for the admin API on 127.0.0.1.
//!
//! Holds: request and response framing of HTTP/1.0, which has no chunked bodies.
//! Never knows: TLS, redirects, connection reuse.
//! Read next: [`crate::Walgate`].

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A request that takes longer than this on 127.0.0.1 is stuck.
const DEADLINE: Duration = Duration::from_secs(10);

/// A response of at most this many bytes is read; metrics pages are tens of kilobytes.
const MAX_RESPONSE: u64 = 16 << 20;

/// What came back.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    /// The body; bytes that are not UTF-8 are replaced.
    pub body: String,
}

/// Sends one request and reads the whole response; `token` becomes a bearer token.
///
/// Fails when nobody listens, when the answer is not HTTP, and after 10 s.
pub async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> Result<Response> {
    timeout(DEADLINE, exchange(address, method, path, token, body))
        .await
        .with_context(|| format!("{method} {path} at {address} got no answer within {DEADLINE:?}"))?
        .with_context(|| format!("{method} {path} at {address} failed"))
}

async fn exchange(address: SocketAddr, method: &str, path: &str, token: Option<&str>, body: &str) -> Result<Response> {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    let message = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{authorization}Content-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(message.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut bytes).await?;
    parse(&String::from_utf8_lossy(&bytes)).context("the answer is not HTTP")
}

fn parse(text: &str) -> Option<Response> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_taken_apart() {
        let response = parse("HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\nnot yet\r\n\r\nreally").unwrap();
        assert_eq!((response.status, response.body.as_str()), (503, "not yet\r\n\r\nreally"));
        assert!(parse("SSH-2.0-OpenSSH\r\n\r\n").is_none());
        assert!(parse("HTTP/1.1 200 OK\r\n").is_none());
    }

    #[tokio::test]
    async fn a_request_reaches_a_listener() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"{}") {
                stream.read_buf(&mut seen).await.unwrap();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.unwrap();
            String::from_utf8(seen).unwrap()
        });
        let response = request(address, "POST", "/reload", Some("s3"), "{}").await.unwrap();
        assert_eq!((response.status, response.body.as_str()), (200, "hello"));
        let seen = server.await.unwrap();
        assert!(seen.starts_with("POST /reload HTTP/1.0\r\n") && seen.contains("Authorization: Bearer s3\r\n"));
    }
}
