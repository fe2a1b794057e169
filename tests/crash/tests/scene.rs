//! The life of one pipeline: its servers, its writers, and the processes of walgate that follow one another.
//!
//! Holds: starting, ending, finding out how far the ledger is, and the proof at the end of it. Never knows: when and why
//! something is killed (`blow.rs`).

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rand::Rng as _;
use rand::rngs::StdRng;
use tempfile::TempDir;
use tokio_postgres::{Client, Row};
use walgate_harness::{Cluster, Disk, Walgate, failpoints_bin, free_port, guest, wait_until};

use crate::judge::{Found, judge};
use crate::ledger::{self, Cursor, Life};
use crate::load::{Load, TABLES};
use crate::mirror::{self, Mirror, judge_mirror};
use crate::mode::{MAX_BATCH_ROWS, Mode, Place};
use crate::truth::Truth;

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// The exit code of a process that found something it depends on away.
pub(crate) const UNAVAILABLE: i32 = 4;
const HALTED: i32 = 3;
/// Room for the ledger of one scene.
const DISK: &str = "48m";
/// The process that a scene keeps running itself.
const FIRST: &str = "walgate";

/// What can be ended at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Walgate,
    Source,
    /// Nothing to end where the source has the state, too.
    State,
    /// The database of the rows; nothing to end where there is none.
    Far,
}

/// One pipeline. Dropping it removes everything.
pub(crate) struct Scene {
    pub(crate) mode: Mode,
    pub(crate) load: Load,
    walgate: Option<Walgate>,
    pub(crate) source: Cluster,
    /// None: the state is in another database of the source.
    pub(crate) state: Option<Cluster>,
    /// The server of rows that are in neither.
    far: Option<Cluster>,
    starts: Vec<Start>,
    ended_as_asked: bool,
    disk: Option<Disk>,
    dir: TempDir,
}

/// A process that was started.
struct Start {
    /// What stood on the standard output of all processes before it.
    offset: u64,
    from: Cursor,
    after_crash: bool,
}

impl Scene {
    /// Servers, tables, a slot, a plugin; no process yet, and the writers are paused. `apart` gives the state a server of
    /// its own.
    pub(crate) async fn new(major: u32, mode: Mode, apart: bool, seed: u64) -> Result<Self> {
        let source = Cluster::builder(major).durable(true).start()?;
        source.execute("postgres", TABLES).await?;
        let state = if apart { Some(Cluster::builder(major).durable(true).start()?) } else { None };
        let at = state.as_ref().unwrap_or(&source);
        at.execute("postgres", "CREATE DATABASE state").await?;
        let far = if mode == Mode::RowsFar { Some(Cluster::builder(major).durable(true).start()?) } else { None };
        match (mode, &far) {
            (_, Some(far)) => far.execute("postgres", mirror::TABLES).await?,
            (Mode::Rows, None) => at.execute("state", mirror::TABLES).await?,
            _ => {}
        }
        let dir = tempfile::Builder::new().prefix("wg-crash-").tempdir()?;
        fs::create_dir_all(dir.path().join("plugins/ledger"))?;
        fs::create_dir(dir.path().join("disk"))?;
        let disk = if mode == Mode::Transactional { Disk::mount(&dir.path().join("disk"), DISK)? } else { None };
        let load = Load::new(&source, seed).await;
        let (starts, walgate) = (Vec::new(), None);
        let scene = Self { mode, load, walgate, source, state, far, starts, ended_as_asked: true, disk, dir };
        scene.plugin(mode.guest(), &mode.manifest(&scene.ledger()))?;
        scene.write_config(FIRST)?;
        scene.command(&["slot", "create"])?;
        Ok(scene)
    }

    /// Puts another guest, or another plugin.toml, in the place of the plugin.
    pub(crate) fn plugin(&self, name: &str, manifest: &str) -> Result<()> {
        let folder = self.dir.path().join("plugins/ledger");
        fs::copy(guest(name)?, folder.join("plugin.wasm"))?;
        Ok(fs::write(folder.join("plugin.toml"), manifest)?)
    }

