//! Where a component comes from: the digest that plugin.toml pins, and a signature by a key that walgate.toml trusts.
//!
//! Holds: both checks, on the bytes that are compiled afterwards. Refuses to know who holds a key. Asked before anything of
//! the component is compiled, so that an untrusted one reaches no compiler.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use minisign_verify::{PublicKey, Signature};
use sha2::{Digest as _, Sha256};

use crate::aot::hex;
use crate::error::Class;

/// Largest signature file, in bytes: four lines, one of them a comment.
const MAX_SIGNATURE_BYTES: u64 = 16 << 10;

/// A component that is not the one an operator trusts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProvenanceError {
    /// plugin.toml pins another digest.
    #[error(
        "plugin file {} has another digest than plugin.sha256 in plugin.toml pins; if this is the version that is meant, write \
         there:\nsha256 = \"{digest}\"",
        path.display()
    )]
    Pinned {
        /// The component.
        path: PathBuf,
        /// Its digest.
        digest: String,
    },
    /// There is no signature, and one is asked for.
    #[error(
        "plugin file {} is not signed, which plugins.trusted_keys in walgate.toml asks for; put its signature beside it: \
         minisign -S -m {}",
        path.display(),
        path.display()
    )]
    Unsigned {
        /// The component.
        path: PathBuf,
    },
    /// The signature cannot be read.
    #[error("the signature {} cannot be read ({kind}); make it again with minisign", path.display())]
    Unreadable {
        /// The signature.
        path: PathBuf,
        /// What the system said.
        kind: ErrorKind,
    },
    /// It is not in the form of minisign.
    #[error("the signature {} is not one of minisign; make it again with: minisign -S", path.display())]
    Malformed {
        /// The signature.
        path: PathBuf,
    },
    /// No trusted key made it for these bytes.
    #[error(
        "the signature {} is by none of plugins.trusted_keys in walgate.toml, or is of other bytes than the component has now",
        path.display()
    )]
    Untrusted {
        /// The signature.
        path: PathBuf,
    },
}

impl ProvenanceError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// The keys whose signatures count. Without any, a component needs no signature.
#[derive(Debug, Clone, Default)]
pub struct TrustedKeys(Vec<PublicKey>);

impl TrustedKeys {
    /// Public keys as minisign prints them: one line of base64 each.
    ///
    /// # Errors
    /// The place of the first that is none, from 0.
    pub fn parse(keys: &[String]) -> Result<Self, usize> {
        let key = |(at, key): (usize, &String)| PublicKey::from_base64(key.trim()).map_err(|_| at);
        keys.iter().enumerate().map(key).collect::<Result<_, _>>().map(Self)
    }

    /// Whether one of them signed these bytes; `path` is the component they were read from, beside which the signature is.
    ///
    /// # Errors
    /// See [`ProvenanceError`].
    pub fn check(&self, path: &Path, bytes: &[u8]) -> Result<(), ProvenanceError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let signature = signature_of(path);
        let text = match read(&signature) {
            Ok(text) => text,
            Err(ErrorKind::NotFound) => return Err(ProvenanceError::Unsigned { path: path.to_owned() }),
            Err(kind) => return Err(ProvenanceError::Unreadable { path: signature, kind }),
        };
        let Ok(made) = Signature::decode(&text) else { return Err(ProvenanceError::Malformed { path: signature }) };
        // The old form signs the bytes themselves; every minisign of this decade signs their hash.
        if self.0.iter().any(|key| key.verify(bytes, &made, false).is_ok()) {
            return Ok(());
        }
        Err(ProvenanceError::Untrusted { path: signature })
    }
}

/// Whether the bytes have the digest that is pinned, if one is.
///
/// # Errors
/// When they have another; the error prints the line that would allow them.
pub fn check_pin(path: &Path, bytes: &[u8], pinned: Option<&str>) -> Result<(), ProvenanceError> {
    let Some(pinned) = pinned else { return Ok(()) };
    let digest = hex(&Sha256::digest(bytes));
    if digest == pinned { Ok(()) } else { Err(ProvenanceError::Pinned { path: path.to_owned(), digest }) }
}

/// The signature of a component: `plugin.wasm.minisig`.
pub fn signature_of(component: &Path) -> PathBuf {
    let mut name = component.as_os_str().to_owned();
    name.push(".minisig");
    PathBuf::from(name)
}

fn read(path: &Path) -> Result<String, ErrorKind> {
    let file = File::open(path).map_err(|error| error.kind())?;
    let mut text = String::new();
    file.take(MAX_SIGNATURE_BYTES).read_to_string(&mut text).map_err(|error| error.kind())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use minisign::KeyPair;

    use super::*;

    fn sign(pair: &KeyPair, bytes: &[u8]) -> String {
        minisign::sign(Some(&pair.pk), &pair.sk, Cursor::new(bytes), None, None).unwrap().into_string()
    }

    #[test]
    fn a_component_counts_when_a_trusted_key_signed_its_bytes() {
        let (ours, theirs) =
            (KeyPair::generate_unencrypted_keypair().unwrap(), KeyPair::generate_unencrypted_keypair().unwrap());
        let keys = TrustedKeys::parse(&[ours.pk.to_base64()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.wasm");
        let put = |text: &str| std::fs::write(dir.path().join("plugin.wasm.minisig"), text).unwrap();
        assert_eq!(keys.check(&path, b"code"), Err(ProvenanceError::Unsigned { path: path.clone() }));
        put(&sign(&ours, b"code"));
        assert_eq!(keys.check(&path, b"code"), Ok(()));
        for (bytes, signature) in [
            (&b"other code"[..], sign(&ours, b"code")),
            (b"code", sign(&theirs, b"code")),
            (b"code", sign(&ours, b"code").replace("trusted comment: ", "trusted comment: x")),
        ] {
            put(&signature);
            assert!(matches!(keys.check(&path, bytes), Err(ProvenanceError::Untrusted { .. })));
        }
        for (text, readable) in [("garbage", true), ("", true), ("\u{0}", true)] {
            put(text);
            assert_eq!(
                matches!(keys.check(&path, b"code"), Err(ProvenanceError::Malformed { .. })),
                readable,
                "{text:?}"
            );
        }
        std::fs::write(dir.path().join("plugin.wasm.minisig"), [0xff; 10]).unwrap();
        assert!(matches!(keys.check(&path, b"code"), Err(ProvenanceError::Unreadable { .. })));
        assert_eq!(TrustedKeys::default().check(&path, b"code"), Ok(()), "nobody asks for one");
        assert_eq!(TrustedKeys::parse(&[ours.pk.to_base64(), "short".to_owned()]).err(), Some(1));
    }

    #[test]
    fn a_pin_names_the_line_that_would_allow_the_bytes() {
        let path = Path::new("plugin.wasm");
        let error = check_pin(path, b"code", Some(&"0".repeat(64))).unwrap_err().to_string();
        let line = error.lines().last().unwrap();
        let digest = line.strip_prefix("sha256 = \"").unwrap().trim_end_matches('"');
        assert_eq!(check_pin(path, b"code", Some(digest)), Ok(()));
        assert_eq!(check_pin(path, b"code", None), Ok(()));
    }
}
