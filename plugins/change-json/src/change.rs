//! What a change holds.
//!
//! Holds: the order and meaning of the keys; the README of ndjson-rust lists them. Refuses to know where changes go. Read next:
//! `json.rs`.

use walgate_sdk::{Cell, Change, ColumnInfo, Image, Message, Operation, Row, Transaction, Value};

use crate::json;

/// Writes a change as an object.
pub fn write(out: &mut Vec<u8>, change: &Change<'_>) {
    out.push(b'{');
    match change {
        Change::Row(row) => write_row(out, row),
        Change::Message(message) => write_message(out, message),
    }
    out.push(b'}');
}

fn write_row(out: &mut Vec<u8>, row: &Row<'_>) {
    write_place(out, row.transaction(), row.key());
    member(out, "op", |out| json::word(out, row.operation().name()));
    let relation = row.relation();
    member(out, "schema", |out| json::string(out, &relation.namespace));
    member(out, "table", |out| json::string(out, &relation.name));
    if row.operation() == Operation::Truncate {
        return;
    }
    write_before(out, row.before());
    let after = row.after();
    if !after.is_empty() {
        member(out, "after", |out| object(out, after.cells()));
        write_unchanged(out, after);
    }
}

/// The old row as far as it was sent, and its key on its own when all of it was.
fn write_before(out: &mut Vec<u8>, before: Image<'_>) {
    if before.is_absent() {
        return;
    }
    let key = || before.cells().filter(|(column, _)| column.is_key());
    if key().next().is_some() && key().all(|(_, cell)| matches!(cell, Cell::Value(_))) {
        member(out, "key", |out| object(out, key()));
    }
    member(out, "before", |out| object(out, before.cells()));
}

fn write_unchanged(out: &mut Vec<u8>, after: Image<'_>) {
    let unchanged = || after.cells().filter(|(_, cell)| *cell == Cell::Unchanged);
    if unchanged().next().is_some() {
        member(out, "unchanged", |out| {
            out.push(b'[');
            separated(out, unchanged(), |out, (column, _)| json::string(out, &column.name));
            out.push(b']');
        });
    }
}

fn write_message(out: &mut Vec<u8>, message: &Message<'_>) {
    write_place(out, message.transaction(), message.key());
    member(out, "op", |out| json::word(out, "message"));
    member(out, "prefix", |out| json::string(out, message.prefix()));
    member(out, "transactional", |out| json::display(out, message.transactional()));
    member(out, "content", |out| json::hex(out, message.content()));
}

/// The stable key of the change and its transaction; the ordinal alone where there is no transaction.
fn write_place(out: &mut Vec<u8>, transaction: Option<&Transaction>, (commit, ordinal): (u64, u32)) {
    if let Some(transaction) = transaction {
        member(out, "commit_lsn", |out| lsn(out, commit));
        member(out, "xid", |out| json::integer(out, transaction.xid));
    }
    member(out, "ord", |out| json::integer(out, ordinal));
}

/// Writes a position as Postgres does.
pub fn lsn(out: &mut Vec<u8>, position: u64) {
    json::quoted(out, format_args!("{:X}/{:X}", position >> 32, position as u32));
}

/// Writes the columns that have a value or NULL.
fn object<'a>(out: &mut Vec<u8>, cells: impl Iterator<Item = (&'a ColumnInfo, Cell<'a>)>) {
    let known = cells.filter_map(|(column, cell)| match cell {
        Cell::Value(value) => Some((column, Some(value))),
        Cell::Null => Some((column, None)),
        Cell::Unchanged | Cell::NotSent => None,
    });
    out.push(b'{');
    separated(out, known, |out, (column, value): (&ColumnInfo, Option<Value<'_>>)| {
        json::string(out, &column.name);
        out.push(b':');
        match value {
            Some(value) => json::value(out, column, value),
            None => out.extend_from_slice(b"null"),
        }
    });
    out.push(b'}');
}

/// Writes a key that needs no escape and its value, after a comma when it is not the first of its object.
pub fn member(out: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    json::word(out, name);
    out.push(b':');
    value(out);
}

/// Writes items with commas between.
pub fn separated<T>(out: &mut Vec<u8>, items: impl Iterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    for (at, item) in items.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(out, item);
    }
}