    /// The same while a process watches: each file by renaming.
    pub(crate) fn replace_plugin(&self, component: &[u8], manifest: &str) -> Result<()> {
        let folder = self.dir.path().join("plugins/ledger");
        for (file, bytes) in [("plugin.wasm", component), ("plugin.toml", manifest.as_bytes())] {
            let half = folder.join(format!("{file}.tmp"));
            fs::write(&half, bytes)?;
            fs::rename(half, folder.join(file))?;
        }
        Ok(())
    }

    /// Runs a command of the binary to its end. Answers what it said on standard output.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<String> {
        let config = self.config(FIRST);
        let output = Command::new(failpoints_bin()?).arg("--config").arg(config).args(arguments).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a process; armed, it ends itself at that pass of that point.
    pub(crate) async fn start(&mut self, armed: Option<(&str, u64)>) -> Result<()> {
        let from = self.stored().await?;
        // Dropped first: what the last process wrote is complete then.
        self.walgate = None;
        let offset = fs::metadata(self.stdout()).map_or(0, |data| data.len());
        self.starts.push(Start { offset, from, after_crash: !self.ended_as_asked });
        self.ended_as_asked = false;
        self.walgate = Some(self.spawn(FIRST, armed)?);
        Ok(())
    }

    /// A process of that name: its configuration is a file of its own.
    pub(crate) fn spawn(&self, name: &str, armed: Option<(&str, u64)>) -> Result<Walgate> {
        let api = self.write_config(name)?;
        let mut command =
            Walgate::command().program(failpoints_bin()?).args(["run", "--config"]).arg(self.config(name));
        if let Some((point, pass)) = armed {
            let _ = fs::remove_file(self.reached());
            command = command.env("WALGATE_FAILPOINTS", format!("{point}={pass}"));
            command = command.env("WALGATE_FAILPOINT_LOG", self.reached());
        }
        command.api(api).stdout_to(self.stdout()).spawn()
    }

    /// Does what a supervisor does: starts a process when there is none, and another one when the last found something it
    /// depends on away.
    pub(crate) async fn keep_running(&mut self) -> Result<()> {
        match self.ended()? {
            Some(UNAVAILABLE) => self.start(None).await,
            Some(code) => Err(self.last_words().context(format!("walgate ended by itself, with {code}"))),
            None if self.walgate.is_none() => self.start(None).await,
            None => Ok(()),
        }
    }

