//! Requests over `wasi:http`, on WebAssembly.
//!
//! Holds: the calls in their order, and what their error codes mean to a sink. Refuses to know retries. Read next: `http.rs`.

use super::Fault;
use super::http::{Method, Request, Response, fault, parts};

mod bindings {
    //! Generated from `wit/client.wit`.
    #![allow(missing_docs, unreachable_pub, unsafe_code, clippy::all, clippy::restriction, reason = "generated code")]

    wit_bindgen::generate!({
        path: "wit",
        world: "client",
        generate_all,
        runtime_path: "::walgate_sdk::wit_bindgen::rt",
    });
}

use bindings::wasi::http::outgoing_handler::handle;
use bindings::wasi::http::types::{
    ErrorCode, Fields, IncomingResponse, Method as Raw, OutgoingBody, OutgoingRequest, Scheme,
};
use bindings::wasi::io::streams::StreamError;

/// Bytes asked for at once.
const READ_BYTES: u64 = 64 << 10;

/// Sends a request and reads the whole answer.
pub(super) fn send(request: &Request) -> Result<Response, Fault> {
    let (outgoing, body) = head(request).ok_or_else(|| fault("invalid-request", false))?;
    let answer = handle(outgoing, None).map_err(of_code)?;
    write(body, &request.body);
    answer.subscribe().block();
    match answer.get() {
        Some(Ok(Ok(response))) => read(&response),
        Some(Ok(Err(code))) => Err(of_code(code)),
        _ => Err(fault("http-protocol", true)),
    }
}

fn head(request: &Request) -> Option<(OutgoingRequest, OutgoingBody)> {
    let (scheme, authority, target) = parts(&request.url)?;
    let headers = Fields::new();
    for (name, value) in &request.headers {
        headers.append(name, value.as_bytes()).ok()?;
    }
    let outgoing = OutgoingRequest::new(headers);
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => Scheme::Other(other.to_owned()),
    };
    outgoing.set_method(&raw(request.method)).ok()?;
    outgoing.set_scheme(Some(&scheme)).ok()?;
    outgoing.set_authority(Some(authority)).ok()?;
    outgoing.set_path_with_query(Some(target)).ok()?;
    let body = outgoing.body().ok()?;
    Some((outgoing, body))
}

fn raw(method: Method) -> Raw {
    match method {
        Method::Get => Raw::Get,
        Method::Head => Raw::Head,
        Method::Post => Raw::Post,
        Method::Put => Raw::Put,
        Method::Delete => Raw::Delete,
        Method::Patch => Raw::Patch,
    }
}

/// Writes as fast as the host takes it. When it takes no more, the answer says why.
fn write(body: OutgoingBody, mut bytes: &[u8]) {
    let Ok(stream) = body.write() else { return };
    while !bytes.is_empty() {
        let room = match stream.check_write() {
            Ok(0) => {
                stream.subscribe().block();
                continue;
            }
            Ok(room) => usize::try_from(room).unwrap_or(usize::MAX),
            Err(_) => return,
        };
        let (now, later) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        if stream.write(now).is_err() {
            return;
        }
        bytes = later;
    }
    drop(stream);
    // An error here is the answer's as well.
    let _ = OutgoingBody::finish(body, None);
}

fn read(response: &IncomingResponse) -> Result<Response, Fault> {
    let status = response.status();
    let text = |(name, value): (String, Vec<u8>)| Some((name, String::from_utf8(value).ok()?));
    let headers = response.headers().entries().into_iter().filter_map(text).collect();
    let mut body = Vec::new();
    let incoming = response.consume().map_err(|()| fault("http-protocol", true))?;
    let stream = incoming.stream().map_err(|()| fault("http-protocol", true))?;
    loop {
        match stream.blocking_read(READ_BYTES) {
            Ok(mut more) => body.append(&mut more),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(_)) => return Err(fault("http-incomplete", true)),
        }
    }
    Ok(Response { status, headers, body })
}

/// A word and a hope for each code that the host answers.
fn of_code(code: ErrorCode) -> Fault {
    match code {
        ErrorCode::HttpRequestDenied => fault("not-granted", false),
        ErrorCode::DestinationIpProhibited => fault("http-address-prohibited", false),
        ErrorCode::HttpRequestBodySize(_) => fault("over-limit", false),
        ErrorCode::HttpRequestMethodInvalid | ErrorCode::HttpRequestUriInvalid => fault("invalid-request", false),
        ErrorCode::ConnectionLimitReached => fault("http-in-flight", true),
        ErrorCode::DnsTimeout | ErrorCode::DnsError(_) | ErrorCode::DestinationNotFound => {
            fault("http-no-address", true)
        }
        ErrorCode::ConnectionRefused => fault("http-refused", true),
        ErrorCode::DestinationUnavailable | ErrorCode::DestinationIpUnroutable => fault("http-unreachable", true),
        ErrorCode::ConnectionTimeout | ErrorCode::ConnectionReadTimeout | ErrorCode::HttpResponseTimeout => {
            fault("http-timeout", true)
        }
        ErrorCode::TlsProtocolError | ErrorCode::TlsCertificateError | ErrorCode::TlsAlertReceived(_) => {
            fault("http-tls", true)
        }
        ErrorCode::HttpResponseIncomplete
        | ErrorCode::ConnectionTerminated
        | ErrorCode::HttpResponseBodySize(_)
        | ErrorCode::HttpResponseHeaderSectionSize(_) => fault("http-incomplete", true),
        _ => fault("http-protocol", true),
    }
}
