//! Making batches for tests: tables, rows, transactions.
//!
//! Holds: builders that produce exactly what the host sends, grouped by relation and operation with rising ordinals.
//! Panics on rows that the table cannot hold, because such a test is wrong. Read next: [`super::Run::deliver`].

#![expect(clippy::panic, reason = "a builder for tests fails the test that misuses it")]

use crate::bindings::walgate::cdc::change as raw;
use crate::{ColumnInfo, Date, Operation, Relation, SchemaVersion, SnapshotChunk, Time, Timestamp, Transaction, Uuid};

/// NULL, for [`cells!`](crate::cells).
pub const NULL: Slot = Slot::Null;
/// An unchanged large value that was not sent.
pub const UNCHANGED: Slot = Slot::Unchanged;
/// A column outside the key in an old row.
pub const NOT_SENT: Slot = Slot::NotSent;

/// One cell of a test row.
#[derive(Clone, PartialEq)]
#[expect(missing_docs, reason = "the cases of Cell and Value, owned")]
pub enum Slot {
    Null,
    Unchanged,
    NotSent,
    Bool(bool),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    Float32(f32),
    Float64(f64),
    Date(Date),
    Time(Time),
    Timestamp(Timestamp),
    Uuid(Uuid),
    Bytes(Vec<u8>),
    Text(String),
}

macro_rules! slot_from {
    ($($type:ty => $case:ident),+ $(,)?) => {$(
        impl From<$type> for Slot {
            fn from(value: $type) -> Self {
                Self::$case(value.into())
            }
        }
    )+};
}

slot_from! {
    bool => Bool, i16 => Int16, i32 => Int32, i64 => Int64, f32 => Float32, f64 => Float64, Date => Date, Time => Time,
    Timestamp => Timestamp, Uuid => Uuid, &[u8] => Bytes, Vec<u8> => Bytes, &str => Text, String => Text,
}

/// The cells of a row in the order of the columns: `cells![7i64, "Ada", NULL]`. `NULL`, `UNCHANGED` and `NOT_SENT` need no
/// import.
#[macro_export]
macro_rules! cells {
    ($($cell:expr),* $(,)?) => {{
        #[allow(unused_imports, reason = "not every row has all of them")]
        use $crate::testing::{NULL, NOT_SENT, UNCHANGED};
        [$($crate::testing::Slot::from($cell)),*]
    }};
}

/// A table as a plugin is told about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    relation: Relation,
}

impl Table {
    /// A table without columns. Its id is made of its names, so two tables of a test differ.
    pub fn new(namespace: &str, name: &str) -> Self {
        let id = format!("{namespace}.{name}")
            .bytes()
            .fold(16_384u32, |id, byte| id.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let relation = Relation {
            id,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            version: SchemaVersion { commit_lsn: 0, message_lsn: 0 },
            identity: "default".to_owned(),
            columns: Vec::new(),
        };
        Self { relation }
    }

    /// Adds a column of the replica identity. The type is a name of Postgres: `int8`, `text`, `numeric`, ….
    #[must_use]
    pub fn key(self, name: &str, type_name: &str) -> Self {
        let position = self.relation.columns.iter().filter(|column| column.is_key()).count();
        self.with(name, type_name, u16::try_from(position).ok())
    }

    /// Adds a column.
    #[must_use]
    pub fn column(self, name: &str, type_name: &str) -> Self {
        self.with(name, type_name, None)
    }

    /// Sets the replica identity: `default`, `full`, `index` or `nothing`.
    #[must_use]
    pub fn identity(mut self, identity: &str) -> Self {
        self.relation.identity = identity.to_owned();
        self
    }

    /// Sets the version of the shape, as the commit that announced it.
    #[must_use]
    pub fn version(mut self, commit_lsn: u64) -> Self {
        self.relation.version.commit_lsn = commit_lsn;
        self
    }

    /// What the plugin is told.
    pub fn relation(&self) -> &Relation {
        &self.relation
    }

    fn with(mut self, name: &str, type_name: &str, key_position: Option<u16>) -> Self {
        self.relation.columns.push(ColumnInfo {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            type_oid: oid(type_name),
            type_modifier: -1,
            key_position,
            treatment: "plain".to_owned(),
        });
        self
    }
}

/// The object ids of the types that have a column case of their own, as in every Postgres; that of text for the rest.
fn oid(type_name: &str) -> u32 {
    match type_name {
        "bool" => 16,
        "bytea" => 17,
        "int8" => 20,
        "int2" => 21,
        "int4" => 23,
        "oid" => 26,
        "float4" => 700,
        "float8" => 701,
        "date" => 1082,
        "time" => 1083,
        "timestamp" => 1114,
        "timestamptz" => 1184,
        "uuid" => 2950,
        _ => 25,
    }
}

/// A batch ready for [`super::Run::deliver`].
#[derive(Clone, PartialEq)]
pub struct TestBatch {
    pub(super) raw: raw::Batch,
    pub(super) relations: Vec<Relation>,
}

impl TestBatch {
    /// The same content as the host sends it again: same id, next attempt.
    #[must_use]
    pub fn redelivered(mut self) -> Self {
        self.raw.attempt += 1;
        self
    }

