//! Signatures of Standard Webhooks: how a receiver knows that a request is ours, whole, and of now.
//!
//! Holds: the key and what is signed. Refuses to know clocks, secrets' places and HTTP. The key never prints.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The fewest bytes of a key. The scheme asks for 24 to 64; a longer one is not weaker, so only the lower end is held.
const LEAST_KEY_BYTES: usize = 24;

/// What a key in the scheme's own spelling begins with; base64 follows.
const SPELLED: &[u8] = b"whsec_";

/// A key that signs. Made of the secret as it is, or of what follows `whsec_` in base64.
#[derive(Clone)]
pub struct WebhookKey(Hmac<Sha256>);

/// A secret that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadWebhookKey {
    /// Not base64.
    #[error("begins with whsec_ and does not go on in base64")]
    NotBase64,
    /// Too short.
    #[error("has fewer than {LEAST_KEY_BYTES} bytes; make one with: openssl rand -base64 32")]
    Short,
}

impl WebhookKey {
    /// Takes a secret in either spelling.
    ///
    /// # Errors
    /// See [`BadWebhookKey`].
    pub fn new(secret: &[u8]) -> Result<Self, BadWebhookKey> {
        match secret.strip_prefix(SPELLED) {
            Some(encoded) => Self::of(&STANDARD.decode(encoded).map_err(|_| BadWebhookKey::NotBase64)?),
            None => Self::of(secret),
        }
    }

    fn of(key: &[u8]) -> Result<Self, BadWebhookKey> {
        if key.len() < LEAST_KEY_BYTES {
            return Err(BadWebhookKey::Short);
        }
        Hmac::new_from_slice(key).map(Self).map_err(|_| BadWebhookKey::Short)
    }

    /// The value of `webhook-signature` for a request of that id, sent at that time (seconds since 1970), with that body.
    /// None for an id that the receiver could take apart in another way: it must be [`is_id`].
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> Option<String> {
        is_id(id).then(|| {
            let mac = self.0.clone().chain_update(format!("{id}.{timestamp}.")).chain_update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        })
    }
}

/// The key does not print.
impl std::fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookKey")
    }
}

/// Whether a text can be the id of a signed request: 1 to 256 letters, digits, `-`, `_` and `:`. A `.` would end it early.
pub fn is_id(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_:".contains(&b);
    (1..=256).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the scheme's own specification and reference libraries.
    #[test]
    fn signs_like_the_reference() {
        let key = WebhookKey::new(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn id_time_and_body_each_count() {
        let key = WebhookKey::new(&[7; 32]).unwrap();
        let all = [("a", 1, &b"x"[..]), ("b", 1, b"x"), ("a", 2, b"x"), ("a", 1, b"y")];
        let signatures: std::collections::BTreeSet<_> =
            all.iter().map(|(id, at, body)| key.sign(id, *at, body)).collect();
        assert_eq!(signatures.len(), all.len());
        for id in ["", "a.b", "a b", "ä", "a\n", &"x".repeat(257)] {
            assert_eq!(key.sign(id, 1, b"x"), None, "{id:?}");
        }
    }

    #[test]
    fn weak_and_broken_keys_are_refused_and_none_prints() {
        assert_eq!(WebhookKey::new(&[7; 23]).unwrap_err(), BadWebhookKey::Short);
        assert_eq!(WebhookKey::new(b"whsec_AAAA").unwrap_err(), BadWebhookKey::Short);
        assert_eq!(WebhookKey::new(b"whsec_!").unwrap_err(), BadWebhookKey::NotBase64);
        assert_eq!(format!("{:?}", WebhookKey::new(&[b'k'; 32]).unwrap()), "WebhookKey");
    }
}
