//! The image of a dead letter: a batch and the relations it needs as one JSON text, and back.
//!
//! Holds: the form of the text, and every check on a text that comes back. Refuses to know where it is stored and for how
//! long. Invariants: what [`write()`] writes, [`read`] reads back to the same batch, to the bit; no error and no `Debug`
//! holds a value. What the text of one value looks like is in `slot.rs`.
//!
//! It is made to be looked at: every row names its columns. It survives being stored as `jsonb`, which orders keys anew.
//! A column that is NULL is `null`; an unchanged one that the server did not send is `{"unchanged": true}`; one outside
//! the key of a before image is not there.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::form::{self, ColumnForm, CursorForm, GroupForm, ImageForm, MessageForm, RowForm};
use super::{Batch, Column, Group, LogicalMessage, NULL, Operation, Transaction, UNCHANGED, VALUE, slot};
use crate::relation::ProjectedRelation;
use crate::{Cursor, value};

/// The version this file writes and reads.
const VERSION: u64 = 1;

/// The longest name of a batch.
const MAX_ID_BYTES: usize = 64;

/// The image of a dead letter cannot be read. Permanent: the same text will never be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It is no JSON, or JSON of another form.
    #[error(
        "the image of this dead letter is not of the form walgate writes (line {line}, column {column}): \
         it was changed or cut off; restore it, or drop the letter"
    )]
    Form {
        /// In the text, from 1.
        line: usize,
        /// In the line, from 1.
        column: usize,
    },
    /// Another version of walgate wrote it.
    #[error(
        "the image of this dead letter is of version {0}, this walgate reads version {VERSION}: redrive it with the \
         walgate that wrote it, or drop the letter"
    )]
    Version(u64),
    /// Its content contradicts itself.
    #[error("the image of this dead letter is damaged: {place}: {problem}; restore it, or drop the letter")]
    Content {
        /// Where, as numbers that count from 1.
        place: String,
        /// What is wrong there.
        problem: &'static str,
    },
}

impl ImageError {
    fn form(error: &serde_json::Error) -> Self {
        // The text of the error may quote a value.
        Self::Form { line: error.line(), column: error.column() }
    }

    fn content(place: impl Into<String>, problem: &'static str) -> Self {
        Self::Content { place: place.into(), problem }
    }
}

/// The image of a batch. `relations` are those its groups name, in the shapes its rows were written under; without one
/// of them the image can be looked at, but [`read`] refuses it.
pub fn write(batch: &Batch, relations: &[ProjectedRelation]) -> Vec<u8> {
    let group = |group: &Group| {
        let relation = relations.iter().find(|relation| relation.id == group.relation);
        write_group(group, relation)
    };
    let message = |message: &LogicalMessage| MessageForm {
        ordinal: message.ordinal,
        transactional: message.transactional,
        prefix: message.prefix.clone(),
        content: slot::write_bytes(&message.content),
    };
    let image = ImageForm {
        version: VERSION,
        id: batch.id.clone(),
        attempt: batch.attempt,
        reaches: CursorForm { end: batch.reaches.end, commit: batch.reaches.commit, ordinal: batch.reaches.ordinal },
        bytes: batch.bytes as u64,
        relations: relations.iter().map(form::write_relation).collect(),
        transactions: batch.transactions.iter().map(form::write_transaction).collect(),
        groups: batch.groups.iter().map(group).collect(),
        messages: batch.messages.iter().map(message).collect(),
    };
    // Only keys that are no texts and writers that fail give an error; there are neither.
    serde_json::to_vec(&image).unwrap_or_default()
}

fn write_group(group: &Group, relation: Option<&ProjectedRelation>) -> GroupForm {
    let name = |column: &Column| {
        let known = relation.and_then(|relation| relation.columns.get(usize::from(column.index)));
        known.map_or_else(|| format!("column {}", column.index), |known| known.name.clone())
    };
    let head = |column: &Column| ColumnForm { name: name(column), kind: slot::kind(&column.values).to_owned() };
    let (after, before): (Vec<_>, Vec<_>) =
        (group.after.iter().map(head).collect(), group.before.iter().map(head).collect());
    let cells = |columns: &[Column], heads: &[ColumnForm], row: usize| -> Map<String, Value> {
        let pairs = columns.iter().zip(heads);
        pairs.filter_map(|(column, head)| Some((head.name.clone(), write_cell(column, row)?))).collect()
    };
    let row = |(row, ordinal): (usize, &u32)| RowForm {
        ordinal: *ordinal,
        after: cells(&group.after, &after, row),
        before: cells(&group.before, &before, row),
    };
    let rows = group.ordinals.iter().enumerate().map(row).collect();
    GroupForm { relation: group.relation, operation: group.operation.name().to_owned(), after, before, rows }
}

