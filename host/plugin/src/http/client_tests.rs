//! Requests against real servers on loopback, through the hooks as a guest reaches them: what is denied, where they go, what is
//! added, and what a server can do wrong.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use secrecy::SecretSlice;
use tokio::time::timeout;
use walgate_harness::{Reply, WebServer, wait_until};
use wasmtime_wasi_http::{Error, WasiBody, WasiHttpHooks};

use super::access::HttpAccess;
use super::client::Client;
use super::connect::Tls;
use super::hooks::Hooks;
use super::resolve::{Answer, Resolver};
use crate::capability::Phase;
use crate::limits::Limits;
use crate::manifest::{Manifest, Policy};

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(30);

/// A secret of 32 bytes that must be seen in no log.
const SECRET: &[u8] = b"s3cret-of-the-hook-s3cret-of-the";

/// Answers from a list, then nothing; counts.
#[derive(Default, Clone)]
struct Scripted {
    answers: Arc<Mutex<VecDeque<Vec<IpAddr>>>>,
    asked: Arc<AtomicUsize>,
}

impl Scripted {
    fn of(answers: &[&[&str]]) -> Self {
        let addresses = |list: &&[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        Self { answers: Arc::new(Mutex::new(answers.iter().map(addresses).collect())), asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolver for Scripted {
    fn resolve(&self, _: &str) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let next = self.answers.lock().unwrap().pop_front();
        Box::pin(async move { next.ok_or_else(|| std::io::Error::other("no such name")) })
    }
}

struct Site {
    client: Arc<Client>,
    hooks: Hooks,
}

fn policy(toml: &str) -> Policy {
    let manifest = Manifest::parse(Path::new("plugin.toml"), toml).unwrap();
    let http = HttpAccess::new(&manifest.http, |_| Ok(SecretSlice::from(SECRET.to_vec()))).unwrap();
    Policy { http, ..manifest.policy("hooks") }
}

fn site(toml: &str, resolver: &Scripted, tls: Tls) -> Site {
    let policy = Arc::new(policy(toml));
    let client = Arc::new(Client::with(&policy, Box::new(resolver.clone()), tls));
    let mut hooks = Hooks::new(policy, Some(Arc::clone(&client)));
    hooks.begin(Phase::Deliver);
    Site { client, hooks }
}

fn grant(server: &WebServer, rest: &str) -> String {
    let port = server.address().port();
    format!(
        "[[grant.http]]\nurl = \"http://hooks.test:{port}/in/\"\nmethods = [\"POST\", \"GET\"]\naddresses = [\"127.0.0.1\"]\n{rest}\n"
    )
}

/// A granted site whose name is where the server is, however often it is asked.
fn home(server: &WebServer, rest: &str) -> Site {
    site(&grant(server, rest), &Scripted::of(&[&["127.0.0.1"][..]; 20]), Tls::default())
}

fn request(method: Method, url: &str) -> http::request::Builder {
    Request::builder().method(method).uri(url)
}

fn body(bytes: impl Into<Bytes>) -> WasiBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

impl Site {
    async fn send(&mut self, request: Request<WasiBody>) -> Result<Response<WasiBody>, Error> {
        let sending = self.hooks.send_request(request, None, Box::new(async { Ok(()) }));
        timeout(SOON, Pin::from(sending)).await.unwrap().map(|(response, _)| response)
    }

    /// Sends, and reads the answer to its end.
    async fn whole(&mut self, request: Request<WasiBody>) -> Result<(u16, Bytes), Error> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let bytes = timeout(SOON, response.into_body().collect()).await.unwrap()?.to_bytes();
        Ok((status, bytes))
    }

    async fn post(&mut self, server: &WebServer, target: &str) -> Result<(u16, Bytes), Error> {
        let url = format!("http://hooks.test:{}{target}", server.address().port());
        self.whole(request(Method::POST, &url).body(body("{}")).unwrap()).await
    }
}

/// The variant of an error, which is what the guest is told.
#[track_caller]
fn is(outcome: Result<(u16, Bytes), Error>, variant: &str) {
    let error = outcome.unwrap_err();
    assert!(format!("{error:?}").starts_with(variant), "{error:?} is no {variant}");
}

#[tokio::test]
async fn a_granted_request_arrives_as_the_host_makes_it() {
    let server = WebServer::start().await.unwrap();
    let rest = "sign = { scheme = \"standard-webhooks\", secret = \"hook\" }\n[grant.http.headers]\nauthorization = { secret = \"hook\", prefix = \"Bearer \" }";
    let mut site = home(&server, rest);
    let port = server.address().port();
    let request = request(Method::POST, &format!("HTTP://Hooks.TEST:{port}/in/a?x=..%2f"))
        .header("webhook-id", "b-1")
        .header("x-own", "yes")
        // What a guest could not set through the bindings is not sent either.
        .header("host", "evil.example")
        .header("authorization", "guest")
        .header("webhook-signature", "v1,guest")
        .header("transfer-encoding", "chunked")
        .header("connection", "upgrade")
        .header("content-length", "999")
        .body(body("{\"a\":1}"))
        .unwrap();
    assert_eq!(site.whole(request).await.unwrap().0, 200);
    let seen = &server.seen()[0];
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str(), &seen.body[..]),
        ("POST", "/in/a?x=..%2f", &b"{\"a\":1}"[..])
    );
    let bearer = format!("Bearer {}", str::from_utf8(SECRET).unwrap());
    let host = format!("hooks.test:{port}");
    for (name, value) in [
        ("host", host.as_str()),
        ("authorization", &bearer),
        ("x-own", "yes"),
        ("content-length", "7"),
        ("webhook-id", "b-1"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    for name in ["connection", "transfer-encoding"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    let at: u64 = seen.header("webhook-timestamp").unwrap().parse().unwrap();
    let key = walgate_core::webhook::WebhookKey::new(SECRET).unwrap();
    assert_eq!(seen.header("webhook-signature"), key.sign("b-1", at, &seen.body).as_deref());
}

#[tokio::test]
async fn what_is_signed_needs_one_id_that_can_be() {
    let server = WebServer::start().await.unwrap();
    let mut site = home(&server, "sign = { scheme = \"standard-webhooks\", secret = \"hook\" }");
    let url = format!("http://hooks.test:{}/in/", server.address().port());
    for ids in [&[][..], &["a.b"], &["a", "b"], &[""]] {
        let mut request = request(Method::POST, &url);
        for id in ids {
            request = request.header("webhook-id", *id);
        }
        is(site.whole(request.body(body("x")).unwrap()).await, "HttpRequestDenied");
    }
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn what_no_grant_covers_reaches_nobody() {
    let server = WebServer::start().await.unwrap();
    let port = server.address().port();
    let resolver = Scripted::of(&[&["127.0.0.1"][..]; 20]);
    let mut site = site(&grant(&server, ""), &resolver, Tls::default());
    for url in [
        format!("http://other.test:{port}/in/"),
        format!("http://hooks.test:{}/in/", port ^ 1),
        format!("https://hooks.test:{port}/in/"),
        format!("http://127.0.0.1:{port}/in/"),
        format!("http://hooks.test.:{port}/in/"),
        format!("http://user@hooks.test:{port}/in/"),
        format!("http://hooks.test:{port}@evil.test/in/"),
        format!("http://2130706433:{port}/in/"),
        format!("http://[::ffff:127.0.0.1]:{port}/in/"),
        format!("http://hooks.test:{port}/"),
        format!("http://hooks.test:{port}/in"),
        format!("http://hooks.test:{port}/inside"),
        format!("http://hooks.test:{port}/in/../admin"),
        format!("http://hooks.test:{port}/in/%2e%2e/admin"),
        format!("http://hooks.test:{port}/in/%252e%252e/admin"),
        format!("http://hooks.test:{port}//in/"),
        format!("http://hooks.test:{port}"),
    ] {
        is(site.whole(request(Method::POST, &url).body(body("x")).unwrap()).await, "HttpRequestDenied");
    }
    for method in ["PUT", "DELETE", "TRACE", "CONNECT", "post"] {
        let url = format!("http://hooks.test:{port}/in/");
        let request = request(Method::from_bytes(method.as_bytes()).unwrap(), &url).body(body("x")).unwrap();
        is(site.whole(request).await, "HttpRequestDenied");
    }
    assert_eq!((resolver.asked(), server.accepted()), (0, 0));
    assert_eq!(site.post(&server, "/in/").await.unwrap().0, 200);
}

#[tokio::test]
async fn a_name_that_answers_differently_the_next_time_changes_nothing() {
    let server = WebServer::start().await.unwrap();
    // The second answer is where a rebinding attack would lead; it is there to be asked for.
    let resolver =
        Scripted::of(&[&["127.0.0.1"], &["127.0.0.2"], &["127.0.0.1", "10.0.0.1"], &["::ffff:127.0.0.1"], &[]]);
    let mut site = site(&grant(&server, ""), &resolver, Tls::default());
    server.reply([Reply::Status(200), Reply::AndClose]);
    // One lookup, one connection to what was checked; the second request is on it.
    for _ in 0..2 {
        assert_eq!(site.post(&server, "/in/").await.unwrap().0, 200);
    }
    assert_eq!((resolver.asked(), server.accepted()), (1, 1));
    // A new connection is a new answer, and each of its addresses counts.
    for _ in 0..3 {
        is(site.post(&server, "/in/").await, "DestinationIpProhibited");
    }
    is(site.post(&server, "/in/").await, "DnsError");
    is(site.post(&server, "/in/").await, "DnsError");
    assert_eq!((resolver.asked(), server.accepted()), (6, 1));
}

#[tokio::test]
async fn without_named_ranges_only_public_addresses_are_dialled() {
    let server = WebServer::start().await.unwrap();
    let private = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"];
    let resolver = Scripted::of(&private.each_ref().map(std::slice::from_ref));
    let toml = grant(&server, "").replace("addresses = [\"127.0.0.1\"]\n", "");
    let mut site = site(&toml, &resolver, Tls::default());
    for _ in private {
        is(site.post(&server, "/in/").await, "DestinationIpProhibited");
    }
    assert_eq!((resolver.asked(), server.accepted()), (private.len(), 0));
}

#[tokio::test]
async fn a_redirect_is_an_answer() {
    let server = WebServer::start().await.unwrap();
    let mut site = home(&server, "");
    for status in [301, 302, 303, 307, 308] {
        let to = format!("Location: http://hooks.test:{}/in/elsewhere", server.address().port());
        server.reply([Reply::With(status, vec![to, "Set-Cookie: a=b".into()], String::new())]);
        assert_eq!(site.post(&server, "/in/").await.unwrap().0, status);
    }
    let seen = server.seen();
    assert!(seen.len() == 5 && seen.iter().all(|one| one.target == "/in/" && one.header("cookie").is_none()));
}

#[tokio::test]
async fn a_server_that_misbehaves_is_an_error_and_then_forgotten() {
    let server = WebServer::start().await.unwrap();
    let mut site = home(&server, "[limits]\nhttp_response_bytes = 1000\nhttp_timeout_ms = 300\n");
    for (reply, variant) in [
        (Reply::Never, "HttpResponseTimeout"),
        (Reply::Close, "HttpResponseIncomplete"),
        (Reply::HalfHead, "HttpResponseIncomplete"),
        (Reply::HugeHead, "HttpResponseHeaderSectionSize"),
        (Reply::ManyHeaders, "HttpResponseHeaderSectionSize"),
        (Reply::HalfBody, "HttpResponseIncomplete"),
        (Reply::Endless, "HttpResponseBodySize(Some(1000))"),
        (Reply::Dripping, "HttpResponseTimeout"),
        (Reply::Garbage, "HttpProtocolError"),
        (Reply::Status(101), "HttpProtocolError"),
    ] {
        server.reply([reply.clone()]);
        is(site.post(&server, "/in/").await, variant);
        // What is left of it is closed, and the next request is as good as the first.
        wait_until(SOON, &format!("the end of {reply:?}"), async || Ok(server.open() == 0)).await.unwrap();
        assert!(!site.client.is_busy(), "{reply:?}");
        server.reply([Reply::AndClose]);
        assert_eq!(site.post(&server, "/in/").await.unwrap(), (200, Bytes::from("bye")), "{reply:?}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_until_the_server_ends_it() {
    let server = WebServer::start().await.unwrap();
    let mut site = home(&server, "");
    for _ in 0..3 {
        site.post(&server, "/in/").await.unwrap();
    }
    assert_eq!(server.accepted(), 1);
    server.reply([Reply::AndClose, Reply::Status(204), Reply::Status(204)]);
    for _ in 0..3 {
        site.post(&server, "/in/").await.unwrap();
    }
    assert_eq!((server.accepted(), server.seen().len()), (2, 6));
    // An answer that nobody reads is not waited for.
    server.reply([Reply::With(200, Vec::new(), "x".repeat(1 << 20))]);
    let url = format!("http://hooks.test:{}/in/", server.address().port());
    drop(site.send(request(Method::GET, &url).body(body("")).unwrap()).await.unwrap());
    wait_until(SOON, "its connection to end", async || Ok(server.open() == 0)).await.unwrap();
}

#[tokio::test]
async fn requests_are_capped() {
    let server = WebServer::start().await.unwrap();
    let mut site = home(&server, "[limits]\nhttp_request_bytes = 10\nhttp_in_flight = 2\n");
    let url = format!("http://hooks.test:{}/in/", server.address().port());
    let post = |bytes: usize| request(Method::POST, &url).body(body("x".repeat(bytes))).unwrap();
    is(site.whole(post(11)).await, "HttpRequestBodySize(Some(10))");
    assert_eq!(server.accepted(), 0);
    assert_eq!(site.whole(post(10)).await.unwrap().0, 200);
    server.reply([Reply::With(200, Vec::new(), "x".into()), Reply::With(200, Vec::new(), "x".into())]);
    let held = [site.send(post(1)).await.unwrap(), site.send(post(1)).await.unwrap()];
    is(site.whole(post(1)).await, "ConnectionLimitReached");
    drop(held);
    assert_eq!(site.whole(post(1)).await.unwrap().0, 200);
    let seen = server.seen().len();
    // A body that the guest gives up is no request.
    let broken = Broken.boxed_unsync();
    is(site.whole(request(Method::POST, &url).body(broken).unwrap()).await, "HttpProtocolError");
    assert_eq!(server.seen().len(), seen);
}

/// A body that ends in an error.
struct Broken;

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Error>>> {
        std::task::Poll::Ready(Some(Err(Error::HttpProtocolError)))
    }
}

#[tokio::test]
async fn nobody_there_is_told_apart_from_silence() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    for (port, variant) in [(silent.local_addr().unwrap().port(), "HttpResponseTimeout"), (gone, "ConnectionRefused")] {
        let toml = format!(
            "[[grant.http]]\nurl = \"http://hooks.test:{port}/\"\nmethods = [\"GET\"]\naddresses = [\"127.0.0.0/8\"]\n[limits]\nhttp_timeout_ms = 300\n"
        );
        let mut site = site(&toml, &Scripted::of(&[&["127.0.0.1"]]), Tls::default());
        let url = format!("http://hooks.test:{port}/");
        is(site.whole(request(Method::GET, &url).body(body("")).unwrap()).await, variant);
    }
}

#[tokio::test]
async fn the_second_address_is_tried_when_the_first_refuses() {
    let server = WebServer::start().await.unwrap();
    let toml = grant(&server, "").replace("127.0.0.1", "127.0.0.0/8");
    let mut site = site(&toml, &Scripted::of(&[&["127.0.0.9", "127.0.0.1"]]), Tls::default());
    assert_eq!(site.post(&server, "/in/").await.unwrap().0, 200);
}

#[tokio::test]
async fn tls_is_under_the_name_and_trusts_nobody_else() {
    let made = rcgen::generate_simple_self_signed(["hooks.test".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let server = WebServer::serving(move |stream| acceptor.accept(stream)).await.unwrap();
    let port = server.address().port();
    for (host, trusts, ok) in [("hooks.test", true, true), ("other.test", true, false), ("hooks.test", false, false)] {
        let mut roots = rustls::RootCertStore::empty();
        let other = rcgen::generate_simple_self_signed(["hooks.test".to_owned()]).unwrap();
        roots.add(if trusts { made.cert.der().clone() } else { other.cert.der().clone() }).unwrap();
        let toml = format!(
            "[[grant.http]]\nurl = \"https://{host}:{port}/\"\nmethods = [\"GET\"]\naddresses = [\"127.0.0.1\"]\n"
        );
        let mut site = site(&toml, &Scripted::of(&[&["127.0.0.1"]]), Tls::trusting(roots));
        let outcome =
            site.whole(request(Method::GET, &format!("https://{host}:{port}/")).body(body("")).unwrap()).await;
        if ok {
            assert_eq!(outcome.unwrap().0, 200);
        } else {
            is(outcome, "TlsCertificateError");
        }
    }
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn the_log_has_the_grant_that_is_missing_and_nothing_of_the_guest() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(WebServer::start()).unwrap();
    let port = server.address().port();
    let log = |settings: &str, urls: &[(&str, String)]| {
        crate::test_guest::logged(|| {
            runtime.block_on(async {
                let mut site = home(&server, settings);
                for (method, url) in urls {
                    let method = Method::from_bytes(method.as_bytes()).unwrap();
                    let _ = site.whole(request(method, url).body(body("alice-body")).unwrap()).await;
                }
            });
        })
    };
    let to = |rest: &str| format!("http://hooks.test:{port}{rest}");
    // A host that only the guest knows.
    let text = log("", &[("POST", "https://alice.example/alice?alice".to_owned())]);
    assert!(text.contains("url = \"https://HOST:443/PATH/\"\nmethods = [\"POST\"]"), "{text}");
    // One that is the operator's own, in a setting.
    let settings = "[settings]\nurl = \"https://known.example/s3cret?s3cret\"";
    let text_known = log(settings, &[("POST", "https://known.example/alice".to_owned())]);
    assert!(text_known.contains("url = \"https://known.example:443/PATH/\""), "{text_known}");
    let text_path = log("", &[("POST", to("/alice/")), ("POST", to("/alice/again/"))]);
    assert!(text_path.contains(&format!("url = \"http://hooks.test:{port}/PATH/\"")), "{text_path}");
    assert_eq!(text_path.matches("denied").count(), 1, "{text_path}");
    let text_method = log("", &[("PUT", to("/in/alice"))]);
    assert!(text_method.contains("methods = [\"POST\", \"GET\", \"PUT\"]"), "{text_method}");
    let text_word = log("", &[("alice", to("/in/"))]);
    assert!(text_word.contains("methods = [\"POST\", \"GET\"]"), "{text_word}");
    let text_unfit = log("", &[("POST", to("/in/../alice"))]);
    assert!(text_unfit.contains("denied: the URL of a request must have a path without"), "{text_unfit}");
    // One line a request, with no more of it than this.
    let text_sent = log("", &[("POST", to("/in/alice?alice"))]);
    let expected =
        format!("plugin=hooks method=post host=hooks.test:{port} status=\"2xx\" outcome=\"whole\" sent_bytes=10");
    assert!(text_sent.contains(&expected), "{text_sent}");
    assert_eq!(text_sent.matches("http request").count(), 1, "{text_sent}");
    for text in [text, text_known, text_path, text_method, text_word, text_unfit, text_sent] {
        assert!(!text.contains("alice") && !text.contains("s3cret"), "{text}");
    }
    let development = format!("[plugin]\ndiagnostics = \"guest-text\"\n{}", grant(&server, ""));
    let text = crate::test_guest::logged(|| {
        runtime.block_on(async {
            let mut site = site(&development, &Scripted::default(), Tls::default());
            let request = request(Method::POST, "https://new.example/in/").body(body("")).unwrap();
            let _ = site.whole(request).await;
        });
    });
    assert!(text.contains("[[grant.http]]\nurl = \"https://new.example:443/in/\"\nmethods = [\"POST\"]"), "{text}");
}

#[test]
fn what_only_the_host_sets_a_guest_cannot() {
    let toml = "[[grant.http]]\nurl = \"https://a/\"\nmethods = [\"GET\"]\n[grant.http.headers]\nx-key = { secret = \"hook\" }\n";
    let policy = Arc::new(policy(toml));
    let client = Arc::new(Client::new(&policy));
    let mut hooks = Hooks::new(policy, Some(client));
    for (name, forbidden) in [
        ("host", true),
        ("connection", true),
        ("transfer-encoding", true),
        ("te", true),
        ("expect", true),
        ("upgrade", true),
        ("proxy-authorization", true),
        ("keep-alive", true),
        ("x-key", true),
        ("content-length", false),
        ("content-type", false),
        ("webhook-id", false),
        // Nothing is signed under this grant.
        ("webhook-signature", false),
    ] {
        assert_eq!(hooks.is_forbidden_header(&http::HeaderName::from_static(name)), forbidden, "{name}");
    }
}

/// Of a limit that a plugin.toml can set, the smallest is one request.
#[test]
fn http_limits_have_ranges() {
    let zero = Limits { http_in_flight: 0, ..Limits::default() };
    assert_eq!(zero.validate().unwrap_err().to_string(), "limits.http_in_flight must lie between 1 and 1000");
}
