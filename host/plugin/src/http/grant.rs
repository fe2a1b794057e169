//! `[[grant.http]]`: where a plugin may send requests, how, and what the host adds to them.
//!
//! Holds: one grant, its section of plugin.toml, its checks, and the lines of a grant that is missing. Refuses to know secrets
//! (see `access.rs`) and sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use http::{HeaderName, HeaderValue, Method, header};
use serde::Deserialize;

use super::address::{Range, may_be_dialled};
use super::url::{self, Host, Origin, Prefix};
use crate::manifest::{Wrong, secret_name};

/// Grants of one plugin. Each has a pool of its own.
const MAX_GRANTS: usize = 100;

/// Methods that can be granted. TRACE would answer the credentials that were injected, CONNECT would make a tunnel.
const METHODS: &[Method] =
    &[Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS];

/// Headers that frame a message or say where it goes: nobody but the host's own client sets them.
pub(super) const OF_THE_CLIENT: [HeaderName; 13] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// The header by which the guest names a request that is signed.
pub(super) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// Set by the host.
pub(super) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// Set by the host.
pub(super) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Where a plugin may send requests, and what the host adds to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGrant {
    pub(super) origin: Origin,
    pub(super) prefix: Prefix,
    pub(super) methods: Vec<Method>,
    pub(super) addresses: Vec<Range>,
    pub(super) headers: BTreeMap<String, InjectedSection>,
    pub(super) sign: Option<SignSection>,
}

impl HttpGrant {
    /// The secrets it needs, by their names in walgate.toml.
    pub fn secrets(&self) -> BTreeSet<&str> {
        let headers = self.headers.values().map(|header| header.secret.as_str());
        headers.chain(self.sign.iter().map(|sign| sign.secret.as_str())).collect()
    }
}

/// Methods and place, for whoever looks at plugin.toml. Not for a log: a path may be a secret.
impl std::fmt::Display for HttpGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let methods: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        write!(f, "{} {}{}", methods.join(" "), self.origin, self.prefix.as_str())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpSection {
    url: String,
    methods: Vec<String>,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    headers: BTreeMap<String, InjectedSection>,
    sign: Option<SignSection>,
}

/// A header that the host adds: `prefix`, then the secret.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InjectedSection {
    pub(super) secret: String,
    #[serde(default)]
    pub(super) prefix: String,
}

/// How requests are signed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignSection {
    pub(super) scheme: SignScheme,
    pub(super) secret: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SignScheme {
    StandardWebhooks,
}

/// Checks all sections of a plugin.toml. Places in errors count from 1, as a reader counts.
pub(crate) fn grants(sections: Vec<HttpSection>) -> Result<Vec<HttpGrant>, Wrong> {
    if sections.len() > MAX_GRANTS {
        return Err(Wrong::new(
            "grant.http",
            format!("must not be given more than {MAX_GRANTS} times; widen a prefix"),
        ));
    }
    let mut grants: Vec<HttpGrant> = Vec::with_capacity(sections.len());
    for (at, section) in sections.into_iter().enumerate() {
        let grant = section.check(at + 1)?;
        let same = |other: &HttpGrant| {
            other.origin == grant.origin
                && other.prefix == grant.prefix
                && other.methods.iter().any(|method| grant.methods.contains(method))
        };
        if let Some(before) = grants.iter().position(same) {
            let message =
                format!("grants a method under a url that number {} grants already; which would count?", before + 1);
            return Err(Wrong::new(format!("grant.http number {}", at + 1), message));
        }
        grants.push(grant);
    }
    Ok(grants)
}

