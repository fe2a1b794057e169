//! Rows for a granted table of Postgres: what [`crate::host::rows::apply`] takes.
//!
//! Holds: builders over the two records of the contract. Refuses to decide how rows are applied: that is the host's part,
//! written in `wit/v0.1/world.wit`. Read next: [`RowSet::of_group`], which passes a group of a batch on as it is.

use crate::batch::Group;
use crate::bindings::walgate::cdc::change as raw;
use crate::column::{self, NOT_SENT, NULL, UNCHANGED, VALUE};
use crate::{Cell, Operation, Relation, Value};

pub use crate::bindings::walgate::cdc::rows::{Cells, RowSet};
pub use raw::Values;

/// Cells of one column are of two types. Names the column; never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column:?} has a {first} first and a {other} later; a column has one type")]
pub struct MixedCells {
    /// The column.
    pub column: String,
    /// The type of its first value.
    pub first: &'static str,
    /// The type that does not fit.
    pub other: &'static str,
}

impl RowSet {
    /// Changes of one operation for one target, without a row yet. The target is a name of the grant: that of
    /// `[grant.rows.NAME]`, or under `"*"` the name of a table.
    pub fn new(target: impl Into<String>, operation: Operation) -> Self {
        Self { target: target.into(), operation, ordinals: Vec::new(), after: Vec::new(), before: Vec::new() }
    }

    /// Where each row belongs among all sets of the call: one a row, rising, each once in the call. As a rule the
    /// ordinals of the batch ([`crate::Row::ordinal`]).
    #[must_use]
    pub fn ordinals(mut self, ordinals: impl IntoIterator<Item = u32>) -> Self {
        self.ordinals.extend(ordinals);
        self
    }

    /// Adds a column of the new rows: of an insert, an update or a read.
    #[must_use]
    pub fn after(mut self, cells: Cells) -> Self {
        self.after.push(cells);
        self
    }

    /// Adds a column of the old rows: the key a delete or an update finds them by.
    #[must_use]
    pub fn before(mut self, cells: Cells) -> Self {
        self.before.push(cells);
        self
    }

    /// A group of a batch as it is, for a target with the column names of `relation`; as a rule
    /// [`Group::relation`]. Copies the columns, since the batch is only lent.
    pub fn of_group(target: impl Into<String>, group: Group<'_>, relation: &Relation) -> Self {
        let side =
            |columns: &[raw::Column]| columns.iter().filter_map(|column| cells(column, group, relation)).collect();
        Self {
            target: target.into(),
            operation: group.operation(),
            ordinals: group.ordinals().to_vec(),
            after: side(&group.raw.after),
            before: side(&group.raw.before),
        }
    }
}

/// One column under its name. A column beyond those of `relation` keeps the name it has in the source.
fn cells(column: &raw::Column, group: Group<'_>, relation: &Relation) -> Option<Cells> {
    let index = usize::from(column.index);
    // The group's own relation has every index: that was checked when the batch was made.
    let info = relation.columns.get(index).or_else(|| group.relation.columns.get(index))?;
    Some(Cells { name: info.name.clone(), presence: column.presence.clone(), values: column.values.clone() })
}

impl Cells {
    /// A column in which every row has a value.
    pub fn new(name: impl Into<String>, values: Values) -> Self {
        Self { name: name.into(), presence: None, values }
    }

    /// A column made of cells, one a row. Its type is that of the first value; without any value it is a text, which is as
    /// good as any for NULL.
    ///
    /// # Errors
    /// When a later value has another type.
    pub fn collect<'a>(name: impl Into<String>, cells: impl IntoIterator<Item = Cell<'a>>) -> Result<Self, MixedCells> {
        let name = name.into();
        let cells: Vec<Cell<'a>> = cells.into_iter().collect();
        let first = cells.iter().find_map(|cell| cell.value()).unwrap_or(Value::Text(""));
        let mut values = empty(first);
        for cell in &cells {
            if let Err(other) = push(&mut values, cell.value().unwrap_or(zero(first))) {
                return Err(MixedCells { column: name, first: first.kind(), other });
            }
        }
        let whole = cells.iter().all(|cell| cell.value().is_some());
        let presence = if whole { None } else { Some(cells.iter().map(code).collect()) };
        Ok(Self { name, presence, values })
    }

    /// What the host would refuse in a set of `rows` rows, if anything.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn defect(&self, rows: usize) -> Option<&'static str> {
        if !(1..=63).contains(&self.name.len()) {
            return Some("the name of a column has not 1 to 63 bytes");
        }
        if let Values::Boolean(values) = &self.values
            && values.iter().any(|value| *value > 1)
        {
            return Some("a boolean that is neither 0 nor 1");
        }
        column::defect(self.presence.as_deref(), &self.values, rows)
    }
}

fn code(cell: &Cell<'_>) -> u8 {
    match cell {
        Cell::Value(_) => VALUE,
        Cell::Null => NULL,
        Cell::Unchanged => UNCHANGED,
        Cell::NotSent => NOT_SENT,
    }
}