    /// Whether a change of the batch has that ordinal.
    pub(super) fn has_ordinal(&self, ordinal: u32) -> bool {
        let in_groups = self.raw.groups.iter().any(|group| group.ordinals.binary_search(&ordinal).is_ok());
        in_groups || self.raw.messages.iter().any(|message| message.ordinal == ordinal)
    }
}

/// Builds a batch in commit order: a transaction, its changes, the next transaction.
pub struct BatchBuilder {
    batch: TestBatch,
    next_ordinal: u32,
}

impl BatchBuilder {
    /// An empty batch, first attempt.
    pub fn new(id: &str) -> Self {
        let raw = raw::Batch {
            id: id.to_owned(),
            attempt: 1,
            snapshot: None,
            transactions: Vec::new(),
            groups: Vec::new(),
            messages: Vec::new(),
        };
        Self { batch: TestBatch { raw, relations: Vec::new() }, next_ordinal: 0 }
    }

    /// Sets the attempt.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.batch.raw.attempt = attempt;
        self
    }

    /// Starts a transaction that commits at that position. Its xid counts from 1, its end is 8 bytes on.
    #[must_use]
    pub fn transaction(mut self, commit_lsn: u64) -> Self {
        let xid = u32::try_from(self.batch.raw.transactions.len()).map_or(u32::MAX, |earlier| earlier + 1);
        self.batch.raw.transactions.push(Transaction {
            xid,
            commit_lsn,
            end_lsn: commit_lsn + 8,
            commit_time_us: 0,
            origin: None,
            first_ordinal: self.next_ordinal,
            change_count: 0,
            source_ordinal: 0,
            part: 0,
            last_part: true,
        });
        self
    }

    /// Makes the transaction just started a numbered part of a larger one, whose first change here has that ordinal in
    /// the whole.
    #[must_use]
    pub fn part(mut self, part: u32, source_ordinal: u32, last: bool) -> Self {
        let Some(transaction) = self.batch.raw.transactions.last_mut() else { panic!("a part needs a transaction") };
        transaction.part = part;
        transaction.source_ordinal = source_ordinal;
        transaction.last_part = last;
        if !last {
            transaction.end_lsn = 0;
        }
        self
    }

    /// Makes the batch a piece of a snapshot of a table; its rows come by [`BatchBuilder::read`].
    #[must_use]
    pub fn snapshot(mut self, table: &Table, chunk: u32, first: bool, last: bool) -> Self {
        self.tell(table);
        self.batch.raw.snapshot = Some(SnapshotChunk { relation: table.relation.id, chunk, first, last });
        self
    }

    /// A row of a snapshot.
    #[must_use]
    #[track_caller]
    pub fn read(self, table: &Table, row: impl IntoIterator<Item = Slot>) -> Self {
        self.change(table, Operation::Read, None, Some(row.into_iter().collect()))
    }

    /// A new row.
    #[must_use]
    #[track_caller]
    pub fn insert(self, table: &Table, row: impl IntoIterator<Item = Slot>) -> Self {
        self.change(table, Operation::Insert, None, Some(row.into_iter().collect()))
    }