impl HttpSection {
    fn check(self, number: usize) -> Result<HttpGrant, Wrong> {
        let key = |key: &str| format!("grant.http number {number}, {key},");
        let (origin, prefix) = url::parse(&self.url).map_err(|unfit| Wrong::new(key("url"), unfit.to_string()))?;
        let known = || METHODS.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        let method = |name: &String| {
            let found = METHODS.iter().find(|method| method.as_str() == name).cloned();
            found.ok_or_else(|| Wrong::new(key("methods"), format!("must be of {}, in capitals", known())))
        };
        let methods = self.methods.iter().map(method).collect::<Result<Vec<_>, _>>()?;
        if methods.is_empty() {
            return Err(Wrong::new(key("methods"), format!("must name at least one of {}", known())));
        }
        let range = |text: &String| {
            let wrong = || {
                Wrong::new(
                    key("addresses"),
                    "must be ranges such as \"10.0.0.0/8\", with no bit set behind their length",
                )
            };
            Range::parse(text).ok_or_else(wrong)
        };
        let addresses = self.addresses.iter().map(range).collect::<Result<Vec<_>, _>>()?;
        if let Host::Address(address) = &origin.host
            && !may_be_dialled(*address, &addresses)
        {
            let message = format!("names an address that is not public; to allow it: addresses = [\"{address}\"]");
            return Err(Wrong::new(key("url"), message));
        }
        let headers = injected(self.headers, key)?;
        if self.sign.as_ref().is_some_and(|sign| !secret_name(&sign.secret)) {
            return Err(Wrong::new(key("sign"), SECRET_RULE));
        }
        let signed = [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE];
        if self.sign.is_some() && signed.iter().any(|name| headers.contains_key(name.as_str())) {
            return Err(Wrong::new(key("headers"), "must not name a header that `sign` makes"));
        }
        Ok(HttpGrant { origin, prefix, methods, addresses, headers, sign: self.sign })
    }
}

const SECRET_RULE: &str = "must name a [secrets.NAME] of walgate.toml: 1 to 40 of a-z, 0-9, - and _";

/// By names in lower case, each once.
fn injected(
    sections: BTreeMap<String, InjectedSection>,
    key: impl Fn(&str) -> String,
) -> Result<BTreeMap<String, InjectedSection>, Wrong> {
    let mut headers = BTreeMap::new();
    for (name, section) in sections {
        let wrong = |message: &str| Err(Wrong::new(key("headers"), message));
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            return wrong("must be named like headers are");
        };
        if OF_THE_CLIENT.contains(&parsed) {
            return wrong(
                "must not name a header that frames the message or says where it goes, such as host or connection",
            );
        }
        if !secret_name(&section.secret) {
            return wrong(SECRET_RULE);
        }
        if HeaderValue::from_str(&section.prefix).is_err() {
            return wrong("must have prefixes of printable characters");
        }
        if headers.insert(parsed.as_str().to_owned(), section).is_some() {
            return wrong("must name each header once, whatever its case");
        }
    }
    Ok(headers)
}

/// The method, if one can be granted: any other is the guest's own text.
pub(super) fn known(method: &Method) -> Option<Method> {
    METHODS.iter().find(|known| *known == method).cloned()
}

/// The section that would allow a request. What is not known to be the operator's own text stands as a word in capitals.
pub(crate) fn lines(origin: Option<&Origin>, path: Option<&str>, methods: &[Method]) -> String {
    let place = origin.map_or_else(|| "https://HOST:443".to_owned(), Origin::to_string);
    let methods: Vec<String> = methods.iter().map(|method| format!("\"{method}\"")).collect();
    let methods = if methods.is_empty() { "\"METHOD\"".to_owned() } else { methods.join(", ") };
    let mut text = String::new();
    // Writing into a text cannot fail.
    let _ = writeln!(text, "[[grant.http]]\nurl = \"{place}{}\"\nmethods = [{methods}]", path.unwrap_or("/PATH/"));
    text
}

