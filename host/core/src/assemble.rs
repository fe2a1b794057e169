//! Follows the stream message by message and knows where transactions begin and end.
//!
//! Holds: the relation and type caches, the open transaction, ordinals, and the order rules. Under protocol version 1
//! the server sends each transaction whole, after its commit and in commit order, so nothing is buffered here: memory
//! is bounded by the batch builders and by the byte budget of the wire, whatever the size of a transaction.
//! Never knows: plugins, grants, sockets.
//! Invariant: an event of a transaction is given out only between its begin and its commit, with rising ordinals.
//! Read next: [`crate::minimize`].

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::Lsn;
use crate::pgoutput::{Begin, Commit, DecodeError, Message, MessageBody, RelationBody, RelationColumn, RowBody};
use crate::relation::{ReplicaIdentity, SchemaVersion};
use crate::value::{self, Kind};

/// A column of a relation as the stream describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamColumn {
    /// Its name.
    pub name: String,
    /// Object id of its type.
    pub type_oid: u32,
    /// Type modifier, or -1.
    pub type_modifier: i32,
    /// Part of the replica identity.
    pub key: bool,
    /// Name of its type, of the base type for a domain; empty when unknown.
    pub type_name: String,
    /// How its values travel.
    pub kind: Kind,
}

/// A relation as the stream describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// Object id.
    pub id: u32,
    /// Schema.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Replica identity.
    pub identity: ReplicaIdentity,
    /// Columns, in the order of the rows.
    pub columns: Vec<StreamColumn>,
    /// Which announcement this is.
    pub version: SchemaVersion,
}

/// The head of the open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its begin message.
    pub begin: Begin,
    /// Where it was replayed from.
    pub origin: Option<String>,
}

