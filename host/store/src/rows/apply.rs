//! One step applied: its keys told apart, its rows folded, staged and written.
//!
//! Holds: the loop over effects, groups and rows, and the count of what was done. Refuses to know transactions and
//! positions. Read next: [`super::sink`].

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error as PgError, Transaction};
use walgate_core::batch::{NULL, VALUE};
use walgate_core::rows::Cells;

use super::cell::{Cell, code};
use super::error::{Kind, RowsError};
use super::fold::{Effect, Fold, Link, LinkNumber};
use super::group::{Action, Group, GroupRow, groups};
use super::key::Keys;
use super::mask::{EMPTY, Mask};
use super::plan::{Step, Table};
use super::shape::Failure;
use super::sink::RowsDone;
use super::stage::{Filling, Stages};
use super::statement::{Field, Source, Texts, definitions};
use super::view::{Kinds, View};

const DOING: &str = "writing rows";

/// Groups that are staged together: each statement reads what is staged for all of them.
const GROUPS_AT_ONCE: usize = 16;

/// Everything that writing one step needs.
pub(super) struct Writer<'t, 'c> {
    /// The open transaction.
    pub(super) transaction: &'t Transaction<'c>,
    /// The temporary tables of the session.
    pub(super) stages: &'t mut Stages,
    /// What was done so far.
    pub(super) done: RowsDone,
}