/// A section to start from.
pub(crate) fn starter_lines() -> String {
    format!(
        "{}# addresses = [\"10.0.0.0/8\"]      # only when it is not on the Internet\n\
         # headers = {{ authorization = {{ secret = \"NAME\", prefix = \"Bearer \" }} }}      # added by the host\n\
         # sign = {{ scheme = \"standard-webhooks\", secret = \"NAME\" }}      # signed by the host\n",
        lines(None, None, &[Method::POST])
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::{Manifest, ManifestError};

    fn parse(text: &str) -> Result<Manifest, ManifestError> {
        Manifest::parse(Path::new("plugin.toml"), text)
    }

    fn section(rest: &str) -> String {
        format!("[[grant.http]]\nurl = \"https://Hooks.example.com/in/\"\nmethods = [\"POST\"]\n{rest}\n")
    }

    #[test]
    fn a_grant_is_read_whole() {
        let text = section(
            "addresses = [\"10.0.0.0/8\", \"fd00::/8\"]\nsign = { scheme = \"standard-webhooks\", secret = \"key\" }\n\
             [grant.http.headers]\nAuthorization = { secret = \"hook\", prefix = \"Bearer \" }\nx-key = { secret = \"other\" }",
        );
        let manifest = parse(&text).unwrap();
        assert!(manifest.capabilities.http);
        let [grant] = manifest.http.as_slice() else { panic!("{:?}", manifest.http) };
        assert_eq!(
            (grant.origin.to_string().as_str(), grant.prefix.as_str()),
            ("https://hooks.example.com:443", "/in/")
        );
        assert_eq!(grant.methods, [Method::POST]);
        assert_eq!(grant.addresses.len(), 2);
        assert_eq!(grant.headers["authorization"], InjectedSection { secret: "hook".into(), prefix: "Bearer ".into() });
        assert_eq!(grant.secrets().into_iter().collect::<Vec<_>>(), ["hook", "key", "other"]);
        assert_eq!(grant.to_string(), "POST https://hooks.example.com:443/in/");
        assert!(!parse("").unwrap().capabilities.http);
    }

    #[test]
    fn refusals_name_the_place_and_the_fix_and_no_text_of_the_url() {
        let check = |text: &str, words: &[&str]| {
            let error = parse(text).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{word:?} is missing in: {error}");
            }
            assert!(!error.contains("s3cret"), "{error}");
        };
        let url = |url: &str| format!("[[grant.http]]\nurl = \"{url}\"\nmethods = [\"GET\"]\n");
        check(&url("https://user:s3cret@example.com/"), &["grant.http number 1, url,", "inject a header"]);
        check(&url("https://example.com/?key=s3cret"), &["number 1, url,", "without ?"]);
        check(&url("https://example.com/a/../s3cret"), &["number 1, url,", "segments"]);
        check(&url("http://127.0.0.1:80/"), &["number 1, url,", "addresses = [\"127.0.0.1\"]"]);
        check(&url("http://[::ffff:127.0.0.1]/"), &["addresses = [\"::ffff:127.0.0.1\"]"]);
        check(&url("http://2130706433/"), &["four decimal numbers"]);
        check(&format!("{}{}", section(""), section("")), &["number 2", "number 1 grants already"]);
        check("[[grant.http]]\nurl = \"https://a/\"\nmethods = []\n", &["methods", "at least one"]);
        for method in ["TRACE", "CONNECT", "post", "*"] {
            check(
                &format!("[[grant.http]]\nurl = \"https://a/\"\nmethods = [\"{method}\"]\n"),
                &["methods", "in capitals"],
            );
        }
        check(&section("addresses = [\"10.0.0.1/8\"]"), &["addresses", "no bit set"]);
        check(&section("redirects = true"), &[":4:", "redirects"]);
        check(&section("sign = { scheme = \"mine\", secret = \"k\" }"), &["standard-webhooks"]);
        check(&section("sign = { scheme = \"standard-webhooks\", secret = \"K\" }"), &["sign", "[secrets.NAME]"]);
        let header = |line: &str| section(&format!("[grant.http.headers]\n{line}"));
        for name in ["Host", "connection", "Transfer-Encoding", "content-length"] {
            check(&header(&format!("{name} = {{ secret = \"k\" }}")), &["headers", "frames the message"]);
        }
        check(&header("\"a b\" = { secret = \"k\" }"), &["headers", "named like headers"]);
        check(&header("x = { secret = \"S S\" }"), &["headers", "[secrets.NAME]"]);
        check(&header("x = { secret = \"k\", prefix = \"a\\nb\" }"), &["headers", "printable"]);
        check(&header("x = { secret = \"k\" }\nX = { secret = \"k\" }"), &["headers", "once"]);
        let signed = section(
            "sign = { scheme = \"standard-webhooks\", secret = \"k\" }\nheaders = { webhook-id = { secret = \"k\" } }",
        );
        check(&signed, &["headers", "`sign`"]);
    }

    #[test]
    fn the_lines_of_a_missing_grant_are_a_grant() {
        for text in [starter_lines(), lines(None, None, &[Method::PUT])] {
            assert_eq!(parse(&text).unwrap().http.len(), 1, "{text}");
        }
        let (origin, _) = url::parse("http://Example.com/").unwrap();
        let exact = lines(Some(&origin), Some("/in/"), &[Method::POST, Method::GET]);
        assert_eq!(exact, "[[grant.http]]\nurl = \"http://example.com:80/in/\"\nmethods = [\"POST\", \"GET\"]\n");
        parse(&exact).unwrap();
    }
}
