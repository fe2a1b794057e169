//! A row filter compiled against a relation, and what a change is to a plugin that sees only the rows it lets through.
//!
//! Holds: the columns by their place on the wire, the operator's values in the types of those columns, three-valued logic as
//! in SQL. Columns of a filter are read here and handed to nobody. Refuses to know treatments and batches.
//!
//! A plugin sees a table that has only the rows for which the filter is true. So an update that moves a row out of it is a
//! delete, one that moves a row into it is an insert, and one of a row that stays outside is nothing. That takes the old row:
//! a filter of a grant with updates or deletes may only look at columns of the replica identity (of all columns under
//! identity full), the same rule that Postgres has for filters of publications. Everything else would either show the key of
//! a row that was never granted or lose a delete. What cannot be decided on a row is an error, never a guess.

use std::cmp::Ordering;

use crate::assemble::{Relation, StreamColumn};
use crate::batch::Operation;
use crate::column::ValueError;
use crate::grant::filter::{Comparison, Condition, Filter, Literal, MAX_COLUMNS};
use crate::grant::{Operations, TableGrant};
use crate::pgoutput::{Cell, DecodeError, OldRow, RowBody, RowKind, TupleWalk};
use crate::relation::ReplicaIdentity;

use super::error::{FilterError, MinimizeError};
use super::operand::{Family, Operand};
use super::project::Shape;

pub(super) struct RowFilter {
    /// In the order of the wire.
    columns: Vec<Looked>,
    condition: Node,
    /// Whether an old row that was not sent has the same key as the new one.
    key_tells: bool,
}

struct Looked {
    /// Its place on the wire.
    at: usize,
    name: String,
    type_name: String,
}

enum Node {
    Compare(usize, Comparison, Operand),
    In(usize, Vec<Operand>),
    IsNull(usize),
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
}

/// What a row has in a column of the filter.
#[derive(Clone, Copy)]
enum Known<'a> {
    Nothing,
    Null,
    Text(&'a [u8]),
}

type Row<'a> = [Known<'a>; MAX_COLUMNS];

/// The values a condition may have, given what is known: a set of false, unknown and true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Truth(u8);

impl Truth {
    const FALSE: Self = Self(1);
    const UNKNOWN: Self = Self(2);
    const TRUE: Self = Self(4);
    const ANY: Self = Self(7);

    fn of(value: bool) -> Self {
        if value { Self::TRUE } else { Self::FALSE }
    }

    fn not(self) -> Self {
        Self(self.0 & 2 | self.0 >> 2 | (self.0 & 1) << 2)
    }

    fn and(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        let unknown = a & 2 != 0 && b & 6 != 0 || b & 2 != 0 && a & 6 != 0;
        Self((a | b) & 1 | u8::from(unknown) << 1 | a & b & 4)
    }

    fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }

    /// Whether the row is let through; none when that depends on what is not known.
    fn decided(self) -> Option<bool> {
        match self {
            Self::TRUE => Some(true),
            _ if self.0 & Self::TRUE.0 == 0 => Some(false),
            _ => None,
        }
    }
}

impl RowFilter {
    pub(super) fn new(filter: &Filter, grant: &TableGrant, source: &Relation) -> Result<Self, MinimizeError> {
        Self::compile(filter, grant.operations, source)
            .map_err(|error| MinimizeError::filter(&source.namespace, &source.name, error))
    }

    fn compile(filter: &Filter, operations: Operations, source: &Relation) -> Result<Self, FilterError> {
        let mut found = Vec::with_capacity(filter.columns().len());
        for name in filter.columns() {
            let at = source.columns.iter().position(|column| column.name == *name);
            let at = at.ok_or_else(|| FilterError::Missing { column: name.clone() })?;
            found.push(at);
        }
        let columns: Vec<&StreamColumn> = found.iter().filter_map(|at| source.columns.get(*at)).collect();
        let follows = operations.contains(Operation::Update) || operations.contains(Operation::Delete);
        // Without an identity the server refuses updates and deletes; all columns belong to identity full.
        let has_old = !matches!(source.identity, ReplicaIdentity::Full | ReplicaIdentity::Nothing);
        if let Some(column) = columns.iter().find(|column| follows && has_old && !column.key) {
            return Err(FilterError::OutsideIdentity { column: column.name.clone() });
        }
        let mut looked: Vec<Looked> = found
            .iter()
            .zip(&columns)
            .map(|(at, column)| Looked { at: *at, name: column.name.clone(), type_name: column.type_name.clone() })
            .collect();
        looked.sort_by_key(|column| column.at);
        let slots: Vec<usize> =
            found.iter().map(|at| looked.iter().position(|column| column.at == *at).unwrap_or(MAX_COLUMNS)).collect();
        let condition = node(filter.condition(), &columns, &slots)?;
        Ok(Self { columns: looked, condition, key_tells: has_old })
    }