/// What fills the slot of a row without a value.
fn zero(like: Value<'_>) -> Value<'static> {
    match like {
        Value::Bool(_) => Value::Bool(false),
        Value::Int16(_) => Value::Int16(0),
        Value::Int32(_) => Value::Int32(0),
        Value::Int64(_) => Value::Int64(0),
        Value::Float32(_) => Value::Float32(0.0),
        Value::Float64(_) => Value::Float64(0.0),
        Value::Date(_) => Value::Date(crate::Date(0)),
        Value::Time(_) => Value::Time(crate::Time(0)),
        Value::Timestamp(_) => Value::Timestamp(crate::Timestamp(0)),
        Value::Uuid(_) => Value::Uuid(crate::Uuid([0; 16])),
        Value::Bytes(_) => Value::Bytes(&[]),
        Value::Text(_) => Value::Text(""),
    }
}

fn empty(like: Value<'_>) -> Values {
    match like {
        Value::Bool(_) => Values::Boolean(Vec::new()),
        Value::Int16(_) => Values::Int16(Vec::new()),
        Value::Int32(_) => Values::Int32(Vec::new()),
        Value::Int64(_) => Values::Int64(Vec::new()),
        Value::Float32(_) => Values::Float32(Vec::new()),
        Value::Float64(_) => Values::Float64(Vec::new()),
        Value::Date(_) => Values::DateDays(Vec::new()),
        Value::Time(_) => Values::TimeUs(Vec::new()),
        Value::Timestamp(_) => Values::TimestampUs(Vec::new()),
        Value::Uuid(_) => Values::Uuid(Vec::new()),
        Value::Bytes(_) => Values::Bytes(raw::ByteValues { ends: Vec::new(), data: Vec::new() }),
        Value::Text(_) => Values::Text(raw::TextValues { ends: Vec::new(), data: String::new() }),
    }
}

/// Appends a value, or answers its type when it is another one.
fn push(values: &mut Values, value: Value<'_>) -> Result<(), &'static str> {
    match (values, value) {
        (Values::Boolean(list), Value::Bool(v)) => list.push(u8::from(v)),
        (Values::Int16(list), Value::Int16(v)) => list.push(v),
        (Values::Int32(list), Value::Int32(v)) => list.push(v),
        (Values::Int64(list), Value::Int64(v)) => list.push(v),
        (Values::Float32(list), Value::Float32(v)) => list.push(v),
        (Values::Float64(list), Value::Float64(v)) => list.push(v),
        (Values::DateDays(list), Value::Date(v)) => list.push(v.0),
        (Values::TimeUs(list), Value::Time(v)) => list.push(v.0),
        (Values::TimestampUs(list), Value::Timestamp(v)) => list.push(v.0),
        (Values::Uuid(list), Value::Uuid(v)) => list.extend(v.0),
        (Values::Bytes(list), Value::Bytes(v)) => {
            list.data.extend_from_slice(v);
            list.ends.push(end(list.data.len()));
        }
        (Values::Text(list), Value::Text(v)) => {
            list.data.push_str(v);
            list.ends.push(end(list.data.len()));
        }
        (_, other) => return Err(other.kind()),
    }
    Ok(())
}

/// A guest's memory has 32 bits, so no column is longer than this counts; the host refuses one that is.
fn end(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Date, Time, Timestamp, Uuid};

    #[test]
    fn cells_of_every_type_keep_their_states() {
        let all = [
            Value::Bool(true),
            Value::Int16(-1),
            Value::Int32(-1),
            Value::Int64(-1),
            Value::Float32(0.5),
            Value::Float64(0.5),
            Value::Date(Date(-1)),
            Value::Time(Time(1)),
            Value::Timestamp(Timestamp(-1)),
            Value::Uuid(Uuid([7; 16])),
            Value::Bytes(&[0, 255]),
            Value::Text("é"),
        ];
        for value in all {
            let cells = [Cell::Null, Cell::Value(value), Cell::Unchanged, Cell::NotSent, Cell::Value(value)];
            let made = Cells::collect("c", cells).unwrap();
            assert_eq!(made.defect(5), None, "{value:?}");
            let column = raw::Column { index: 0, presence: made.presence, values: made.values };
            let info = crate::testing::Table::new("s", "t").column("c", "text").relation().columns[0].clone();
            let read = column::Column { info: &info, raw: &column };
            assert_eq!((0..5).map(|row| read.cell(row).unwrap()).collect::<Vec<_>>(), cells, "{value:?}");
        }
    }

    #[test]
    fn a_column_without_nulls_has_no_codes_and_one_without_values_is_text() {
        assert_eq!(
            Cells::collect("c", [Cell::Value(Value::Int16(1))]).unwrap(),
            Cells::new("c", Values::Int16(vec![1]))
        );
        let nulls = Cells::collect("c", [Cell::Null, Cell::Null]).unwrap();
        assert_eq!((nulls.presence.as_deref(), nulls.defect(2)), (Some(&[1, 1][..]), None));
        assert!(matches!(nulls.values, Values::Text(_)));
    }

    #[test]
    fn two_types_in_one_column_are_an_error_without_the_values() {
        let cells = [Cell::Value(Value::Text("hostile")), Cell::Null, Cell::Value(Value::Int64(77))];
        let error = Cells::collect("c", cells).unwrap_err();
        assert_eq!(error.to_string(), "column \"c\" has a text first and a int64 later; a column has one type");
    }
}
