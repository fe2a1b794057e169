//! One relation as one plugin may see it.
//!
//! Holds: the announcement the next row belongs to, the shape the plugin was told, which columns of the wire are
//! granted, and where the relation's groups are in the batch under construction.
//! Refuses to know rows (see [`super::group`]) and when a new shape is told (see [`super::Minimizer`]).

use std::sync::Arc;

use crate::assemble::{Relation, StreamColumn};
use crate::batch::Operation;
use crate::grant::rules::{Before, EmptyUpdates, Treatment, Untouched};
use crate::grant::{Grant, Operations, TableGrant};
use crate::relation::{ProjectedColumn, ProjectedRelation, ReplicaIdentity};
use crate::value::Kind;

use super::error::{MinimizeError, TreatmentError};
use super::filter::RowFilter;
use super::group::GroupBuilder;
use super::known::{Known, KnownTable};
use super::spare::Spares;
use super::treat::{Apply, HashKey};

const OPERATIONS: usize = 5;

/// What the walk over a row needs to know.
pub(super) struct Shape {
    /// As the plugin is told.
    pub(super) relation: ProjectedRelation,
    /// One a column of the wire: whether it is granted.
    pub(super) granted: Vec<bool>,
    /// The number of columns of the wire, as rows count them.
    pub(super) width: u16,
    /// One a granted column.
    pub(super) kinds: Vec<Kind>,
    /// One a granted column.
    pub(super) plans: Vec<Plan>,
    /// Which rows are handed over.
    pub(super) filter: Option<RowFilter>,
    /// What a change may be to the plugin, once the filter has had its word.
    pub(super) operations: Operations,
    /// Updates that the plugin could see no difference of are not handed over.
    pub(super) drops_empty: bool,
    /// What an update left as it was is not handed over.
    pub(super) changed_only: bool,
}

/// How one granted column is handed over.
pub(super) struct Plan {
    pub(super) apply: Apply,
    /// Part of the key, as the stream tells it, or the grant under identity full.
    pub(super) key: bool,
    /// Whether old rows have it.
    pub(super) in_before: bool,
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
    pub(super) fn follow(
        &mut self,
        grant: &Grant,
        known: &mut Known,
        hash_key: Option<&Arc<HashKey>>,
    ) -> Result<Option<Shape>, MinimizeError> {
        let Some(grant) = grant.table(&self.source.namespace, &self.source.name) else { return Ok(None) };
        let withheld = known.withheld(grant, &self.source)?;
        if withheld != self.withheld && !withheld.is_empty() {
            let (namespace, name) = (self.source.namespace.clone(), self.source.name.clone());
            known.withheld.push(KnownTable { namespace, name, columns: withheld.clone() });
        }
        self.withheld = withheld;
        let next = Shape::new(grant, &self.source, &self.withheld, hash_key)?;
        match &mut self.shape {
            Some(shape) if shape.same_for_plugin(&next) => {
                // Only hidden columns moved: the plugin keeps its version, the walk follows the wire.
                let told = std::mem::replace(shape, next).relation;
                shape.relation = told;
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
    pub(super) fn new(
        grant: &TableGrant,
        source: &Relation,
        withheld: &[String],
        hash_key: Option<&Arc<HashKey>>,
    ) -> Result<Self, MinimizeError> {
        let (namespace, table) = (&source.namespace, &source.name);
        let missing = grant.required.iter().find(|name| source.columns.iter().all(|column| column.name != **name));
        if let Some(column) = missing {
            return Err(MinimizeError::missing(namespace, table, column));
        }
        let is_granted =
            |column: &StreamColumn| grant.columns.contains(&column.name) && !withheld.contains(&column.name);
        let granted: Vec<bool> = source.columns.iter().map(is_granted).collect();
        let width = u16::try_from(granted.len()).map_err(|_| MinimizeError::too_many_columns(namespace, table))?;
        let rules = &grant.rules;
        let full = source.identity == ReplicaIdentity::Full;
        let changed_only = rules.untouched == Untouched::Withhold;
        let needs_key = rules.before == Before::Key || changed_only && rules.before == Before::None;
        if full && needs_key && rules.key.is_empty() {
            return Err(MinimizeError::key_unknown(namespace, table));
        }
        let mut keys: u16 = 0;
        let mut columns = Vec::new();
        let mut kinds = Vec::new();
        let mut plans = Vec::new();
        for (column, granted) in source.columns.iter().zip(&granted) {
            let key_position = column.key.then_some(keys);
            keys += u16::from(column.key);
            if *granted {
                let treatment = rules.treatment(&column.name);
                let refused = |error| MinimizeError::treatment(namespace, table, &column.name, treatment, error);
                let key = if full { rules.key.contains(&column.name) } else { column.key };
                if key && !treatment.keeps_apart() {
                    return Err(refused(TreatmentError::Key));
                }
                let apply = Apply::new(treatment, column.kind, hash_key).map_err(refused)?;
                let in_before = match rules.before {
                    Before::None => false,
                    Before::Key => key,
                    Before::Granted => true,
                };
                kinds.push(if treatment == Treatment::Hashed { Kind::Text } else { column.kind });
                plans.push(Plan { apply, key, in_before });
                columns.push(project(column, key_position, treatment));
            }
        }
        let filter = rules.filter.as_ref().map(|filter| RowFilter::new(filter, grant, source)).transpose()?;
        let relation = ProjectedRelation {
            id: source.id,
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            version: source.version,
            identity: source.identity,
            columns,
        };
        let drops_empty = rules.empty_updates == EmptyUpdates::Drop;
        let operations = grant.operations;
        Ok(Self { relation, granted, width, kinds, plans, filter, operations, drops_empty, changed_only })
    }

    fn same_for_plugin(&self, other: &Self) -> bool {
        let (a, b) = (&self.relation, &other.relation);
        (&a.namespace, &a.name, a.identity) == (&b.namespace, &b.name, b.identity)
            && a.columns == b.columns
            && self.kinds == other.kinds
    }
}

/// What the plugin has to be asked about. Under a filter, an update can be a delete to it.
fn operations(source: &Relation, grant: &Grant) -> Operations {
    let Some(table) = grant.table(&source.namespace, &source.name) else { return Operations::NONE };
    match table.operations.contains(Operation::Delete) && table.rules.filter.is_some() {
        true => table.operations.with(Operation::Update),
        false => table.operations,
    }
}

/// Object id of `text`.
const TEXT: u32 = 25;

fn project(column: &StreamColumn, key_position: Option<u16>, treatment: Treatment) -> ProjectedColumn {
    // What is no value of the type any more is told as what it is.
    let is_string = matches!(column.type_name.as_str(), "text" | "varchar" | "bpchar" | "name");
    let as_text = match treatment {
        Treatment::Plain | Treatment::Nulled => false,
        Treatment::Hashed => true,
        Treatment::Masked | Treatment::Truncated(_) => column.kind == Kind::Text && !is_string,
    };
    let told = if as_text { ("text", TEXT, -1) } else { (&*column.type_name, column.type_oid, column.type_modifier) };
    ProjectedColumn {
        name: column.name.clone(),
        type_name: told.0.to_owned(),
        type_oid: told.1,
        type_modifier: told.2,
        key_position,
        treatment: treatment.to_string(),
    }
}