/// What one message means for those who build batches.
#[derive(Debug)]
pub enum Event<'a> {
    /// Nothing to do: the name of a type.
    Nothing,
    /// A transaction begins.
    Begin(&'a Head),
    /// The open transaction was replayed from another server: its head has the origin now.
    Origin(&'a Head),
    /// A relation was announced. It may be the same as before.
    Relation(&'a Arc<Relation>),
    /// A row of the open transaction.
    Row(&'a Head, &'a Arc<Relation>, RowBody<'a>, u32),
    /// One TRUNCATE of these relations; the first has the ordinal given, the next the one after.
    Truncate(&'a Head, Vec<Arc<Relation>>, u32),
    /// A logical message; transactional ones have an ordinal in the open transaction.
    Message(MessageBody<'a>, u32),
    /// The open transaction ends, with how many ordinals it used.
    Commit(&'a Head, Commit, u32),
}

/// The stream broke its own rules, or a message cannot be decoded. Permanent: the same bytes would come again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message at {lsn}: {kind}")]
pub struct AssembleError {
    /// Position of the message.
    pub lsn: Lsn,
    /// What is wrong.
    pub kind: AssembleErrorKind,
}

/// What can be wrong with the order of messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssembleErrorKind {
    /// The message cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A change, a commit or an origin outside a transaction.
    #[error("a change or a commit outside a transaction")]
    OutsideTransaction,
    /// A message that belongs to no transaction, inside of one: version 1 of the protocol never does that, and it would
    /// have no place in the order of changes.
    #[error("a message that belongs to no transaction came inside of one")]
    InsideTransaction,
    /// A begin inside a transaction.
    #[error("a transaction begins inside another one")]
    NestedBegin,
    /// A row of a relation that was not announced on this connection.
    #[error("a change of relation {0}, which was not announced on this connection")]
    UnknownRelation(u32),
    /// The commit names another position than the begin did.
    #[error("the commit at {commit} does not belong to the transaction that began for {begun}")]
    OtherCommit {
        /// In the begin message.
        begun: Lsn,
        /// In the commit message.
        commit: Lsn,
    },
    /// A commit position that does not rise.
    #[error("the transaction commits at {commit}, which is not after {last}, where the one before ends")]
    OrderBroken {
        /// Of this transaction.
        commit: Lsn,
        /// The end of the one before.
        last: Lsn,
    },
    /// A transaction that ends before its commit record.
    #[error("the transaction that commits at {commit} ends at {end}, not after it")]
    EndBroken {
        /// Start of its commit record.
        commit: Lsn,
        /// What it calls the first byte after it.
        end: Lsn,
    },
    /// More than four billion changes in one transaction.
    #[error("the transaction has more changes than 32 bits can count")]
    TooManyChanges,
}

/// Follows one connection. A new connection needs a new assembler: relation caches do not outlive it.
#[derive(Debug, Default)]
pub struct Assembler {
    relations: FxHashMap<u32, Arc<Relation>>,
    types: FxHashMap<u32, (String, Kind)>,
    open: Option<Head>,
    /// The transaction that just ended: kept so that its commit event can borrow it.
    closed: Option<Head>,
    next_ordinal: u32,
    /// First byte after the commit record of the transaction before. Two commit records never overlap, so the next one
    /// begins at or after it; cursors rely on that (see [`crate::Cursor::covers`]).
    last_end: Lsn,
}

impl Assembler {
    /// For a fresh connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a transaction is open.
    #[inline]
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the message at `lsn`.
    #[inline]
    pub fn push<'a>(&'a mut self, lsn: Lsn, bytes: &'a [u8]) -> Result<Event<'a>, AssembleError> {
        self.event(lsn, bytes).map_err(|kind| AssembleError { lsn, kind })
    }

    #[inline]
    fn event<'a>(&'a mut self, lsn: Lsn, bytes: &'a [u8]) -> Result<Event<'a>, AssembleErrorKind> {
        match Message::decode(bytes)? {
            Message::Row(row) => {
                let ordinal = self.take_ordinals(1)?;
                let head = self.open.as_ref().ok_or(AssembleErrorKind::OutsideTransaction)?;
                let relation =
                    self.relations.get(&row.relation()).ok_or(AssembleErrorKind::UnknownRelation(row.relation()))?;
                Ok(Event::Row(head, relation, row, ordinal))
            }
            Message::Begin(begin) => self.begin(begin),
            Message::Commit(commit) => self.commit(commit),
            Message::Relation(body) => Ok(Event::Relation(self.relation(lsn, &body))),
            Message::Truncate(body) => self.truncate(&body.relations),
            Message::Type(body) => {
                let builtin = body.namespace == "pg_catalog";
                let kind = if builtin { Kind::of_catalog_name(body.name) } else { Kind::Text };
                let name = if builtin { body.name.to_owned() } else { format!("{}.{}", body.namespace, body.name) };
                self.types.insert(body.id, (name, kind));
                Ok(Event::Nothing)
            }
            Message::Origin(origin) => {
                let head = self.open.as_mut().ok_or(AssembleErrorKind::OutsideTransaction)?;
                head.origin = Some(origin.name.to_owned());
                Ok(Event::Origin(head))
            }
            Message::Message(message) => {
                match (message.transactional, self.open.is_some()) {
                    (true, false) => return Err(AssembleErrorKind::OutsideTransaction),
                    (false, true) => return Err(AssembleErrorKind::InsideTransaction),
                    _ => {}
                }
                let ordinal = if message.transactional { self.take_ordinals(1)? } else { 0 };
                Ok(Event::Message(message, ordinal))
            }
        }
    }

    #[inline]
    fn take_ordinals(&mut self, count: u32) -> Result<u32, AssembleErrorKind> {
        let first = self.next_ordinal;
        self.next_ordinal = first.checked_add(count).ok_or(AssembleErrorKind::TooManyChanges)?;
        Ok(first)
    }

    fn begin(&mut self, begin: Begin) -> Result<Event<'_>, AssembleErrorKind> {
        if self.open.is_some() {
            return Err(AssembleErrorKind::NestedBegin);
        }
        if begin.commit < self.last_end || begin.commit.is_zero() {
            return Err(AssembleErrorKind::OrderBroken { commit: begin.commit, last: self.last_end });
        }
        self.next_ordinal = 0;
        Ok(Event::Begin(self.open.insert(Head { begin, origin: None })))
    }

    fn commit(&mut self, commit: Commit) -> Result<Event<'_>, AssembleErrorKind> {
        let head = self.open.take().ok_or(AssembleErrorKind::OutsideTransaction)?;
        if head.begin.commit != commit.commit {
            return Err(AssembleErrorKind::OtherCommit { begun: head.begin.commit, commit: commit.commit });
        }
        if commit.end <= commit.commit {
            return Err(AssembleErrorKind::EndBroken { commit: commit.commit, end: commit.end });
        }
        self.last_end = commit.end;
        Ok(Event::Commit(self.closed.insert(head), commit, self.next_ordinal))
    }

    fn truncate(&mut self, ids: &[u32]) -> Result<Event<'_>, AssembleErrorKind> {
        let count = u32::try_from(ids.len()).map_err(|_| AssembleErrorKind::TooManyChanges)?;
        let first = self.take_ordinals(count)?;
        let head = self.open.as_ref().ok_or(AssembleErrorKind::OutsideTransaction)?;
        let relations = ids
            .iter()
            .map(|id| self.relations.get(id).cloned().ok_or(AssembleErrorKind::UnknownRelation(*id)))
            .collect::<Result<_, _>>()?;
        Ok(Event::Truncate(head, relations, first))
    }

    fn relation(&mut self, lsn: Lsn, body: &RelationBody<'_>) -> &Arc<Relation> {
        // The server sends announcements without a position. Their place among the changes of the transaction tells two
        // shapes of one relation in one transaction apart, and is the same on every replay.
        let version = match &self.open {
            Some(head) => SchemaVersion { commit: head.begin.commit, message: Lsn::new(self.next_ordinal.into()) },
            None => SchemaVersion { commit: lsn, message: Lsn::ZERO },
        };
        let relation = Arc::new(Relation {
            id: body.id,
            namespace: body.namespace.to_owned(),
            name: body.name.to_owned(),
            identity: body.identity,
            columns: body.columns.iter().map(|column| self.column(column)).collect(),
            version,
        });
        let slot = self.relations.entry(body.id).or_insert_with(|| relation.clone());
        *slot = relation;
        slot
    }

    fn column(&self, column: &RelationColumn<'_>) -> StreamColumn {
        let (type_name, kind) =
            self.types.get(&column.type_oid).cloned().unwrap_or_else(|| {
                (value::builtin_type_name(column.type_oid).to_owned(), Kind::of_oid(column.type_oid))
            });
        StreamColumn {
            name: column.name.to_owned(),
            type_oid: column.type_oid,
            type_modifier: column.type_modifier,
            key: column.key,
            type_name,
            kind,
        }
    }
}

#[cfg(test)]
mod tests;
