//! What can go wrong with an output, and who has to act.
//!
//! Holds: the error and its classes. Never holds bytes of an output. Read next: [`super::file`].

use std::io;
use std::path::{Path, PathBuf};

use crate::error::Class;

/// Every name that [`OutputError::halt_name`] can answer.
pub const OUTPUT_HALT_NAMES: &[&str] = &[
    "output(foreign)",
    "output(full)",
    "output(io)",
    "output(locked)",
    "output(missing)",
    "output(not_a_file)",
    "output(short)",
    "output(unusable)",
];

/// A failure of an output. Its text names the path and the fix, never what was written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OutputError(Kind);

impl OutputError {
    /// Who acts on it. Retry: everything since the last mark is cut off again and may be appended anew, a bounded
    /// number of times.
    pub fn class(&self) -> Class {
        match &self.0 {
            Kind::Full { .. } => Class::Retry,
            _ => Class::Operator,
        }
    }

    /// The name a halt carries in `status`, in the exit message and in documentation.
    pub fn halt_name(&self) -> &'static str {
        match &self.0 {
            Kind::Full { .. } => "output(full)",
            Kind::Io { .. } | Kind::Standard { .. } => "output(io)",
            Kind::Unusable { .. } => "output(unusable)",
            Kind::Short { .. } => "output(short)",
            Kind::Missing { .. } => "output(missing)",
            Kind::Foreign { .. } => "output(foreign)",
            Kind::NotAFile { .. } => "output(not_a_file)",
            Kind::Locked { .. } => "output(locked)",
        }
    }

    /// Reads an io failure: no space is waited for, everything else is not.
    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self(Kind::Full { path, source }),
            _ => Self(Kind::Io { doing, path, source }),
        }
    }
}

impl From<Kind> for OutputError {
    fn from(kind: Kind) -> Self {
        Self(kind)
    }
}

/// The cases behind [`OutputError`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Kind {
    #[error("no space for output {}; nothing is lost: the source keeps what is not written; free space on its file system", path.display())]
    Full {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{doing} output {} failed; check the file, its folder and its disk, then start walgate again", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("writing to standard output failed; check what reads it, then start walgate again")]
    Standard {
        #[source]
        source: io::Error,
    },
    #[error("output {} could not be cut back after a failed write and is not written any more; check its disk, then start walgate again", path.display())]
    Unusable { path: PathBuf },
    #[error(
        "output {} has {actual} bytes, {expected} are checkpointed: someone else removed delivered data; put the file back, or \
         move it away and delete its row in walgate.outputs to begin a new one",
        path.display()
    )]
    Short { path: PathBuf, actual: u64, expected: u64 },
    #[error(
        "output {} is gone, {expected} bytes of it are checkpointed: someone else removed delivered data; put the file back, \
         or delete its row in walgate.outputs to begin a new one",
        path.display()
    )]
    Missing { path: PathBuf, expected: u64 },
    #[error("{} exists and is not an output of this pipeline; move it away, or choose another path", path.display())]
    Foreign { path: PathBuf },
    #[error("output {} is not a regular file: links, folders and devices are refused; choose another path", path.display())]
    NotAFile { path: PathBuf },
    #[error("output {} is being written by another process; stop it, or choose another path", path.display())]
    Locked { path: PathBuf },
}
