//! Column builders: values of one column, row after row, straight from the text of the log.
//!
//! Holds: growing buffers, presence bookkeeping, splitting, and the way to and from [`crate::batch::Column`]. Buffers
//! are reused: in steady state nothing here allocates. Never knows: relations, grants, ordinals.
//! Invariant: presence, when there is one, and values have the same number of slots.

use crate::batch::{ByteValues, Column, NOT_SENT, NULL, TextValues, UNCHANGED, VALUE, Values};
use crate::value::{self, Kind};

/// Why a value cannot be carried. Never holds the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The text is not what Postgres prints for the type under the pinned settings.
    #[error("the text is not of the form Postgres prints for this type")]
    Form,
    /// The text is not UTF-8: the database has the encoding SQL_ASCII and holds other bytes.
    #[error("the text is not UTF-8 (a database with encoding SQL_ASCII holds bytes that cannot be carried as text)")]
    Encoding,
    /// More than 4 GiB in one column of one batch.
    #[error("more than 4 GiB of this column in one batch")]
    TooLarge,
}

/// Why a slot has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// NULL.
    Null,
    /// Unchanged TOAST, not sent.
    Unchanged,
    /// Outside the key of a before image.
    NotSent,
}

impl Absent {
    const fn code(self) -> u8 {
        match self {
            Self::Null => NULL,
            Self::Unchanged => UNCHANGED,
            Self::NotSent => NOT_SENT,
        }
    }
}

enum Slots {
    Boolean(Vec<u8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    DateDays(Vec<i32>),
    TimeUs(Vec<i64>),
    TimestampUs(Vec<i64>),
    Uuid(Vec<u8>),
    Bytes(Vec<u32>, Vec<u8>),
    Text(Vec<u32>, Vec<u8>),
}

/// A growing column.
pub struct ColumnBuilder {
    slots: Slots,
    /// Empty while every row has a value.
    presence: Vec<u8>,
    rows: usize,
}

/// Runs one body for every representation; `$v` is its vector of fixed-width slots.
macro_rules! each_slots {
    ($slots:expr, fixed $v:ident => $fixed:expr, uuid $u:ident => $uuid:expr, variable $e:ident $d:ident => $variable:expr) => {
        match $slots {
            Slots::Boolean($v) => $fixed,
            Slots::Int16($v) => $fixed,
            Slots::Int32($v) | Slots::DateDays($v) => $fixed,
            Slots::Int64($v) | Slots::TimeUs($v) | Slots::TimestampUs($v) => $fixed,
            Slots::Float32($v) => $fixed,
            Slots::Float64($v) => $fixed,
            Slots::Uuid($u) => $uuid,
            Slots::Bytes($e, $d) | Slots::Text($e, $d) => $variable,
        }
    };
}

impl ColumnBuilder {
    /// An empty column.
    pub fn new(kind: Kind) -> Self {
        let slots = match kind {
            Kind::Boolean => Slots::Boolean(Vec::new()),
            Kind::Int16 => Slots::Int16(Vec::new()),
            Kind::Int32 => Slots::Int32(Vec::new()),
            Kind::Int64 => Slots::Int64(Vec::new()),
            Kind::Float32 => Slots::Float32(Vec::new()),
            Kind::Float64 => Slots::Float64(Vec::new()),
            Kind::DateDays => Slots::DateDays(Vec::new()),
            Kind::TimeUs => Slots::TimeUs(Vec::new()),
            Kind::TimestampUs => Slots::TimestampUs(Vec::new()),
            Kind::Uuid => Slots::Uuid(Vec::new()),
            Kind::Bytes => Slots::Bytes(Vec::new(), Vec::new()),
            Kind::Text => Slots::Text(Vec::new(), Vec::new()),
        };
        Self { slots, presence: Vec::new(), rows: 0 }
    }

