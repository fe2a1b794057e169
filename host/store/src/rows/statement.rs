//! The text of each statement on a target.
//!
//! Holds: SQL over quoted names from the catalogs; no text of a plugin is ever part of it. Refuses to know rows.
//! Read next: [`super::stage`].

use std::fmt::Write as _;

use super::group::Action;
use super::mask::{Mask, Masks};
use super::shape::Shape;
use super::target::quoted;
use super::view::Kinds;

/// A column of what is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// The statement that the row is for.
    Group,
    /// A number of our own.
    Number,
    /// A column of the key, by its place in the key.
    Key(usize),
    /// The same of the key that the row had.
    Old(usize),
    /// A column outside the key.
    Value(usize),
}

impl Field {
    fn name(self) -> String {
        match self {
            Self::Group => "g".to_owned(),
            Self::Number => "i".to_owned(),
            Self::Key(place) => format!("k{place}"),
            Self::Old(place) => format!("o{place}"),
            Self::Value(column) => format!("v{column}"),
        }
    }

    fn column(self, shape: &Shape) -> Option<usize> {
        match self {
            Self::Group | Self::Number => None,
            Self::Key(place) | Self::Old(place) => shape.key.get(place).map(|key| key.column),
            Self::Value(column) => Some(column),
        }
    }

    /// The type in which it travels.
    fn staged(self, shape: &Shape, kinds: &Kinds) -> &'static str {
        match self {
            Self::Group => return "int2",
            Self::Number => return "int4",
            _ => {}
        }
        let column = self.column(shape);
        let kind = column.and_then(|column| kinds.get(column).copied().flatten());
        match (kind, column.and_then(|column| shape.columns.get(column))) {
            (Some(kind), Some(column)) => column.staged(kind),
            _ => "text",
        }
    }
}

/// The columns of a temporary table for these fields.
pub(super) fn definitions(fields: &[Field], shape: &Shape, kinds: &Kinds) -> String {
    let definition = |field: &Field| format!("{} {}", field.name(), field.staged(shape, kinds));
    fields.iter().map(definition).collect::<Vec<_>>().join(", ")
}

/// Where a statement has its rows from.
pub(super) enum Source<'a> {
    /// A temporary table with this name; the first parameter is the group.
    Stage(&'a str),
    /// One row of these fields, each a parameter.
    Parameters(&'a [Field]),
}

/// The text of statements on one target.
pub(super) struct Texts<'a> {
    /// The target.
    pub(super) shape: &'a Shape,
    /// In which form its values are staged.
    pub(super) kinds: &'a Kinds,
    /// Its sets of columns.
    pub(super) masks: &'a Masks,
    /// Keys have several spellings, so writing to a row writes its key, too.
    pub(super) respells: bool,
}

