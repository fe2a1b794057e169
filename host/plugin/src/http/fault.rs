//! Every way a request can fail, as the guest is told and as the audit line says.
//!
//! Holds: the closed list. Refuses to hold a text from outside: errors of libraries may quote what a peer sent.

use wasmtime_wasi_http::Error;

/// Why a request came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// No grant covers it.
    Denied,
    /// It is to be signed and has no id that can be.
    NoId,
    /// As many as may be are under way.
    InFlight,
    /// The guest gave its body up.
    RequestBroken,
    /// Its body has more bytes than this.
    RequestTooLarge(u64),
    /// The name has no address.
    NoAddress,
    /// An address is not one that may be dialled.
    Prohibited,
    /// Nobody listens there.
    Refused,
    /// The network has no way there.
    Unreachable,
    /// No connection was made in time.
    ConnectTimeout,
    /// TLS could not be agreed on.
    Tls,
    /// The certificate is not one that is trusted for the name, or the machine trusts none.
    Certificate,
    /// No whole answer came in time.
    Timeout,
    /// The head of the answer is larger than it may be.
    HeadTooLarge,
    /// The body of the answer has more bytes than this.
    ResponseTooLarge(u64),
    /// The connection ended in the middle of the answer, or before it.
    Incomplete,
    /// The answer is not HTTP/1.
    Protocol,
}

impl Fault {
    /// The word of the audit line.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NoId => "no-id",
            Self::InFlight => "too-many-in-flight",
            Self::RequestBroken => "request-broken",
            Self::RequestTooLarge(_) => "request-too-large",
            Self::NoAddress => "no-address",
            Self::Prohibited => "address-prohibited",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::ConnectTimeout => "connect-timeout",
            Self::Tls => "tls",
            Self::Certificate => "certificate",
            Self::Timeout => "timeout",
            Self::HeadTooLarge => "head-too-large",
            Self::ResponseTooLarge(_) => "response-too-large",
            Self::Incomplete => "incomplete",
            Self::Protocol => "protocol",
        }
    }

    /// What became of a request, from hyper's own account.
    pub(super) fn of_hyper(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            Self::HeadTooLarge
        } else if error.is_parse() {
            Self::Protocol
        } else if error.is_timeout() {
            Self::Timeout
        } else {
            // Closed, cancelled, reset, half an answer: to a plugin it is all the same.
            Self::Incomplete
        }
    }

    /// What became of a connection.
    pub(super) fn of_connect(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Self::Refused,
            std::io::ErrorKind::TimedOut => Self::ConnectTimeout,
            _ => Self::Unreachable,
        }
    }

    /// What became of a handshake.
    pub(super) fn of_tls(error: &std::io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(_)) => Self::Certificate,
            _ => Self::Tls,
        }
    }
}

/// As the guest is told.
impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Denied | Fault::NoId => Self::HttpRequestDenied,
            Fault::InFlight => Self::ConnectionLimitReached,
            Fault::RequestBroken => Self::HttpProtocolError,
            Fault::RequestTooLarge(limit) => Self::HttpRequestBodySize(Some(limit)),
            Fault::NoAddress => Self::DnsError { rcode: None, info_code: None },
            Fault::Prohibited => Self::DestinationIpProhibited,
            Fault::Refused => Self::ConnectionRefused,
            Fault::Unreachable => Self::DestinationUnavailable,
            Fault::ConnectTimeout => Self::ConnectionTimeout,
            Fault::Tls => Self::TlsProtocolError,
            Fault::Certificate => Self::TlsCertificateError,
            Fault::Timeout => Self::HttpResponseTimeout,
            Fault::HeadTooLarge => Self::HttpResponseHeaderSectionSize(None),
            Fault::ResponseTooLarge(limit) => Self::HttpResponseBodySize(Some(limit)),
            Fault::Incomplete => Self::HttpResponseIncomplete,
            Fault::Protocol => Self::HttpProtocolError,
        }
    }
}