    /// Waits until a process is ready, whichever it is.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let outcome = wait_until(SOON, "walgate is ready", async || {
            self.keep_running().await?;
            let Some(walgate) = &self.walgate else { return Ok(false) };
            // Nobody listening yet is the ordinary case here, not a failure.
            Ok(walgate.get("/readyz").await.is_ok_and(|response| response.status == 200))
        });
        outcome.await.map_err(|error| self.last_words().context(error))
    }

    /// Waits until the armed process has killed itself, and not in any other way.
    pub(crate) async fn fallen(&mut self, point: &str) -> Result<()> {
        let Some(walgate) = &mut self.walgate else { bail!("no process was started") };
        let Ok(status) = walgate.wait_exit(SOON).await else {
            return Err(self.last_words().context(format!("{point} was not reached in time")));
        };
        if status.signal() != Some(9) || !self.has_reached(point) {
            return Err(self.last_words().context(format!("{point} was not reached: {status}")));
        }
        self.walgate = None;
        Ok(())
    }

    /// Whether a process ended itself at that point.
    pub(crate) fn has_reached(&self, point: &str) -> bool {
        fs::read_to_string(self.reached()).is_ok_and(|reached| reached.trim() == point)
    }

    /// A moment under load that comes when the ledger has grown a little; sometimes it is right after a start.
    pub(crate) async fn moment(&mut self, random: &mut StdRng) -> Result<()> {
        let grown = if random.random_bool(0.2) { 0 } else { random.random_range(1..30_000) };
        let from = self.ledger_size().await?;
        let outcome = wait_until(SOON, "the ledger grows", async || {
            self.keep_running().await?;
            Ok(self.ledger_size().await? >= from + grown)
        });
        outcome.await.map_err(|error| self.last_words().context(error))
    }

    /// Ends what is named at once, as a crash would, and brings the servers back. Answers how many processes that were.
    pub(crate) fn crash(&mut self, parts: &[Part]) -> Result<usize> {
        let has = |part| parts.contains(&part);
        let walgate = has(Part::Walgate);
        let process = self.walgate.as_mut().filter(|_| walgate);
        let mut servers: Vec<&mut Cluster> = has(Part::Source).then_some(&mut self.source).into_iter().collect();
        servers.extend(self.state.as_mut().filter(|_| has(Part::State)));
        servers.extend(self.far.as_mut().filter(|_| has(Part::Far)));
        let killed = usize::from(process.is_some()) + servers.len();
        // Blocks for as long as a recovery takes; the writers run on.
        tokio::task::block_in_place(|| {
            thread::scope(|scope| {
                let mut ends = Vec::new();
                if let Some(process) = process {
                    ends.push(scope.spawn(|| process.sigkill()));
                }
                ends.extend(servers.iter_mut().map(|server| scope.spawn(|| server.stop_immediate())));
                ends.into_iter().try_for_each(|end| end.join().unwrap_or_else(|_| Err(anyhow!("a kill panicked"))))
            })?;
            servers.iter_mut().try_for_each(|server| server.launch())
        })?;
        if walgate {
            self.walgate = None;
        }
        Ok(killed)
    }

    /// Ends a running process, if there is one, so that another can be started armed.
    pub(crate) fn kill(&mut self) -> Result<usize> {
        self.crash(&[Part::Walgate])
    }

    /// Stops the writers, lets everything arrive, stops the process as an operator would, and proves the ledger.
    pub(crate) async fn prove(&mut self) -> Result<Found> {
        self.settle().await?;
        self.judge().await
    }

    /// The proof itself. Everything must have arrived, and no process may run.
    pub(crate) async fn judge(&self) -> Result<Found> {
        self.told_no_more_than_stored().await?;
        let truth = Truth::read(&self.source).await?;
        match self.tables().await? {
            Some(client) => judge_mirror(&Mirror::read(&client).await?, &truth),
            None => judge(&self.lives()?, &truth, self.mode.promise()),
        }
    }

    /// Stops the writers, lets everything arrive, and stops the process as an operator would.
    pub(crate) async fn settle(&mut self) -> Result<()> {
        let last = self.last_entry().await?;
        let outcome = wait_until(SOON, "the last change is in the ledger", async || {
            self.keep_running().await?;
            self.holds(last).await
        });
        outcome.await.map_err(|error| self.last_words().context(error))?;
        self.stop().await
    }

    /// Stops the writers and writes one row more. Answers its number.
    pub(crate) async fn last_entry(&mut self) -> Result<i64> {
        self.load.pause().await;
        self.told_no_more_than_stored().await?;
        let sql = "INSERT INTO entries (pad) VALUES ('last') RETURNING id";
        Ok(self.row(&self.source, "postgres", sql).await?.get(0))
    }

    /// Whether that entry is at the end of the ledger.
    pub(crate) async fn holds(&self, entry: i64) -> Result<bool> {
        match self.tables().await? {
            Some(client) => {
                let sql = "SELECT EXISTS (SELECT FROM mirror.entries WHERE id = $1)";
                Ok(client.query_one(sql, &[&entry]).await?.get(0))
            }
            None => Ok(self.tail()?.contains(&format!("\"id\":{entry},\"tx\""))),
        }
    }

    /// The database of a ledger that is tables.
    pub(crate) async fn tables(&self) -> Result<Option<Client>> {
        match (self.mode.place(), &self.far) {
            (Place::Tables, Some(far)) => far.client("postgres").await.map(Some),
            (Place::Tables, None) => self.at().client("state").await.map(Some),
            _ => Ok(None),
        }
    }

    async fn stop(&mut self) -> Result<()> {
        let Some(walgate) = &mut self.walgate else { bail!("no process runs") };
        walgate.sigterm()?;
        let status = walgate.wait_exit(SOON).await?;
        if status.code() != Some(0) {
            return Err(self.last_words().context(format!("a stop as asked: {status}")));
        }
        self.ended_as_asked = true;
        self.walgate = None;
        Ok(())
    }

    /// The source is never told more than what is stored: what it freed could not be asked for again.
    pub(crate) async fn told_no_more_than_stored(&self) -> Result<()> {
        let slot = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'walgate'";
        let told: String = self.row(&self.source, "postgres", slot).await?.get(0);
        let stored: String = self.row(self.at(), "state", "SELECT acked::text FROM walgate.pipelines").await?.get(0);
        ensure!(ledger::lsn(&told)? <= ledger::lsn(&stored)?, "the source was told {told}, stored is {stored}");
        Ok(())
    }

    /// The fencing epoch of whoever leads.
    pub(crate) async fn epoch(&self) -> Result<i64> {
        Ok(self.row(self.at(), "state", "SELECT max(epoch) FROM walgate.leaders").await?.get(0))
    }

    /// Where the plugin stands according to the state database.
    async fn stored(&self) -> Result<Cursor> {
        let client = self.at().client("state").await?;
        let sql = "SELECT end_lsn::text, commit_lsn::text, ordinal FROM walgate.checkpoints WHERE plugin = 'ledger'";
        let Some(row) = client.query_opt(sql, &[]).await? else { return Ok(Cursor::default()) };
        let ordinal: i64 = row.get(2);
        Ok(Cursor { end: ledger::lsn(row.get(0))?, commit: ledger::lsn(row.get(1))?, ordinal: u64::try_from(ordinal)? })
    }

    /// The server of the state database.
    pub(crate) fn at(&self) -> &Cluster {
        self.state.as_ref().unwrap_or(&self.source)
    }

    async fn row(&self, server: &Cluster, database: &str, sql: &str) -> Result<Row> {
        Ok(server.client(database).await?.query_one(sql, &[]).await?)
    }

    /// Each process with what it wrote; a file that is cut back to its checkpoint is as if one process had written it.
    fn lives(&self) -> Result<Vec<Life>> {
        if self.mode.place() == Place::File {
            let changes = ledger::read(&fs::read(self.ledger())?, false)?;
            return Ok(vec![Life { changes, ..Life::default() }]);
        }
        let bytes = fs::read(self.stdout())?;
        let ends = self.starts.iter().skip(1).map(|start| start.offset).chain([bytes.len() as u64]);
        let lives = self.starts.iter().zip(ends).enumerate().map(|(number, (start, end))| {
            let part = bytes.get(usize::try_from(start.offset)?..usize::try_from(end)?).context("the output shrank")?;
            let torn = self.starts.get(number + 1).is_some_and(|next| next.after_crash);
            let changes = ledger::read(part, torn).with_context(|| format!("process {number}"))?;
            Ok(Life { changes, from: start.from, after_crash: start.after_crash })
        });
        lives.collect()
    }

    /// The exit code of a process that ended by itself; a signal counts as its negative number.
    fn ended(&mut self) -> Result<Option<i32>> {
        let Some(walgate) = &mut self.walgate else { return Ok(None) };
        let status = walgate.ended()?;
        Ok(status.map(|status| status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))))
    }

    pub(crate) fn last_words(&self) -> anyhow::Error {
        let said = self.walgate.as_ref().map(Walgate::stderr).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        anyhow!("it said at last:\n  {}", lines[lines.len().saturating_sub(25)..].join("\n  "))
    }

    /// The connection of the source that carries the stream is ended; another one follows.
    pub(crate) async fn disconnect(&mut self) -> Result<()> {
        self.ready().await?;
        let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active";
        self.source.execute("postgres", sql).await
    }

    /// The connection of the state database is ended.
    pub(crate) async fn disconnect_state(&mut self) -> Result<()> {
        self.ready().await?;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'state'";
        self.at().execute("postgres", sql).await
    }

    /// The connections of the rows are ended.
    pub(crate) async fn disconnect_far(&mut self) -> Result<()> {
        self.ready().await?;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres' \
                   AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        match &self.far {
            Some(far) => far.execute("postgres", sql).await,
            None => Ok(()),
        }
    }

    /// Fills the disk under the output until a write has failed, and empties it: at once, or only after the halt.
    /// Answers false where no disk can be filled.
    pub(crate) async fn fill_disk(&mut self, until_halted: bool) -> Result<bool> {
        const REFUSED: &str = "the output cannot be written";
        self.ready().await?;
        let (Some(disk), Some(walgate)) = (&self.disk, &mut self.walgate) else { return Ok(false) };
        let refusals = |walgate: &Walgate| walgate.stderr().matches(REFUSED).count();
        let before = refusals(walgate);
        disk.fill()?;
        wait_until(SOON, "a write that does not fit", async || {
            let ended = walgate.ended()?.is_some();
            Ok(ended || (!until_halted && refusals(walgate) > before))
        })
        .await?;
        disk.empty()?;
        if let Some(status) = walgate.ended()? {
            let said = walgate.stderr();
            ensure!(status.code() == Some(HALTED) && said.contains("No space left"), "{status}: {said}");
            // What an operator does after making room.
            self.walgate = None;
        }
        Ok(true)
    }

    fn write_config(&self, name: &str) -> Result<SocketAddr> {
        // Another port each time: the last one may be someone else's by now.
        let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let far = self.far.as_ref().map(|far| format!("[databases.far]\nurl = \"{}\"\n", far.url("postgres")));
        let text = format!(
            "[source]\nurl = \"{}\"\nslot = \"walgate\"\npublications = [\"crash\"]\n\
             [state]\nurl = \"{}\"\nmax_retries = 12\nretry_backoff_ms = 50\n{}\
             [delivery]\nmax_batch_rows = {MAX_BATCH_ROWS}\n\
             [plugins]\ndir = \"plugins\"\ncache_dir = \"cache\"\n[api]\nlisten = \"{api}\"\n",
            self.source.url("postgres"),
            self.at().url("state"),
            far.unwrap_or_default(),
        );
        fs::write(self.config(name), text)?;
        Ok(api)
    }

    /// Bytes of the ledger, for rows about as many as lines would have.
    pub(crate) async fn ledger_size(&self) -> Result<u64> {
        let Some(client) = self.tables().await? else {
            return Ok(fs::metadata(self.written()).map_or(0, |data| data.len()));
        };
        let rows: i64 = client.query_one("SELECT count(*) FROM mirror.entries", &[]).await?.get(0);
        Ok(u64::try_from(rows)? * 130)
    }

    fn tail(&self) -> Result<String> {
        let Ok(mut file) = File::open(self.written()) else { return Ok(String::new()) };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(4096)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn written(&self) -> PathBuf {
        if self.mode.place() == Place::File { self.ledger() } else { self.stdout() }
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.path().join("disk/changes.ndjson")
    }

    fn stdout(&self) -> PathBuf {
        self.dir.path().join("stdout.ndjson")
    }

    fn reached(&self) -> PathBuf {
        self.dir.path().join("reached")
    }

    fn config(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.toml"))
    }
}