    /// A changed row that kept its key, under an identity other than full: nothing of the old row was sent.
    #[must_use]
    #[track_caller]
    pub fn update(self, table: &Table, row: impl IntoIterator<Item = Slot>) -> Self {
        let before = vec![Slot::NotSent; table.relation.columns.len()];
        self.change(table, Operation::Update, Some(before), Some(row.into_iter().collect()))
    }

    /// A changed row with what was sent of the old one.
    #[must_use]
    #[track_caller]
    pub fn update_from(
        self,
        table: &Table,
        before: impl IntoIterator<Item = Slot>,
        after: impl IntoIterator<Item = Slot>,
    ) -> Self {
        let before = before.into_iter().collect();
        self.change(table, Operation::Update, Some(before), Some(after.into_iter().collect()))
    }

    /// A removed row, as far as its old row was sent.
    #[must_use]
    #[track_caller]
    pub fn delete(self, table: &Table, before: impl IntoIterator<Item = Slot>) -> Self {
        self.change(table, Operation::Delete, Some(before.into_iter().collect()), None)
    }

    /// Emptied tables, one ordinal each.
    #[must_use]
    pub fn truncate(mut self, tables: &[&Table]) -> Self {
        for table in tables {
            self = self.change(table, Operation::Truncate, None, None);
        }
        self
    }

    /// A logical message in the transaction.
    #[must_use]
    pub fn message(mut self, prefix: &str, content: &[u8]) -> Self {
        let ordinal = self.take_ordinal();
        let message =
            raw::Message { ordinal, transactional: true, prefix: prefix.to_owned(), content: content.to_vec() };
        self.batch.raw.messages.push(message);
        self
    }

    /// A change that the grant hides: it takes an ordinal and is not there.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        self.take_ordinal();
        self
    }

    /// The batch.
    pub fn build(self) -> TestBatch {
        self.batch
    }

    fn tell(&mut self, table: &Table) {
        match self.batch.relations.iter().find(|known| known.id == table.relation.id) {
            Some(known) => assert!(*known == table.relation, "a batch never spans two shapes of a table"),
            None => self.batch.relations.push(table.relation.clone()),
        }
    }

    fn take_ordinal(&mut self) -> u32 {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        if let Some(transaction) = self.batch.raw.transactions.last_mut() {
            transaction.change_count += 1;
        }
        ordinal
    }

    #[track_caller]
    fn change(
        mut self,
        table: &Table,
        operation: Operation,
        before: Option<Vec<Slot>>,
        after: Option<Vec<Slot>>,
    ) -> Self {
        self.tell(table);
        let ordinal = self.take_ordinal();
        let relation = &table.relation;
        let groups = &mut self.batch.raw.groups;
        let at = groups.iter().position(|group| group.relation == relation.id && group.operation == operation);
        let at = at.unwrap_or_else(|| {
            let empty = |side: &Option<Vec<Slot>>| side.as_ref().map_or(Vec::new(), |_| empty_columns(relation));
            let (after, before) = (empty(&after), empty(&before));
            groups.push(raw::ChangeGroup { relation: relation.id, operation, ordinals: Vec::new(), after, before });
            groups.len() - 1
        });
        let Some(group) = groups.get_mut(at) else { panic!("the group was just found or made") };
        group.ordinals.push(ordinal);
        fill(&mut group.after, relation, after.unwrap_or_default());
        fill(&mut group.before, relation, before.unwrap_or_default());
        self
    }
}

fn empty_columns(relation: &Relation) -> Vec<raw::Column> {
    let columns = (0u16..).zip(&relation.columns);
    columns.map(|(index, info)| raw::Column { index, presence: None, values: empty_values(&info.type_name) }).collect()
}

fn empty_values(type_name: &str) -> raw::Values {
    match type_name {
        "bool" => raw::Values::Boolean(vec![]),
        "int2" => raw::Values::Int16(vec![]),
        "int4" => raw::Values::Int32(vec![]),
        "int8" | "oid" => raw::Values::Int64(vec![]),
        "float4" => raw::Values::Float32(vec![]),
        "float8" => raw::Values::Float64(vec![]),
        "date" => raw::Values::DateDays(vec![]),
        "time" => raw::Values::TimeUs(vec![]),
        "timestamp" | "timestamptz" => raw::Values::TimestampUs(vec![]),
        "uuid" => raw::Values::Uuid(vec![]),
        "bytea" => raw::Values::Bytes(raw::ByteValues { ends: vec![], data: vec![] }),
        _ => raw::Values::Text(raw::TextValues { ends: vec![], data: String::new() }),
    }
}

