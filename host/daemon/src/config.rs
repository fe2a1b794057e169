//! The configuration file: strict TOML, units in names, no secret inside.
//!
//! Holds: the file format, its defaults, its checks. Refuses to know what the values are used for. Unknown keys are
//! refused, and no error repeats a value: a URL may hold more than its author thinks.
//! Read next: [`crate::connect`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use walgate_core::minimize::Bounds;
use walgate_plugin::TrustedKeys;
use walgate_wire::SourceOptions;

use crate::exit::{Failure, chain};
use crate::secrets::{FileSecret, Secrets};

/// Rows in a batch. One call into a guest costs a few microseconds, so that at 10,000 rows it is far below the
/// cost of the rows; larger batches only raise memory.
const DEFAULT_MAX_BATCH_ROWS: usize = 10_000;
/// Bytes of values in a batch. A guest needs a few times this much memory.
const DEFAULT_MAX_BATCH_BYTES: usize = 4 << 20;
/// Bytes of values that may wait for one plugin before reading pauses.
const DEFAULT_MAX_INFLIGHT_BYTES: usize = 64 << 20;
/// Attempts to write a checkpoint before the pipeline halts.
const DEFAULT_STATE_MAX_RETRIES: u32 = 5;
/// First pause between two attempts; it doubles.
const DEFAULT_STATE_RETRY_BACKOFF_MS: u64 = 1_000;
/// Time a stop may take to finish what is in flight.
const DEFAULT_DRAIN_MS: u64 = 30_000;
/// How long reading may wait for a plugin that takes nothing.
const DEFAULT_MAX_STALLED_MS: u64 = 600_000;
/// Log that a parked plugin may keep on the source.
const DEFAULT_MAX_PARKED_BYTES: u64 = 16 << 30;
/// Bytes of dead letters.
const DEFAULT_MAX_LETTER_BYTES: u64 = 1 << 30;
/// Where status and metrics are served.
const DEFAULT_LISTEN: &str = "127.0.0.1:9187";

/// Where a pipeline without a checkpoint begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartMode {
    /// At the present: rows that the tables hold already never come.
    GoForward,
}

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) source: SourceOptions,
    pub(crate) slot: String,
    pub(crate) publications: Vec<String>,
    /// What may be done while there is no checkpoint; nothing without it.
    pub(crate) start: Option<StartMode>,
    /// The slot is kept in step on standbys.
    pub(crate) failover: bool,
    /// The primary, when the source is a standby: for what only a primary can do.
    pub(crate) ddl: Option<SourceOptions>,
    /// How often something is written to the log of a quiet database.
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) state: SourceOptions,
    pub(crate) state_max_retries: u32,
    pub(crate) state_retry_backoff_ms: u64,
    pub(crate) bounds: Bounds,
    pub(crate) max_inflight_bytes: usize,
    pub(crate) drain_ms: u64,
    /// How long reading waits for a plugin that takes nothing; none: for ever.
    pub(crate) max_stalled: Option<Duration>,
    /// Log that a required plugin without a running instance may pin.
    pub(crate) max_parked_bytes: u64,
    /// Databases that plugins may have targets in, by the name that plugin.toml uses.
    pub(crate) databases: BTreeMap<String, SourceOptions>,
    /// What plugin.toml may refer to by name.
    pub(crate) secrets: Secrets,
    pub(crate) letters: LetterLimits,
    pub(crate) plugins: Plugins,
    pub(crate) listen: SocketAddr,
    pub(crate) log: Log,
}

/// How many dead letters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LetterLimits {
    pub(crate) max_bytes: u64,
    /// Letters older than this are removed, and the removal is told and counted.
    pub(crate) retain: Option<Duration>,
}

/// Where plugins are found.
#[derive(Debug, Clone)]
pub(crate) struct Plugins {
    pub(crate) dir: PathBuf,
    pub(crate) cache_dir: Option<PathBuf>,
    pub(crate) watch: Watching,
    /// Time between two looks when nothing tells of a change.
    pub(crate) rescan: Duration,
    /// How long a new generation is watched.
    pub(crate) probation: Duration,
    /// Failures within that time after which the generation before comes back.
    pub(crate) probation_failures: u32,
    /// Whose signatures count; without any, nothing needs to be signed.
    pub(crate) trusted_keys: TrustedKeys,
}

