//! Brings the files of an output back to a mark, before anything is appended.
//!
//! Holds: the naming of rotated files, the checks, the cut. Refuses to know what is appended later.
//! Invariants: nothing is cut or removed before every check passed; a crash in the middle leaves a state that leads
//! here again with the same outcome; a file that is not ours is never touched.
//! Read next: [`super::file`].

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::OutputMark;
use super::error::{Kind, OutputError};

/// Owner only: outputs hold row values.
const MODE: u32 = 0o600;

/// `<path>.<suffix>`.
pub(super) fn beside(path: &Path, suffix: impl ToString) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix.to_string());
    name.into()
}

/// The lock that goes with an output. A file of its own, because the live file is replaced at each rotation and a lock
/// stays with the file, not with its name.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    pub(super) fn take(path: &Path) -> Result<Self, OutputError> {
        let name = beside(path, "lock");
        let file = open(&name, true)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(fs::TryLockError::WouldBlock) => Err(Kind::Locked { path: path.to_owned() }.into()),
            Err(fs::TryLockError::Error(source)) => Err(OutputError::io("locking", &name, source)),
        }
    }
}

impl Drop for Lock {
    /// Closing is not enough: a child process that another thread is just starting holds the file, and with it the lock,
    /// until it becomes another program. A failure leaves what closing does.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Opens for appending a file that must be regular. Links are refused at the last step of the path; folders above it
/// may be links, they are the operator's layout.
fn open(path: &Path, create: bool) -> Result<File, OutputError> {
    // Looked at before it is opened, because opening a device can already have an effect, and after it, because the name
    // may have changed hands in between.
    look(path)?;
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(create)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| OutputError::io("opening", path, source))?;
    let metadata = file.metadata().map_err(|source| OutputError::io("opening", path, source))?;
    if metadata.is_file() { Ok(file) } else { Err(Kind::NotAFile { path: path.to_owned() }.into()) }
}

/// Creates the live file; fails when the name is taken.
pub(super) fn create(path: &Path) -> Result<File, OutputError> {
    let created = OpenOptions::new().read(true).append(true).create_new(true).mode(MODE).open(path);
    let file = created.map_err(|source| OutputError::io("creating", path, source))?;
    sync_folder(path)?;
    Ok(file)
}

/// Makes names in the folder of `path` durable.
pub(super) fn sync_folder(path: &Path) -> Result<(), OutputError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| OutputError::io("syncing the folder of", path, source))
}

/// The regular file at `path`, if there is anything.
pub(super) fn look(path: &Path) -> Result<Option<Metadata>, OutputError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(Kind::NotAFile { path: path.to_owned() }.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OutputError::io("opening", path, source)),
    }
}

/// The live file of an output that has no mark yet: there must be no data, for data of someone else would be cut off
/// at the next restart.
pub(super) fn begin(path: &Path) -> Result<File, OutputError> {
    for taken in [path.to_owned(), beside(path, 0)] {
        if look(&taken)?.is_some_and(|metadata| metadata.len() > 0) {
            return Err(Kind::Foreign { path: taken }.into());
        }
    }
    if look(path)?.is_some() { open(path, false) } else { create(path) }
}

/// The live file, cut back to `mark`.
pub(super) fn resume(path: &Path, mark: OutputMark) -> Result<File, OutputError> {
    let rotated = beside(path, mark.sequence);
    let was_rotated = look(&rotated)?.is_some();
    let later = later_than(path, mark.sequence)?;
    if was_rotated {
        // The checkpoint does not know of the rotation, so the file goes back to its place, over the one that followed.
        let file = cut(&rotated, mark.length)?;
        look(path)?;
        for file in later.iter().rev() {
            fs::remove_file(file).map_err(|source| OutputError::io("removing", file, source))?;
        }
        fs::rename(&rotated, path).map_err(|source| OutputError::io("renaming", &rotated, source))?;
        sync_folder(path)?;
        return Ok(file);
    }
    // Files after a rotation that is not there: somebody took it, and the live file is not the one of the mark.
    if !later.is_empty() {
        return Err(Kind::Missing { path: rotated, expected: mark.length }.into());
    }
    match look(path)? {
        Some(_) => cut(path, mark.length),
        None if mark.length == 0 => create(path),
        None => Err(Kind::Missing { path: path.to_owned(), expected: mark.length }.into()),
    }
}

/// The rotated files after `sequence` without a gap, rising. A number further away is not ours: a date, for example.
fn later_than(path: &Path, sequence: u64) -> Result<Vec<PathBuf>, OutputError> {
    let mut later = Vec::new();
    for next in (sequence..=u64::MAX).skip(1) {
        let file = beside(path, next);
        if look(&file)?.is_none() {
            break;
        }
        later.push(file);
    }
    Ok(later)
}

fn cut(path: &Path, length: u64) -> Result<File, OutputError> {
    let file = open(path, false)?;
    let failed = |source| OutputError::io("cutting", path, source);
    let actual = file.metadata().map_err(failed)?.len();
    if actual < length {
        return Err(Kind::Short { path: path.to_owned(), actual, expected: length }.into());
    }
    if actual > length {
        tracing::info!(path = %path.display(), bytes = actual, kept_bytes = length, "output cut back to its checkpoint");
        file.set_len(length).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(file)
}