    /// How its values travel.
    pub fn kind(&self) -> Kind {
        match self.slots {
            Slots::Boolean(_) => Kind::Boolean,
            Slots::Int16(_) => Kind::Int16,
            Slots::Int32(_) => Kind::Int32,
            Slots::Int64(_) => Kind::Int64,
            Slots::Float32(_) => Kind::Float32,
            Slots::Float64(_) => Kind::Float64,
            Slots::DateDays(_) => Kind::DateDays,
            Slots::TimeUs(_) => Kind::TimeUs,
            Slots::TimestampUs(_) => Kind::TimestampUs,
            Slots::Uuid(_) => Kind::Uuid,
            Slots::Bytes(..) => Kind::Bytes,
            Slots::Text(..) => Kind::Text,
        }
    }

    /// The number of row slots.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether any row was sent: it has a value, is NULL or is an unchanged TOAST value.
    pub fn is_sent(&self) -> bool {
        self.rows > 0 && (self.presence.is_empty() || self.presence.iter().any(|code| *code != NOT_SENT))
    }

    /// The memory its buffers hold, in bytes, used or not.
    pub fn capacity_bytes(&self) -> usize {
        let slots = each_slots!(&self.slots,
            fixed v => memory(v),
            uuid v => memory(v),
            variable ends data => memory(ends).saturating_add(memory(data)));
        memory(&self.presence).saturating_add(slots)
    }

    /// Adds the value of one row. On an error the column is as it was.
    #[inline]
    pub fn push(&mut self, text: &[u8]) -> Result<(), ValueError> {
        let form = ValueError::Form;
        match &mut self.slots {
            Slots::Text(ends, data) => {
                let end = end_after(data, text.len())?;
                data.extend_from_slice(text);
                ends.push(end);
            }
            Slots::Int32(v) => v.push(value::integer(text).and_then(|n| i32::try_from(n).ok()).ok_or(form)?),
            Slots::Int64(v) => v.push(value::integer(text).ok_or(form)?),
            Slots::Int16(v) => v.push(value::integer(text).and_then(|n| i16::try_from(n).ok()).ok_or(form)?),
            Slots::Boolean(v) => v.push(value::boolean(text).ok_or(form)?),
            Slots::TimestampUs(v) => v.push(value::timestamp(text).ok_or(form)?),
            Slots::DateDays(v) => v.push(value::date(text).ok_or(form)?),
            Slots::TimeUs(v) => v.push(value::time(text).ok_or(form)?),
            Slots::Float32(v) => v.push(value::float(text).ok_or(form)?),
            Slots::Float64(v) => v.push(value::float(text).ok_or(form)?),
            Slots::Uuid(v) => v.extend_from_slice(&value::uuid(text).ok_or(form)?),
            Slots::Bytes(ends, data) => {
                let end = end_after(data, text.len().saturating_sub(2) / 2)?;
                value::bytea(text, data).ok_or(form)?;
                ends.push(end);
            }
        }
        self.rows += 1;
        if !self.presence.is_empty() {
            self.presence.push(VALUE);
        }
        Ok(())
    }

    /// Adds the value of one row of a column of texts or byte strings, given byte by byte; tells how many there were. On
    /// an error the column is as it was.
    pub(crate) fn push_bytes(&mut self, bytes: impl Iterator<Item = u8>) -> Result<usize, ValueError> {
        let (Slots::Text(ends, data) | Slots::Bytes(ends, data)) = &mut self.slots else {
            return Err(ValueError::Form);
        };
        let start = data.len();
        data.extend(bytes);
        let Ok(end) = u32::try_from(data.len()) else {
            data.truncate(start);
            return Err(ValueError::TooLarge);
        };
        let length = data.len() - start;
        ends.push(end);
        self.rows += 1;
        if !self.presence.is_empty() {
            self.presence.push(VALUE);
        }
        Ok(length)
    }

    /// Adds a row without a value.
    pub fn push_absent(&mut self, absent: Absent) {
        // The presence list starts at the first absence; every row so far had a value.
        self.presence.resize(self.rows, VALUE);
        self.presence.push(absent.code());
        self.rows += 1;
        each_slots!(&mut self.slots,
            fixed v => v.push(Default::default()),
            uuid v => v.extend_from_slice(&[0; 16]),
            variable ends _data => ends.push(ends.last().copied().unwrap_or(0)));
    }