impl Texts<'_> {
    /// The statement of a group; `None` when there is nothing to write.
    pub(super) fn of(&self, action: Action, mask: Mask, source: &Source<'_>) -> Option<String> {
        let table = &self.shape.table;
        let source = self.source(source);
        let from = format!("FROM {source}");
        let columns = self.columns(mask);
        Some(match action {
            Action::Delete => {
                format!("DELETE FROM {table} AS t USING {source} AND {}", self.matches(Field::Key))
            }
            Action::Update => {
                let mut list = self.assigned(&columns, |field| self.staged("s", field));
                if self.respells {
                    list.extend(self.assigned_key(|field| self.staged("s", field)));
                }
                if list.is_empty() {
                    return None;
                }
                format!("UPDATE {table} AS t SET {} {from} AND {}", list.join(", "), self.matches(Field::Key))
            }
            Action::Upsert => {
                let list = self.written(&columns, "s");
                format!("{} {from} {}", self.insert(&columns, &list), self.on_conflict(&columns))
            }
            Action::Append => format!("{} {from}", self.insert(&columns, &self.written(&columns, "s"))),
            Action::Move(kept) => self.moving(&columns, kept, mask, &source),
        })
    }

    /// The rows as `s`, up to a condition that more may be added to.
    fn source(&self, source: &Source<'_>) -> String {
        match source {
            Source::Stage(name) => format!("{name} AS s WHERE s.g = $1"),
            Source::Parameters(fields) => {
                let field = |(number, field): (usize, &Field)| {
                    format!("${number}::{} AS {}", field.staged(self.shape, self.kinds), field.name())
                };
                let fields: Vec<String> = (1..).zip(*fields).map(field).collect();
                format!("(SELECT {}) AS s WHERE true", fields.join(", "))
            }
        }
    }

    /// A statement that copies straight into the target.
    pub(super) fn copy(&self, mask: Mask) -> String {
        format!("COPY {} ({}) FROM STDIN BINARY", self.shape.table, self.names(&self.columns(mask)))
    }

    /// Whether the columns of a set can be copied straight into the target.
    pub(super) fn is_binary(&self, mask: Mask) -> bool {
        self.columns(mask).iter().all(|at| {
            let kind = self.kinds.get(*at).copied().flatten();
            kind.zip(self.shape.columns.get(*at)).is_some_and(|(kind, column)| column.is_binary(kind))
        })
    }

    /// For each staged key the lowest number of those that the table takes for the same.
    pub(super) fn likes(&self, stage: &str) -> String {
        let keys: Vec<String> = self.key_places().map(|place| self.compared(Field::Key(place), place)).collect();
        format!("SELECT s.i, min(s.i) OVER (PARTITION BY {}) FROM {stage} AS s", keys.join(", "))
    }

    /// The old row is deleted, and what it had goes into the new one where the update left it alone.
    fn moving(&self, columns: &[usize], kept: Mask, mask: Mask, source: &str) -> String {
        let kept: Vec<usize> = self.columns(kept).into_iter().filter(|at| !self.masks.has(mask, *at)).collect();
        let mut returned: Vec<String> = Vec::new();
        for field in self.key_places().map(Field::Key).chain(columns.iter().copied().map(Field::Value)) {
            returned.push(format!("s.{0} AS {0}", field.name()));
        }
        let mut list = self.written(columns, "gone");
        for at in &kept {
            returned.push(format!("t.{} AS u{at}", self.name(*at)));
            list.push(format!("gone.u{at}"));
        }
        let all: Vec<usize> = columns.iter().chain(&kept).copied().collect();
        format!(
            "WITH gone AS (DELETE FROM {} AS t USING {source} AND {} RETURNING {}) {} FROM gone {}",
            self.shape.table,
            self.matches(Field::Old),
            returned.join(", "),
            self.insert(&all, &list),
            self.on_conflict(&all),
        )
    }

    fn insert(&self, columns: &[usize], list: &[String]) -> String {
        let always = |at: usize| self.shape.columns.get(at).is_some_and(|column| column.identity_always);
        let overriding = columns.iter().copied().chain(self.shape.key.iter().map(|key| key.column)).any(always);
        let mut text = format!("INSERT INTO {} AS t", self.shape.table);
        // A row of defaults alone names no column.
        if !list.is_empty() {
            let _ = write!(text, " ({})", self.names(columns));
        }
        if overriding {
            text.push_str(" OVERRIDING SYSTEM VALUE");
        }
        let _ = write!(text, " SELECT {}", list.join(", "));
        text
    }

    fn on_conflict(&self, columns: &[usize]) -> String {
        let keys: Vec<String> = self.shape.key.iter().map(|key| self.name(key.column)).collect();
        let mut list = self.assigned(columns, |field| self.excluded(field));
        if self.respells {
            list.extend(self.assigned_key(|field| self.excluded(field)));
        }
        let action = if list.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", list.join(", ")) };
        format!("ON CONFLICT ({}) DO {action}", keys.join(", "))
    }

    /// `column = value` for each column that an update may write.
    fn assigned(&self, columns: &[usize], value: impl Fn(Field) -> String) -> Vec<String> {
        let writable = |at: &&usize| self.shape.columns.get(**at).is_some_and(|column| !column.identity_always);
        columns.iter().filter(writable).map(|at| format!("{} = {}", self.name(*at), value(Field::Value(*at)))).collect()
    }

    fn assigned_key(&self, value: impl Fn(Field) -> String) -> Vec<String> {
        let writable = |at: usize| self.shape.columns.get(at).is_some_and(|column| !column.identity_always);
        let keys = self.shape.key.iter().enumerate().filter(|(_, key)| writable(key.column));
        keys.map(|(place, key)| format!("{} = {}", self.name(key.column), value(Field::Key(place)))).collect()
    }

    fn excluded(&self, field: Field) -> String {
        format!("EXCLUDED.{}", field.column(self.shape).map(|at| self.name(at)).unwrap_or_default())
    }

    /// Key columns, then the others.
    fn names(&self, columns: &[usize]) -> String {
        let keys = self.shape.key.iter().map(|key| key.column);
        keys.chain(columns.iter().copied()).map(|at| self.name(at)).collect::<Vec<_>>().join(", ")
    }

    /// Their values, in the same order.
    fn written(&self, columns: &[usize], alias: &str) -> Vec<String> {
        let keys = self.key_places().map(Field::Key);
        keys.chain(columns.iter().copied().map(Field::Value)).map(|field| self.staged(alias, field)).collect()
    }

    /// The rows of the table that staged keys mean.
    fn matches(&self, field: impl Fn(usize) -> Field) -> String {
        let keys = self.shape.key.iter().enumerate().map(|(place, key)| {
            format!("t.{} {} {}", self.name(key.column), key.equals, self.compared(field(place), place))
        });
        keys.collect::<Vec<_>>().join(" AND ")
    }

    fn compared(&self, field: Field, place: usize) -> String {
        let collate = self.shape.key.get(place).map_or("", |key| key.collate.as_str());
        format!("({}{collate})", self.staged("s", field))
    }

    /// A staged value as the type of its column, without the modifier of the column.
    fn staged(&self, alias: &str, field: Field) -> String {
        let name = field.name();
        match field.column(self.shape).and_then(|at| self.shape.columns.get(at)) {
            Some(column) => format!("{alias}.{name}::{}", column.cast),
            None => format!("{alias}.{name}"),
        }
    }

    fn key_places(&self) -> std::ops::Range<usize> {
        0..self.shape.key.len()
    }

    fn name(&self, column: usize) -> String {
        self.shape.columns.get(column).map(|column| quoted(&column.name)).unwrap_or_default()
    }

    fn columns(&self, mask: Mask) -> Vec<usize> {
        (0..self.shape.columns.len()).filter(|column| self.masks.has(mask, *column)).collect()
    }
}
