//! A file output: appended, synced, rotated between two marks, cut back when a write fails.
//!
//! Holds: the live file, its lock, the last mark. Refuses to know what is in it and when a checkpoint commits.
//! Invariant: the file on disk is never shorter than the last mark, and everything up to the mark is on disk.
//! Read next: [`super::recover`].

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::OutputMark;
use super::error::{Kind, OutputError};
use super::recover;

/// A regular file that only grows; owner-only permissions; one writing process.
///
/// Files: `<path>` is live, `<path>.<sequence>` were rotated (from 0, never written again, free to be taken away once
/// the checkpoint has moved past them), `<path>.lock` carries the lock and stays.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    /// Held, not used: the lock ends with it.
    _lock: recover::Lock,
    rotate_bytes: Option<u64>,
    mark: OutputMark,
    /// Bytes appended since the mark.
    appended: u64,
    unusable: bool,
}

impl OutputFile {
    /// Opens the output at its checkpointed mark and cuts off what came after it, later rotations included.
    ///
    /// Without a mark the output must be new: a file that holds data already is refused, because it is someone else's.
    /// Register the output before the first append ([`crate::Store::register_output`]), else a crash before the first
    /// checkpoint ends in that refusal. Rotation happens at the first append after a mark of at least `rotate_bytes`.
    ///
    /// # Errors
    /// Operator: `output(short)` or `output(missing)` when checkpointed data was removed, `output(foreign)`,
    /// `output(not_a_file)` for links, folders and devices, `output(locked)` when another process writes it.
    pub fn open(
        path: impl Into<PathBuf>,
        mark: Option<OutputMark>,
        rotate_bytes: Option<u64>,
    ) -> Result<Self, OutputError> {
        let path = path.into();
        recover::look(&path)?;
        let lock = recover::Lock::take(&path)?;
        let file = match mark {
            Some(mark) => recover::resume(&path, mark)?,
            None => recover::begin(&path)?,
        };
        let mark = mark.unwrap_or_default();
        Ok(Self { path, file, _lock: lock, rotate_bytes, mark, appended: 0, unusable: false })
    }

    /// See [`super::Output::append`].
    ///
    /// # Errors
    /// See [`super::Output::append`]; `output(unusable)` after a failure that could not be undone.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.check_usable()?;
        if bytes.is_empty() {
            return Ok(());
        }
        if self.appended == 0
            && self.rotate_bytes.is_some_and(|limit| self.mark.length > 0 && self.mark.length >= limit)
        {
            self.rotate()?;
        }
        let (first, rest) = walgate_failpoint::halves("output.half_written", bytes);
        let written = self.file.write_all(first).and_then(|()| {
            walgate_failpoint::hit("output.half_written");
            self.file.write_all(rest)
        });
        if let Err(source) = written {
            return Err(self.cut_back("writing", source));
        }
        self.appended = self.appended.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// See [`super::Output::sync`].
    ///
    /// # Errors
    /// See [`super::Output::append`].
    pub fn sync(&mut self) -> Result<OutputMark, OutputError> {
        self.check_usable()?;
        if self.appended > 0 {
            if let Err(source) = self.file.sync_data() {
                return Err(self.cut_back("syncing", source));
            }
            self.mark.length = self.mark.length.saturating_add(std::mem::take(&mut self.appended));
        }
        Ok(self.mark)
    }

    /// See [`super::Output::mark`].
    pub fn mark(&self) -> OutputMark {
        self.mark
    }

    /// Takes back what was made durable after `to`, an earlier mark of this handle that no checkpoint has passed since: what
    /// should have committed with it was refused.
    ///
    /// # Errors
    /// `output(io)`; the output is then unusable.
    pub fn revert(&mut self, to: OutputMark) -> Result<(), OutputError> {
        self.check_usable()?;
        // It is rotated before the first byte behind a mark, so that all of those are in the live file then.
        let length = if to.sequence == self.mark.sequence { to.length } else { 0 };
        let cut = self.file.set_len(length).and_then(|()| self.file.sync_data());
        if let Err(source) = cut {
            self.unusable = true;
            return Err(OutputError::io("cutting", &self.path, source));
        }
        (self.mark.length, self.appended) = (length, 0);
        Ok(())
    }

    /// Where the live file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check_usable(&self) -> Result<(), OutputError> {
        if self.unusable { Err(Kind::Unusable { path: self.path.clone() }.into()) } else { Ok(()) }
    }

    /// Puts the live file aside and begins the next. Only ever between two marks, so that a mark lies in one file.
    fn rotate(&mut self) -> Result<(), OutputError> {
        let aside = recover::beside(&self.path, self.mark.sequence);
        // A rename would silently replace it.
        if recover::look(&aside)?.is_some() {
            return Err(Kind::Foreign { path: aside }.into());
        }
        fs::rename(&self.path, &aside).map_err(|source| OutputError::io("rotating", &self.path, source))?;
        match recover::create(&self.path) {
            Ok(file) => {
                self.file = file;
                self.mark = OutputMark { sequence: self.mark.sequence.saturating_add(1), length: 0 };
                Ok(())
            }
            Err(error) => {
                // Back in its place, over whatever was made of the new one: as if nothing had been tried.
                self.unusable = fs::rename(&aside, &self.path).is_err();
                Err(error)
            }
        }
    }

    /// Undoes what was appended since the mark.
    ///
    /// After a failed sync this matters as much as after a failed write: the system may have dropped the unwritten pages
    /// and call the next sync a success, so nothing since the mark may be taken for written.
    fn cut_back(&mut self, doing: &'static str, source: std::io::Error) -> OutputError {
        self.appended = 0;
        self.unusable = self.file.set_len(self.mark.length).is_err();
        OutputError::io(doing, &self.path, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reverted_was_never_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut output = OutputFile::open(&path, None, Some(4)).unwrap();
        output.append(b"abc").unwrap();
        let before = output.sync().unwrap();
        output.append(b"refused").unwrap();
        output.sync().unwrap();
        output.revert(before).unwrap();
        output.append(b"de").unwrap();
        let mark = output.sync().unwrap();
        assert_eq!((fs::read(&path).unwrap(), mark.length), (b"abcde".to_vec(), 5));
        // The next append rotates first; what is taken back then is all of the new file.
        output.append(b"refused").unwrap();
        let rotated = output.sync().unwrap();
        output.revert(mark).unwrap();
        output.append(b"f").unwrap();
        assert_eq!(output.sync().unwrap(), OutputMark { length: 1, ..rotated });
        assert_eq!(fs::read(&path).unwrap(), b"f");
    }

    #[test]
    fn a_failed_write_that_cannot_be_cut_back_ends_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = OutputFile::open(folder.path().join("out"), None, None).unwrap();
        // The device answers every write with "no space", and a device has no length to cut.
        output.file = File::options().write(true).open("/dev/full").unwrap();
        let error = output.append(b"abc").unwrap_err();
        assert_eq!(error.halt_name(), "output(full)");
        assert_eq!(error.class(), crate::Class::Retry);
        assert_eq!(output.append(b"abc").unwrap_err().halt_name(), "output(unusable)");
        assert_eq!(output.sync().unwrap_err().halt_name(), "output(unusable)");
        assert_eq!(output.mark(), OutputMark::default());
    }
}