impl Writer<'_, '_> {
    /// Empties tables, all in one statement, so that tables that refer to each other can be emptied.
    pub(super) async fn truncate(&mut self, tables: &[Table<'_>]) -> Result<(), Failure> {
        let emptied: Vec<&Table<'_>> = tables.iter().filter(|table| table.truncated).collect();
        let Some(first) = emptied.first() else { return Ok(()) };
        let names: Vec<&str> = emptied.iter().map(|table| table.shape.table.as_str()).collect();
        let truncated = self.transaction.batch_execute(&format!("TRUNCATE {}", names.join(", "))).await;
        truncated.map_err(|error| Failure::Server(first.shape.at("emptying tables"), error))?;
        self.done.truncated += emptied.len() as u64;
        Ok(())
    }

    /// Writes the rows of one step.
    pub(super) async fn step(&mut self, table: &mut Table<'_>, step: &Step) -> Result<(), Failure> {
        if table.shape.key.is_empty() {
            return self.append(table, step).await;
        }
        let mut keys = Keys::read(table, step)?;
        let respells = table.shape.key.iter().any(|key| {
            let kind = step.kinds.get(key.column).copied().flatten();
            let column = table.shape.columns.get(key.column);
            !kind.zip(column).is_some_and(|(kind, column)| column.is_exact(kind))
        });
        if respells && keys.places.len() > 1 {
            self.merge(table, step, &mut keys).await?;
        }
        let mut fold = Fold::new(step, &keys);
        while let Some(effect) = fold.next(table, &mut keys)? {
            self.effect(table, step, &keys, &fold.links, &effect, respells).await?;
        }
        Ok(())
    }

    /// Asks the server which of the keys are one to the table.
    async fn merge(&mut self, table: &Table<'_>, step: &Step, keys: &mut Keys) -> Result<(), Failure> {
        let at = table.shape.at("comparing keys");
        let server = |error| Failure::Server(at.clone(), error);
        let mut fields = vec![Field::Number];
        fields.extend((0..table.shape.key.len()).map(Field::Key));
        let definitions = definitions(&fields, &table.shape, &step.kinds);
        let stage = self.stages.empty(self.transaction, &definitions).await.map_err(server)?;
        let mut filling = stage.fill(self.transaction, fields.len()).await.map_err(server)?;
        for (number, place) in (0_i32..).zip(&keys.places) {
            let cell = |field: &Field| match field {
                Field::Key(column) => key_cell(table, &step.kinds, *column, place.cells(&table.views, *column)),
                _ => Cell::Number(number),
            };
            filling.row(fields.iter().map(cell)).await.map_err(server)?;
        }
        filling.finish().await.map_err(server)?;
        let texts = Texts { shape: &table.shape, kinds: &step.kinds, masks: &table.masks, respells: true };
        let rows = self.transaction.query_typed(&texts.likes(&stage.name), &[]).await.map_err(server)?;
        let mut lowest = vec![0_u32; keys.places.len()];
        for row in rows {
            let number = |index| row.try_get::<_, i32>(index).map_err(server);
            let (key, like) = (number(0)?, number(1)?);
            let slot = usize::try_from(key).ok().and_then(|key| lowest.get_mut(key));
            if let (Some(slot), Ok(like)) = (slot, u32::try_from(like)) {
                *slot = like;
            }
        }
        keys.merge(&lowest);
        Ok(())
    }

    async fn effect(
        &mut self,
        table: &Table<'_>,
        step: &Step,
        keys: &Keys,
        links: &[Link],
        effect: &Effect,
        respells: bool,
    ) -> Result<(), Failure> {
        self.done.missed += effect.missed;
        let groups = groups(effect, |link| links.get(link as usize).map_or(EMPTY, |link| link.mask));
        for groups in groups.chunks(GROUPS_AT_ONCE) {
            let rows = Rows { table, kinds: &step.kinds, keys: Some(keys), links };
            self.groups(&rows, groups, respells).await?;
        }
        Ok(())
    }

    /// Rows for a table without a key, in their order, as long as neighbours have the same columns.
    async fn append(&mut self, table: &mut Table<'_>, step: &Step) -> Result<(), Failure> {
        let mut links = Vec::with_capacity(step.changes.len());
        let mut groups: Vec<Group> = Vec::new();
        for (number, change) in (0_u32..).zip(&step.changes) {
            let Some(view) = table.views.get(change.view as usize) else { continue };
            let (mask, _) = view.masks_of(change.row as usize, &mut table.masks);
            links.push(Link { change: *change, before: None, mask });
            let row = GroupRow { key: None, from: None, link: Some(number) };
            match groups.last_mut().filter(|group| group.mask == mask) {
                Some(group) => group.rows.push(row),
                None => groups.push(Group { action: Action::Append, mask, rows: vec![row] }),
            }
        }
        let rows = Rows { table, kinds: &step.kinds, keys: None, links: &links };
        let texts = Texts { shape: &table.shape, kinds: &step.kinds, masks: &table.masks, respells: false };
        // Runs are executed in order: numbers that the table gives to its rows follow the order of the work.
        let mut staged = 0;
        for (index, group) in groups.iter().enumerate() {
            if texts.is_binary(group.mask) && group.mask != EMPTY {
                self.groups(&rows, groups.get(staged..index).unwrap_or_default(), false).await?;
                self.copy(&rows, group, texts.copy(group.mask)).await?;
                staged = index + 1;
            } else if index - staged == GROUPS_AT_ONCE {
                self.groups(&rows, groups.get(staged..index).unwrap_or_default(), false).await?;
                staged = index;
            }
        }
        self.groups(&rows, groups.get(staged..).unwrap_or_default(), false).await
    }

    async fn copy(&mut self, rows: &Rows<'_, '_>, group: &Group, text: String) -> Result<(), Failure> {
        let server = |error| Failure::Server(rows.table.shape.at(DOING), error);
        let statement = self.stages.statement(self.transaction, text).await.map_err(server)?;
        let fields: Vec<Field> = rows.columns(std::slice::from_ref(group)).map(Field::Value).collect();
        let mut filling = Filling::begin(self.transaction, &statement, fields.len()).await.map_err(server)?;
        rows.send(&mut filling, &fields, 0, group).await.map_err(server)?;
        self.done.upserted += filling.finish().await.map_err(server)?;
        Ok(())
    }

    /// Stages groups together and runs the statement of each. A row alone is cheaper as parameters.
    async fn groups(&mut self, rows: &Rows<'_, '_>, groups: &[Group], respells: bool) -> Result<(), Failure> {
        if groups.is_empty() {
            return Ok(());
        }
        let shape = &rows.table.shape;
        let server = |error| Failure::Server(shape.at(DOING), error);
        let mut name = String::new();
        if groups.iter().any(|group| group.rows.len() > 1) {
            name = self.stage(rows, groups).await.map_err(server)?;
        }
        let texts = Texts { shape, kinds: rows.kinds, masks: &rows.table.masks, respells };
        for (number, group) in (0_i16..).zip(groups) {
            let fields = rows.fields(std::slice::from_ref(group));
            let fields = fields.get(1..).unwrap_or_default();
            let (source, cells) = match group.rows.as_slice() {
                [row] => (
                    Source::Parameters(fields),
                    fields.iter().map(|field| rows.cell(*field, number, group.mask, row)).collect(),
                ),
                _ => (Source::Stage(&name), vec![Cell::Group(number)]),
            };
            let Some(text) = texts.of(group.action, group.mask, &source) else { continue };
            let statement = self.stages.statement(self.transaction, text).await.map_err(server)?;
            let parameters: Vec<&(dyn ToSql + Sync)> = cells.iter().map(|cell| cell as _).collect();
            let count = self.transaction.execute(&statement, &parameters).await.map_err(server)?;
            let missed = (group.rows.len() as u64).saturating_sub(count);
            match group.action {
                Action::Delete => self.done.deleted += count,
                Action::Upsert | Action::Append => self.done.upserted += count,
                Action::Update | Action::Move(_) => {
                    self.done.upserted += count;
                    self.done.missed += missed;
                }
            }
        }
        Ok(())
    }

    /// Copies groups of several rows into a temporary table and answers its name.
    async fn stage(&mut self, rows: &Rows<'_, '_>, groups: &[Group]) -> Result<String, PgError> {
        let fields = rows.fields(groups);
        let definitions = definitions(&fields, &rows.table.shape, rows.kinds);
        let stage = self.stages.empty(self.transaction, &definitions).await?;
        let name = stage.name.clone();
        let mut filling = stage.fill(self.transaction, fields.len()).await?;
        for (number, group) in (0_i16..).zip(groups).filter(|(_, group)| group.rows.len() > 1) {
            rows.send(&mut filling, &fields, number, group).await?;
        }
        filling.finish().await?;
        Ok(name)
    }
}

/// Where the cells of the rows of a step are.
struct Rows<'r, 'a> {
    table: &'r Table<'a>,
    kinds: &'r Kinds,
    keys: Option<&'r Keys>,
    links: &'r [Link],
}

impl<'a> Rows<'_, 'a> {
    /// The columns outside the key that some group writes.
    fn columns(&self, groups: &[Group]) -> impl Iterator<Item = usize> {
        let masks = &self.table.masks;
        let used = |column: &usize| groups.iter().any(|group| masks.has(group.mask, *column));
        let columns: Vec<usize> = (0..self.table.shape.columns.len()).filter(used).collect();
        columns.into_iter()
    }