    /// What the change is to the plugin; none when it is nothing.
    pub(super) fn judge(&self, shape: &Shape, body: RowBody<'_>) -> Result<Option<Operation>, MinimizeError> {
        let row = |error| MinimizeError::row(&shape.relation, error);
        let (mut old, mut new): (Row<'_>, Row<'_>) = ([Known::Nothing; MAX_COLUMNS], [Known::Nothing; MAX_COLUMNS]);
        let mut walk = body.walk();
        let sent = walk.old().map_err(row)?;
        if sent != OldRow::Absent {
            self.read(&mut walk, shape.width, sent, &mut old).map_err(row)?;
            if body.kind() == RowKind::Update {
                walk.new_tag().map_err(row)?;
            }
        }
        if body.kind() != RowKind::Delete {
            self.read(&mut walk, shape.width, OldRow::Full, &mut new).map_err(row)?;
        }
        if body.kind() == RowKind::Update {
            for (old, new) in old.iter_mut().zip(&mut new) {
                match (&old, &new) {
                    (Known::Nothing, _) if sent == OldRow::Absent && self.key_tells => *old = *new,
                    (_, Known::Nothing) => *new = *old,
                    _ => {}
                }
            }
        }
        let was = |row: &Row<'_>| self.lets_through(shape, row);
        Ok(match body.kind() {
            RowKind::Insert => was(&new)?.then_some(Operation::Insert),
            RowKind::Delete => was(&old)?.then_some(Operation::Delete),
            RowKind::Update => match (was(&old)?, was(&new)?) {
                (true, true) => Some(Operation::Update),
                (true, false) => Some(Operation::Delete),
                (false, true) => Some(Operation::Insert),
                (false, false) => None,
            },
        })
    }

    fn read<'a>(
        &self,
        walk: &mut TupleWalk<'a>,
        width: u16,
        tuple: OldRow,
        row: &mut Row<'a>,
    ) -> Result<(), DecodeError> {
        walk.columns(width)?;
        let mut looked = self.columns.iter().map(|column| column.at).zip(row.iter_mut()).peekable();
        for at in 0..usize::from(width) {
            let cell = walk.cell()?;
            if let Some((_, known)) = looked.next_if(|(column, _)| *column == at) {
                *known = match cell {
                    Cell::Text(text) => Known::Text(text),
                    // Outside of the key this is no NULL, and a key is not NULL.
                    Cell::Null if tuple == OldRow::Key => Known::Nothing,
                    Cell::Null => Known::Null,
                    Cell::Unchanged => Known::Nothing,
                };
            }
        }
        Ok(())
    }

    fn lets_through(&self, shape: &Shape, row: &Row<'_>) -> Result<bool, MinimizeError> {
        let relation = &shape.relation;
        match self.truth(&self.condition, row).map(Truth::decided) {
            Ok(Some(decided)) => Ok(decided),
            Ok(None) => Err(MinimizeError::undecided(relation)),
            Err(slot) => {
                let (name, type_name) = self.columns.get(slot).map_or(("", ""), |c| (&c.name, &c.type_name));
                Err(MinimizeError::hidden_value(relation, name, type_name, ValueError::Form))
            }
        }
    }

    /// Fails with the slot of a column whose text is not of its type.
    fn truth(&self, node: &Node, row: &Row<'_>) -> Result<Truth, usize> {
        let known = |slot: &usize| row.get(*slot).copied().unwrap_or(Known::Nothing);
        Ok(match node {
            Node::IsNull(slot) => match known(slot) {
                Known::Nothing => Truth(Truth::TRUE.0 | Truth::FALSE.0),
                Known::Null => Truth::TRUE,
                Known::Text(_) => Truth::FALSE,
            },
            Node::Compare(slot, comparison, operand) => match known(slot) {
                Known::Nothing => Truth::ANY,
                Known::Null => Truth::UNKNOWN,
                Known::Text(text) => Truth::of(holds(*comparison, operand.order(text).ok_or(*slot)?)),
            },
            Node::In(slot, operands) => match known(slot) {
                Known::Nothing => Truth::ANY,
                Known::Null => Truth::UNKNOWN,
                Known::Text(text) => {
                    for operand in operands {
                        if operand.order(text).ok_or(*slot)?.is_eq() {
                            return Ok(Truth::TRUE);
                        }
                    }
                    Truth::FALSE
                }
            },
            Node::All(nodes) => self.fold(nodes, row, Truth::TRUE, Truth::and)?,
            Node::Any(nodes) => self.fold(nodes, row, Truth::FALSE, Truth::or)?,
            Node::Not(node) => self.truth(node, row)?.not(),
        })
    }

    fn fold(
        &self,
        nodes: &[Node],
        row: &Row<'_>,
        first: Truth,
        join: fn(Truth, Truth) -> Truth,
    ) -> Result<Truth, usize> {
        nodes.iter().try_fold(first, |truth, node| Ok(join(truth, self.truth(node, row)?)))
    }
}