    /// Fills up with rows without a value until there are `rows`.
    pub fn pad(&mut self, rows: usize, absent: Absent) {
        while self.rows < rows {
            self.push_absent(absent);
        }
    }

    /// Moves the rows from `at` on into `tail`, which is empty and of the same kind.
    pub fn split_into(&mut self, at: usize, tail: &mut ColumnBuilder) {
        if at >= self.rows {
            return;
        }
        match (&mut self.slots, &mut tail.slots) {
            (Slots::Boolean(a), Slots::Boolean(b)) => move_tail(a, at, b),
            (Slots::Int16(a), Slots::Int16(b)) => move_tail(a, at, b),
            (Slots::Int32(a), Slots::Int32(b)) | (Slots::DateDays(a), Slots::DateDays(b)) => move_tail(a, at, b),
            (Slots::Int64(a), Slots::Int64(b))
            | (Slots::TimeUs(a), Slots::TimeUs(b))
            | (Slots::TimestampUs(a), Slots::TimestampUs(b)) => move_tail(a, at, b),
            (Slots::Float32(a), Slots::Float32(b)) => move_tail(a, at, b),
            (Slots::Float64(a), Slots::Float64(b)) => move_tail(a, at, b),
            (Slots::Uuid(a), Slots::Uuid(b)) => move_tail(a, at * 16, b),
            (Slots::Bytes(ends, data), Slots::Bytes(tail_ends, tail_data))
            | (Slots::Text(ends, data), Slots::Text(tail_ends, tail_data)) => {
                let base = at.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0);
                move_tail(ends, at, tail_ends);
                move_tail(data, base as usize, tail_data);
                tail_ends.iter_mut().for_each(|end| *end -= base);
            }
            // Two builders of different kinds meet only if a caller mixed columns up; losing rows silently would be
            // worse than leaving them where they are.
            _ => return,
        }
        tail.rows = self.rows - at;
        self.rows = at;
        if !self.presence.is_empty() {
            move_tail(&mut self.presence, at, &mut tail.presence);
            for builder in [self, tail] {
                if builder.presence.iter().all(|code| *code == VALUE) {
                    builder.presence.clear();
                }
            }
        }
    }

    /// The finished column, for the wire of the contract.
    pub fn finish(self, index: u16) -> Result<Column, ValueError> {
        let values = match self.slots {
            Slots::Boolean(v) => Values::Boolean(v),
            Slots::Int16(v) => Values::Int16(v),
            Slots::Int32(v) => Values::Int32(v),
            Slots::Int64(v) => Values::Int64(v),
            Slots::Float32(v) => Values::Float32(v),
            Slots::Float64(v) => Values::Float64(v),
            Slots::DateDays(v) => Values::DateDays(v),
            Slots::TimeUs(v) => Values::TimeUs(v),
            Slots::TimestampUs(v) => Values::TimestampUs(v),
            Slots::Uuid(v) => Values::Uuid(v),
            Slots::Bytes(ends, data) => Values::Bytes(ByteValues { ends, data }),
            Slots::Text(ends, data) => {
                // One pass over the whole column; then no value may begin or end inside a character.
                let data = String::from_utf8(data).map_err(|_| ValueError::Encoding)?;
                if !data.is_ascii() && ends.iter().any(|end| !data.is_char_boundary(*end as usize)) {
                    return Err(ValueError::Encoding);
                }
                Values::Text(TextValues { ends, data })
            }
        };
        let presence = if self.presence.is_empty() { None } else { Some(self.presence) };
        Ok(Column { index, presence, values })
    }