    fn fields(&self, groups: &[Group]) -> Vec<Field> {
        let keys = 0..self.table.shape.key.len();
        let moves = groups.iter().any(|group| matches!(group.action, Action::Move(_)));
        let old = keys.clone().filter(|_| moves).map(Field::Old);
        let values = self.columns(groups).map(Field::Value);
        std::iter::once(Field::Group).chain(keys.map(Field::Key)).chain(old).chain(values).collect()
    }

    async fn send(&self, filling: &mut Filling, fields: &[Field], number: i16, group: &Group) -> Result<(), PgError> {
        for row in &group.rows {
            let cell = |field: &Field| self.cell(*field, number, group.mask, row);
            filling.row(fields.iter().map(cell)).await?;
        }
        Ok(())
    }

    #[inline]
    fn cell(&self, field: Field, number: i16, mask: Mask, row: &GroupRow) -> Cell<'a> {
        match field {
            Field::Group | Field::Number => Cell::Group(number),
            Field::Key(place) => self.key(row.key, place),
            Field::Old(place) => self.key(row.from, place),
            Field::Value(column) => self.value(row.link, mask, column),
        }
    }

    fn key(&self, key: Option<u32>, place: usize) -> Cell<'a> {
        let spelled = key.zip(self.keys).and_then(|(key, keys)| keys.places.get(key as usize));
        let cells = spelled.and_then(|spelled| spelled.cells(&self.table.views, place));
        key_cell(self.table, self.kinds, place, cells)
    }

    /// The newest value of the chain.
    #[inline]
    fn value(&self, link: Option<LinkNumber>, mask: Mask, column: usize) -> Cell<'a> {
        let Some(kind) = self.kinds.get(column).copied().flatten() else { return Cell::Absent };
        let mut next = link;
        while let Some(link) = next.and_then(|link| self.links.get(link as usize)) {
            let view: Option<&View<'a>> = self.table.views.get(link.change.view as usize);
            let row = link.change.row as usize;
            if let Some(cells) = view.and_then(|view| view.cells(column)) {
                match code(cells, row) {
                    VALUE if self.table.masks.has(mask, column) => return Cell::Value(cells, row, kind),
                    NULL => return Cell::Absent,
                    _ => {}
                }
            }
            next = link.before;
        }
        Cell::Absent
    }
}

fn key_cell<'a>(table: &Table<'_>, kinds: &Kinds, place: usize, cells: Option<(&'a Cells, usize)>) -> Cell<'a> {
    let kind = table.shape.key.get(place).and_then(|key| kinds.get(key.column).copied().flatten());
    match cells.zip(kind) {
        Some(((cells, row), kind)) => Cell::Value(cells, row, kind),
        None => Cell::Absent,
    }
}

impl From<Kind> for Failure {
    fn from(kind: Kind) -> Self {
        Self::Rows(RowsError::from(kind))
    }
}
