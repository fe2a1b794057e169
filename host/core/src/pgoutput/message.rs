//! The messages of pgoutput, protocol version 1.
//!
//! Holds: one struct a message and the dispatch on its tag. Versions 2 to 4 add tags and a leading transaction id
//! inside streamed blocks; they extend [`Message::decode`] and touch nothing else. Refuses to know row contents.

use std::fmt;

use super::reader::{DecodeError, DecodeErrorKind, Reader};
use super::row::{RowBody, RowKind};
use crate::Lsn;
use crate::relation::ReplicaIdentity;

/// Microseconds from 1970-01-01 to 2000-01-01, where Postgres counts from.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// The start of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Start of its commit record.
    pub commit: Lsn,
    /// Microseconds from 1970-01-01 UTC.
    pub commit_time_us: i64,
    /// Its id at the source.
    pub xid: u32,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Start of its commit record.
    pub commit: Lsn,
    /// First byte after its commit record.
    pub end: Lsn,
    /// Microseconds from 1970-01-01 UTC.
    pub commit_time_us: i64,
}

/// Where a replayed transaction came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Commit position at the origin.
    pub commit: Lsn,
    /// Name of the origin.
    pub name: &'a str,
}

/// A column as the relation message describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Part of the replica identity.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// Object id of its type.
    pub type_oid: u32,
    /// Type modifier, or -1.
    pub type_modifier: i32,
}

/// The shape of a relation, sent before its first row and after each change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationBody<'a> {
    /// Object id.
    pub id: u32,
    /// Schema; the protocol's empty name for `pg_catalog` is already spelled out.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Replica identity.
    pub identity: ReplicaIdentity,
    /// Columns, in the order of the rows that follow.
    pub columns: Vec<RelationColumn<'a>>,
}

/// The name of a type that is not built in; for a domain, the name of its base type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeBody<'a> {
    /// Object id, of the domain for a domain.
    pub id: u32,
    /// Schema, `pg_catalog` spelled out.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

/// Tables emptied by one statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruncateBody {
    /// Their object ids, in the order of the message.
    pub relations: Vec<u32>,
}

/// What `pg_logical_emit_message` wrote. Prefix and content count as values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MessageBody<'a> {
    /// Belongs to the open transaction.
    pub transactional: bool,
    /// Position of the message.
    pub lsn: Lsn,
    /// Its prefix.
    pub prefix: &'a str,
    /// Its content.
    pub content: &'a [u8],
}

impl fmt::Debug for MessageBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageBody")
            .field("lsn", &self.lsn)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

/// One pgoutput message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each case is documented on its body")]
pub enum Message<'a> {
    Begin(Begin),
    Commit(Commit),
    Origin(Origin<'a>),
    Relation(RelationBody<'a>),
    Type(TypeBody<'a>),
    Row(RowBody<'a>),
    Truncate(TruncateBody),
    Message(MessageBody<'a>),
}

impl<'a> Message<'a> {
    /// Decodes one message. Bodies of rows are not walked here.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let tag = reader.u8()?;
        match tag {
            b'I' => row(reader, RowKind::Insert),
            b'U' => row(reader, RowKind::Update),
            b'D' => row(reader, RowKind::Delete),
            _ => rare(tag, reader),
        }
    }
}

#[inline]
fn row(mut reader: Reader<'_>, kind: RowKind) -> Result<Message<'_>, DecodeError> {
    let relation = reader.u32()?;
    Ok(Message::Row(RowBody::new(reader, relation, kind)))
}

fn rare(tag: u8, mut reader: Reader<'_>) -> Result<Message<'_>, DecodeError> {
    let message = match tag {
        b'B' => {
            let commit = reader.lsn()?;
            let commit_time_us = time(&mut reader)?;
            Message::Begin(Begin { commit, commit_time_us, xid: reader.u32()? })
        }
        b'C' => {
            let _flags = reader.u8()?;
            let commit = reader.lsn()?;
            let end = reader.lsn()?;
            Message::Commit(Commit { commit, end, commit_time_us: time(&mut reader)? })
        }
        b'O' => Message::Origin(Origin { commit: reader.lsn()?, name: reader.name()? }),
        b'R' => Message::Relation(relation(&mut reader)?),
        b'Y' => {
            let id = reader.u32()?;
            let namespace = namespace(&mut reader)?;
            Message::Type(TypeBody { id, namespace, name: reader.name()? })
        }
        b'T' => Message::Truncate(truncate(&mut reader)?),
        b'M' => Message::Message(logical(&mut reader)?),
        other => return Err(DecodeError { offset: 0, kind: DecodeErrorKind::UnknownMessage(other) }),
    };
    reader.finish()?;
    Ok(message)
}

/// Saturates: a clock value is information for people, and a hostile one must not stop the stream.
fn time(reader: &mut Reader<'_>) -> Result<i64, DecodeError> {
    Ok(reader.i64()?.saturating_add(POSTGRES_EPOCH_US))
}

fn namespace<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    let name = reader.name()?;
    Ok(if name.is_empty() { "pg_catalog" } else { name })
}

fn relation<'a>(reader: &mut Reader<'a>) -> Result<RelationBody<'a>, DecodeError> {
    let id = reader.u32()?;
    let namespace = namespace(reader)?;
    let name = reader.name()?;
    let before = *reader;
    let identity = match reader.u8()? {
        b'd' => ReplicaIdentity::Default,
        b'n' => ReplicaIdentity::Nothing,
        b'f' => ReplicaIdentity::Full,
        b'i' => ReplicaIdentity::Index,
        _ => return Err(before.error(DecodeErrorKind::UnknownTag)),
    };
    let before = *reader;
    let count = usize::from(reader.u16()?);
    // Ten bytes are the least a column takes: a count the message cannot hold never allocates.
    if count.saturating_mul(10) > reader.remaining() {
        return Err(before.error(DecodeErrorKind::Length));
    }
    let mut columns = Vec::with_capacity(count);
    for _ in 0..count {
        columns.push(RelationColumn {
            key: reader.u8()? & 1 == 1,
            name: reader.name()?,
            type_oid: reader.u32()?,
            type_modifier: reader.i32()?,
        });
    }
    Ok(RelationBody { id, namespace, name, identity, columns })
}

fn truncate(reader: &mut Reader<'_>) -> Result<TruncateBody, DecodeError> {
    let before = *reader;
    let count = reader.u32()? as usize;
    let _options = reader.u8()?;
    if count.saturating_mul(4) > reader.remaining() {
        return Err(before.error(DecodeErrorKind::Length));
    }
    let relations = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    Ok(TruncateBody { relations })
}

fn logical<'a>(reader: &mut Reader<'a>) -> Result<MessageBody<'a>, DecodeError> {
    let transactional = reader.u8()? & 1 == 1;
    let lsn = reader.lsn()?;
    let prefix = reader.name()?;
    Ok(MessageBody { transactional, lsn, prefix, content: reader.sized()? })
}