    /// Takes the buffers of a delivered column back, emptied.
    pub fn recycle(column: Column) -> Self {
        let mut presence = column.presence.unwrap_or_default();
        presence.clear();
        let mut slots = match column.values {
            Values::Boolean(v) => Slots::Boolean(v),
            Values::Int16(v) => Slots::Int16(v),
            Values::Int32(v) => Slots::Int32(v),
            Values::Int64(v) => Slots::Int64(v),
            Values::Float32(v) => Slots::Float32(v),
            Values::Float64(v) => Slots::Float64(v),
            Values::DateDays(v) => Slots::DateDays(v),
            Values::TimeUs(v) => Slots::TimeUs(v),
            Values::TimestampUs(v) => Slots::TimestampUs(v),
            Values::Uuid(v) => Slots::Uuid(v),
            Values::Bytes(v) => Slots::Bytes(v.ends, v.data),
            Values::Text(v) => Slots::Text(v.ends, v.data.into_bytes()),
        };
        each_slots!(&mut slots, fixed v => v.clear(), uuid v => v.clear(), variable ends data => { ends.clear(); data.clear() });
        Self { slots, presence, rows: 0 }
    }
}

/// Where a value of `len` bytes ends when added to `data`.
#[inline]
fn end_after(data: &[u8], len: usize) -> Result<u32, ValueError> {
    u32::try_from(data.len() + len).map_err(|_| ValueError::TooLarge)
}

fn memory<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}

fn move_tail<T: Copy>(from: &mut Vec<T>, at: usize, to: &mut Vec<T>) {
    to.extend_from_slice(from.get(at..).unwrap_or_default());
    from.truncate(at);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rows: &[Option<&str>]) -> ColumnBuilder {
        let mut builder = ColumnBuilder::new(Kind::Text);
        for row in rows {
            match row {
                Some(text) => builder.push(text.as_bytes()).unwrap(),
                None => builder.push_absent(Absent::Null),
            }
        }
        builder
    }

    fn finished(rows: &[Option<&str>]) -> Column {
        text(rows).finish(0).unwrap()
    }

    #[test]
    fn presence_starts_at_the_first_absence() {
        assert_eq!(finished(&[Some("a"), Some("b")]).presence, None);
        assert_eq!(finished(&[Some("a"), None, Some("b")]).presence, Some(vec![VALUE, NULL, VALUE]));
        assert_eq!(finished(&[None]).presence, Some(vec![NULL]));
    }

    #[test]
    fn a_split_gives_what_two_builders_would_have() {
        let rows = [Some("a"), None, Some("ü"), Some(""), Some("bcd")];
        for at in 0..=rows.len() {
            let mut head = text(&rows);
            let mut tail = ColumnBuilder::new(Kind::Text);
            head.split_into(at, &mut tail);
            assert_eq!(head.finish(0).unwrap(), finished(&rows[..at]), "head at {at}");
            assert_eq!(tail.finish(0).unwrap(), finished(&rows[at..]), "tail at {at}");
        }
    }

    #[test]
    fn a_character_cut_between_two_values_is_refused() {
        let mut builder = ColumnBuilder::new(Kind::Text);
        builder.push(&[0xC3]).unwrap();
        builder.push(&[0xBC]).unwrap();
        assert_eq!(builder.finish(0).unwrap_err(), ValueError::Encoding);
    }

    #[test]
    fn a_refused_value_leaves_the_column_as_it_was() {
        for kind in [Kind::Int16, Kind::Int32, Kind::Int64, Kind::Uuid, Kind::Bytes, Kind::DateDays, Kind::Float64] {
            let mut builder = ColumnBuilder::new(kind);
            builder.push_absent(Absent::Null);
            assert_eq!(builder.push(b"?"), Err(ValueError::Form), "{kind:?}");
            assert_eq!(builder.rows(), 1);
            assert_eq!(builder.finish(0).unwrap().values.len(), 1, "{kind:?}");
        }
    }

    #[test]
    fn recycled_buffers_start_empty_and_keep_their_room() {
        let column = finished(&[Some("some text"), None]);
        let mut builder = ColumnBuilder::recycle(column);
        assert_eq!(builder.rows(), 0);
        builder.push(b"x").unwrap();
        assert_eq!(builder.finish(0).unwrap(), finished(&[Some("x")]));
    }
}
