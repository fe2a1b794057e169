//! Takes a connection URL apart.
//!
//! Holds: the grammar. Refuses to guess: whatever is not understood is an error, and no error quotes the URL.
//! Read next: [`crate::config`].

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;

use crate::config::{ConfigError, Host, SourceOptions, TlsMode};

/// The parameters, as an error lists them.
pub(crate) const KNOWN: &str =
    "application_name, connect_timeout, dbname, host, password, port, sslcert, sslkey, sslmode, sslrootcert, user";

/// The parts of a URL, each decoded.
#[derive(Default)]
struct Parts {
    host: Option<String>,
    port: Option<String>,
    user: Option<String>,
    password: Option<String>,
    dbname: Option<String>,
    application_name: Option<String>,
    connect_timeout: Option<String>,
    sslmode: Option<String>,
    sslrootcert: Option<String>,
    sslcert: Option<String>,
    sslkey: Option<String>,
}

pub(crate) fn parse(url: &str) -> Result<SourceOptions, ConfigError> {
    let rest = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme))
        .ok_or(ConfigError::Scheme)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if tail.contains('@') {
        return Err(ConfigError::StrayAt);
    }
    let (path, query) = match tail.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (tail, None),
    };
    let mut parts = Parts::default();
    parts.read_authority(authority)?;
    let database = path.strip_prefix('/').unwrap_or(path);
    set(&mut parts.dbname, "dbname", database)?;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        parts.read_parameter(pair)?;
    }
    parts.into_options()
}

/// Stores a part that was given; an empty one counts as not given.
fn set(slot: &mut Option<String>, name: &'static str, raw: &str) -> Result<(), ConfigError> {
    if raw.is_empty() {
        return Ok(());
    }
    if slot.replace(decode(name, raw)?).is_some() {
        return Err(ConfigError::Repeated { name });
    }
    Ok(())
}

