//! What a plugin may reach, ready for use: its grants with the secrets that they name.
//!
//! Holds: headers and keys made of secrets, and the choice of the grant for a request. Refuses to know where secrets are
//! kept: who calls reads them. Nothing in here prints a secret.

use http::{HeaderName, HeaderValue, Method};
use secrecy::{ExposeSecret, SecretSlice};
use walgate_core::webhook::WebhookKey;

use super::grant::{HttpGrant, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use super::url::Origin;

/// Grants with their secrets. Without any, every request is denied.
#[derive(Debug, Clone, Default)]
pub struct HttpAccess {
    pub(super) reaches: Vec<Reach>,
}

/// One grant with its secrets.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    pub(super) grant: HttpGrant,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) key: Option<WebhookKey>,
}

/// How near to a grant a request came that has none. What fits is the operator's own text and may be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing<'a> {
    /// No grant names the host.
    Host,
    /// No grant of that host has the path.
    Path(&'a HttpGrant),
    /// The grant of that path lacks the method.
    Method(&'a HttpGrant),
}

impl HttpAccess {
    /// Reads the secrets of all grants.
    ///
    /// # Errors
    /// In the words of `read` when one cannot be read, and when one cannot be what it is used for; never with its bytes.
    pub fn new(
        grants: &[HttpGrant],
        mut read: impl FnMut(&str) -> Result<SecretSlice<u8>, String>,
    ) -> Result<Self, String> {
        let mut reach = |grant: &HttpGrant| {
            let mut headers = Vec::with_capacity(grant.headers.len());
            for (name, injected) in &grant.headers {
                let secret = read(&injected.secret)?;
                let whole = [injected.prefix.as_bytes(), secret.expose_secret()].concat();
                let wrong = |_| {
                    format!(
                        "secrets.{} cannot be sent in a header: it has a line break or another control character",
                        injected.secret
                    )
                };
                let mut value = HeaderValue::from_maybe_shared(bytes::Bytes::from(whole)).map_err(wrong)?;
                value.set_sensitive(true);
                let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a header has no name".to_owned())?;
                headers.push((name, value));
            }
            let mut key = |secret: &str| {
                WebhookKey::new(read(secret)?.expose_secret())
                    .map_err(|bad| format!("secrets.{secret} cannot sign requests: it {bad}"))
            };
            let key = grant.sign.as_ref().map(|sign| key(&sign.secret)).transpose()?;
            Ok(Reach { grant: grant.clone(), headers, key })
        };
        let reaches = grants.iter().map(&mut reach).collect::<Result<_, String>>()?;
        Ok(Self { reaches })
    }

    /// True when nothing can be reached.
    pub fn is_empty(&self) -> bool {
        self.reaches.is_empty()
    }

    /// The place of the grant that a request has: of those that cover it, the one with the longest path. The path has been
    /// checked.
    pub(super) fn find(&self, origin: &Origin, path: &str, method: &Method) -> Result<usize, Missing<'_>> {
        let mut missing = Missing::Host;
        let mut found: Option<(usize, usize)> = None;
        for (at, grant) in self.reaches.iter().map(|reach| &reach.grant).enumerate() {
            if grant.origin != *origin {
                continue;
            }
            if !grant.prefix.covers(path) {
                if missing == Missing::Host {
                    missing = Missing::Path(grant);
                }
            } else if !grant.methods.contains(method) {
                missing = Missing::Method(grant);
            } else if found.is_none_or(|(_, longest)| grant.prefix.as_str().len() > longest) {
                found = Some((at, grant.prefix.as_str().len()));
            }
        }
        found.map(|(at, _)| at).ok_or(missing)
    }

    /// Whether the host alone may set a header, in any request of the plugin.
    pub(super) fn sets(&self, name: &HeaderName) -> bool {
        self.reaches.iter().any(|reach| {
            reach.headers.iter().any(|(set, _)| set == name)
                || (reach.key.is_some() && (*name == WEBHOOK_TIMESTAMP || *name == WEBHOOK_SIGNATURE))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::http::url;
    use crate::manifest::Manifest;

    fn grants(text: &str) -> Vec<HttpGrant> {
        Manifest::parse(Path::new("plugin.toml"), text).unwrap().http
    }

    fn grant(url: &str, methods: &str) -> String {
        format!("[[grant.http]]\nurl = \"{url}\"\nmethods = {methods}\n")
    }

    #[test]
    fn the_grant_with_the_longest_path_counts() {
        let text = grant("https://a/", "[\"GET\"]")
            + &grant("https://a/in/", "[\"POST\", \"GET\"]")
            + &grant("http://a/", "[\"PUT\"]");
        let access = HttpAccess::new(&grants(&text), |_| unreachable!()).unwrap();
        let find = |url: &str, method: Method| {
            let (origin, path) = url::parse(url).unwrap();
            access.find(&origin, path.as_str(), &method).map_err(|missing| match missing {
                Missing::Host => "host",
                Missing::Path(_) => "path",
                Missing::Method(_) => "method",
            })
        };
        assert_eq!(find("https://a/x", Method::GET), Ok(0));
        assert_eq!(find("https://a/in/x", Method::GET), Ok(1));
        assert_eq!(find("https://a/in/x", Method::POST), Ok(1));
        assert_eq!(find("https://a/x", Method::POST), Err("method"));
        assert_eq!(find("http://a/x", Method::GET), Err("method"));
        assert_eq!(find("https://b/x", Method::GET), Err("host"));
        assert_eq!(find("https://a:444/x", Method::GET), Err("host"));
        let narrow = HttpAccess::new(&grants(&grant("https://a/in/", "[\"GET\"]")), |_| unreachable!()).unwrap();
        let (origin, path) = url::parse("https://a/out").unwrap();
        assert!(matches!(narrow.find(&origin, path.as_str(), &Method::GET), Err(Missing::Path(_))));
    }

    #[test]
    fn secrets_become_headers_and_keys_and_never_print() {
        let text = grant("https://a/", "[\"GET\"]")
            + "sign = { scheme = \"standard-webhooks\", secret = \"key\" }\nheaders = { x-key = { secret = \"hook\", prefix = \"Bearer \" } }";
        let grants = grants(&text);
        let read = |secret: &'static [u8]| move |_: &str| Ok::<_, String>(SecretSlice::from(secret.to_vec()));
        let secret = b"s3cret-s3cret-s3cret-s3cret";
        let access = HttpAccess::new(&grants, read(secret)).unwrap();
        let [reach] = access.reaches.as_slice() else { panic!("{access:?}") };
        assert_eq!(reach.headers[0].1.as_bytes(), b"Bearer s3cret-s3cret-s3cret-s3cret");
        assert!(reach.key.is_some());
        assert!(!format!("{access:?}").contains("s3cret"), "{access:?}");
        for (name, sets) in
            [("x-key", true), ("webhook-timestamp", true), ("webhook-signature", true), ("webhook-id", false)]
        {
            assert_eq!(access.sets(&HeaderName::from_static(name)), sets, "{name}");
        }
        for (bad, words) in [(&b"s3cret\nline-line-line-line-line"[..], "secrets.hook"), (b"s3cret", "secrets.key")] {
            let error = HttpAccess::new(&grants, read(bad)).unwrap_err();
            assert!(error.contains(words) && !error.contains("s3cret"), "{error}");
        }
        let error = HttpAccess::new(&grants, |name| Err(format!("no {name}"))).unwrap_err();
        assert_eq!(error, "no hook");
    }
}
