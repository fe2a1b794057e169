//! One cell of one row, and how it is read as a Rust type.
//!
//! Holds: the four states of a cell, the cases of a value, and errors that name the column. Refuses to put a value
//! into an error or into `Debug`: every value of a row may be personal data. Read next: [`crate::Row::get`].

use std::fmt;

use crate::{Date, Time, Timestamp, Uuid};

/// What a row has in one column.
///
/// Only [`Cell::Null`] means NULL: the other two say that nothing is known, which is not the same.
#[derive(Clone, Copy, PartialEq)]
pub enum Cell<'a> {
    /// A value.
    Value(Value<'a>),
    /// NULL.
    Null,
    /// An update did not touch this large value, so the server did not send it: leave what you have.
    Unchanged,
    /// A column outside the key in an old row: the replica identity does not send it.
    NotSent,
}

impl<'a> Cell<'a> {
    /// The value, if there is one.
    pub fn value(self) -> Option<Value<'a>> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }

    /// `value`, `null`, `unchanged` or `not-sent`.
    pub fn state(self) -> &'static str {
        match self {
            Self::Value(_) => "value",
            Self::Null => "null",
            Self::Unchanged => "unchanged",
            Self::NotSent => "not-sent",
        }
    }
}

impl fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            other => f.write_str(other.state()),
        }
    }
}

/// A value, as the table of `wit/v0.1/change.wit` maps the types of Postgres.
///
/// Types without a case of their own (numeric, json, arrays, enums, …) are [`Value::Text`]: what Postgres prints.
#[derive(Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "each case is the type it names")]
pub enum Value<'a> {
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
    Bytes(&'a [u8]),
    Text(&'a str),
}

impl Value<'_> {
    /// The name of the case, for errors and logs.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Bool(_) => "boolean",
            Self::Int16(_) => "int16",
            Self::Int32(_) => "int32",
            Self::Int64(_) => "int64",
            Self::Float32(_) => "float32",
            Self::Float64(_) => "float64",
            Self::Date(_) => "date",
            Self::Time(_) => "time",
            Self::Timestamp(_) => "timestamp",
            Self::Uuid(_) => "uuid",
            Self::Bytes(_) => "bytes",
            Self::Text(_) => "text",
        }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(..)", self.kind())
    }
}

/// A cell could not be read as asked. Names the column; never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// The row has no such column: it is not granted, not asked for, or does not exist.
    #[error("{relation} has no column {column:?} in this plugin's grant")]
    NoColumn {
        /// Schema and name of the table.
        relation: String,
        /// The column asked for.
        column: String,
    },
    /// The cell has no value. Read it as an `Option` for NULL, or as a [`Cell`] to tell all four states apart.
    #[error("column {column:?} is {state} where a {wanted} was read")]
    NoValue {
        /// The column.
        column: String,
        /// `null`, `unchanged` or `not-sent`.
        state: &'static str,
        /// The type asked for.
        wanted: &'static str,
    },
    /// The value is of another type.
    #[error("column {column:?} holds a {found} where a {wanted} was read")]
    OtherKind {
        /// The column.
        column: String,
        /// The case that is there.
        found: &'static str,
        /// The type asked for.
        wanted: &'static str,
    },
}

/// A Rust type that a cell can be read as.
///
/// Integers and floats widen, nothing narrows. `Option<T>` reads NULL as none; a cell that is unchanged or not sent is
/// an error for every type but [`Cell`], because no value can stand for it.
pub trait FromCell<'a>: Sized {
    /// Reads the cell of the column of that name.
    fn from_cell(column: &str, cell: Cell<'a>) -> Result<Self, CellError>;
}

impl<'a> FromCell<'a> for Cell<'a> {
    fn from_cell(_column: &str, cell: Cell<'a>) -> Result<Self, CellError> {
        Ok(cell)
    }
}

impl<'a> FromCell<'a> for Value<'a> {
    fn from_cell(column: &str, cell: Cell<'a>) -> Result<Self, CellError> {
        cell.value().ok_or_else(|| no_value(column, cell, "value"))
    }
}

impl<'a, T: FromCell<'a>> FromCell<'a> for Option<T> {
    fn from_cell(column: &str, cell: Cell<'a>) -> Result<Self, CellError> {
        match cell {
            Cell::Null => Ok(None),
            cell => T::from_cell(column, cell).map(Some),
        }
    }
}

fn no_value(column: &str, cell: Cell<'_>, wanted: &'static str) -> CellError {
    CellError::NoValue { column: column.to_owned(), state: cell.state(), wanted }
}

/// Implements [`FromCell`] for a type and the value cases it takes.
macro_rules! read_as {
    ($($type:ty, $wanted:literal: $($case:ident($name:ident) => $read:expr),+;)+) => {$(
        impl<'a> FromCell<'a> for $type {
            fn from_cell(column: &str, cell: Cell<'a>) -> Result<Self, CellError> {
                match cell {
                    $(Cell::Value(Value::$case($name)) => Ok($read),)+
                    Cell::Value(other) => Err(CellError::OtherKind {
                        column: column.to_owned(),
                        found: other.kind(),
                        wanted: $wanted,
                    }),
                    empty => Err(no_value(column, empty, $wanted)),
                }
            }
        }
    )+};
}

read_as! {
    bool, "boolean": Bool(v) => v;
    i16, "int16": Int16(v) => v;
    i32, "int32": Int32(v) => v, Int16(v) => v.into();
    i64, "int64": Int64(v) => v, Int32(v) => v.into(), Int16(v) => v.into();
    f32, "float32": Float32(v) => v;
    f64, "float64": Float64(v) => v, Float32(v) => v.into();
    Date, "date": Date(v) => v;
    Time, "time": Time(v) => v;
    Timestamp, "timestamp": Timestamp(v) => v;
    Uuid, "uuid": Uuid(v) => v;
    &'a [u8], "bytes": Bytes(v) => v;
    &'a str, "text": Text(v) => v;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_floats_widen_and_nothing_narrows() {
        let small = Cell::Value(Value::Int16(-7));
        assert_eq!(i64::from_cell("n", small), Ok(-7));
        assert_eq!(i32::from_cell("n", small), Ok(-7));
        assert_eq!(f64::from_cell("n", Cell::Value(Value::Float32(0.5))), Ok(0.5));
        let large = Cell::Value(Value::Int64(1));
        let error = i32::from_cell("n", large).unwrap_err();
        assert_eq!(error, CellError::OtherKind { column: "n".into(), found: "int64", wanted: "int32" });
    }

    #[test]
    fn only_null_reads_as_none() {
        type Text<'a> = Option<&'a str>;
        assert_eq!(Text::from_cell("t", Cell::Value(Value::Text("x"))), Ok(Some("x")));
        assert_eq!(Text::from_cell("t", Cell::Null), Ok(None));
        for cell in [Cell::Unchanged, Cell::NotSent] {
            let error = Text::from_cell("t", cell).unwrap_err();
            assert!(error.to_string().contains(cell.state()), "{error}");
        }
        assert_eq!(Cell::from_cell("t", Cell::Unchanged), Ok(Cell::Unchanged));
    }

    #[test]
    fn errors_and_debug_name_the_column_and_hold_no_value() {
        let cell = Cell::Value(Value::Text("hostile-value"));
        let error = i64::from_cell("email", cell).unwrap_err();
        for text in [error.to_string(), format!("{error:?}"), format!("{cell:?}"), format!("{:?}", cell.value())] {
            assert!(!text.contains("hostile"), "{text}");
        }
        assert!(error.to_string().contains("\"email\""));
    }
}
