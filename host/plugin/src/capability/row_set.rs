//! Whether the rows of one call of `apply` are what the contract says, before any of them is kept.
//!
//! Holds: the checks that need nothing but the rows: lengths, codes, boundaries, order. Refuses to know who may write where
//! (see `rows.rs`) and what a target looks like (the store). After these checks every slot of every column can be read.

use std::collections::BTreeSet;

use walgate_core::batch::{NOT_SENT, Operation, Values};
use walgate_core::rows::{Cells, RowCall, RowSet};

/// Rows of one call. One statement of the store carries some thousand; beyond a million a transaction of the target is too
/// large to be wanted.
pub(crate) const MAX_ROWS: usize = 1_000_000;

/// Bytes of a name in Postgres.
const MAX_NAME_BYTES: usize = 63;

/// Bytes of one uuid.
const UUID_BYTES: usize = 16;

/// What is wrong, and at which set and column of the call. Names nothing of the guest's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    /// The set, from 0.
    pub(crate) set: usize,
    /// The column of it, from 0, those of `before` after those of `after`.
    pub(crate) column: Option<usize>,
    /// What it breaks.
    pub(crate) rule: &'static str,
}

/// The first flaw of a call.
pub(crate) fn check(call: &RowCall) -> Result<(), Flaw> {
    for (at, set) in call.iter().enumerate() {
        check_set(set).map_err(|(column, rule)| Flaw { set: at, column, rule })?;
    }
    let mut ordinals: Vec<u32> = call.iter().flat_map(|set| set.ordinals.iter().copied()).collect();
    ordinals.sort_unstable();
    if rising(&ordinals, |one, next| one < next) {
        return Ok(());
    }
    // Rare, so it is looked for only now which set repeats one.
    let mut seen = BTreeSet::new();
    let repeats = |set: &RowSet| !set.ordinals.iter().all(|ordinal| seen.insert(*ordinal));
    let set = call.iter().position(repeats).unwrap_or_default();
    Err(Flaw { set, column: None, rule: "an ordinal stands once in a call" })
}

/// What a call costs the host until it is handed over. Empty sets and columns cost as well.
pub(crate) fn bytes(call: &RowCall) -> usize {
    call.iter().fold(size_of::<RowCall>(), |sum, set| {
        let own = size_of::<RowSet>() + set.target.len() + set.ordinals.len() * size_of::<u32>();
        let cells = set.after.iter().chain(&set.before).map(cell_bytes).fold(0, usize::saturating_add);
        sum.saturating_add(own).saturating_add(cells)
    })
}

fn cell_bytes(cells: &Cells) -> usize {
    let values = match &cells.values {
        Values::Boolean(v) | Values::Uuid(v) => v.len(),
        Values::Int16(v) => size_of_val(v.as_slice()),
        Values::Int32(v) | Values::DateDays(v) => size_of_val(v.as_slice()),
        Values::Int64(v) | Values::TimeUs(v) | Values::TimestampUs(v) => size_of_val(v.as_slice()),
        Values::Float32(v) => size_of_val(v.as_slice()),
        Values::Float64(v) => size_of_val(v.as_slice()),
        Values::Bytes(v) => size_of_val(v.ends.as_slice()) + v.data.len(),
        Values::Text(v) => size_of_val(v.ends.as_slice()) + v.data.len(),
    };
    size_of::<Cells>() + cells.name.len() + cells.presence.as_ref().map_or(0, Vec::len) + values
}

fn check_set(set: &RowSet) -> Result<(), (Option<usize>, &'static str)> {
    if !rising(&set.ordinals, |one, next| one < next) {
        return Err((None, "ordinals rise within a set"));
    }
    if matches!(set.operation, Operation::Delete | Operation::Truncate) && !set.after.is_empty() {
        return Err((None, "`after` is empty for delete and truncate"));
    }
    for (cells, offset) in [(&set.after, 0), (&set.before, set.after.len())] {
        let mut names = BTreeSet::new();
        for (at, cells) in cells.iter().enumerate() {
            let wrong = |rule| (Some(offset + at), rule);
            if !names.insert(cells.name.as_str()) {
                return Err(wrong("a column stands once in `after` and once in `before`"));
            }
            check_cells(cells, set.ordinals.len()).map_err(wrong)?;
        }
    }
    Ok(())
}

