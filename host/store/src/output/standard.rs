//! Standard output as an output of a plugin.
//!
//! Holds: a count of bytes. It cannot be cut back, so after a crash a batch may appear twice; everything else that
//! [`super::OutputFile`] promises about loss holds here too. Read next: [`super`].

use std::io::{self, Write};

use super::OutputMark;
use super::error::{Kind, OutputError};

/// The standard output of the process. Marks count bytes, for people; a restart does nothing with them.
pub struct StandardOutput {
    to: Box<dyn Write + Send>,
    synced: u64,
    appended: u64,
}

impl StandardOutput {
    /// Goes on counting from `mark`.
    pub fn open(mark: OutputMark) -> Self {
        Self::to(Box::new(io::stdout()), mark)
    }

    fn to(to: Box<dyn Write + Send>, mark: OutputMark) -> Self {
        Self { to, synced: mark.length, appended: 0 }
    }

    /// See [`super::Output::append`].
    ///
    /// # Errors
    /// Operator when whoever reads it is gone. What was written before the failure cannot be taken back.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        match self.to.write_all(bytes) {
            Ok(()) => {
                self.appended = self.appended.saturating_add(bytes.len() as u64);
                Ok(())
            }
            Err(source) => Err(self.failed(source)),
        }
    }

    /// See [`super::Output::sync`]. Flushes; whether the reader keeps it is the reader's affair.
    ///
    /// # Errors
    /// As [`StandardOutput::append`].
    pub fn sync(&mut self) -> Result<OutputMark, OutputError> {
        if let Err(source) = self.to.flush() {
            return Err(self.failed(source));
        }
        self.synced = self.synced.saturating_add(std::mem::take(&mut self.appended));
        Ok(self.mark())
    }

    /// See [`super::Output::mark`].
    pub fn mark(&self) -> OutputMark {
        OutputMark { sequence: 0, length: self.synced }
    }

    /// What was appended since the mark will be appended again, so it is not counted.
    fn failed(&mut self, source: io::Error) -> OutputError {
        self.appended = 0;
        Kind::Standard { source }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_mark_counts_flushed_bytes() {
        let mut output = StandardOutput::to(Box::new(Vec::new()), OutputMark { sequence: 0, length: 7 });
        output.append(b"abc").unwrap();
        assert_eq!(output.mark().length, 7);
        assert_eq!(output.sync().unwrap().length, 10);
    }

    #[test]
    fn a_closed_pipe_moves_no_mark() {
        let mut output = StandardOutput::to(Box::new(Closed), OutputMark::default());
        assert_eq!(output.append(b"abc").unwrap_err().halt_name(), "output(io)");
        assert_eq!(output.sync().unwrap().length, 0);
    }
}