#[track_caller]
fn fill(columns: &mut [raw::Column], relation: &Relation, row: Vec<Slot>) {
    assert!(row.len() == columns.len(), "a row of {} needs {} cells, got {}", relation.name, columns.len(), row.len());
    for ((column, info), slot) in columns.iter_mut().zip(&relation.columns).zip(row) {
        push(column, info, slot);
    }
}

#[track_caller]
fn push(column: &mut raw::Column, info: &ColumnInfo, slot: Slot) {
    let presence = match slot {
        Slot::Null => crate::NULL,
        Slot::Unchanged => crate::UNCHANGED,
        Slot::NotSent => crate::NOT_SENT,
        _ => crate::VALUE,
    };
    let earlier = push_value(&mut column.values, info, slot, presence != crate::VALUE);
    if presence != crate::VALUE && column.presence.is_none() {
        column.presence = Some(vec![crate::VALUE; earlier]);
    }
    if let Some(codes) = &mut column.presence {
        codes.push(presence);
    }
}

/// Appends a value, or an empty slot, and answers how many slots there were before.
#[track_caller]
fn push_value(values: &mut raw::Values, info: &ColumnInfo, slot: Slot, empty: bool) -> usize {
    /// Appends to a list of fixed width.
    macro_rules! fixed {
        ($list:expr, $value:expr) => {{
            $list.push($value);
            $list.len() - 1
        }};
    }
    match (values, slot) {
        (raw::Values::Boolean(list), Slot::Bool(v)) => fixed!(list, u8::from(v)),
        (raw::Values::Boolean(list), _) if empty => fixed!(list, 0),
        (raw::Values::Int16(list), Slot::Int16(v)) => fixed!(list, v),
        (raw::Values::Int16(list), _) if empty => fixed!(list, 0),
        (raw::Values::Int32(list), Slot::Int32(v)) => fixed!(list, v),
        (raw::Values::Int64(list), Slot::Int64(v)) => fixed!(list, v),
        (raw::Values::Float32(list), Slot::Float32(v)) => fixed!(list, v),
        (raw::Values::Float32(list), _) if empty => fixed!(list, 0.0),
        (raw::Values::Float64(list), Slot::Float64(v)) => fixed!(list, v),
        (raw::Values::Float64(list), _) if empty => fixed!(list, 0.0),
        (raw::Values::DateDays(list), Slot::Date(v)) => fixed!(list, v.0),
        (raw::Values::Int32(list) | raw::Values::DateDays(list), _) if empty => fixed!(list, 0),
        (raw::Values::TimeUs(list), Slot::Time(v)) => fixed!(list, v.0),
        (raw::Values::TimestampUs(list), Slot::Timestamp(v)) => fixed!(list, v.0),
        (raw::Values::Int64(list) | raw::Values::TimeUs(list) | raw::Values::TimestampUs(list), _) if empty => {
            fixed!(list, 0)
        }
        (raw::Values::Uuid(bytes), Slot::Uuid(v)) => extend_uuid(bytes, v.0),
        (raw::Values::Uuid(bytes), _) if empty => extend_uuid(bytes, [0; 16]),
        (raw::Values::Bytes(list), slot) if empty || matches!(slot, Slot::Bytes(_)) => {
            if let Slot::Bytes(v) = slot {
                list.data.extend(v);
            }
            fixed!(list.ends, end(list.data.len()))
        }
        (raw::Values::Text(list), slot) if empty || matches!(slot, Slot::Text(_)) => {
            if let Slot::Text(v) = slot {
                list.data.push_str(&v);
            }
            fixed!(list.ends, end(list.data.len()))
        }
        _ => panic!("column {:?} of type {:?} was given a cell of another type", info.name, info.type_name),
    }
}

fn extend_uuid(bytes: &mut Vec<u8>, value: [u8; 16]) -> usize {
    bytes.extend(value);
    bytes.len() / 16 - 1
}

#[track_caller]
fn end(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_else(|_| panic!("a column of a test batch is over 4 GiB"))
}