/// Percent-decodes once. A `%` without two hexadecimal digits is an error, not a literal `%`.
fn decode(part: &'static str, raw: &str) -> Result<String, ConfigError> {
    let wrong = || ConfigError::Encoding { part };
    let well_formed = raw
        .split('%')
        .skip(1)
        .all(|after| after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    if !well_formed {
        return Err(wrong());
    }
    let text = percent_decode_str(raw).decode_utf8().map_err(|_| wrong())?;
    if text.contains('\0') {
        return Err(wrong());
    }
    Ok(text.into_owned())
}

impl Parts {
    fn read_authority(&mut self, authority: &str) -> Result<(), ConfigError> {
        // The last @ ends the user part, so a literal @ in a password does no harm.
        let place = match authority.rsplit_once('@') {
            Some((login, place)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                set(&mut self.user, "user", user)?;
                set(&mut self.password, "password", password)?;
                place
            }
            None => authority,
        };
        if place.contains(',') {
            return Err(ConfigError::SeveralHosts);
        }
        let (host, port) = match place.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').ok_or(BAD_HOST)?;
                (host, if after.is_empty() { "" } else { after.strip_prefix(':').ok_or(BAD_HOST)? })
            }
            None => place.split_once(':').unwrap_or((place, "")),
        };
        set(&mut self.host, "host", host)?;
        set(&mut self.port, "port", port)
    }

    fn read_parameter(&mut self, pair: &str) -> Result<(), ConfigError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "host" => set(&mut self.host, "host", value),
            "port" => set(&mut self.port, "port", value),
            "user" => set(&mut self.user, "user", value),
            "password" => set(&mut self.password, "password", value),
            "dbname" => set(&mut self.dbname, "dbname", value),
            "application_name" => set(&mut self.application_name, "application_name", value),
            "connect_timeout" => set(&mut self.connect_timeout, "connect_timeout", value),
            "sslmode" => set(&mut self.sslmode, "sslmode", value),
            "sslrootcert" => set(&mut self.sslrootcert, "sslrootcert", value),
            "sslcert" => set(&mut self.sslcert, "sslcert", value),
            "sslkey" => set(&mut self.sslkey, "sslkey", value),
            other => Err(ConfigError::UnknownParameter { name: printable(other) }),
        }
    }

    fn into_options(self) -> Result<SourceOptions, ConfigError> {
        let host = match self.host {
            None => return Err(ConfigError::Missing { part: "host" }),
            Some(host) if host.contains(',') => return Err(ConfigError::SeveralHosts),
            Some(host) if host.starts_with('/') => Host::Unix(PathBuf::from(host)),
            Some(host) => Host::Tcp(host),
        };
        let user = self.user.ok_or(ConfigError::Missing { part: "user" })?;
        let database = self.dbname.unwrap_or_else(|| user.clone());
        let mut options = SourceOptions::new(host, user, database);
        options.password = self.password.map(SecretString::from);
        if let Some(port) = self.port {
            let wrong = ConfigError::Value { name: "port", allowed: "a number from 1 to 65535" };
            options.port = port.parse().ok().filter(|port| *port != 0).ok_or(wrong)?;
        }
        if let Some(name) = self.application_name {
            options.application_name = name;
        }
        if let Some(seconds) = self.connect_timeout {
            let wrong = ConfigError::Value { name: "connect_timeout", allowed: "a number of seconds from 1 to 600" };
            let seconds = seconds.parse().ok().filter(|s| (1..=600).contains(s)).ok_or(wrong)?;
            options.connect_timeout = Duration::from_secs(seconds);
        }
        if let Some(mode) = self.sslmode {
            let wrong =
                ConfigError::Value { name: "sslmode", allowed: "disable, prefer, require, verify-ca or verify-full" };
            options.tls.mode = TlsMode::parse(&mode).ok_or(wrong)?;
        }
        if self.sslcert.is_some() != self.sslkey.is_some() {
            return Err(ConfigError::HalfClientCertificate);
        }
        options.tls.root_cert = self.sslrootcert.map(PathBuf::from);
        options.tls.client_cert = self.sslcert.map(PathBuf::from);
        options.tls.client_key = self.sslkey.map(PathBuf::from);
        Ok(options)
    }
}

const BAD_HOST: ConfigError = ConfigError::Value { name: "host", allowed: "a name, an address, or [an IPv6 address]" };

