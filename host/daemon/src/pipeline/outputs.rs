//! The outputs of one plugin: appended to and synced where blocking is allowed, a bounded number of times.
//!
//! Holds: the open outputs by name. Refuses to know who commits their lengths. Invariant: bytes are safe on disk before a
//! mark is answered; a write that fails leaves the file as it was.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use walgate_plugin::Output as Target;
use walgate_store::{Class, Output, OutputError, OutputFile, OutputLength, OutputMark, StandardOutput, Store};

use crate::connect::state_failure;
use crate::exit::{Failure, chain};
use crate::halt::{Halt, HaltClass};
use crate::status::Board;

/// Attempts to write an output before the pipeline halts.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
/// How long a file may be locked by the process before this one.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// Which file is whose: two writers of one file would wait for each other's lock.
#[derive(Default)]
pub(crate) struct Files(BTreeMap<PathBuf, (String, String)>);

impl Files {
    /// Notes the files of a plugin.
    ///
    /// # Errors
    /// When one of them is another output's already.
    pub(crate) fn take(&mut self, plugin: &str, targets: &BTreeMap<String, Target>) -> Result<(), Halt> {
        for (name, target) in targets {
            let Target::File { path, .. } = target else { continue };
            let folder = path.parent().and_then(|folder| std::fs::canonicalize(folder).ok());
            let real = folder.zip(path.file_name()).map_or_else(|| path.clone(), |(folder, name)| folder.join(name));
            if let Some((other, output)) = self.0.insert(real, (plugin.to_owned(), name.clone())) {
                let detail = format!(
                    "output {name:?}: {} is written by output {output:?} of plugin {other}; name another path in plugin.toml",
                    path.display()
                );
                return Err(Halt::of_plugin(HaltClass::OutputLocked, plugin, detail));
            }
        }
        Ok(())
    }
}

/// The outputs of one plugin.
pub(crate) struct Outputs {
    plugin: String,
    open: BTreeMap<String, Output>,
    board: Board,
}

impl Outputs {
    /// None.
    pub(crate) fn none(plugin: &str, board: Board) -> Self {
        Self { plugin: plugin.to_owned(), open: BTreeMap::new(), board }
    }

    /// Opens each at the length that is stored, and notes new ones.
    pub(crate) async fn open(
        store: &mut Store,
        pipeline: &str,
        plugin: &str,
        targets: &BTreeMap<String, Target>,
        board: Board,
    ) -> Result<Self, Failure> {
        let marks = store.output_lengths(pipeline, plugin).await.map_err(state_failure)?;
        let mut outputs = Self::none(plugin, board);
        for (name, target) in targets {
            let mark = marks.get(name).copied();
            let output = match target {
                Target::File { path, rotate_mib } => {
                    let rotate = rotate_mib.map(|mib| mib.saturating_mul(1 << 20));
                    Output::File(outputs.file(name, || OutputFile::open(path, mark, rotate)).await?)
                }
                Target::Stdout => Output::Standard(StandardOutput::open(mark.unwrap_or_default())),
            };
            if mark.is_none() {
                store.register_output(pipeline, plugin, name).await.map_err(state_failure)?;
            }
            outputs.open.insert(name.clone(), output);
        }
        Ok(outputs)
    }

    /// Opens a file. One that is locked may belong to a process that this one took over from and that ends any moment.
    async fn file(&self, name: &str, open: impl Fn() -> Result<OutputFile, OutputError>) -> Result<OutputFile, Halt> {
        let began = Instant::now();
        loop {
            let error = match open() {
                Ok(file) => return Ok(file),
                Err(error) => self.halt(name, &error),
            };
            if error.class != HaltClass::OutputLocked || began.elapsed() >= LOCK_PATIENCE {
                return Err(error);
            }
            self.board.plugin_state(&self.plugin, "opening", Some(error.detail));
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Where each stands.
    pub(crate) fn marks(&self) -> BTreeMap<String, OutputMark> {
        self.open.iter().map(|(name, output)| (name.clone(), output.mark())).collect()
    }

    /// Takes back what was written since: what should have committed with it was refused.
    pub(crate) fn revert(&mut self, marks: &BTreeMap<String, OutputMark>) -> Result<(), Halt> {
        for (name, mark) in marks {
            let Some(output) = self.open.get_mut(name).filter(|output| output.mark() != *mark) else { continue };
            if let Err(error) = output.revert(*mark) {
                return Err(self.halt(name, &error));
            }
        }
        Ok(())
    }

    /// Writes what was staged, each name once or more, and answers the lengths to commit.
    pub(crate) async fn write(&mut self, staged: Vec<(String, Vec<u8>)>) -> Result<Vec<OutputLength>, Halt> {
        let mut joined: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (name, bytes) in staged {
            joined.entry(name).or_default().extend(bytes);
        }
        let mut lengths = Vec::with_capacity(joined.len());
        for (name, bytes) in joined {
            let mark = self.append(&name, bytes).await?;
            lengths.push(OutputLength { plugin: self.plugin.clone(), name, mark });
        }
        Ok(lengths)
    }

    async fn append(&mut self, name: &str, bytes: Vec<u8>) -> Result<OutputMark, Halt> {
        let Some(mut output) = self.open.remove(name) else {
            return Err(Halt::bug("an output has no target"));
        };
        let mut attempt = 1;
        let bytes = Arc::new(bytes);
        let outcome = loop {
            let bytes = Arc::clone(&bytes);
            let written = tokio::task::spawn_blocking(move || {
                let outcome = output.append(&bytes).and_then(|()| output.sync());
                (output, outcome)
            });
            let Ok((back, outcome)) = written.await else {
                return Err(Halt::bug("writing an output ended unexpectedly"));
            };
            output = back;
            match outcome {
                Err(error) if error.class() == Class::Retry && attempt < ATTEMPTS => {
                    let (plugin, why) = (&self.plugin, chain(&error));
                    tracing::warn!(
                        plugin,
                        output = name,
                        attempt,
                        "the output cannot be written and is tried again: {why}"
                    );
                    self.board.plugin_state(plugin, "retrying", Some(why));
                    tokio::time::sleep(PAUSE * attempt).await;
                    attempt += 1;
                }
                outcome => {
                    if attempt > 1 && outcome.is_ok() {
                        self.board.recovered(&self.plugin);
                    }
                    break outcome;
                }
            }
        };
        self.open.insert(name.to_owned(), output);
        outcome.map_err(|error| self.halt(name, &error))
    }

    fn halt(&self, name: &str, error: &OutputError) -> Halt {
        let detail = format!("output {name:?}: {}", chain(error));
        Halt::of_plugin(HaltClass::named(error.halt_name()), &self.plugin, detail)
    }
}
