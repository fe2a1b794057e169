//! An HTTP server on loopback that does as it is told, the worst included.
//!
//! Holds: replies by script, and what was asked of it. Never knows: what the answers mean to whoever asked.
//! Read next: nothing, this is a leaf.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request of at most this many bytes is read; anything larger is the test's mistake.
const MAX_REQUEST: usize = 256 << 20;

/// What becomes of one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A status without a body; the connection stays.
    Status(u16),
    /// A status with headers, each a whole line, and a body; the connection stays.
    With(u16, Vec<String>, String),
    /// 200, and the connection is closed behind it.
    AndClose,
    /// Nothing, for as long as the other side waits.
    Never,
    /// The connection is closed without a word.
    Close,
    /// Half of a head, then the end.
    HalfHead,
    /// A head of two megabytes.
    HugeHead,
    /// Headers without end, each a small one.
    ManyHeaders,
    /// A tenth of the promised body, then the end.
    HalfBody,
    /// 200 with a body that has no end.
    Endless,
    /// 200 with a body of which a byte comes now and then, for ever.
    Dripping,
    /// Something that is not HTTP.
    Garbage,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The method.
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// When it had come whole.
    pub at: Instant,
}

impl Seen {
    /// The one header of that name, if there is exactly one.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        found.next().filter(|_| found.next().is_none())
    }
}

#[derive(Default)]
struct Shared {
    script: Mutex<VecDeque<Reply>>,
    refused: Mutex<Option<(String, u16)>>,
    seen: Mutex<Vec<Seen>>,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// The server. Dropping it ends it.
pub struct WebServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl WebServer {
    /// Listens on a free port of 127.0.0.1. What no script says is answered with 200.
    pub async fn start() -> Result<Self> {
        Self::serving(|stream| async move { Ok(stream) }).await
    }

    /// The same behind a handshake of the test's own, such as TLS.
    pub async fn serving<S, F, Fut>(secure: F) -> Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Fn(tokio::net::TcpStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::io::Result<S>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port to listen on")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let of_task = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, secured) = (Arc::clone(&of_task), secure(stream));
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                shared.open.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    if let Ok(stream) = secured.await {
                        // A connection that breaks is what many tests are about.
                        let _ = converse(stream, &shared).await;
                    }
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self { address, shared, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the next requests get, one each, behind what was said before.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        lock(&self.shared.script).extend(replies);
    }

    /// Whatever a script says, requests whose body holds this text get this status.
    pub fn refuse(&self, text: &str, status: u16) {
        *lock(&self.shared.refused) = Some((text.to_owned(), status));
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections that the other side has not ended.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) -> Result<()> {
    let mut buffer = Vec::new();
    while let Some((seen, last)) = request(&mut stream, &mut buffer).await? {
        let refused = lock(&shared.refused).clone();
        let refused = refused.filter(|(text, _)| String::from_utf8_lossy(&seen.body).contains(text));
        lock(&shared.seen).push(seen);
        let scripted = || lock(&shared.script).pop_front().unwrap_or(Reply::Status(200));
        let reply = refused.map_or_else(scripted, |(_, status)| Reply::Status(status));
        if !answer(&mut stream, reply).await? || last {
            break;
        }
    }
    // Ends our side in order and waits for the other: a reset would throw away what was just said.
    let _ = stream.shutdown().await;
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

/// Answers whether the connection goes on.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), reply: Reply) -> Result<bool> {
    let whole = |status: u16, lines: &[String], body: &str| {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n{lines}\r\n{body}", body.len())
    };
    match reply {
        Reply::Status(204) => stream.write_all(b"HTTP/1.1 204 Said\r\n\r\n").await?,
        Reply::Status(status) => stream.write_all(whole(status, &[], "").as_bytes()).await?,
        Reply::With(status, lines, body) => stream.write_all(whole(status, &lines, &body).as_bytes()).await?,
        Reply::AndClose => {
            stream.write_all(whole(200, &["Connection: close".to_owned()], "bye").as_bytes()).await?;
            return Ok(false);
        }
        Reply::Never => {
            while stream.read(&mut [0; 1024]).await? > 0 {}
            return Ok(false);
        }
        Reply::Close => return Ok(false),
        Reply::HalfHead => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").await?;
            return Ok(false);
        }
        Reply::HugeHead => {
            let line = format!("HTTP/1.1 200 OK\r\nX-Huge: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(2 << 20));
            stream.write_all(line.as_bytes()).await?;
        }
        Reply::ManyHeaders => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            loop {
                stream.write_all("X-More: more\r\n".repeat(100).as_bytes()).await?;
            }
        }
        Reply::HalfBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789").await?;
            return Ok(false);
        }
        Reply::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
            loop {
                stream.write_all(chunk.as_bytes()).await?;
            }
        }
        Reply::Dripping => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            loop {
                stream.write_all(b"1\r\nx\r\n").await?;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await; // tidy: sleep ok, the drip itself
            }
        }
        Reply::Garbage => {
            stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n\r\n").await?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// The next request, and whether it is the last by its version; none at the end of the connection.
async fn request(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Result<Option<(Seen, bool)>> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if buffer.len() > MAX_REQUEST || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(buffer.get(..end).unwrap_or_default()).into_owned();
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let last = words.next().as_deref() != Some("HTTP/1.1");
    let header = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let headers: Vec<_> = lines.filter_map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(Ok(0), |(_, value)| value.parse()).context("a bad content-length")?;
    buffer.drain(..end + 4);
    while buffer.len() < length {
        if length > MAX_REQUEST || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer.drain(..length).collect();
    Ok(Some((Seen { method, target, headers, body, at: Instant::now() }, last)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{request as ask, wait_until};

    #[tokio::test]
    async fn it_answers_by_script_and_remembers() {
        let server = WebServer::start().await.unwrap();
        server.reply([Reply::With(429, vec!["Retry-After: 1".into()], "slow down".into())]);
        let answer = ask(server.address(), "POST", "/in?x=1", Some("t"), "{}").await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (429, "slow down"));
        assert_eq!(ask(server.address(), "POST", "/in", None, "").await.unwrap().status, 200);
        let seen = server.seen();
        assert_eq!(
            (seen[0].method.as_str(), seen[0].target.as_str(), &seen[0].body[..]),
            ("POST", "/in?x=1", &b"{}"[..])
        );
        assert_eq!(seen[0].header("authorization"), Some("Bearer t"));
        assert_eq!(server.accepted(), 2);
        wait_until(Duration::from_secs(10), "both to end", async || Ok(server.open() == 0)).await.unwrap();
    }
}
