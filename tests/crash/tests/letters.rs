//! Poison under crashes: each row that cannot be taken is in the dead letters or, once the plugin or its target is mended
//! and the letter was delivered again, in the ledger; never in neither, never in both, never twice.
//!
//! Holds: the ways to refuse, the points of laying aside and of delivering again, and the proof. Everything else is proved
//! as always. Never knows: the form of a letter; a row is known by its text, which stands in the image as it is.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walgate_harness::{majors, wait_until};

use crate::blow::Blow;
use crate::judge::judge;
use crate::ledger::{self, Life, What};
use crate::mirror::{Mirror, judge_mirror};
use crate::mode::{Mode, Place, Promise, rows, with_grants};
use crate::progress::{say, seed_of};
use crate::scene::{SOON, Scene};
use crate::truth::Truth;

/// Points on the way of what is refused, wherever letters commit with the checkpoint.
pub(crate) const REFUSED: [&str; 5] = [
    "dead_letter.before",
    "dead_letter.written",
    "checkpoint.before_outputs",
    "checkpoint.before_commit",
    "checkpoint.committed",
];
/// Points on the way of what is delivered again.
pub(crate) const REDRIVEN: [&str; 4] =
    ["redrive.before", "redrive.taken", "checkpoint.before_commit", "checkpoint.committed"];
