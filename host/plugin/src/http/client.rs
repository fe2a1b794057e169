//! The one client of a plugin: what a granted request becomes, from the guest's hand to the first byte of the answer.
//!
//! Holds: the caps of requests, what the host adds to them, and the connections that are kept. Refuses to know whether a
//! request is granted (see `hooks.rs`) and to follow an answer anywhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use wasmtime_wasi_http::{RequestOptions, WasiBody};

use super::access::{HttpAccess, Reach};
use super::audit::Call;
use super::body::Answer;
use super::connect::{Connection, Tls, connect};
use super::fault::Fault;
use super::grant::{OF_THE_CLIENT, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use super::resolve::{Resolver, System};
use crate::limits::{Limits, size};
use crate::manifest::Policy;

/// Time for name, connection and TLS, of the time that a request has. A host that is there takes a second at most.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// How long a connection is kept that nobody uses. Servers keep theirs for 5 s and more, and a name is asked again after it.
const IDLE_PATIENCE: Duration = Duration::from_secs(15);

/// Connections kept for one grant.
const MAX_IDLE: usize = 4;

/// The client of one plugin. Lives as long as its worker, so that instances share its connections.
pub(crate) struct Client {
    plugin: String,
    access: HttpAccess,
    limits: Limits,
    resolver: Box<dyn Resolver>,
    tls: Tls,
    in_flight: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    at: usize,
    since: Instant,
    connection: Connection,
}

/// A request that is granted, and counts as in flight.
pub(super) struct Admitted {
    /// The place of its grant.
    pub(super) at: usize,
    pub(super) in_flight: OwnedSemaphorePermit,
}

impl Client {
    /// The client that a plugin of this policy has.
    pub(crate) fn new(policy: &Policy) -> Self {
        Self::with(policy, Box::new(System::default()), Tls::default())
    }

    /// The same with another resolver and other certificates.
    pub(super) fn with(policy: &Policy, resolver: Box<dyn Resolver>, tls: Tls) -> Self {
        Self {
            plugin: policy.plugin.clone(),
            access: policy.http.clone(),
            in_flight: Arc::new(Semaphore::new(size(policy.limits.http_in_flight))),
            limits: policy.limits.clone(),
            resolver,
            tls,
            idle: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn access(&self) -> &HttpAccess {
        &self.access
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// True while a request is under way, one whose answer a guest still holds among them.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.available_permits() < size(self.limits.http_in_flight)
    }

    /// Counts a request in, unless there are as many as may be.
    pub(super) fn admit(&self, at: usize) -> Result<Admitted, Fault> {
        let in_flight = Arc::clone(&self.in_flight).try_acquire_owned().map_err(|_| Fault::InFlight)?;
        Ok(Admitted { at, in_flight })
    }

    /// Sends a granted request, and answers as soon as the head of the answer is there. `target` is path and query.
    pub(super) async fn send(
        self: Arc<Self>,
        admitted: Admitted,
        target: Uri,
        request: Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<Response<Answer>, Fault> {
        let Admitted { at, in_flight } = admitted;
        let reach = self.access.reaches.get(at).ok_or(Fault::Denied)?;
        let host = reach.grant.origin.authority();
        let mut call = Call::begin(&self.plugin, request.method(), host, in_flight);
        let deadline = Instant::now() + Duration::from_millis(self.limits.http_timeout_ms);
        let answering = async {
            let request = self.prepare(reach, target, request, &mut call).await?;
            self.exchange(at, reach, request, &options).await
        };
        let (response, connection) = match timeout_at(deadline, answering).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => return Err(call.fails(fault)),
            Err(_) => return Err(call.fails(Fault::Timeout)),
        };
        call.answered(response.status());
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(call.fails(Fault::Protocol));
        }
        let between = options.between_bytes_timeout;
        Ok(response.map(|body| Answer::new(body, connection, (Arc::clone(&self), at), call, deadline, between)))
    }

    /// Collects the body, and makes the head anew: nothing of the guest's frames the message or says where it goes.
    async fn prepare(
        &self,
        reach: &Reach,
        target: Uri,
        request: Request<WasiBody>,
        call: &mut Call,
    ) -> Result<Request<Full<Bytes>>, Fault> {
        let (given, body) = request.into_parts();
        let body = self.collect(body).await?;
        call.sends(body.len());
        let mut headers = given.headers;
        for name in OF_THE_CLIENT {
            headers.remove(&name);
        }
        let host = HeaderValue::from_str(&reach.grant.origin.authority()).map_err(|_| Fault::Denied)?;
        headers.insert(header::HOST, host);
        for (name, value) in &reach.headers {
            headers.insert(name, value.clone());
        }
        sign(reach, &mut headers, &body)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = given.method;
        *request.uri_mut() = target;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// All of a body, and not a byte more than may be.
    async fn collect(&self, mut body: WasiBody) -> Result<Bytes, Fault> {
        let limit = self.limits.http_request_bytes;
        let mut collected = Vec::new();
        while let Some(frame) = body.frame().await {
            // Trailers are left out: few servers read them, and none that signatures are made for.
            let Ok(data) = frame.map_err(|_| Fault::RequestBroken)?.into_data() else { continue };
            if collected.len().saturating_add(data.len()) > size(limit) {
                return Err(Fault::RequestTooLarge(limit));
            }
            collected.extend_from_slice(&data);
        }
        Ok(collected.into())
    }

    /// On a connection that is kept, or on a new one.
    async fn exchange(
        &self,
        at: usize,
        reach: &Reach,
        mut request: Request<Full<Bytes>>,
        options: &RequestOptions,
    ) -> Result<(Response<Incoming>, Connection), Fault> {
        let patience = options.first_byte_timeout.unwrap_or(Duration::MAX);
        let until = Instant::now().checked_add(patience);
        loop {
            let (mut connection, is_new) = match self.kept(at).await {
                Some(connection) => (connection, false),
                None => {
                    let patience = options.connect_timeout.map_or(CONNECT_PATIENCE, |own| own.min(CONNECT_PATIENCE));
                    (connect(&self.plugin, &reach.grant, &*self.resolver, &self.tls, patience).await?, true)
                }
            };
            let sending = connection.sender.try_send_request(request);
            let sent = match until {
                Some(until) => timeout_at(until, sending).await.map_err(|_| Fault::Timeout)?,
                None => sending.await,
            };
            match sent {
                Ok(response) => return Ok((response, connection)),
                // The peer had ended it, and nothing was written: this is no second attempt.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(Fault::of_hyper(failed.error())),
                },
            }
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn keep(&self, at: usize, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.iter().filter(|one| one.at == at).count() < MAX_IDLE {
            idle.push(Idle { at, since: Instant::now(), connection });
        }
    }

    /// A kept connection that is still good. Old ones are ended meanwhile.
    async fn kept(&self, at: usize) -> Option<Connection> {
        // The thread of a plugin rests between its calls, so what peers ended meanwhile is heard of now: the first pause looks
        // at the sockets, the second lets connections see it.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|one| one.since.elapsed() < IDLE_PATIENCE && one.connection.sender.is_ready());
        let found = idle.iter().rposition(|one| one.at == at)?;
        Some(idle.swap_remove(found).connection)
    }
}

/// Adds time and signature, where the grant says so.
fn sign(reach: &Reach, headers: &mut HeaderMap, body: &[u8]) -> Result<(), Fault> {
    let Some(key) = &reach.key else { return Ok(()) };
    let mut ids = headers.get_all(WEBHOOK_ID).iter();
    let (Some(id), None) = (ids.next(), ids.next()) else { return Err(Fault::NoId) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let signature = id.to_str().ok().and_then(|id| key.sign(id, now, body)).ok_or(Fault::NoId)?;
    let signature = HeaderValue::from_str(&signature).map_err(|_| Fault::NoId)?;
    headers.insert(WEBHOOK_TIMESTAMP, now.into());
    headers.insert(WEBHOOK_SIGNATURE, signature);
    Ok(())
}
