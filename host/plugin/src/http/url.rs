//! Where a request goes, in one form: scheme, host, port, and a path under which nothing can climb.
//!
//! Holds: reading URLs of grants and targets of requests by the same rules, so that what was compared is what is sent.
//! Refuses to know grants and addresses. What servers are known to read in two ways is refused, not normalised: only the
//! case of a host and a port that goes without saying are made equal.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest path with its query, in bytes. Servers take about this much.
const MAX_TARGET_BYTES: usize = 8 << 10;

/// The longest name of a host, as DNS has it.
const MAX_HOST_BYTES: usize = 253;

/// How often a path is decoded to look for what it hides. Each layer of servers decodes once; nobody has this many.
const MAX_DECODINGS: usize = 4;

/// With TLS or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Who is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    /// A name for DNS, in lower case.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// As it stands in a URL and in the `Host` header.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(v4)) => v4.fmt(f),
            Self::Address(IpAddr::V6(v6)) => write!(f, "[{v6}]"),
        }
    }
}

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    pub(crate) scheme: Scheme,
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Origin {
    /// Reads what stands between `//` and the path.
    pub(crate) fn parse(scheme: Scheme, authority: &str) -> Result<Self, Unfit> {
        if authority.contains('@') {
            return Err(Unfit::UserInfo);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (inside, after) = rest.split_once(']').ok_or(Unfit::Host)?;
                let host = inside.parse::<Ipv6Addr>().map_err(|_| Unfit::Host)?;
                (Host::Address(host.into()), after)
            }
            None => {
                let end = authority.find(':').unwrap_or(authority.len());
                let (host, after) = authority.split_at_checked(end).ok_or(Unfit::Host)?;
                (plain_host(host)?, after)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => scheme.port(),
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse::<u16>().ok().filter(|port| *port > 0).ok_or(Unfit::Port)?
            }
            _ => return Err(Unfit::Port),
        };
        Ok(Self { scheme, host, port })
    }

    /// The value of the `Host` header.
    pub(crate) fn authority(&self) -> String {
        if self.port == self.scheme.port() { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

/// As a grant would spell it, the port always written out.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme.name(), self.host, self.port)
    }
}

/// A name, or an address in the one form of IPv4 that everybody reads alike.
fn plain_host(host: &str) -> Result<Host, Unfit> {
    if host.ends_with('.') {
        return Err(Unfit::TrailingDot);
    }
    let host = host.to_ascii_lowercase();
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if host.len() > MAX_HOST_BYTES || !host.split('.').all(label) {
        return Err(Unfit::Host);
    }
    // What ends in a number is an address to some resolvers, in any of a dozen spellings: 2130706433, 0x7f.1, 0177.0.0.1.
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|b| b.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if number {
        return host.parse::<Ipv4Addr>().map(|v4| Host::Address(v4.into())).map_err(|_| Unfit::NumericHost);
    }
    Ok(Host::Name(host))
}

/// A prefix of paths. One that ends in `/` covers what lies below; any other covers itself and what lies below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix(String);

impl Prefix {
    /// Whether a path that [`check_target`] has passed lies under it.
    pub(crate) fn covers(&self, path: &str) -> bool {
        path.strip_prefix(self.0.as_str())
            .is_some_and(|rest| rest.is_empty() || self.0.ends_with('/') || rest.starts_with('/'))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Reads the URL of a grant.
pub(crate) fn parse(url: &str) -> Result<(Origin, Prefix), Unfit> {
    let (scheme, rest) = url.split_once("://").ok_or(Unfit::Scheme)?;
    let scheme = Scheme::parse(scheme).ok_or(Unfit::Scheme)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).ok_or(Unfit::Host)?;
    if path.contains(['?', '#']) {
        return Err(Unfit::Query);
    }
    let path = if path.is_empty() { "/" } else { path };
    check_target(path, None)?;
    Ok((Origin::parse(scheme, authority)?, Prefix(path.to_owned())))
}

/// Holds path and query of a request against what can be compared with a prefix.
pub(crate) fn check_target(path: &str, query: Option<&str>) -> Result<(), Unfit> {
    let query = query.unwrap_or_default();
    if path.len().saturating_add(query.len()) > MAX_TARGET_BYTES {
        return Err(Unfit::Long);
    }
    let graphic = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    if !path.starts_with('/')
        || !graphic(path)
        || !graphic(query)
        || path.contains(['\\', '#', '?'])
        || query.contains('#')
    {
        return Err(Unfit::Path);
    }
    let mut seen =
        decode(path.as_bytes(), true).ok_or(Unfit::Path).and_then(|decoded| compare(path.as_bytes(), decoded))?;
    check_segments(path.as_bytes())?;
    for _ in 0..MAX_DECODINGS {
        check_segments(&seen)?;
        let next = decode(&seen, false).ok_or(Unfit::Path)?;
        if next == seen {
            return Ok(());
        }
        seen = compare(&seen, next)?;
    }
    Err(Unfit::Path)
}

/// Decoding may not bring out what separates: servers disagree on whether that counts.
fn compare(before: &[u8], after: Vec<u8>) -> Result<Vec<u8>, Unfit> {
    let separators = |bytes: &[u8]| bytes.iter().filter(|b| matches!(**b, b'/' | b'\\')).count();
    let hidden = separators(&after) > separators(before) || after.iter().any(u8::is_ascii_control);
    // Not UTF-8 means overlong forms, of which some decoders make dots.
    if hidden || std::str::from_utf8(&after).is_err() { Err(Unfit::Path) } else { Ok(after) }
}

/// No segment that means another place, and none that is empty but the last.
fn check_segments(path: &[u8]) -> Result<(), Unfit> {
    let mut segments = path.split(|b| *b == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        // Parameters behind `;` are cut off by some servers before they look for dots.
        let name = segment.split(|b| *b == b';').next().unwrap_or_default();
        if name == b"." || name == b".." || (name.is_empty() && segments.peek().is_some()) {
            return Err(Unfit::Path);
        }
    }
    Ok(())
}

/// Percent signs followed by two digits. A lone one is refused when `strict`, else left.
fn decode(text: &[u8], strict: bool) -> Option<Vec<u8>> {
    let digit = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16)).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (*first, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'%', ..) if strict => return None,
            (other, ..) => decoded.push(other),
        }
    }
    Some(decoded)
}

/// What cannot be taken for one place. Says what it would have to be, and never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("must begin with http:// or https://")]
    Scheme,
    #[error("must not hold a user or password; inject a header instead")]
    UserInfo,
    #[error(
        "must name a host by letters, digits, - and _ (Punycode for other letters), or by an address, an IPv6 one in brackets"
    )]
    Host,
    #[error("must name its host without the dot at the end")]
    TrailingDot,
    #[error("must spell an IPv4 address as four decimal numbers without leading zeros")]
    NumericHost,
    #[error("must have a port from 1 to 65535, or none")]
    Port,
    #[error("must end with its path, without ? and #")]
    Query,
    #[error(
        "must have a path without empty, . and .. segments, encoded or not, without encoded / and \\, of printable ASCII"
    )]
    Path,
    #[error("must not be longer than {MAX_TARGET_BYTES} bytes")]
    Long,
}

#[cfg(test)]
#[path = "url_tests.rs"]
mod tests;