/// None when the column was not sent.
fn write_cell(column: &Column, row: usize) -> Option<Value> {
    match column.presence.as_ref().map_or(Some(VALUE), |presence| presence.get(row).copied())? {
        VALUE => slot::write(&column.values, row),
        NULL => Some(Value::Null),
        UNCHANGED => Some(unchanged()),
        _ => None,
    }
}

fn unchanged() -> Value {
    Value::Object(Map::from_iter([("unchanged".to_owned(), Value::Bool(true))]))
}

/// A batch and its relations out of an image.
///
/// # Errors
///
/// The text is not one that [`write()`] wrote, or it was changed so that no plugin may be handed what it says.
pub fn read(bytes: &[u8]) -> Result<(Batch, Vec<ProjectedRelation>), ImageError> {
    #[derive(Serialize, Deserialize)]
    struct Head {
        #[serde(rename = "walgate_image")]
        version: u64,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| ImageError::form(&error))?;
    if head.version != VERSION {
        return Err(ImageError::Version(head.version));
    }
    let image: ImageForm = serde_json::from_slice(bytes).map_err(|error| ImageError::form(&error))?;
    if image.id.len() > MAX_ID_BYTES || !image.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(ImageError::content("id", "more than 64 characters, or others than letters, digits and `-`"));
    }
    let relations = read_relations(image.relations)?;
    let transactions: Vec<Transaction> = image.transactions.into_iter().map(form::read_transaction).collect();
    check_transactions(&transactions)?;
    // A row may leave columns out, but each that a writer leaves out stands beside one that it wrote.
    let slots =
        image.groups.iter().map(|group| group.rows.len().saturating_mul(group.after.len() + group.before.len()));
    if slots.fold(0, usize::saturating_add) > bytes.len() {
        return Err(ImageError::content("groups", "more columns and rows than a text of this length can hold"));
    }
    let names: FxHashMap<u32, Names<'_>> =
        relations.iter().map(|relation| (relation.id, Names::of(relation))).collect();
    let mut groups = Vec::with_capacity(image.groups.len());
    for (at, group) in image.groups.into_iter().enumerate() {
        groups.push(read_group(at + 1, group, &names, &transactions)?);
    }
    let messages = read_messages(image.messages, &transactions)?;
    let batch = Batch {
        id: image.id,
        attempt: image.attempt,
        reaches: read_cursor(image.reaches)?,
        rows: groups.iter().map(|group| group.ordinals.len()).sum::<usize>() + messages.len(),
        bytes: usize::try_from(image.bytes).map_err(|_| ImageError::content("bytes", "too large for this machine"))?,
        transactions,
        groups,
        messages,
    };
    Ok((batch, relations))
}

fn read_cursor(cursor: CursorForm) -> Result<Cursor, ImageError> {
    let between = cursor.ordinal == 0 && cursor.commit.is_zero();
    let within = cursor.ordinal > 0 && !cursor.commit.is_zero() && cursor.commit >= cursor.end;
    if between || within {
        Ok(Cursor { end: cursor.end, commit: cursor.commit, ordinal: cursor.ordinal })
    } else {
        Err(ImageError::content("reaches", "it has a commit exactly when its ordinal is not 0, at or after its end"))
    }
}

fn read_relations(forms: Vec<form::RelationForm>) -> Result<Vec<ProjectedRelation>, ImageError> {
    let mut relations: Vec<ProjectedRelation> = Vec::with_capacity(forms.len());
    let mut ids = rustc_hash::FxHashSet::default();
    for (at, form) in forms.into_iter().enumerate() {
        let place = format!("relation {}", at + 1);
        let Some(relation) = form::read_relation(form) else {
            return Err(ImageError::content(place, "an identity that does not exist"));
        };
        if !ids.insert(relation.id) {
            return Err(ImageError::content(place, "there is another of the same id"));
        }
        let mut names = rustc_hash::FxHashSet::default();
        if !relation.columns.iter().all(|column| names.insert(column.name.as_str())) {
            return Err(ImageError::content(place, "two columns of one name"));
        }
        relations.push(relation);
    }
    Ok(relations)
}

fn check_transactions(transactions: &[Transaction]) -> Result<(), ImageError> {
    let mut end = 0;
    for (at, transaction) in transactions.iter().enumerate() {
        let problem = if u64::from(transaction.first_ordinal) < end {
            "it begins inside the one before"
        } else if transaction.ordinals().end > u64::from(u32::MAX) {
            "more ordinals than a batch can have"
        } else if transaction.last_part == transaction.end.is_zero() {
            "only a last part tells its end"
        } else if at > 0 && (transaction.part > 0 || transaction.change_count == 0) {
            "only the first may be a later part, or empty"
        } else if !transaction.last_part && at + 1 < transactions.len() {
            "an unfinished part with a transaction behind it"
        } else {
            end = transaction.ordinals().end;
            continue;
        };
        return Err(ImageError::content(format!("transaction {}", at + 1), problem));
    }
    Ok(())
}