fn check_cells(cells: &Cells, rows: usize) -> Result<(), &'static str> {
    if !(1..=MAX_NAME_BYTES).contains(&cells.name.len()) || cells.name.contains('\0') {
        return Err("the name of a column has 1 to 63 bytes");
    }
    if let Some(presence) = &cells.presence {
        if presence.len() != rows {
            return Err("presence has one code a row");
        }
        if presence.iter().any(|code| *code > NOT_SENT) {
            return Err("presence is 0, 1, 2 or 3");
        }
    }
    // Not `Values::len`, which rounds the bytes of uuids down.
    let slots = match &cells.values {
        Values::Uuid(bytes) => bytes.len() == rows.saturating_mul(UUID_BYTES),
        values => values.len() == rows,
    };
    if !slots {
        return Err("a column has one slot a row, 16 bytes for a uuid");
    }
    match &cells.values {
        Values::Boolean(v) if v.iter().any(|value| *value > 1) => Err("a boolean is 0 or 1"),
        Values::Bytes(v) => ends(&v.ends, |end| end <= v.data.len()),
        Values::Text(v) => ends(&v.ends, |end| v.data.is_char_boundary(end)),
        _ => Ok(()),
    }
}

/// Ends that rise, or stay for an empty slot, and lie where `inside` says they may.
fn ends(ends: &[u32], inside: impl Fn(usize) -> bool) -> Result<(), &'static str> {
    let good = rising(ends, |one, next| one <= next) && ends.iter().all(|end| usize::try_from(*end).is_ok_and(&inside));
    if good { Ok(()) } else { Err("ends rise and lie within the data, on the boundaries of characters") }
}

fn rising(values: &[u32], follows: impl Fn(u32, u32) -> bool) -> bool {
    values.iter().zip(values.iter().skip(1)).all(|(one, next)| follows(*one, *next))
}

#[cfg(test)]
mod tests {
    use walgate_core::batch::{ByteValues, TextValues};

    use super::*;

    fn text(ends: &[u32], data: &str) -> Values {
        Values::Text(TextValues { ends: ends.into(), data: data.into() })
    }

    fn cells(name: &str, presence: Option<&[u8]>, values: Values) -> Cells {
        Cells { name: name.into(), presence: presence.map(Into::into), values }
    }

    fn insert(ordinals: &[u32], after: Vec<Cells>) -> RowSet {
        RowSet {
            target: "t".into(),
            operation: Operation::Insert,
            ordinals: ordinals.into(),
            after,
            before: Vec::new(),
        }
    }

    #[track_caller]
    fn refused(call: RowCall, set: usize, column: Option<usize>, word: &str) {
        let flaw = check(&call).unwrap_err();
        assert_eq!((flaw.set, flaw.column), (set, column), "{flaw:?}");
        assert!(flaw.rule.contains(word), "{flaw:?}");
    }

    #[track_caller]
    fn refused_cells(presence: Option<&[u8]>, values: Values, word: &str) {
        refused(vec![insert(&[1, 2], vec![cells("c", presence, values)])], 0, Some(0), word);
    }

