//! Requests over HTTP, to what plugin.toml grants and nowhere else.
//!
//! Holds: a request, an answer, and sending one. Refuses to know sockets and secrets: the host resolves, dials, adds
//! credentials, signs, caps and times out. It follows no redirect and keeps no cookie. Ask for the capability `http`.
//!
//! ```
//! use walgate_sdk::host::http::{self, Method, Request, Response};
//! use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink};
//!
//! struct Ping;
//!
//! impl Sink for Ping {
//!     fn describe() -> Description {
//!         Description::new("ping", "0.1.0").table(TableRequest::all()).capability("http")
//!     }
//!
//!     fn open(_: &Context) -> Result<Opened<Self>, Failure> {
//!         Ok(Ping.into())
//!     }
//!
//!     fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
//!         let request = Request::new(Method::Post, "https://hooks.example.com/in").body(batch.id());
//!         let answer = http::send(&request.header("idempotency-key", batch.id()))?;
//!         if answer.status() == 204 { Ok(Receipt::durable()) } else { Err(Failure::retry("not-taken")) }
//!     }
//! }
//!
//! export_sink!(Ping);
//!
//! use walgate_sdk::{cells, testing::{BatchBuilder, Host, Table}};
//!
//! let orders = Table::new("public", "orders").key("id", "int8");
//! let batch = BatchBuilder::new("b-1").transaction(1).insert(&orders, cells![7i64]).build();
//! let host = Host::new().grant_asked::<Ping>().http(|_| Ok(Response::new(204)));
//! let mut run = host.open::<Ping>()?;
//! run.deliver(&batch)?;
//! assert_eq!(run.requests()[0].header_value("idempotency-key"), Some("b-1"));
//! # Ok::<(), Failure>(())
//! ```

use std::fmt;

use super::Fault;
#[cfg(target_arch = "wasm32")]
use super::http_wasi as backend;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::double::http as backend;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Read the head.
    Head,
    /// Hand over.
    Post,
    /// Replace.
    Put,
    /// Remove.
    Delete,
    /// Change.
    Patch,
}

/// A request. `Debug` prints neither path, headers nor body.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// A request to a whole URL, with scheme and host.
    pub fn new(method: Method, url: impl Into<String>) -> Self {
        Self { method, url: url.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header. Those that frame the message, and those that the grant injects, are the host's: sending answers
    /// `invalid-request` for them.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The first header of that name, in any case.
    pub fn header_value(&self, name: &str) -> Option<&str> {
        first(&self.headers, name)
    }

    /// The body.
    pub fn body_bytes(&self) -> &[u8] {
        &self.body
    }
}

/// An answer, whole. `Debug` prints neither headers nor body.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// An answer of a test's own making.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first header of that name, in any case, if it is text.
    pub fn header_value(&self, name: &str) -> Option<&str> {
        first(&self.headers, name)
    }

    /// The body.
    pub fn body_bytes(&self) -> &[u8] {
        &self.body
    }
}

fn first<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:?}, {} bytes)", self.method, self.body.len())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({}, {} bytes)", self.status, self.body.len())
    }
}

/// Sends a request and reads the whole answer, whatever its status. A redirect is an answer.
///
/// # Errors
/// To be tried again: `http-no-address`, `http-refused`, `http-unreachable`, `http-timeout`, `http-tls`, `http-incomplete` (the
/// answer did not come whole, or was larger than may be), `http-protocol`, `http-in-flight`. Not to be: `not-granted`,
/// `over-limit` (of the request), `invalid-request`, `http-address-prohibited`.
pub fn send(request: &Request) -> Result<Response, Fault> {
    backend::send(request)
}

/// Scheme, authority and the rest of a URL.
pub(crate) fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at_checked(end)?;
    let target = target.split('#').next().unwrap_or_default();
    (!authority.is_empty()).then_some((scheme, authority, target))
}

/// The fault of this call.
pub(crate) fn fault(code: &str, retryable: bool) -> Fault {
    Fault { call: "http.send", code: code.to_owned(), retryable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_apart() {
        assert_eq!(parts("https://a.example:1/in?x=1#y"), Some(("https", "a.example:1", "/in?x=1")));
        assert_eq!(parts("http://a"), Some(("http", "a", "")));
        assert_eq!(parts("http://a?x"), Some(("http", "a", "?x")));
        for bad in ["", "a.example/in", "https://", "https:///in"] {
            assert_eq!(parts(bad), None, "{bad}");
        }
    }

    #[test]
    fn nothing_of_the_content_prints() {
        let request = Request::new(Method::Post, "https://a/hostile").header("x", "hostile").body("hostile");
        assert_eq!(format!("{request:?}"), "Request(Post, 7 bytes)");
        assert_eq!(
            format!("{:?}", Response::new(200).header("x", "hostile").body("hostile")),
            "Response(200, 7 bytes)"
        );
        assert_eq!(request.header_value("X"), Some("hostile"));
    }
}