/// A name that looks like a parameter; anything else might be a piece of a badly encoded password.
fn printable(name: &str) -> String {
    let plain = (1..=40).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    if plain { name.to_owned() } else { "(unnamed)".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    fn password_of(url: &str) -> String {
        parse(url).unwrap().password.unwrap().expose_secret().to_owned()
    }

    #[test]
    fn reads_every_part() {
        let options = parse(
            "postgresql://repl%40x:p%25w@db.example:6432/shop%2F1?sslmode=verify-full&sslrootcert=%2Fca.pem\
             &sslcert=/c.pem&sslkey=/k.pem&application_name=w%201&connect_timeout=3",
        )
        .unwrap();
        assert_eq!(options.host, Host::Tcp("db.example".into()));
        assert_eq!((options.port, options.user.as_str(), options.database.as_str()), (6432, "repl@x", "shop/1"));
        assert_eq!(options.application_name, "w 1");
        assert_eq!(options.connect_timeout, Duration::from_secs(3));
        assert_eq!(options.tls.mode, TlsMode::VerifyFull);
        assert_eq!(options.tls.root_cert, Some("/ca.pem".into()));
        assert_eq!((options.tls.client_cert, options.tls.client_key), (Some("/c.pem".into()), Some("/k.pem".into())));
    }

    #[test]
    fn finds_the_host_in_all_its_forms() {
        let host = |url: &str| parse(url).unwrap().host;
        assert_eq!(host("postgres://u@[::1]:5433/d"), Host::Tcp("::1".into()));
        assert_eq!(host("postgres://u@/d?host=/var/run/postgresql"), Host::Unix("/var/run/postgresql".into()));
        assert_eq!(host("postgres://u@%2Ftmp%2Fsock/d"), Host::Unix("/tmp/sock".into()));
        assert_eq!(host("postgres:///d?host=h&user=u"), Host::Tcp("h".into()));
        let defaults = parse("postgres://u@h").unwrap();
        assert_eq!((defaults.database.as_str(), defaults.port, defaults.tls.mode), ("u", 5432, TlsMode::Prefer));
    }

    #[test]
    fn kf_098_a_password_is_decoded_exactly_once() {
        let nasty = "p@ss #%25$/: ?&=äö\u{1F511}'\"\\";
        let encoded = utf8_percent_encode(nasty, NON_ALPHANUMERIC).to_string();
        assert_eq!(password_of(&format!("postgres://u:{encoded}@h/d")), nasty);
        assert_eq!(password_of(&format!("postgres://u@h/d?password={encoded}")), nasty);
        assert_eq!(password_of("postgres://u:a@b:c@h/d"), "a@b:c", "the last @ ends the login");
        let set = parse("postgres://u@h/d").unwrap().with_password(SecretString::from("%41 \n"));
        assert_eq!(set.password.unwrap().expose_secret(), "%41 \n", "the setter decodes nothing");
    }

    #[track_caller]
    fn check_refused(url: &str, expect: ConfigError) {
        let error = parse(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error}");
        assert_eq!(error, expect);
    }

    #[test]
    fn refuses_what_it_does_not_understand_without_echo() {
        check_refused("mysql://u:s3cr3t@h/d", ConfigError::Scheme);
        check_refused("postgres://u:s3cr3t%@h/d", ConfigError::Encoding { part: "password" });
        check_refused("postgres://u:s3cr3t%4@h/d", ConfigError::Encoding { part: "password" });
        check_refused("postgres://u:%FF@h/d", ConfigError::Encoding { part: "password" });
        check_refused("postgres://u:a%00@h/d", ConfigError::Encoding { part: "password" });
        check_refused("postgres://u:s3cr3t/x@h/d", ConfigError::StrayAt);
        check_refused("postgres://u:s3cr3t?x@h/d", ConfigError::StrayAt);
        check_refused("postgres://u:s3cr3t@/d", ConfigError::Missing { part: "host" });
        check_refused("postgres://h/d", ConfigError::Missing { part: "user" });
        check_refused("postgres://u@a,b/d", ConfigError::SeveralHosts);
        check_refused("postgres://u@h/d?fsync=off", ConfigError::UnknownParameter { name: "fsync".into() });
        check_refused("postgres://u@h/d?s3cr3t", ConfigError::UnknownParameter { name: "(unnamed)".into() });
        check_refused("postgres://u@h/d?port=1&port=2", ConfigError::Repeated { name: "port" });
        check_refused("postgres://u@h/d?user=v", ConfigError::Repeated { name: "user" });
        check_refused("postgres://u@h/d?sslcert=/c", ConfigError::HalfClientCertificate);
        check_refused("postgres://u@[::1/d", BAD_HOST);
        for url in ["postgres://u@h:0/d", "postgres://u@h:70000/d", "postgres://u@h:x/d"] {
            check_refused(url, ConfigError::Value { name: "port", allowed: "a number from 1 to 65535" });
        }
        assert!(parse("postgres://u@h/d?connect_timeout=0").is_err());
        assert!(parse("postgres://u@h/d?sslmode=allow").is_err());
    }

    #[test]
    fn debug_never_shows_the_password() {
        let options = parse("postgres://u:s3cr3t@h/d").unwrap();
        assert!(!format!("{options:?}").contains("s3cr3t"));
    }

    proptest! {
        #[test]
        fn any_password_survives(password in "[^\u{0}]{1,40}") {
            let encoded = utf8_percent_encode(&password, NON_ALPHANUMERIC).to_string();
            prop_assert_eq!(password_of(&format!("postgres://u:{encoded}@h/d")), password);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "(postgres://)?\\PC{0,80}") {
            let _ = parse(&text);
        }
    }
}
