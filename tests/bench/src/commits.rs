//! Finds commits in what `pg_recvlogical` prints: the bytes of each pgoutput message and a newline, without a length.
//!
//! Holds: the lengths of the messages of protocol version 1 that a stream of inserts has. Never knows: values.
//! Read next: `latency.rs`.

use anyhow::{Result, bail};

/// Counts commits in a stream that arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    rest: Vec<u8>,
}

impl Commits {
    /// Takes what was read; the number of commits that are complete with it.
    ///
    /// Fails on a message that a stream of inserts does not have.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<usize> {
        self.rest.extend_from_slice(bytes);
        let (mut commits, mut at) = (0, 0);
        while let Some(rest) = self.rest.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(length) = message_bytes(rest)? else { break };
            commits += usize::from(rest.first() == Some(&b'C'));
            at += length + 1;
        }
        self.rest.drain(..at);
        Ok(commits)
    }
}

/// The length of the message in front, without the newline behind it; `None` until both are there as a whole.
fn message_bytes(bytes: &[u8]) -> Result<Option<usize>> {
    let length = match bytes.first() {
        Some(b'B') => Some(1 + 8 + 8 + 4),
        Some(b'C') => Some(1 + 1 + 8 + 8 + 8),
        Some(b'R') => relation(bytes),
        Some(b'I') => insert(bytes),
        _ => bail!("pg_recvlogical printed a message that the bench does not expect"),
    };
    Ok(length.filter(|length| bytes.len() > *length))
}

/// Id, two names, identity, and a flag, a name, a type and a modifier for each column.
fn relation(bytes: &[u8]) -> Option<usize> {
    let mut at = name(bytes, name(bytes, 1 + 4)?)? + 1;
    let columns = u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
    at += 2;
    for _ in 0..columns {
        at = name(bytes, at + 1)? + 4 + 4;
    }
    Some(at)
}

/// Id, a tag, and for each column a kind and, where there is a text, its length and itself.
fn insert(bytes: &[u8]) -> Option<usize> {
    let mut at = 1 + 4 + 1;
    let columns = u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
    at += 2;
    for _ in 0..columns {
        let kind = *bytes.get(at)?;
        at += 1;
        if kind == b't' {
            at += 4 + u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?) as usize;
        }
    }
    Some(at)
}

/// Where a name ends that starts at `from`, its zero included.
fn name(bytes: &[u8], from: usize) -> Option<usize> {
    Some(from + bytes.get(from..)?.iter().position(|byte| *byte == 0)? + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed() -> Vec<u8> {
        let mut out = vec![b'B'; 21];
        out.extend(
            b"\nR\0\0\0\x01public\0t\0d\0\x02\x01id\0\0\0\0\x14\xff\xff\xff\xff\0v\0\0\0\0\x19\xff\xff\xff\xff\n",
        );
        out.extend(b"I\0\0\0\x01N\0\x02t\0\0\0\x027\nn\n");
        out.extend([&[b'C'; 26][..], b"\n"].concat());
        out.extend([&[b'B'; 21][..], b"\nI\0\0\0\x01N\0\x01t\0\0\0\x01C\n", &[b'C'; 26][..], b"\n"].concat());
        out
    }

    #[test]
    fn commits_are_found_however_the_stream_is_cut() {
        assert_eq!(Commits::default().push(&printed()).unwrap(), 2);
        for size in [1, 3, 7, 50] {
            let mut commits = Commits::default();
            let found: usize = printed().chunks(size).map(|piece| commits.push(piece).unwrap()).sum();
            assert_eq!(found, 2, "pieces of {size}");
            assert!(commits.rest.is_empty());
        }
    }

    #[test]
    fn what_is_no_insert_stream_is_refused() {
        assert!(Commits::default().push(b"pg_recvlogical: error").is_err());
    }
}
