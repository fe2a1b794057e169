//! Append-only outputs of plugins, whose lengths commit with the checkpoint.
//!
//! Holds: the two kinds of output behind one face, and the mark that a checkpoint stores. Refuses to know plugins and
//! the state database: the caller carries the mark. All calls block; make them from a thread that may.
//!
//! The order that makes a file effect-once: `append` everything a batch produced, `sync`, commit the mark with the
//! cursor, go on. A crash at any point leaves a file that is at least as long as its mark, and [`OutputFile::open`]
//! cuts off what the checkpoint does not know. Read next: [`file`].

mod error;
mod file;
mod recover;
mod standard;

pub use error::{OUTPUT_HALT_NAMES, OutputError};
pub use file::OutputFile;
pub use standard::StandardOutput;

/// How far an output was made durable. Marks of one output only grow, ordered by sequence, then length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OutputMark {
    /// How often the output was rotated: the number its live file gets when it is rotated next.
    pub sequence: u64,
    /// Bytes in the live file; for standard output, bytes written in all.
    pub length: u64,
}

/// An output of either kind.
pub enum Output {
    /// A file with a durable length.
    File(OutputFile),
    /// The standard output of the process.
    Standard(StandardOutput),
}

impl Output {
    /// Adds bytes; nothing is put between two appends. Not durable before [`Output::sync`].
    ///
    /// # Errors
    /// Of class Retry when there is no space: the output stands at its last mark again, and everything appended since
    /// has to be appended anew. Operator for all else.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        match self {
            Self::File(file) => file.append(bytes),
            Self::Standard(standard) => standard.append(bytes),
        }
    }

    /// Makes everything appended durable and answers the mark to commit.
    ///
    /// # Errors
    /// As [`Output::append`].
    pub fn sync(&mut self) -> Result<OutputMark, OutputError> {
        let mark = match self {
            Self::File(file) => file.sync(),
            Self::Standard(standard) => standard.sync(),
        }?;
        walgate_failpoint::hit("output.synced");
        Ok(mark)
    }

    /// Takes back what was made durable after `to`; see [`OutputFile::revert`]. What went to standard output is gone.
    ///
    /// # Errors
    /// As [`OutputFile::revert`].
    pub fn revert(&mut self, to: OutputMark) -> Result<(), OutputError> {
        match self {
            Self::File(file) => file.revert(to),
            Self::Standard(_) => Ok(()),
        }
    }

    /// The last mark: what [`Output::sync`] answered, or where the output was opened.
    pub fn mark(&self) -> OutputMark {
        match self {
            Self::File(file) => file.mark(),
            Self::Standard(standard) => standard.mark(),
        }
    }
}
