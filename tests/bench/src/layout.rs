//! How figures are laid out: cells of a table, columns, and keys of an object.
//!
//! Never knows: what the figures are. Read next: `report.rs`.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::figures::Spread;

/// A median under its name, its smallest and largest beside it with `_range`.
pub(crate) fn insert(object: &mut Map<String, Value>, name: &str, spread: Option<Spread>) {
    object.insert(name.to_owned(), json!(spread.map(|spread| spread.median)));
    object.insert(format!("{name}_range"), json!(spread.map(|spread| [spread.min, spread.max])));
}

/// A median with its range, or a dash.
pub(crate) fn cell(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".to_owned(), |s| format!("{:.digits$} ({:.digits$}-{:.digits$})", s.median, s.min, s.max))
}

/// A median alone, or a dash.
pub(crate) fn short(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".to_owned(), |s| format!("{:.digits$}", s.median))
}

/// Columns as wide as their widest cell.
pub(crate) fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(f, "  {}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Cells of fixed words.
pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
