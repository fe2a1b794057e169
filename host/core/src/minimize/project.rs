//! One relation as one plugin may see it, and the group builders that belong to it.
//!
//! Holds: which columns of the wire are granted, and spare buffers. Refuses to know rows (see [`super::group`]).

use crate::assemble::{Relation, StreamColumn};
use crate::batch::{Group, Operation};
use crate::grant::{Columns, Operations, TableGrant};
use crate::relation::{ProjectedColumn, ProjectedRelation};
use crate::value::Kind;

use super::error::MinimizeError;
use super::group::GroupBuilder;

/// Emptied group builders kept per relation and operation. Two batches can be on their way while one is built.
const SPARE_GROUPS: usize = 4;

const OPERATIONS: usize = 5;

/// What the walk over a row needs to know.
#[derive(Debug)]
pub(super) struct Shape {
    /// As the plugin is told.
    pub(super) relation: ProjectedRelation,
    /// One a column of the wire: whether it is granted.
    pub(super) granted: Vec<bool>,
    /// One a granted column.
    pub(super) kinds: Vec<Kind>,
}

pub(super) struct Projection {
    shape: Shape,
    operations: Operations,
    /// Columns withheld because they appeared under a `*` grant that does not allow new ones.
    withheld: Vec<String>,
    /// The group in the batch under construction, one an operation.
    slots: [Option<usize>; OPERATIONS],
    spare: [Vec<GroupBuilder>; OPERATIONS],
}

const fn slot_of(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        Operation::Insert => 1,
        Operation::Update => 2,
        Operation::Delete => 3,
        Operation::Truncate => 4,
    }
}

impl Projection {
    pub(super) fn new(
        grant: &TableGrant,
        relation: &Relation,
        previous: Option<&Projection>,
    ) -> Result<Self, MinimizeError> {
        if let Some(column) = grant.required.iter().find(|name| relation.columns.iter().all(|c| c.name != **name)) {
            return Err(MinimizeError::missing(&relation.namespace, &relation.name, column));
        }
        let withheld = withheld(grant, relation, previous);
        let granted: Vec<bool> = relation
            .columns
            .iter()
            .map(|column| grant.columns.contains(&column.name) && !withheld.contains(&column.name))
            .collect();
        let mut keys = 0;
        let mut columns = Vec::new();
        let mut kinds = Vec::new();
        for (column, granted) in relation.columns.iter().zip(&granted) {
            let key_position = column.key.then_some(keys);
            keys += u16::from(column.key);
            if *granted {
                columns.push(project(column, key_position));
                kinds.push(column.kind);
            }
        }
        let projected = ProjectedRelation {
            id: relation.id,
            namespace: relation.namespace.clone(),
            name: relation.name.clone(),
            version: relation.version,
            identity: relation.identity,
            columns,
        };
        Ok(Self {
            shape: Shape { relation: projected, granted, kinds },
            operations: grant.operations,
            withheld,
            slots: Default::default(),
            spare: Default::default(),
        })
    }

    pub(super) fn relation(&self) -> &ProjectedRelation {
        &self.shape.relation
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn takes(&self, operation: Operation) -> bool {
        self.operations.contains(operation)
    }

    /// Whether a group of this relation is in the batch under construction.
    pub(super) fn in_use(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Whether the plugin could tell the two apart.
    pub(super) fn same_for_plugin(&self, other: &Projection) -> bool {
        let (a, b) = (&self.shape.relation, &other.shape.relation);
        a.namespace == b.namespace && a.name == b.name && a.identity == b.identity && a.columns == b.columns
            && self.shape.kinds == other.shape.kinds
    }

    /// Takes over a shape that differs in hidden columns only; version, groups and buffers stay.
    pub(super) fn follow(&mut self, other: Projection) {
        self.shape.granted = other.shape.granted;
        self.withheld = other.withheld;
    }

    /// The index in `groups` of the group for an operation; starts it when there is none.
    #[inline]
    pub(super) fn group(&mut self, at: usize, operation: Operation, groups: &mut Vec<GroupBuilder>) -> usize {
        let slot = slot_of(operation);
        if let Some(Some(group)) = self.slots.get(slot) {
            return *group;
        }
        let group = self.spare_or_new(at, operation);
        self.place(group, groups)
    }

    /// Puts a group that already has rows into the batch under construction.
    pub(super) fn place(&mut self, group: GroupBuilder, groups: &mut Vec<GroupBuilder>) -> usize {
        if let Some(slot) = self.slots.get_mut(slot_of(group.operation())) {
            *slot = Some(groups.len());
        }
        groups.push(group);
        groups.len() - 1
    }

    /// An empty group of this relation, with buffers that were used before if there are any.
    pub(super) fn spare_or_new(&mut self, at: usize, operation: Operation) -> GroupBuilder {
        let spare = self.spare.get_mut(slot_of(operation)).and_then(Vec::pop);
        spare.unwrap_or_else(|| GroupBuilder::new(at, operation, &self.shape.kinds))
    }

    /// The batch under construction was finished: no group of it belongs to us any more.
    pub(super) fn released(&mut self) {
        self.slots = Default::default();
    }

    /// Takes buffers back, if they still fit the shape.
    pub(super) fn recycle(&mut self, at: usize, group: Group) {
        let Some(spare) = self.spare.get_mut(slot_of(group.operation)) else { return };
        if spare.len() < SPARE_GROUPS {
            spare.extend(GroupBuilder::recycle(at, group, &self.shape.kinds));
        }
    }
}

fn project(column: &StreamColumn, key_position: Option<u16>) -> ProjectedColumn {
    ProjectedColumn {
        name: column.name.clone(),
        type_name: column.type_name.clone(),
        type_oid: column.type_oid,
        type_modifier: column.type_modifier,
        key_position,
        treatment: "plain".to_owned(),
    }
}

fn withheld(grant: &TableGrant, relation: &Relation, previous: Option<&Projection>) -> Vec<String> {
    let Some(previous) = previous else { return Vec::new() };
    if grant.allow_new_columns || matches!(grant.columns, Columns::Only(_)) {
        return Vec::new();
    }
    let seen = |name: &str| {
        previous.shape.relation.columns.iter().any(|column| column.name == name) && !previous.withheld.iter().any(|w| w == name)
    };
    relation.columns.iter().filter(|column| !seen(&column.name)).map(|column| column.name.clone()).collect()
}
