//! Targets that refuse rows: the server's own words about them quote the row, in message, detail, hint and names.
//!
//! Holds: the ways to refuse. Never knows: how a refusal is read.

use anyhow::{Context as _, Result, bail, ensure};
use walgate_harness::{Cluster, wait_until};

use super::evidence::Watched;
use super::hostile::{self, TABLES, TEXT, TYPES};
use crate::scene::{SOON, Scene};

/// What the target refuses, by what it is called here. All of it is about the column `txt` of [`TEXT`], but for one.
fn refusals() -> [(&'static str, String); 12] {
    let raising = |level: &str| {
        format!(
            "CREATE FUNCTION mirror.raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE WARNING '%', NEW USING DETAIL = NEW::text, HINT = NEW.txt;
             RAISE {level} '%', NEW USING DETAIL = NEW::text, HINT = NEW.txt, COLUMN = NEW.txt, CONSTRAINT = NEW.txt,
             DATATYPE = NEW.txt, TABLE = NEW.txt, SCHEMA = NEW.txt; RETURN NEW; END $$;
             CREATE TRIGGER raise BEFORE INSERT ON mirror.hostile FOR EACH ROW EXECUTE FUNCTION mirror.raise()"
        )
    };
    [
        ("check", format!("ALTER TABLE mirror.hostile ADD CHECK (txt <> '{TEXT}')")),
        ("not null", "ALTER TABLE mirror.hostile ADD COLUMN must text NOT NULL".to_owned()),
        (
            "unique",
            format!(
                "ALTER TABLE mirror.hostile ADD UNIQUE (txt); INSERT INTO mirror.hostile (id, k, txt) VALUES (1, 'k', '{TEXT}')"
            ),
        ),
        (
            "foreign key",
            "CREATE TABLE mirror.parent (txt text PRIMARY KEY);
             ALTER TABLE mirror.hostile ADD FOREIGN KEY (txt) REFERENCES mirror.parent"
                .to_owned(),
        ),
        ("narrow", "ALTER TABLE mirror.hostile ALTER txt TYPE varchar(3)".to_owned()),
        ("another type", "ALTER TABLE mirror.hostile ALTER txt TYPE int USING NULL".to_owned()),
        ("another enum", "ALTER TABLE mirror.hostile ALTER m TYPE tame USING NULL".to_owned()),
        (
            "domain",
            format!(
                "CREATE DOMAIN mirror.good AS text CHECK (VALUE <> '{TEXT}'); ALTER TABLE mirror.hostile ALTER txt TYPE mirror.good"
            ),
        ),
        ("index", "CREATE INDEX ON mirror.hostile ((txt::int))".to_owned()),
        (
            "exclusion",
            format!(
                "ALTER TABLE mirror.hostile ADD EXCLUDE (txt WITH =); INSERT INTO mirror.hostile (id, k, txt) VALUES (1, 'k', '{TEXT}')"
            ),
        ),
        (
            "generated",
            "ALTER TABLE mirror.hostile ADD generated text GENERATED ALWAYS AS ((txt::int)::text) STORED".to_owned(),
        ),
        ("trigger", raising("EXCEPTION")),
    ]
}

fn manifest(database: &str, on_failure: &str) -> String {
    format!(
        "[plugin]\nrequired = true\non_failure = \"{on_failure}\"\nmax_attempts = 2\nbackoff_ms = 1\nmax_backoff_ms = 5\n{TABLES}\
         [grant]\ncapabilities = [\"log\"]\n[grant.rows.\"*\"]\ndatabase = \"{database}\"\nschema = \"mirror\"\n"
    )
}

/// A scene whose mirror is in the state database, or in another cluster.
struct Mirror {
    watched: Watched,
    far: Option<Cluster>,
}

impl Mirror {
    async fn new(major: u32, far: bool, on_failure: &str) -> Result<Self> {
        let mut watched = Watched::new(hostile::scene(Cluster::start(major)?).await?)?;
        let far = if far { Some(Cluster::start(major)?) } else { None };
        if let Some(far) = &far {
            far.execute("postgres", TYPES).await?;
            watched.configure(&format!("[databases.warehouse]\nurl = \"{}\"", far.url("postgres")));
        }
        let database = if far.is_some() { "warehouse" } else { "state" };
        watched.scene.plugin("mirror", "mirror-rust", &manifest(database, on_failure))?;
        watched.scene.create_slot()?;
        Ok(Self { watched, far })
    }

    fn scene(&self) -> &Scene {
        &self.watched.scene
    }

    fn target(&self) -> &Cluster {
        self.far.as_ref().unwrap_or(&self.watched.scene.cluster)
    }

    /// Makes the tables of the mirror anew, with that fault.
    async fn make(&self, fault: &str) -> Result<()> {
        // The columns are those of the source, where the far cluster has none to copy.
        let columns =
            "SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
                       FROM pg_attribute WHERE attrelid = 'hostile'::regclass AND attnum > 0";
        let columns = self.scene().ask(columns).await?;
        let table = |name: &str| format!("CREATE TABLE mirror.{name} ({columns}, PRIMARY KEY (id, k));");
        let sql = format!(
            "DROP SCHEMA IF EXISTS mirror CASCADE; CREATE SCHEMA mirror; {}{}",
            table("hostile"),
            table("whole")
        );
        self.target().execute("postgres", &format!("{sql} {fault}")).await
    }

    /// Its rows, without the one that a fault needs.
    async fn rows(&self) -> Result<i64> {
        let client = self.target().client("postgres").await?;
        Ok(client.query_one("SELECT count(*) FROM mirror.hostile WHERE id > 1", &[]).await?.get(0))
    }

    /// The far target's copies of the position, which are ours, too.
    async fn positions(&self) -> Result<()> {
        let client = self.target().client("postgres").await?;
        let sql = "SELECT coalesce(string_agg(p::text, ' '), '') FROM walgate_target.positions p";
        match &self.far {
            Some(_) => self.watched.clean("positions", client.query_one(sql, &[]).await?.get::<_, String>(0)),
            None => Ok(()),
        }
    }
}

/// Each way in turn over the same rows, which then arrive.
async fn halts(major: u32, far: bool) -> Result<()> {
    let mut mirror = Mirror::new(major, far, "halt").await?;
    hostile::work(mirror.scene(), 0).await?;
    for (name, fault) in refusals() {
        mirror.make(&fault).await.context(name)?;
        let mut walgate = mirror.watched.start()?;
        mirror.watched.halted(&mut walgate, "rows_").await.context(name)?;
    }
    mirror.make("").await?;
    let mut walgate = mirror.watched.start()?;
    wait_until(SOON, "the row", async || Ok(mirror.rows().await? == 1)).await?;
    mirror.watched.running(&walgate).await?;
    mirror.watched.stopped(&mut walgate).await?;
    mirror.positions().await?;
    mirror.watched.everything().await
}

pub(super) async fn refusals_of_near_targets_that_halt(major: u32) -> Result<()> {
    halts(major, false).await
}

pub(super) async fn refusals_of_far_targets_that_halt(major: u32) -> Result<()> {
    halts(major, true).await
}

pub(super) async fn refusals_with_dead_letters(major: u32) -> Result<()> {
    let mut mirror = Mirror::new(major, false, "dead-letter").await?;
    for (round, (name, fault)) in (0..).zip(refusals()) {
        mirror.make(&fault).await.context(name)?;
        let before = mirror.watched.letters().map_or(0, |letters| letters.len());
        let mut walgate = mirror.watched.start()?;
        hostile::work(mirror.scene(), round).await?;
        // A target that cannot take rows of this shape at all is not the rows' fault and halts.
        wait_until(SOON, name, async || {
            Ok(walgate.ended()?.is_some() || mirror.watched.letters().is_ok_and(|letters| letters.len() > before))
        })
        .await?;
        match walgate.ended()? {
            Some(_) => mirror.watched.halted(&mut walgate, "rows_").await.context(name)?,
            None => mirror.watched.stopped(&mut walgate).await.context(name)?,
        }
    }
    ensure!(mirror.watched.letters()?.len() >= 8, "most refusals make a letter");
    // Tried again, in vain, and then with success.
    for fault in [refusals().into_iter().next_back().map(|(_, fault)| fault).unwrap_or_default(), String::new()] {
        mirror.make(&fault).await?;
        mirror.scene().cli(&["dead-letter", "redrive", "--all"])?.expect(0, "letters")?;
        let mut walgate = mirror.watched.start()?;
        walgate.wait_ready(SOON).await?;
        let waiting = "SELECT count(*) FROM walgate.dead_letters WHERE requested_at IS NOT NULL";
        wait_until(SOON, "the redrive", async || Ok(mirror.scene().ask(waiting).await? == "0")).await?;
        mirror.watched.running(&walgate).await?;
        mirror.watched.stopped(&mut walgate).await?;
        mirror.watched.everything().await?;
    }
    Ok(())
}

pub(super) async fn refusals_of_parked_mirrors(major: u32) -> Result<()> {
    let mut mirror = Mirror::new(major, true, "park").await?;
    hostile::work(mirror.scene(), 0).await?;
    for (name, fault) in refusals().into_iter().rev().take(2) {
        mirror.make(&fault).await?;
        let mut walgate = mirror.watched.start()?;
        wait_until(SOON, name, async || {
            if let Some(status) = walgate.ended()? {
                bail!("it ended with {status}: {}", walgate.stderr());
            }
            let Ok(page) = mirror.scene().status(&walgate).await else { return Ok(false) };
            Ok(page["plugins"]["mirror"]["state"] == "parked")
        })
        .await?;
        mirror.watched.running(&walgate).await?;
        mirror.watched.stopped(&mut walgate).await?;
    }
    mirror.watched.everything().await
}