/// Where letters commit with rows.
const OF_ROWS: [&str; 3] = ["apply.before_rows", "apply.in_transaction", "apply.committed"];
/// Letters that wait before they are delivered again.
const ENOUGH: i64 = 8;

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The plugin names rows in its receipt.
    Rows,
    /// The plugin rejects the batch.
    Batch,
    /// The table has a constraint.
    Target(Mode),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_rows_are_kept_once() -> Result<()> {
    kept(Refusal::Rows).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_rows_are_taken_once() -> Result<()> {
    taken(Refusal::Rows).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_batches_are_kept_once() -> Result<()> {
    kept(Refusal::Batch).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_batches_are_taken_once() -> Result<()> {
    taken(Refusal::Batch).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_rows_of_the_state_database_are_kept_once() -> Result<()> {
    kept(Refusal::Target(Mode::Rows)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_rows_of_the_state_database_are_taken_once() -> Result<()> {
    taken(Refusal::Target(Mode::Rows)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_rows_of_another_database_are_kept_once() -> Result<()> {
    kept(Refusal::Target(Mode::RowsFar)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_rows_of_another_database_are_taken_once() -> Result<()> {
    taken(Refusal::Target(Mode::RowsFar)).await
}

impl Refusal {
    fn mode(self) -> Mode {
        if let Self::Target(mode) = self { mode } else { Mode::Transactional }
    }

    /// Letters of rows in the state database commit with the rows.
    fn refused(self) -> Vec<&'static str> {
        match self {
            Self::Rows | Self::Batch => REFUSED.to_vec(),
            Self::Target(Mode::Rows) => OF_ROWS.to_vec(),
            Self::Target(_) => [&REFUSED[..], &OF_ROWS].concat(),
        }
    }

    fn redriven(self) -> Vec<&'static str> {
        let of_rows = matches!(self, Self::Target(_)).then_some(OF_ROWS);
        REDRIVEN.into_iter().chain(of_rows.into_iter().flatten()).collect()
    }

    /// Makes the plugin or its target refuse poison, or no more. No process may run.
    async fn set(self, scene: &Scene, mended: bool) -> Result<()> {
        let guest = match self {
            Self::Target(mode) => {
                let database = if mode == Mode::Rows { "state" } else { "far" };
                scene.plugin(mode.guest(), &with_grants("dead-letter", &rows(database)))?;
                let sql = if mended {
                    "ALTER TABLE mirror.entries DROP CONSTRAINT bitter"
                } else {
                    "ALTER TABLE mirror.entries ADD CONSTRAINT bitter CHECK (pad NOT LIKE 'poison%') NOT VALID"
                };
                let client = scene.tables().await?.context("a mirror has tables")?;
                return Ok(client.batch_execute(sql).await?);
            }
            _ if mended => "output-lines",
            Self::Rows => "reject-poison-rows",
            Self::Batch => "reject-poison-batch",
        };
        let path = scene.ledger();
        let file = format!("[grant.output.lines]\nkind = \"file\"\npath = \"{}\"\n", path.display());
        scene.plugin(guest, &with_grants("halt", &format!("{file}[settings]\nvalues = \"yes\"\n")))
    }
}

/// Kills where letters are written.
async fn kept(refusal: Refusal) -> Result<()> {
    for major in majors() {
        let part = format!("letters, {refusal:?} on {major}");
        let (mut scene, mut random) = poisoned(refusal, major, &part).await?;
        for name in refusal.refused() {
            let blow = Blow::point(name, &mut random);
            let (began, place) = (Instant::now(), || format!("{part}: {blow}"));
            blow.strike(&mut scene, &mut random).await.with_context(place)?;
            scene.settle().await.with_context(place)?;
            let found = prove(&scene).await.with_context(place)?;
            say(&format!("{}: {found}, {:.1} s", place(), began.elapsed().as_secs_f64()));
        }
    }
    Ok(())
}

/// Kills where letters are delivered again.
async fn taken(refusal: Refusal) -> Result<()> {
    for major in majors() {
        let part = format!("letters delivered again, {refusal:?} on {major}");
        let (mut scene, mut random) = poisoned(refusal, major, &part).await?;
        for name in refusal.redriven() {
            let (began, pass) = (Instant::now(), random.random_range(1..=3));
            let place = || format!("{part}: {name}={pass}");
            again(refusal, &mut scene, (name, pass)).await.with_context(place)?;
            let found = prove(&scene).await.with_context(place)?;
            say(&format!("{}: {found}, {:.1} s", place(), began.elapsed().as_secs_f64()));
            refusal.set(&scene, false).await?;
        }
    }
    Ok(())
}

async fn poisoned(refusal: Refusal, major: u32, part: &str) -> Result<(Scene, StdRng)> {
    let mut random = StdRng::seed_from_u64(seed_of(part));
    let seed = seed_of(&format!("{part}, load"));
    let scene = Scene::new(major, refusal.mode(), random.random_bool(0.5), seed).await?;
    scene.load.poison();
    refusal.set(&scene, false).await?;
    Ok((scene, random))
}

/// Lets letters gather, mends what refused them, and has them delivered again by a process that is killed meanwhile.
async fn again(refusal: Refusal, scene: &mut Scene, point: (&'static str, u64)) -> Result<()> {
    scene.load.resume();
    let enough = wait_until(SOON, "letters", async || {
        scene.keep_running().await?;
        Ok(waiting(scene).await? >= ENOUGH)
    });
    enough.await?;
    scene.settle().await?;
    prove(scene).await.context("before")?;
    refusal.set(scene, true).await?;
    scene.command(&["dead-letter", "redrive", "--all"])?;
    scene.load.resume();
    scene.start(Some(point)).await?;
    scene.fallen(point.0).await?;
    prove_poison(scene).await.context("right after the kill")?;
    let gone = wait_until(SOON, "every letter to be taken", async || {
        scene.keep_running().await?;
        Ok(waiting(scene).await? == 0)
    });
    if let Err(error) = gone.await {
        return Err(error.context(scene.last_words()));
    }
    scene.settle().await
}

async fn waiting(scene: &Scene) -> Result<i64> {
    let client = scene.at().client("state").await?;
    Ok(client.query_one("SELECT count(*) FROM walgate.dead_letters", &[]).await?.get(0))
}

/// The text of each row that is in a letter.
async fn texts(scene: &Scene) -> Result<Vec<String>> {
    const LENGTH: usize = "poison-".len() + 36 + 1;
    let client = scene.at().client("state").await?;
    let mut found = Vec::new();
    for row in client.query("SELECT image FROM walgate.dead_letters", &[]).await? {
        let image: Vec<u8> = row.get(0);
        let begins = (0..image.len()).filter(|at| image[*at..].starts_with(b"poison-"));
        for at in begins {
            found.push(String::from_utf8(image.get(at..at + LENGTH).context("a text is cut")?.to_vec())?);
        }
    }
    Ok(found)
}

/// Everything: poison, and the rest as always. No process may run.
async fn prove(scene: &Scene) -> Result<String> {
    let truth = Truth::read(&scene.source).await?;
    scene.told_no_more_than_stored().await?;
    let mut rest = truth.clone();
    let poison: Vec<i64> = truth.poison.values().copied().collect();
    rest.entries.retain(|id, _| !poison.contains(id));
    let found = if scene.mode.place() == Place::Tables {
        let mut mirror = mirrored(scene).await?;
        mirror.entries.retain(|(id, _)| !poison.contains(id));
        judge_mirror(&mirror, &rest)?
    } else {
        let mut changes = ledger::read(&fs::read(scene.ledger())?, false)?;
        changes.retain(|change| !matches!(change.what, What::Entry { id, .. } if poison.contains(&id)));
        judge(&[Life { changes, ..Life::default() }], &rest, Promise::EffectOnce)?
    };
    let (kept, taken) = places(scene, &truth).await?;
    exactly_once(&truth, &kept, &taken, true)?;
    Ok(format!("{found}; {} refused, {} of them taken later", poison.len(), taken.len()))
}

/// What holds at every moment, also right after a kill: nothing is kept and taken, and nothing twice. A file has to be
/// cut back first.
async fn prove_poison(scene: &Scene) -> Result<()> {
    if scene.mode.place() != Place::Tables {
        return Ok(());
    }
    // The writers go on, so the target is asked first.
    let taken: Vec<i64> = mirrored(scene).await?.entries.iter().map(|(id, _)| *id).collect();
    let truth = Truth::read(&scene.source).await?;
    let taken: Vec<i64> = taken.into_iter().filter(|id| truth.poison.values().any(|poison| poison == id)).collect();
    exactly_once(&truth, &[], &taken, false)
}

async fn mirrored(scene: &Scene) -> Result<Mirror> {
    Mirror::read(&scene.tables().await?.context("a mirror has tables")?).await
}

/// The poison in letters, and in the ledger.
async fn places(scene: &Scene, truth: &Truth) -> Result<(Vec<i64>, Vec<i64>)> {
    let of_text =
        |text: &String| truth.poison.get(text).copied().with_context(|| format!("{text} was never committed"));
    let kept = texts(scene).await?.iter().map(of_text).collect::<Result<Vec<_>>>()?;
    let entries: Vec<i64> = if scene.mode.place() == Place::Tables {
        mirrored(scene).await?.entries.iter().map(|(id, _)| *id).collect()
    } else {
        let changes = ledger::read(&fs::read(scene.ledger())?, false)?;
        changes.iter().filter_map(|c| if let What::Entry { id, .. } = c.what { Some(id) } else { None }).collect()
    };
    let poison: Vec<i64> = truth.poison.values().copied().collect();
    Ok((kept, entries.into_iter().filter(|id| poison.contains(id)).collect()))
}

fn exactly_once(truth: &Truth, kept: &[i64], taken: &[i64], whole: bool) -> Result<()> {
    let mut times: BTreeMap<i64, (usize, usize)> = BTreeMap::new();
    kept.iter().for_each(|id| times.entry(*id).or_default().0 += 1);
    taken.iter().for_each(|id| times.entry(*id).or_default().1 += 1);
    let lost: Vec<_> = truth.poison.values().filter(|id| whole && !times.contains_key(id)).take(8).collect();
    ensure!(lost.is_empty(), "refused entries in neither place: {lost:?}");
    let wrong: Vec<_> = times.iter().filter(|(_, (kept, taken))| kept + taken > 1).collect();
    ensure!(
        wrong.is_empty(),
        "{} refused entries more than once, as (entry, (letters, ledger)): {:?}",
        wrong.len(),
        wrong.get(..8).unwrap_or(&wrong)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_both_and_twice_are_told() {
        let poison = [("a".to_owned(), 1), ("b".to_owned(), 2)].into();
        let truth = Truth { poison, ..Truth::default() };
        let told = |kept: &[i64], taken: &[i64]| exactly_once(&truth, kept, taken, true).map_err(|e| e.to_string());
        assert_eq!(told(&[1], &[2]), Ok(()));
        assert!(told(&[1], &[]).unwrap_err().contains("neither"));
        for (kept, taken) in [(&[1, 2][..], &[2][..]), (&[1, 1, 2], &[]), (&[], &[1, 2, 2])] {
            assert!(told(kept, taken).unwrap_err().contains("more than once"));
        }
    }
}