    #[test]
    fn every_kind_of_well_formed_values_is_taken() {
        let kinds = [
            Values::Boolean(vec![0, 1]),
            Values::Int16(vec![i16::MIN, i16::MAX]),
            Values::Int32(vec![1, 2]),
            Values::Int64(vec![1, 2]),
            Values::Float32(vec![f32::NAN, f32::INFINITY]),
            Values::Float64(vec![f64::NAN, -0.0]),
            Values::DateDays(vec![i32::MAX, i32::MIN]),
            Values::TimeUs(vec![0, 86_400_000_000]),
            Values::TimestampUs(vec![i64::MIN, i64::MAX]),
            Values::Uuid(vec![0; 32]),
            Values::Bytes(ByteValues { ends: vec![0, 1], data: vec![255] }),
            text(&[0, 2], "é"),
        ];
        for values in kinds {
            let set = insert(&[1, 2], vec![cells("c", Some(&[0, 3]), values)]);
            assert_eq!(check(&vec![set.clone()]), Ok(()), "{set:?}");
        }
        let update = RowSet {
            operation: Operation::Update,
            before: vec![cells("c", None, text(&[1], "a"))],
            ..insert(&[3], vec![cells("c", None, text(&[1], "b"))])
        };
        let truncate = RowSet { operation: Operation::Truncate, ..insert(&[0, 9], vec![]) };
        assert_eq!(check(&vec![update, truncate]), Ok(()));
        assert_eq!(check(&vec![]), Ok(()));
    }

    #[test]
    fn slots_presence_and_codes() {
        refused_cells(None, Values::Int16(vec![1]), "slot");
        refused_cells(None, Values::Int64(vec![1, 2, 3]), "slot");
        refused_cells(None, Values::Uuid(vec![0; 47]), "16 bytes");
        refused_cells(None, Values::Uuid(vec![0; 31]), "16 bytes");
        refused_cells(Some(&[0]), Values::Int16(vec![1, 2]), "one code a row");
        refused_cells(Some(&[0, 4]), Values::Int16(vec![1, 2]), "presence is");
        refused_cells(None, Values::Boolean(vec![0, 2]), "boolean");
    }

    #[test]
    fn ends_of_texts_and_bytes() {
        for (ends, data) in [(&[2, 1][..], "ab"), (&[1, 3], "ab"), (&[1, 2], "aé"), (&[1, u32::MAX], "ab")] {
            refused_cells(None, text(ends, data), "ends");
        }
        let bytes = |ends: &[u32]| Values::Bytes(ByteValues { ends: ends.into(), data: vec![0, 0] });
        refused_cells(None, bytes(&[2, 1]), "ends");
        refused_cells(None, bytes(&[1, 3]), "ends");
        refused_cells(None, text(&[1], "ab"), "slot");
    }

    #[test]
    fn names_and_order() {
        let ints = |name: &str| cells(name, None, Values::Int16(vec![1]));
        refused(vec![insert(&[1], vec![ints("")])], 0, Some(0), "63 bytes");
        refused(vec![insert(&[1], vec![ints("ok"), ints(&"x".repeat(64))])], 0, Some(1), "63 bytes");
        refused(vec![insert(&[1], vec![ints("a"), ints("a")])], 0, Some(1), "once");
        let before = RowSet { before: vec![ints("a"), ints("a")], ..insert(&[1], vec![ints("a")]) };
        refused(vec![before], 0, Some(2), "once");
        refused(vec![insert(&[2, 1], vec![])], 0, None, "rise");
        refused(vec![insert(&[1, 1], vec![])], 0, None, "rise");
        refused(
            vec![insert(&[1, 5], vec![]), insert(&[2], vec![]), insert(&[3, 5], vec![])],
            2,
            None,
            "once in a call",
        );
        for operation in [Operation::Delete, Operation::Truncate] {
            let set = RowSet { operation, ..insert(&[1], vec![ints("a")]) };
            refused(vec![set], 0, None, "empty for delete");
        }
    }

    #[test]
    fn nothing_is_free() {
        let empty = bytes(&vec![insert(&[], vec![]); 1000]);
        assert!(empty >= 1000 * size_of::<RowSet>());
        let one = bytes(&vec![insert(&[1], vec![cells("name", Some(&[0]), text(&[3], "abc"))])]);
        let none = bytes(&vec![insert(&[], vec![])]);
        assert_eq!(one - none, 4 + size_of::<Cells>() + 4 + 1 + 4 + 3);
    }
}
