//! The name of a batch: made of what tells batches of different lineages apart, and of the first and last thing in it.
//!
//! Holds: places in the stream, the one form of names, and the way back from a name to its pieces. Refuses to know how a
//! batch was filled or cut. Invariants: equal content has an equal name after every replay; a name has at most 64
//! characters, letters, digits and `-`.

use std::fmt::{self, Display, Write};

use crate::Lsn;

use super::{Batch, LogicalMessage, Transaction};

/// The longest name of a batch: a prefix of 8, two positions of 16 digits with an ordinal of 8 each, and dashes.
const NAME_BYTES: usize = 59;

/// The longest prefix.
const PREFIX_BYTES: usize = 8;

/// The longest place: a position of 16 digits and an ordinal of 8, with a dash.
const PLACE_BYTES: usize = 25;

/// A place in the stream that is the same on every replay.
pub(crate) enum Place {
    /// Commit position, and the ordinal in the transaction.
    Change(Lsn, u32),
    /// Position of a message that belongs to no transaction.
    Message(Lsn),
    /// There is nothing.
    Nowhere,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(commit, ordinal) => write!(f, "{:x}-{ordinal:x}", commit.get()),
            Self::Message(lsn) => write!(f, "m{:x}", lsn.get()),
            Self::Nowhere => Ok(()),
        }
    }
}

impl Transaction {
    /// Of its first change in the batch.
    pub(crate) fn first_place(&self) -> Place {
        Place::Change(self.commit, self.source_ordinal)
    }

    /// Behind its last change in the batch.
    pub(crate) fn last_place(&self) -> Place {
        Place::Change(self.commit, self.source_ordinal.saturating_add(self.change_count))
    }
}

/// The name of a batch that holds everything between two places.
pub(crate) fn name(prefix: &str, starts: impl Display, ends: impl Display) -> String {
    let mut name = String::with_capacity(NAME_BYTES);
    // Writing into a text cannot fail.
    let _ = write!(name, "{prefix}{starts}-{ends}");
    name
}

/// The name of some changes of one transaction, by their rising ordinals in the source transaction. Another choice has
/// another name, also where first and last are equal: or a plugin that remembers names would drop what it never saw.
pub(super) fn name_of_some(prefix: &str, commit: Lsn, ordinals: &[u32]) -> String {
    let (first, last) = (ordinals.first().copied().unwrap_or(0), ordinals.last().copied().unwrap_or(0));
    // FNV-1a: fixed for all time, because names are compared across versions of the host.
    let hash = ordinals
        .iter()
        .flat_map(|ordinal| ordinal.to_le_bytes())
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    name(prefix, Place::Change(commit, first), format_args!("{:x}-{hash:016x}", u64::from(last) + 1))
}

/// The pieces of a batch's name.
pub(super) struct Named<'a> {
    /// What tells lineages apart.
    pub(super) prefix: &'a str,
    /// The first thing in the batch.
    pub(super) starts: &'a str,
    /// The last thing in the batch.
    pub(super) ends: &'a str,
}

impl<'a> Named<'a> {
    /// Takes the name of `batch` apart. A name of another form gives its first letters and digits as the prefix.
    pub(super) fn of(batch: &'a Batch) -> Self {
        let id = batch.id.as_str();
        let named = match (batch.transactions.first(), first_loose(&batch.messages)) {
            (Some(first), loose) if loose.is_none_or(|loose| first.first_ordinal <= loose.ordinal) => {
                Self::starting_with_change(id, first)
            }
            _ => Self::starting_with_message(id),
        };
        let fits = |named: &Self| {
            named.prefix.len() <= PREFIX_BYTES && named.starts.len() <= PLACE_BYTES && named.ends.len() <= PLACE_BYTES
        };
        let foreign = || {
            let end = id.bytes().take(PREFIX_BYTES).take_while(u8::is_ascii_alphanumeric).count();
            Self { prefix: id.get(..end).unwrap_or_default(), starts: "", ends: "" }
        };
        named.filter(fits).unwrap_or_else(foreign)
    }

    fn starting_with_change(id: &'a str, first: &Transaction) -> Option<Self> {
        let (head, rest) = id.split_once('-')?;
        let prefix = head.strip_suffix(format!("{:x}", first.commit.get()).as_str())?;
        let (ordinal, ends) = rest.split_once('-')?;
        let starts = id.get(prefix.len()..head.len() + 1 + ordinal.len())?;
        Some(Self { prefix, starts, ends })
    }

    fn starting_with_message(id: &'a str) -> Option<Self> {
        let (head, ends) = id.split_once('-')?;
        // No hexadecimal digit is an `m`; the prefix may have one.
        let (prefix, starts) = head.split_at_checked(head.rfind('m')?)?;
        Some(Self { prefix, starts, ends })
    }
}

/// The first message that belongs to no transaction.
fn first_loose(messages: &[LogicalMessage]) -> Option<&LogicalMessage> {
    messages.iter().find(|message| !message.transactional)
}
