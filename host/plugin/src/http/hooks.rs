//! What `wasi:http` asks the host: which headers are the host's alone, and to send a request.
//!
//! Holds: denial by default at call time, and what is said of it. Refuses to send: see `client.rs`.
//!
//! What a guest names at call time may be a value of a row. So a denial prints a host only when it stands in plugin.toml, in a
//! grant or in a setting, never a path, and everything only under `diagnostics = "guest-text"`.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderName, Method, Request, Response, Uri, header};
use http_body_util::BodyExt;
use wasmtime_wasi_http::p2::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::{Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpHooks};

use super::access::Missing;
use super::client::{Admitted, Client};
use super::fault::Fault;
use super::grant::{OF_THE_CLIENT, known, lines};
use super::url::{self, Origin, Scheme, Unfit};
use crate::capability::Phase;
use crate::manifest::{Diagnostics, Policy};

/// What goes on beside an answer. Nothing does: connections have tasks of their own.
type Beside = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// The hooks of one instance.
pub(crate) struct Hooks {
    policy: Arc<Policy>,
    /// None where http is not granted, or not asked for.
    client: Option<Arc<Client>>,
    phase: Phase,
    /// Kinds of denials that have been logged; once each per instance.
    told: BTreeSet<&'static str>,
}

impl Hooks {
    pub(crate) fn new(policy: Arc<Policy>, client: Option<Arc<Client>>) -> Self {
        Self { policy, client, phase: Phase::Describe, told: BTreeSet::new() }
    }

    pub(crate) fn begin(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// The client and the grant of a request, with path and query as they are sent.
    fn admit(&mut self, request: &Request<WasiBody>) -> Result<(Arc<Client>, Admitted, Uri), Fault> {
        let uri = request.uri();
        let (path, query) = (uri.path(), uri.query());
        let scheme = uri.scheme_str().and_then(Scheme::parse).ok_or(Unfit::Scheme);
        let origin =
            scheme.and_then(|scheme| Origin::parse(scheme, uri.authority().map_or("", |whole| whole.as_str())));
        let origin = match origin.and_then(|origin| url::check_target(path, query).map(|()| origin)) {
            Ok(origin) => origin,
            Err(unfit) => return Err(self.unfit(unfit)),
        };
        let Some(client) = self.client.clone() else {
            return Err(self.deny(&origin, path, request.method(), Missing::Host));
        };
        let at = match client.access().find(&origin, path, request.method()) {
            Ok(at) => at,
            Err(missing) => return Err(self.deny(&origin, path, request.method(), missing)),
        };
        // Only what names a place at the host: a whole URI in a request asks for somebody else.
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let target = Uri::try_from(target).map_err(|_| Fault::Denied)?;
        let admitted = client.admit(at).inspect_err(|_| {
            if self.first("in flight") {
                let plugin = &self.policy.plugin;
                tracing::warn!(%plugin, "requests over http_in_flight in [limits] of its plugin.toml were refused");
            }
        })?;
        Ok((client, admitted, target))
    }

    /// `describe` always runs without grants, so a denial there says nothing.
    fn first(&mut self, kind: &'static str) -> bool {
        self.phase != Phase::Describe && self.told.insert(kind)
    }

    fn unfit(&mut self, unfit: Unfit) -> Fault {
        if self.first("unfit") {
            let plugin = &self.policy.plugin;
            tracing::warn!(%plugin, interface = "http", "denied: the URL of a request {unfit}");
        }
        Fault::Denied
    }

    fn deny(&mut self, origin: &Origin, path: &str, method: &Method, missing: Missing<'_>) -> Fault {
        let kind = match missing {
            Missing::Host => "host",
            Missing::Path(_) => "path",
            Missing::Method(_) => "method",
        };
        if self.first(kind) {
            let mut methods = match missing {
                Missing::Method(grant) => grant.methods.clone(),
                Missing::Path(_) | Missing::Host => Vec::new(),
            };
            methods.extend(known(method));
            let everything = self.policy.diagnostics == Diagnostics::GuestText;
            let named = everything || missing != Missing::Host || self.is_in_settings(origin);
            let allow = lines(named.then_some(origin), everything.then_some(path), &methods);
            let plugin = &self.policy.plugin;
            tracing::warn!(%plugin, interface = "http", %allow, "denied: the plugin must ask for it in describe, and plugin.toml must say");
        }
        Fault::Denied
    }

    /// Whether a setting is a URL of that host.
    fn is_in_settings(&self, origin: &Origin) -> bool {
        self.policy.settings.iter().any(|(_, value)| {
            let place = value.split(['?', '#']).next().unwrap_or_default();
            url::parse(place).is_ok_and(|(known, _)| known == *origin)
        })
    }
}

impl WasiHttpHooks for Hooks {
    /// Also left out of answers, so that a guest does not get an echo of what was injected.
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        let client = self.client.clone();
        Arc::new(move |name: &HeaderName| {
            // Its length is checked by the bindings, and counted anew by the client.
            (OF_THE_CLIENT.contains(name) && *name != header::CONTENT_LENGTH)
                || client.as_ref().is_some_and(|client| client.access().sets(name))
        })
    }

    /// The client sets it, as the grant spells it.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<(Response<WasiBody>, Beside), Error>> + Send> {
        match self.admit(&request) {
            Ok((client, admitted, target)) => Box::new(async move {
                let response = client.send(admitted, target, request, options.unwrap_or_default()).await?;
                Ok((response.map(BodyExt::boxed_unsync), Box::new(async { Ok(()) }) as Beside))
            }),
            Err(fault) => Box::new(async move { Err(fault.into()) }),
        }
    }

    // No error of these kinds leaves the client; the defaults would print what a library says of a peer.
    fn p2_error_from_hyper(&mut self, _: &hyper::Error) -> ErrorCode {
        ErrorCode::HttpProtocolError
    }

    fn p2_error_from_connect(&mut self, _: &std::io::Error) -> ErrorCode {
        ErrorCode::DestinationUnavailable
    }

    fn p2_error_from_tls(&mut self, _: &std::io::Error) -> ErrorCode {
        ErrorCode::TlsProtocolError
    }
}
