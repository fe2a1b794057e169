//! One relation as one plugin may see it.
//!
//! Holds: the announcement the next row belongs to, the shape the plugin was told, which columns of the wire are
//! granted, and where the relation's groups are in the batch under construction.
//! Refuses to know rows (see [`super::group`]) and when a new shape is told (see [`super::Minimizer`]).

use std::sync::Arc;

use crate::assemble::{Relation, StreamColumn};
use crate::batch::Operation;
use crate::grant::{Grant, Operations, TableGrant};
use crate::relation::{ProjectedColumn, ProjectedRelation};
use crate::value::Kind;

use super::error::MinimizeError;
use super::group::GroupBuilder;
use super::known::{Known, KnownTable};
use super::spare::Spares;

const OPERATIONS: usize = 5;

/// What the walk over a row needs to know.
#[derive(Debug)]
pub(super) struct Shape {
    /// As the plugin is told.
    pub(super) relation: ProjectedRelation,
    /// One a column of the wire: whether it is granted.
    pub(super) granted: Vec<bool>,
    /// The number of columns of the wire, as rows count them.
    pub(super) width: u16,
    /// One a granted column.
    pub(super) kinds: Vec<Kind>,
}

pub(super) struct Projection {
    source: Arc<Relation>,
    /// None of them while the relation is not granted under the name it has now.
    operations: Operations,
    /// True until the shape follows `source`.
    stale: bool,
    shape: Option<Shape>,
    withheld: Vec<String>,
    /// The group in the batch under construction, one an operation.
    slots: [Option<usize>; OPERATIONS],
}

#[inline]
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
    pub(super) fn new(source: Arc<Relation>, grant: &Grant) -> Self {
        let operations = operations(&source, grant);
        Self { source, operations, stale: true, shape: None, withheld: Vec::new(), slots: Default::default() }
    }

    /// Whether the next row, of `relation`, belongs to the announcement seen last.
    #[inline]
    pub(super) fn is_of(&self, relation: &Arc<Relation>) -> bool {
        Arc::ptr_eq(&self.source, relation)
    }

    /// A new announcement of the same relation, perhaps under another name.
    pub(super) fn announced(&mut self, source: Arc<Relation>, grant: &Grant) {
        self.operations = operations(&source, grant);
        self.source = source;
        self.stale = true;
    }

    #[inline]
    pub(super) fn takes(&self, operation: Operation) -> bool {
        self.operations.contains(operation)
    }

    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// The shape that rows are walked by; none before the plugin was told one.
    #[inline]
    pub(super) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// Columns that the plugin does not get because they appeared later.
    pub(super) fn withheld(&self) -> &[String] {
        &self.withheld
    }

    /// Follows the announcement where the plugin cannot see a difference. Otherwise gives the shape to tell it.
    pub(super) fn follow(&mut self, grant: &Grant, known: &mut Known) -> Result<Option<Shape>, MinimizeError> {
        let Some(grant) = grant.table(&self.source.namespace, &self.source.name) else { return Ok(None) };
        let withheld = known.withheld(grant, &self.source)?;
        if withheld != self.withheld && !withheld.is_empty() {
            let (namespace, name) = (self.source.namespace.clone(), self.source.name.clone());
            known.withheld.push(KnownTable { namespace, name, columns: withheld.clone() });
        }
        self.withheld = withheld;
        let next = Shape::new(grant, &self.source, &self.withheld)?;
        match &mut self.shape {
            Some(shape) if shape.same_for_plugin(&next) => {
                // Only hidden columns moved: the plugin keeps its version, the walk follows the wire.
                (shape.granted, shape.width) = (next.granted, next.width);
                self.stale = false;
                Ok(None)
            }
            _ => Ok(Some(next)),
        }
    }

    /// Takes over a shape; gives what the plugin has to be told: the new one and the one before. No group of the old
    /// shape may hold rows any more.
    pub(super) fn replace(&mut self, shape: Shape) -> (ProjectedRelation, Option<ProjectedRelation>) {
        let current = shape.relation.clone();
        self.stale = false;
        self.released();
        (current, self.shape.replace(shape).map(|previous| previous.relation))
    }

    /// The index in `groups` of the group for an operation; starts it when there is none.
    #[inline]
    pub(super) fn group(
        &mut self,
        at: usize,
        operation: Operation,
        groups: &mut Vec<GroupBuilder>,
        spares: &mut Spares,
    ) -> usize {
        if let Some(Some(group)) = self.slots.get(slot_of(operation)) {
            return *group;
        }
        let group = self.spare_or_new(at, operation, spares);
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
    pub(super) fn spare_or_new(&self, at: usize, operation: Operation, spares: &mut Spares) -> GroupBuilder {
        let kinds = self.shape.as_ref().map_or(&[][..], |shape| &shape.kinds);
        spares.take(at, operation).unwrap_or_else(|| GroupBuilder::new(at, operation, kinds))
    }

    /// The batch under construction was finished: no group of it belongs to us any more.
    pub(super) fn released(&mut self) {
        self.slots = Default::default();
    }
}

impl Shape {
    fn new(grant: &TableGrant, source: &Relation, withheld: &[String]) -> Result<Self, MinimizeError> {
        let missing = grant.required.iter().find(|name| source.columns.iter().all(|column| column.name != **name));
        if let Some(column) = missing {
            return Err(MinimizeError::missing(&source.namespace, &source.name, column));
        }
        let is_granted =
            |column: &StreamColumn| grant.columns.contains(&column.name) && !withheld.contains(&column.name);
        let granted: Vec<bool> = source.columns.iter().map(is_granted).collect();
        let width = u16::try_from(granted.len())
            .map_err(|_| MinimizeError::too_many_columns(&source.namespace, &source.name))?;
        let mut keys: u16 = 0;
        let mut columns = Vec::new();
        let mut kinds = Vec::new();
        for (column, granted) in source.columns.iter().zip(&granted) {
            let key_position = column.key.then_some(keys);
            keys += u16::from(column.key);
            if *granted {
                columns.push(project(column, key_position));
                kinds.push(column.kind);
            }
        }
        let relation = ProjectedRelation {
            id: source.id,
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            version: source.version,
            identity: source.identity,
            columns,
        };
        Ok(Self { relation, granted, width, kinds })
    }

    fn same_for_plugin(&self, other: &Self) -> bool {
        let (a, b) = (&self.relation, &other.relation);
        (&a.namespace, &a.name, a.identity) == (&b.namespace, &b.name, b.identity)
            && a.columns == b.columns
            && self.kinds == other.kinds
    }
}

fn operations(source: &Relation, grant: &Grant) -> Operations {
    grant.table(&source.namespace, &source.name).map_or(Operations::NONE, |table| table.operations)
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
