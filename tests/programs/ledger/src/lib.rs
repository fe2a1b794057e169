//! The lines that guests keep of what they were given, and the word that some of them cannot stand. No guest itself.
//!
//! With the setting `values` a line holds the numbers of the change, too: see `values.rs`.

mod values;

use std::sync::OnceLock;

use walgate_sdk::{Cell, Change, Failure, Operation, Value, host};

/// The output of the lines.
pub const OUTPUT: &str = "lines";

/// The word.
const POISON: &str = "poison";

/// One line a change, as the guest `output-lines` writes it.
pub fn line(change: &Change<'_>) -> String {
    static VALUES: OnceLock<bool> = OnceLock::new();
    if *VALUES.get_or_init(|| host::setting("values").is_some()) {
        return values::line(change);
    }
    match change {
        Change::Row(row) => format!("{} {} {}\n", row.relation().full_name(), row.operation().name(), row.key().1),
        Change::Message(message) => format!("{} message {}\n", message.prefix(), message.key().1),
    }
}

/// Appends the lines of some changes.
pub fn append<'a>(changes: impl IntoIterator<Item = Change<'a>>) -> Result<(), Failure> {
    for change in changes {
        host::output::append(OUTPUT, line(&change).as_bytes())?;
    }
    Ok(())
}

/// Whether the change is an inserted row with a text that contains `poison`.
pub fn is_poisoned(change: &Change<'_>) -> bool {
    let Change::Row(row) = change else { return false };
    let has = |cell: Cell<'_>| matches!(cell.value(), Some(Value::Text(text)) if text.contains(POISON));
    row.operation() == Operation::Insert && row.cells().any(|(_, cell)| has(cell))
}
