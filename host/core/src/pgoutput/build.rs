//! Writes pgoutput messages, for tests, fuzzing and the micro-benchmark. Not compiled into the host.
//!
//! Holds: one function a message. Refuses to check anything: a test may build what no server would send.

/// One column of a relation message: part of the key, name, type, modifier.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    /// The flag of the replica identity.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// Object id of its type.
    pub type_oid: u32,
}

/// A column with the usual modifier.
pub const fn column(name: &str, type_oid: u32, key: bool) -> Column<'_> {
    Column { key, name, type_oid }
}

/// One cell of a tuple.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// `n`
    Null,
    /// `u`
    Unchanged,
    /// `t`
    Text(&'a [u8]),
    /// `b`, which walgate never asks for.
    Binary(&'a [u8]),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.as_bytes())
    }
}

/// `B`
pub fn begin(commit: u64, commit_time_us: i64, xid: u32) -> Vec<u8> {
    let mut out = vec![b'B'];
    out.extend(commit.to_be_bytes());
    out.extend(commit_time_us.to_be_bytes());
    out.extend(xid.to_be_bytes());
    out
}

/// `C`
pub fn commit(commit: u64, end: u64, commit_time_us: i64) -> Vec<u8> {
    let mut out = vec![b'C', 0];
    out.extend(commit.to_be_bytes());
    out.extend(end.to_be_bytes());
    out.extend(commit_time_us.to_be_bytes());
    out
}

/// `O`
pub fn origin(commit: u64, name: &str) -> Vec<u8> {
    let mut out = vec![b'O'];
    out.extend(commit.to_be_bytes());
    text(&mut out, name);
    out
}

/// `R`, with `identity` one of `d`, `n`, `f`, `i`.
pub fn relation(id: u32, namespace: &str, name: &str, identity: u8, columns: &[Column<'_>]) -> Vec<u8> {
    let mut out = vec![b'R'];
    out.extend(id.to_be_bytes());
    text(&mut out, namespace);
    text(&mut out, name);
    out.push(identity);
    out.extend((columns.len() as u16).to_be_bytes());
    for column in columns {
        out.push(u8::from(column.key));
        text(&mut out, column.name);
        out.extend(column.type_oid.to_be_bytes());
        out.extend((-1_i32).to_be_bytes());
    }
    out
}

/// `Y`
pub fn type_name(id: u32, namespace: &str, name: &str) -> Vec<u8> {
    let mut out = vec![b'Y'];
    out.extend(id.to_be_bytes());
    text(&mut out, namespace);
    text(&mut out, name);
    out
}

/// `I`
pub fn insert(relation: u32, new: &[Value<'_>]) -> Vec<u8> {
    let mut out = vec![b'I'];
    out.extend(relation.to_be_bytes());
    tuple(&mut out, b'N', new);
    out
}

/// `U`, with the old tuple's tag (`K` or `O`) and cells if there is one.
pub fn update(relation: u32, old: Option<(u8, &[Value<'_>])>, new: &[Value<'_>]) -> Vec<u8> {
    let mut out = vec![b'U'];
    out.extend(relation.to_be_bytes());
    if let Some((tag, cells)) = old {
        tuple(&mut out, tag, cells);
    }
    tuple(&mut out, b'N', new);
    out
}

/// `D`, with the old tuple's tag (`K` or `O`).
pub fn delete(relation: u32, tag: u8, old: &[Value<'_>]) -> Vec<u8> {
    let mut out = vec![b'D'];
    out.extend(relation.to_be_bytes());
    tuple(&mut out, tag, old);
    out
}

/// `T`
pub fn truncate(relations: &[u32]) -> Vec<u8> {
    let mut out = vec![b'T'];
    out.extend((relations.len() as u32).to_be_bytes());
    out.push(0);
    relations.iter().for_each(|id| out.extend(id.to_be_bytes()));
    out
}

/// `M`
pub fn message(transactional: bool, lsn: u64, prefix: &str, content: &[u8]) -> Vec<u8> {
    let mut out = vec![b'M', u8::from(transactional)];
    out.extend(lsn.to_be_bytes());
    text(&mut out, prefix);
    out.extend((content.len() as u32).to_be_bytes());
    out.extend(content);
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend(text.as_bytes());
    out.push(0);
}

fn tuple(out: &mut Vec<u8>, tag: u8, cells: &[Value<'_>]) {
    out.push(tag);
    out.extend((cells.len() as u16).to_be_bytes());
    for cell in cells {
        match cell {
            Value::Null => out.push(b'n'),
            Value::Unchanged => out.push(b'u'),
            Value::Text(bytes) => sized(out, b't', bytes),
            Value::Binary(bytes) => sized(out, b'b', bytes),
        }
    }
}

fn sized(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes.iter());
}