fn holds(comparison: Comparison, order: Ordering) -> bool {
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::Different => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}

/// The condition over slots, the operator's values in the types of the columns.
fn node(condition: &Condition, columns: &[&StreamColumn], slots: &[usize]) -> Result<Node, FilterError> {
    let slot = |column: &usize| slots.get(*column).copied().unwrap_or(MAX_COLUMNS);
    let operand = |column: &usize, literal: &Literal, ordered: bool| {
        let column = columns.get(*column).ok_or_else(|| FilterError::Missing { column: String::new() })?;
        let unfit = || (column.name.clone(), column.type_name.clone());
        let family = Family::of(column).ok_or_else(|| {
            let (column, type_name) = unfit();
            FilterError::Type { column, type_name }
        })?;
        if ordered && !family.is_ordered() {
            let (column, type_name) = unfit();
            return Err(FilterError::Order { column, type_name });
        }
        family.operand(literal, column)
    };
    let all = |conditions: &[Condition]| -> Result<Vec<Node>, FilterError> {
        conditions.iter().map(|part| node(part, columns, slots)).collect()
    };
    Ok(match condition {
        Condition::Compare(column, comparison, literal) => {
            let ordered = !matches!(comparison, Comparison::Equal | Comparison::Different);
            Node::Compare(slot(column), *comparison, operand(column, literal, ordered)?)
        }
        Condition::In(column, literals) => {
            let operands = literals.iter().map(|literal| operand(column, literal, false));
            Node::In(slot(column), operands.collect::<Result<_, _>>()?)
        }
        Condition::IsNull(column) => Node::IsNull(slot(column)),
        Condition::All(conditions) => Node::All(all(conditions)?),
        Condition::Any(conditions) => Node::Any(all(conditions)?),
        Condition::Not(condition) => Node::Not(Box::new(node(condition, columns, slots)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets of truths are joined as every pair of their members would be.
    #[test]
    fn what_is_not_known_is_every_truth_it_could_be() {
        let members = |set: u8| (0..3_u8).filter(move |at| set & 1 << at != 0);
        for a in 1..=7_u8 {
            assert_eq!(Truth(a).not().0, members(a).map(|at| 1 << (2 - at)).sum::<u8>());
            for b in 1..=7_u8 {
                let (mut and, mut or) = (0, 0);
                for (x, y) in members(a).flat_map(|x| members(b).map(move |y| (x, y))) {
                    and |= 1 << x.min(y);
                    or |= 1 << x.max(y);
                }
                assert_eq!((Truth(a).and(Truth(b)).0, Truth(a).or(Truth(b)).0), (and, or), "{a} {b}");
            }
        }
    }

    #[test]
    fn only_what_is_surely_true_is_let_through() {
        assert_eq!(Truth::TRUE.decided(), Some(true));
        assert_eq!(
            (Truth::FALSE.decided(), Truth::UNKNOWN.decided(), Truth(3).decided()),
            (Some(false), Some(false), Some(false))
        );
        assert_eq!((Truth::ANY.decided(), Truth(6).decided(), Truth(5).decided()), (None, None, None));
    }
}
