//! A line with the numbers of a change: what the crash suite proves from.
//!
//! Holds: the form, a part of what the plugin `ndjson-rust` writes. Refuses to know texts, which need escapes and which
//! nobody compares.

use walgate_sdk::{Cell, Change, Image, Row, Value};

/// One line; none for a message.
pub(crate) fn line(change: &Change<'_>) -> String {
    let Change::Row(row) = change else { return String::new() };
    let (commit, ordinal) = row.key();
    let xid = row.transaction().map_or(0, |transaction| transaction.xid);
    let (high, low) = (commit >> 32, commit & 0xFFFF_FFFF);
    let (op, table) = (row.operation().name(), &row.relation().name);
    let images = images(row);
    format!(
        "{{\"commit_lsn\":\"{high:X}/{low:X}\",\"xid\":{xid},\"ord\":{ordinal},\"op\":\"{op}\",\"table\":\"{table}\"{images}}}\n"
    )
}

fn images(row: &Row<'_>) -> String {
    let named = [("key", numbers(row.before())), ("after", numbers(row.after()))];
    let present = named.iter().filter(|(_, numbers)| !numbers.is_empty());
    present.map(|(name, numbers)| format!(",\"{name}\":{{{numbers}}}")).collect()
}

fn numbers(image: Image<'_>) -> String {
    let number = |cell: Cell<'_>| match cell.value() {
        Some(Value::Int32(number)) => Some(i64::from(number)),
        Some(Value::Int64(number)) => Some(number),
        _ => None,
    };
    let known = image.cells().filter_map(|(column, cell)| Some((&column.name, number(cell)?)));
    known.map(|(name, number)| format!("\"{name}\":{number}")).collect::<Vec<_>>().join(",")
}