/// How changes of the plugin directory are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Watching {
    /// The system tells, and a look now and then finds what it did not tell.
    #[default]
    Notify,
    /// Looks only: for network mounts, where the system tells nothing.
    Poll,
    /// Not at all: what is there at the start runs until the end.
    Off,
}

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Logs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    #[serde(default)]
    pub(crate) format: LogFormat,
    #[serde(default)]
    pub(crate) level: Level,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: FileSource,
    state: Option<FileState>,
    #[serde(default)]
    delivery: FileDelivery,
    #[serde(default)]
    databases: BTreeMap<String, FileDatabase>,
    #[serde(default)]
    secrets: BTreeMap<String, FileSecret>,
    #[serde(default)]
    dead_letters: FileLetters,
    plugins: FilePlugins,
    #[serde(default)]
    api: FileApi,
    #[serde(default)]
    log: Log,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSource {
    url: String,
    password_file: Option<PathBuf>,
    password_env: Option<String>,
    slot: String,
    publications: Vec<String>,
    start: Option<String>,
    #[serde(default)]
    failover: bool,
    ddl_url: Option<String>,
    ddl_password_file: Option<PathBuf>,
    ddl_password_env: Option<String>,
    #[serde(default)]
    heartbeat_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileState {
    url: Option<String>,
    password_file: Option<PathBuf>,
    password_env: Option<String>,
    max_retries: Option<u32>,
    retry_backoff_ms: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileDelivery {
    max_batch_rows: Option<usize>,
    max_batch_bytes: Option<usize>,
    max_inflight_bytes: Option<usize>,
    drain_ms: Option<u64>,
    max_stalled_ms: Option<u64>,
    max_parked_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDatabase {
    url: String,
    password_file: Option<PathBuf>,
    password_env: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileLetters {
    max_bytes: Option<u64>,
    retain_days: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePlugins {
    dir: PathBuf,
    cache_dir: Option<PathBuf>,
    #[serde(default)]
    watch: Watching,
    rescan_ms: Option<u64>,
    probation_ms: Option<u64>,
    probation_failures: Option<u32>,
    #[serde(default)]
    trusted_keys: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileApi {
    listen: Option<String>,
}

impl Config {
    /// Reads and checks a file. Relative paths in it are relative to its folder.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("{} cannot be read: {error}; name the file with --config", path.display()))
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        Self::parse(&text, base).map_err(|problem| Failure::usage(format!("{}: {problem}", path.display())))
    }

    fn parse(text: &str, base: &Path) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        let source =
            connection("source.", &file.source.url, file.source.password_file, file.source.password_env, base)?;
        slot_name(&file.source.slot)?;
        let publications = file.source.publications;
        if publications.is_empty() {
            return Err("source.publications must name at least one publication".to_owned());
        }
        if let Some(at) = publications.iter().position(|name| !(1..=63).contains(&name.len()) || name.contains('\0')) {
            return Err(format!("source.publications[{at}] must have 1 to 63 bytes and no NUL"));
        }
        let start = start_mode(file.source.start.as_deref())?;
        let heartbeat = heartbeat(file.source.heartbeat_ms)?;
        let ddl = match &file.source.ddl_url {
            Some(url) => {
                Some(connection("source.ddl_", url, file.source.ddl_password_file, file.source.ddl_password_env, base)?)
            }
            None if file.source.ddl_password_file.is_some() || file.source.ddl_password_env.is_some() => {
                return Err("source.ddl_password_file and source.ddl_password_env need source.ddl_url".to_owned());
            }
            None => None,
        };
        let delivery = file.delivery;
        let bounds = Bounds {
            max_rows: within("delivery.max_batch_rows", delivery.max_batch_rows, DEFAULT_MAX_BATCH_ROWS, 1, 1_000_000)?,
            max_bytes: within(
                "delivery.max_batch_bytes",
                delivery.max_batch_bytes,
                DEFAULT_MAX_BATCH_BYTES,
                1 << 10,
                1 << 30,
            )?,
        };
        let state = file.state.unwrap_or(FileState {
            url: None,
            password_file: None,
            password_env: None,
            max_retries: None,
            retry_backoff_ms: None,
        });
        let state_connection = match &state.url {
            Some(url) => connection("state.", url, state.password_file, state.password_env, base)?,
            None if state.password_file.is_some() || state.password_env.is_some() => {
                return Err("state.password_file and state.password_env need state.url".to_owned());
            }
            None => source.clone(),
        };
        Ok(Self {
            state: state_connection,
            state_max_retries: within("state.max_retries", state.max_retries, DEFAULT_STATE_MAX_RETRIES, 0, 1_000)?,
            state_retry_backoff_ms: within(
                "state.retry_backoff_ms",
                state.retry_backoff_ms,
                DEFAULT_STATE_RETRY_BACKOFF_MS,
                10,
                600_000,
            )?,
            max_inflight_bytes: within(
                "delivery.max_inflight_bytes",
                delivery.max_inflight_bytes,
                DEFAULT_MAX_INFLIGHT_BYTES.max(bounds.max_bytes),
                bounds.max_bytes,
                1 << 36,
            )?,
            drain_ms: within("delivery.drain_ms", delivery.drain_ms, DEFAULT_DRAIN_MS, 0, 3_600_000)?,
            max_stalled: Some(within(
                "delivery.max_stalled_ms",
                delivery.max_stalled_ms,
                DEFAULT_MAX_STALLED_MS,
                0,
                86_400_000,
            )?)
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis),
            max_parked_bytes: within(
                "delivery.max_parked_bytes",
                delivery.max_parked_bytes,
                DEFAULT_MAX_PARKED_BYTES,
                1 << 20,
                1 << 50,
            )?,
            databases: databases(file.databases, base)?,
            secrets: Secrets::named(file.secrets, base)?,
            letters: LetterLimits {
                max_bytes: within(
                    "dead_letters.max_bytes",
                    file.dead_letters.max_bytes,
                    DEFAULT_MAX_LETTER_BYTES,
                    0,
                    1 << 50,
                )?,
                retain: match file.dead_letters.retain_days {
                    Some(days) => Some(within("dead_letters.retain_days", Some(days), 0, 1, 36_500)?),
                    None => None,
                }
                .map(|days| Duration::from_secs(days * 86_400)),
            },
            bounds,
            slot: file.source.slot,
            publications,
            start,
            failover: file.source.failover,
            ddl,
            heartbeat,
            source,
            plugins: Plugins {
                dir: base.join(file.plugins.dir),
                cache_dir: file.plugins.cache_dir.map(|dir| base.join(dir)),
                watch: file.plugins.watch,
                rescan: milliseconds("plugins.rescan_ms", file.plugins.rescan_ms, 2_000, 50)?,
                probation: milliseconds("plugins.probation_ms", file.plugins.probation_ms, 60_000, 0)?,
                probation_failures: within("plugins.probation_failures", file.plugins.probation_failures, 3, 1, 1_000)?,
                trusted_keys: TrustedKeys::parse(&file.plugins.trusted_keys).map_err(|at| {
                    format!(
                        "plugins.trusted_keys[{at}] is not a public key of minisign; it is the second line of minisign.pub"
                    )
                })?,
            },
            listen: listen(file.api.listen.as_deref().unwrap_or(DEFAULT_LISTEN))?,
            log: file.log,
        })
    }
}

/// A time of an hour at most.
fn milliseconds(key: &str, given: Option<u64>, default: u64, least: u64) -> Result<Duration, String> {
    within(key, given, default, least, 3_600_000).map(Duration::from_millis)
}

/// The connections of far targets. Their names stand in plugin.toml and in errors.
fn databases(sections: BTreeMap<String, FileDatabase>, base: &Path) -> Result<BTreeMap<String, SourceOptions>, String> {
    let named = |(name, file): (String, FileDatabase)| {
        let good = (1..=40).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
        if !good || name == "state" {
            return Err(
                "databases.NAME: the name must have 1 to 40 of a-z, 0-9, - and _, and not be \"state\"".to_owned()
            );
        }
        let options = connection(&format!("databases.{name}"), &file.url, file.password_file, file.password_env, base)?;
        Ok((name, options))
    };
    sections.into_iter().map(named).collect()
}

/// The line and the kind of a problem. The library's own text may repeat what stands in the file, so only the kinds
/// that name keys pass.
fn syntax(text: &str, error: &toml::de::Error) -> String {
    let line = error
        .span()
        .map_or(0, |span| 1 + text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count());
    let message = error.message();
    let names_keys = ["unknown field", "missing field", "duplicate field", "duplicate key"];
    let kind = if names_keys.iter().any(|start| message.starts_with(start)) {
        message.to_owned()
    } else if let Some((_, expected)) = message.rsplit_once(", expected ") {
        format!("wrong type or value, expected {expected}")
    } else {
        "this is not valid TOML".to_owned()
    };
    format!("line {line}: {kind}")
}

fn within<T: PartialOrd + std::fmt::Display + Copy>(
    key: &str,
    value: Option<T>,
    default: T,
    least: T,
    most: T,
) -> Result<T, String> {
    let value = value.unwrap_or(default);
    if value >= least && value <= most { Ok(value) } else { Err(format!("{key} must be from {least} to {most}")) }
}

/// The server's own rule for slot names.
fn slot_name(name: &str) -> Result<(), String> {
    let good = (1..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if good { Ok(()) } else { Err("source.slot must have 1 to 63 characters of a-z, 0-9 and _".to_owned()) }
}

fn start_mode(mode: Option<&str>) -> Result<Option<StartMode>, String> {
    match mode {
        None => Ok(None),
        Some("go-forward") => Ok(Some(StartMode::GoForward)),
        Some("snapshot") => {
            Err("source.start: this version cannot copy tables yet; copy them by other means, then begin \
                                 at the present with start = \"go-forward\""
                .to_owned())
        }
        Some(_) => Err("source.start must be \"go-forward\", or left out".to_owned()),
    }
}

/// Less than a second would only write log for its own sake; more than a day frees nothing in time.
fn heartbeat(milliseconds: u64) -> Result<Option<Duration>, String> {
    match milliseconds {
        0 => Ok(None),
        1_000..=86_400_000 => Ok(Some(Duration::from_millis(milliseconds))),
        _ => Err("source.heartbeat_ms must be 0 (off) or from 1000 to 86400000".to_owned()),
    }
}

/// Without authentication, status and metrics must not leave the machine.
fn listen(address: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        address.parse().map_err(|_| "api.listen must be an address and a port, like 127.0.0.1:9187".to_owned())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("api.listen must be a loopback address: the API has no authentication yet".to_owned())
    }
}

fn connection(
    prefix: &str,
    url: &str,
    password_file: Option<PathBuf>,
    password_env: Option<String>,
    base: &Path,
) -> Result<SourceOptions, String> {
    let mut options = SourceOptions::from_url(url).map_err(|error| format!("{prefix}url: {}", chain(&error)))?;
    if options.password.is_some() {
        return Err(format!("{prefix}url holds a password; put it into a file and name it with {prefix}password_file"));
    }
    for file in [&mut options.tls.root_cert, &mut options.tls.client_cert, &mut options.tls.client_key] {
        *file = file.take().map(|file| base.join(file));
    }
    match (password_file, password_env) {
        (Some(_), Some(_)) => {
            return Err(format!("{prefix}password_file and {prefix}password_env are both set; keep one"));
        }
        (Some(file), None) => {
            let path = base.join(file);
            let password = std::fs::read_to_string(&path)
                .map_err(|error| format!("{prefix}password_file {} cannot be read: {error}", path.display()))?;
            // One line break at the end is how editors end files; anything else belongs to the password.
            let password = password.strip_suffix('\n').unwrap_or(&password);
            let password = password.strip_suffix('\r').unwrap_or(password);
            options.password = Some(SecretString::from(password));
        }
        (None, Some(variable)) => {
            let password = std::env::var(&variable)
                .map_err(|_| format!("{prefix}password_env: the environment variable {variable} is not set"))?;
            options.password = Some(SecretString::from(password));
        }
        (None, None) => {}
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [source]
        url = "postgres://walgate@127.0.0.1:5432/shop"
        slot = "walgate"
        publications = ["walgate"]
        [plugins]
        dir = "plugins"
    "#;

    #[track_caller]
    fn check(text: &str, expect: Result<(), &str>) {
        match (Config::parse(text, Path::new("/etc/walgate")), expect) {
            (Ok(_), Ok(())) => {}
            (Err(problem), Err(words)) => assert!(problem.contains(words), "{problem}"),
            (got, want) => panic!("got {:?}, want {want:?}", got.err()),
        }
    }

    #[test]
    fn a_small_file_is_enough() {
        check(GOOD, Ok(()));
        let config = Config::parse(GOOD, Path::new("/etc/walgate")).unwrap();
        assert_eq!(config.plugins.dir, Path::new("/etc/walgate/plugins"));
        assert_eq!(config.bounds.max_rows, DEFAULT_MAX_BATCH_ROWS);
    }

    #[test]
    fn the_start_of_a_source_can_be_said() {
        let text =
            "start = \"go-forward\"\nfailover = true\nddl_url = \"postgres://w@primary/shop\"\nheartbeat_ms = 1000\n";
        let config = Config::parse(&GOOD.replace("[plugins]", &format!("{text}[plugins]")), Path::new("/")).unwrap();
        assert_eq!((config.start, config.failover), (Some(StartMode::GoForward), true));
        assert_eq!(config.heartbeat, Some(Duration::from_secs(1)));
        assert!(config.ddl.is_some());
        let config = Config::parse(GOOD, Path::new("/")).unwrap();
        assert_eq!((config.start, config.failover, config.heartbeat), (None, false, None));
    }

    #[test]
    fn every_problem_names_its_place_and_the_fix() {
        check(&GOOD.replace("slot =", "slott ="), Err("line 4: unknown field `slott`"));
        check(&format!("{GOOD}\n[delivery]\nmax_batch_rows = 0"), Err("delivery.max_batch_rows must be from 1 to"));
        check(&format!("{GOOD}\n[api]\nlisten = \"0.0.0.0:1\""), Err("loopback"));
        check(&GOOD.replace("[\"walgate\"]", "[]"), Err("source.publications"));
        check(&GOOD.replace("\"walgate\"\n", "\"Wal-Gate\"\n"), Err("source.slot"));
        check(&GOOD.replace("walgate@", "walgate:x@"), Err("source.password_file"));
        let source = |line: &str| GOOD.replace("[plugins]", &format!("{line}\n[plugins]"));
        check(&source("start = \"snapshot\""), Err("cannot copy tables yet"));
        check(&source("start = \"other\""), Err("source.start must be"));
        check(&source("heartbeat_ms = 999"), Err("source.heartbeat_ms must be 0 (off) or from 1000 to 86400000"));
        check(&source("heartbeat_ms = 86400001"), Err("source.heartbeat_ms"));
        check(&source("ddl_password_env = \"X\""), Err("need source.ddl_url"));
        check(&source("ddl_url = \"postgres://a:b@c/d\""), Err("source.ddl_password_file"));
    }

    #[test]
    fn no_error_repeats_a_value_of_the_file() {
        let canary = "s3cr3t-canary";
        for text in [
            format!("{GOOD}\n[delivery]\nmax_batch_rows = \"{canary}\""),
            GOOD.replace("postgres://walgate@", &format!("mysql://{canary}@")),
            GOOD.replace("postgres://walgate@", &format!("postgres://walgate:{canary}@")),
            format!("{GOOD}\n{canary} = = 1"),
            GOOD.replace("[plugins]", &format!("start = \"{canary}\"\n[plugins]")),
            GOOD.replace("[plugins]", &format!("ddl_url = \"{canary}\"\n[plugins]")),
            GOOD.replace("\"plugins\"", &format!("\"{canary}")),
        ] {
            let problem = Config::parse(&text, Path::new("/")).unwrap_err();
            assert!(!problem.contains(canary), "{problem}");
        }
    }
}
