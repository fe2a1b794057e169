//! `[secrets.NAME]` of walgate.toml: where secrets are kept, and reading them when they are needed.
//!
//! Holds: the names, and the way to the bytes. Refuses to know what a secret is for, and to print one.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use secrecy::SecretSlice;
use serde::Deserialize;

/// Longest secret, in bytes: what is longer is another file.
const MAX_BYTES: u64 = 64 << 10;

/// One section.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileSecret {
    file: Option<PathBuf>,
    env: Option<String>,
}

#[derive(Debug, Clone)]
enum Place {
    File(PathBuf),
    Environment(String),
}

/// All that are named.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets(BTreeMap<String, Place>);

impl Secrets {
    /// Checks names and places. Nothing is read yet.
    pub(crate) fn named(sections: BTreeMap<String, FileSecret>, base: &Path) -> Result<Self, String> {
        let place = |(name, section): (String, FileSecret)| {
            let good = (1..=40).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
            if !good {
                return Err("secrets.NAME: the name must have 1 to 40 of a-z, 0-9, - and _".to_owned());
            }
            let place = match (section.file, section.env) {
                (Some(file), None) => Place::File(base.join(file)),
                (None, Some(variable)) => Place::Environment(variable),
                _ => return Err(format!("secrets.{name} needs one of file and env")),
            };
            Ok((name, place))
        };
        sections.into_iter().map(place).collect::<Result<_, _>>().map(Self)
    }

    /// The files among the places, which may change while walgate runs.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.values().filter_map(|place| if let Place::File(path) = place { Some(path.as_path()) } else { None })
    }

    /// Reads one. Of a file, one line break at the end does not count.
    pub(crate) fn read(&self, name: &str) -> Result<SecretSlice<u8>, String> {
        let place = self.0.get(name).ok_or_else(|| {
            format!("secret {name:?} is not named in walgate.toml; add there:\n[secrets.{name}]\nfile = \"/run/secrets/{name}\"")
        })?;
        let mut bytes = match place {
            Place::Environment(variable) => std::env::var(variable)
                .map_err(|_| format!("secrets.{name}: the environment variable {variable} is not set"))?
                .into_bytes(),
            Place::File(path) => {
                let failed = |error| format!("secrets.{name}: {} cannot be read: {error}", path.display());
                let mut bytes = Vec::new();
                let file = std::fs::File::open(path).map_err(failed)?;
                file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
                if bytes.len() as u64 > MAX_BYTES {
                    return Err(format!("secrets.{name}: {} is longer than {MAX_BYTES} bytes", path.display()));
                }
                bytes
            }
        };
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        Ok(SecretSlice::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn named(name: &str, file: Option<&Path>, env: Option<&str>) -> Result<Secrets, String> {
        let section = FileSecret { file: file.map(Path::to_owned), env: env.map(str::to_owned) };
        Secrets::named(BTreeMap::from([(name.to_owned(), section)]), Path::new("/nowhere"))
    }

    #[test]
    fn a_secret_has_one_place_and_a_plain_name() {
        assert!(named("key", None, None).unwrap_err().contains("one of file and env"));
        assert!(named("key", Some(Path::new("k")), Some("K")).unwrap_err().contains("one of file and env"));
        assert!(named("Not Plain", Some(Path::new("k")), None).is_err());
        let error = named("key", Some(Path::new("k")), None).unwrap().read("key").unwrap_err();
        assert!(error.contains("/nowhere/k"), "{error}");
        let error = Secrets::default().read("key").unwrap_err();
        assert!(error.contains("[secrets.key]"), "{error}");
    }

    #[test]
    fn the_end_of_the_line_is_not_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "a\nb\r\n").unwrap();
        let secrets = named("key", Some(&path), None).unwrap();
        assert_eq!(secrets.read("key").unwrap().expose_secret(), b"a\nb");
        assert!(!format!("{secrets:?} {:?}", secrets.read("key")).contains("a\\nb"));
        std::fs::write(&path, vec![b'x'; (64 << 10) + 1]).unwrap();
        assert!(secrets.read("key").unwrap_err().contains("longer"));
    }
}
