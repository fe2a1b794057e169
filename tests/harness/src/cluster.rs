//! A Postgres cluster that belongs to one test: own folder, own port, own log, gone afterwards.
//!
//! Holds: initdb, start, stop by process id, and the clients to talk to it.
//! Never knows: walgate. Every cluster is made by its own initdb (0.4 s), never copied from a template: copies would
//! share a system identifier, and telling two clusters apart is a thing walgate is tested for.
//! Read next: `account.rs` (who runs it), `guard.rs` (what happens when the test is killed).

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::account::Account;
use crate::child;
use crate::guard::Guard;
use crate::parts::Parts;
use crate::places::free_port;

/// Starts and stops that take longer are stuck; a crash recovery of a test's WAL takes a second or two.
const DEADLINE: Duration = Duration::from_secs(60);

/// The port picked for a cluster may be taken by someone else before the server binds it.
const START_ATTEMPTS: u32 = 5;

/// What a cluster has before a test says otherwise.
const DEFAULTS: &[(&str, &str)] = &[
    ("wal_level", "logical"),
    ("max_replication_slots", "20"),
    ("max_wal_senders", "20"),
    ("max_connections", "100"),
    ("shared_buffers", "32MB"),
    ("listen_addresses", "127.0.0.1"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("lc_messages", "C"),
    ("log_line_prefix", "%m [%p] %q%a "),
];

/// What a cluster does without unless a test asks for [`Builder::durable`].
const NOT_DURABLE: &[(&str, &str)] = &[("fsync", "off"), ("full_page_writes", "off")];

/// How to make a cluster; see [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    major: u32,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    tls: Option<Tls>,
    durable: bool,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
struct Tls {
    certificate: String,
    key: String,
    authority: Option<String>,
}

impl Builder {
    /// Sets one server parameter; the last word on a name wins, defaults included.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds one line to pg_hba.conf; the first call replaces the default, which trusts everyone on this machine.
    ///
    /// The user `postgres` on the unix socket is trusted in any case: the harness itself comes that way.
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    /// Turns TLS on, with PEM texts; `authority` is what client certificates are checked against.
    pub fn ssl(mut self, certificate: &str, key: &str, authority: Option<&str>) -> Self {
        self.tls = Some(Tls {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            authority: authority.map(str::to_owned),
        });
        self
    }

    /// Keeps fsync and full-page writes on, for tests that end the server or the machine's power.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Takes this port, which a stopped cluster had: another server behind an address that is known.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Makes the cluster and waits until it accepts connections.
    ///
    /// Fails, with the end of the server's log, when a binary is missing or the server does not come up in 60 s.
    pub fn start(self) -> Result<Cluster> {
        let mut parts = Parts::new(self.major)?;
        parts.port = self.port.unwrap_or(parts.port);
        let mut cluster = Cluster::of(parts);
        cluster.init()?;
        cluster.write_settings(&self)?;
        for _ in 1..START_ATTEMPTS {
            match cluster.launch() {
                Err(_) if self.port.is_none() && cluster.log().contains("could not bind") => {
                    cluster.port = free_port()?
                }
                outcome => return outcome.map(|()| cluster),
            }
        }
        cluster.launch()?;
        Ok(cluster)
    }

    fn config(&self) -> String {
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let mut settings = own(DEFAULTS);
        if !self.durable {
            settings.extend(own(NOT_DURABLE));
        }
        if let Some(tls) = &self.tls {
            settings.extend(own(&[("ssl", "on"), ("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key")]));
            settings.extend(tls.authority.iter().flat_map(|_| own(&[("ssl_ca_file", "ca.crt")])));
        }
        settings.extend(self.settings.iter().cloned());
        settings.iter().fold(String::new(), |mut text, (name, value)| {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{name} = '{}'", value.replace('\'', "''"));
            text
        })
    }

    fn access(&self) -> String {
        let mut text = "local all postgres trust\nlocal replication postgres trust\n".to_owned();
        if self.hba.is_empty() {
            text.push_str(
                "local all all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n",
            );
        }
        for line in &self.hba {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// A running (or stopped) throwaway cluster; dropping it ends the server and removes its folder.
#[derive(Debug)]
pub struct Cluster {
    process: Option<Child>,
    major: u32,
    port: u16,
    bin: PathBuf,
    account: Account,
    folder: TempDir,
    _guard: Guard,
}

impl Cluster {
    /// Starts a cluster with the defaults: `wal_level=logical`, 20 slots, 20 walsenders, `fsync=off`, UTF-8, C locale,
    /// superuser `postgres`, trust for everyone on 127.0.0.1 and on the unix socket.
    pub fn start(major: u32) -> Result<Self> {
        Self::builder(major).start()
    }

    /// Begins a cluster that differs from the defaults of [`Cluster::start`].
    pub fn builder(major: u32) -> Builder {
        Builder { major, settings: Vec::new(), hba: Vec::new(), tls: None, durable: false, port: None }
    }

    /// A stopped cluster of these parts; there may be data in them already.
    pub(crate) fn of(parts: Parts) -> Self {
        let Parts { major, bin, account, port, folder, guard } = parts;
        Self { process: None, major, port, bin, account, folder, _guard: guard }
    }

    /// The major version asked for.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The TCP port on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.folder.path()
    }

    /// The server's data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The server's log so far; for the eyes of a failed test, it may hold row values.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A TCP URL: `postgres://postgres@127.0.0.1:PORT/database`.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A TCP URL of another role, with a password.
    pub fn url_as(&self, role: &str, password: &str, database: &str) -> String {
        format!("postgres://{role}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// A URL through the unix socket: `postgres://postgres@/database?host=FOLDER&port=PORT`.
    pub fn unix_url(&self, database: &str) -> String {
        format!("postgres://postgres@/{database}?host={}&port={}", self.folder.path().display(), self.port)
    }

    /// The postmaster's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// A superuser's connection through the unix socket; its task ends with the client or the server.
    pub async fn client(&self, database: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.unix_url(database), NoTls)
            .await
            .with_context(|| format!("cannot connect to database {database} of the test cluster"))?;
        // The end of the connection shows in the client's next call; there is nobody to report it to here.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Runs one or more statements as the superuser, outside a transaction when there is only one.
    pub async fn execute(&self, database: &str, sql: &str) -> Result<()> {
        let client = self.client(database).await?;
        client.batch_execute(sql).await.with_context(|| format!("in database {database}: {sql}"))
    }

    /// Starts a stopped cluster on the same port and data, and waits until it accepts connections.
    pub fn launch(&mut self) -> Result<()> {
        if self.process.is_some() {
            bail!("the cluster on port {} already runs", self.port);
        }
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).context("cannot open the log")?;
        let mut command = Command::new(self.bin.join("postgres"));
        command.arg("-D").arg(self.data_dir()).arg("-p").arg(self.port.to_string());
        command.arg("-k").arg(self.socket_dir()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().context("cannot share the log")?).stderr(log);
        // A group of its own: ctrl-C in a terminal ends the test, and the test (or its guard) ends the server.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        self.account.switch(&mut command);
        self.process = Some(command.spawn().context("cannot start postgres")?);
        let ready = self.wait_ready();
        if let Err(error) = ready {
            let _ = self.stop(Signal::QUIT);
            bail!("Postgres {} did not start: {error}\n{}", self.major, tail(&self.log()));
        }
        Ok(())
    }

    /// Ends the server as `pg_ctl stop -m fast`: sessions are cut, a checkpoint is written. Does nothing when stopped.
    ///
    /// A walsender whose client does not confirm everything delays this by up to its `wal_sender_timeout`.
    pub fn stop_fast(&mut self) -> Result<()> {
        self.stop(Signal::INT)
    }

    /// Ends the server as a crash would (SIGQUIT): the next start recovers. Does nothing when stopped.
    pub fn stop_immediate(&mut self) -> Result<()> {
        self.stop(Signal::QUIT)
    }

    /// [`Cluster::stop_fast`], then [`Cluster::launch`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop_fast()?;
        self.launch()
    }

    fn stop(&mut self, signal: Signal) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        child::end(&mut process, signal, DEADLINE, "postgres")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("postgres.log")
    }

    fn init(&self) -> Result<()> {
        let mut command = Command::new(self.bin.join("initdb"));
        command.args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
            "--pgdata",
        ]);
        command.arg(self.data_dir()).current_dir(self.folder.path()).stdin(Stdio::null());
        self.account.switch(&mut command);
        let output = command.output().context("cannot run initdb")?;
        if !output.status.success() {
            bail!("initdb of Postgres {} failed: {}", self.major, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn write_settings(&self, builder: &Builder) -> Result<()> {
        self.write("data/postgresql.conf", &builder.config())?;
        self.write("data/pg_hba.conf", &builder.access())?;
        if let Some(tls) = &builder.tls {
            self.write("data/server.crt", &tls.certificate)?;
            self.write("data/server.key", &tls.key)?;
            self.write("data/ca.crt", tls.authority.as_deref().unwrap_or_default())?;
        }
        // The log is opened by the test's account and written through that handle, so it need not be given away.
        File::create(self.log_path()).context("cannot make the log")?;
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        self.account.own(&path)
    }

    /// The server says `ready` on line 8 of postmaster.pid; `pg_ctl` waits for the same word.
    fn wait_ready(&mut self) -> Result<()> {
        let file = self.data_dir().join("postmaster.pid");
        let Some(process) = self.process.as_mut() else { bail!("it is stopped") };
        let id = process.id().to_string();
        let ready = child::poll_blocking(DEADLINE, || {
            if let Some(status) = process.try_wait().context("cannot wait for postgres")? {
                bail!("it ended with {status}");
            }
            let text = fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines();
            // A file left by a crashed server names another process.
            let ours = lines.next().map(str::trim) == Some(id.as_str());
            Ok((ours && lines.nth(6).map(str::trim) == Some("ready")).then_some(()))
        })?;
        ready.with_context(|| format!("it is not ready after {DEADLINE:?}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("end of the log of Postgres {} on port {}:\n{}", self.major, self.port, tail(&self.log()));
        }
        if let Err(error) = self.stop(Signal::QUIT) {
            eprintln!("a test cluster could not be ended: {error:#}");
        }
    }
}

/// The last lines of a log, enough to see why a server ended.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(30)).fold(String::new(), |text, line| text + "  " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_setting_wins_and_quotes_are_doubled() {
        let config = Cluster::builder(18).setting("wal_level", "replica").setting("a", "it's").config();
        assert!(config.rfind("wal_level = 'replica'") > config.find("wal_level = 'logical'"));
        assert!(config.contains("a = 'it''s'\n") && config.contains("fsync = 'off'\n"));
        assert!(!Cluster::builder(18).durable(true).config().contains("fsync"));
    }

    #[test]
    fn own_access_rules_replace_trust() {
        let access = Cluster::builder(18).hba("host all all 127.0.0.1/32 scram-sha-256").access();
        assert!(access.starts_with("local all postgres trust\n") && access.contains("scram-sha-256\n"));
        assert!(!access.contains("127.0.0.1/32 trust"));
    }
}