fn has_owner(transactions: &[Transaction], ordinal: u32) -> bool {
    let behind = transactions.partition_point(|owner| owner.first_ordinal <= ordinal);
    let owners = transactions.get(..behind).unwrap_or_default();
    owners.last().is_some_and(|owner| owner.ordinals().contains(&u64::from(ordinal)))
}

/// The columns of a relation by name.
struct Names<'a>(FxHashMap<&'a str, u16>);

impl<'a> Names<'a> {
    fn of(relation: &'a ProjectedRelation) -> Self {
        Self(relation.columns.iter().map(|column| column.name.as_str()).zip(0..=u16::MAX).collect())
    }
}

fn read_group(
    at: usize,
    form: GroupForm,
    names: &FxHashMap<u32, Names<'_>>,
    transactions: &[Transaction],
) -> Result<Group, ImageError> {
    let here = |problem| ImageError::content(format!("group {at}"), problem);
    let names = names.get(&form.relation).ok_or_else(|| here("a relation that the image does not have"))?;
    let operation = form::read_operation(&form.operation).ok_or_else(|| here("an operation that does not exist"))?;
    let mut after = read_heads(&form.after, names).ok_or_else(|| here(HEADS))?;
    let mut before = read_heads(&form.before, names).ok_or_else(|| here(HEADS))?;
    let mut ordinals: Vec<u32> = Vec::with_capacity(form.rows.len());
    for (row, cells) in form.rows.iter().enumerate() {
        let here = |problem| ImageError::content(format!("group {at}, row {}", row + 1), problem);
        if ordinals.last().is_some_and(|last| *last >= cells.ordinal) {
            return Err(here("ordinals do not rise"));
        }
        // Rows of a snapshot belong to no transaction.
        if operation != Operation::Read && !has_owner(transactions, cells.ordinal) {
            return Err(here("an ordinal that belongs to no transaction"));
        }
        ordinals.push(cells.ordinal);
        for (side, columns, heads, cells) in
            [("after", &mut after, &form.after, &cells.after), ("before", &mut before, &form.before, &cells.before)]
        {
            let mut found = 0;
            for (index, (column, head)) in columns.iter_mut().zip(heads).enumerate() {
                let cell = cells.get(&head.name);
                found += usize::from(cell.is_some());
                push_cell(column, cell).ok_or_else(|| {
                    let place = format!("group {at}, row {}, {side}, column {} of the group", row + 1, index + 1);
                    ImageError::content(place, "not a value of the kind of its column")
                })?;
            }
            if found < cells.len() {
                return Err(here("a column that the group does not have"));
            }
        }
    }
    for column in after.iter_mut().chain(&mut before) {
        column.presence = column.presence.take().filter(|presence| presence.iter().any(|code| *code != VALUE));
    }
    Ok(Group { relation: form.relation, operation, ordinals, after, before })
}

/// What is wrong with the columns of a group.
const HEADS: &str = "a column that its relation does not have, twice, out of order or of a kind that does not exist";

/// Columns without rows.
fn read_heads(heads: &[ColumnForm], names: &Names<'_>) -> Option<Vec<Column>> {
    let mut next = 0;
    let mut columns = Vec::with_capacity(heads.len());
    for head in heads {
        let index = *names.0.get(head.name.as_str()).filter(|index| u32::from(**index) >= next)?;
        next = u32::from(index) + 1;
        columns.push(Column { index, presence: Some(Vec::new()), values: slot::empty(&head.kind)? });
    }
    Some(columns)
}

fn push_cell(column: &mut Column, cell: Option<&Value>) -> Option<()> {
    let code = match cell {
        None => super::NOT_SENT,
        Some(Value::Null) => NULL,
        Some(cell @ Value::Object(_)) if *cell == unchanged() => UNCHANGED,
        Some(_) => VALUE,
    };
    match cell.filter(|_| code == VALUE) {
        Some(cell) => slot::push(&mut column.values, cell)?,
        None => slot::push_absent(&mut column.values),
    }
    column.presence.as_mut()?.push(code);
    Some(())
}

fn read_messages(forms: Vec<MessageForm>, transactions: &[Transaction]) -> Result<Vec<LogicalMessage>, ImageError> {
    let mut messages: Vec<LogicalMessage> = Vec::with_capacity(forms.len());
    for (at, form) in forms.into_iter().enumerate() {
        let here = |problem| ImageError::content(format!("message {}", at + 1), problem);
        if messages.last().is_some_and(|last| last.ordinal >= form.ordinal) {
            return Err(here("ordinals do not rise"));
        }
        if form.transactional && !has_owner(transactions, form.ordinal) {
            return Err(here("an ordinal that belongs to no transaction"));
        }
        let mut content = Vec::new();
        value::bytea(form.content.as_bytes(), &mut content)
            .ok_or_else(|| here("content of another form than bytes"))?;
        let (ordinal, transactional, prefix) = (form.ordinal, form.transactional, form.prefix);
        messages.push(LogicalMessage { ordinal, transactional, prefix, content });
    }
    Ok(messages)
}
