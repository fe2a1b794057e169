//! The bodies of the fuzz targets in `tests/fuzz`, and the properties that `cargo test` runs them under.
//!
//! Holds: one function a target. Each takes any bytes and must come back: what it checks beyond that is in its
//! comment. Not compiled into the host.

use crate::assemble::Assembler;
use crate::batch::{Batch, Values, image};
use crate::column::ColumnBuilder;
use crate::grant::filter::{Filter, MAX_COLUMNS};
use crate::grant::rules::{Before, EmptyUpdates, OnMissing, Rules, Treatment, Untouched};
use crate::grant::{Columns, Grant, Operations, TableGrant};
use crate::minimize::{Bounds, Item, Minimizer};
use crate::pgoutput::{DecodeError, Message, OldRow, RowBody, RowKind};
use crate::value::{self, Kind};
use crate::{Cursor, Lsn};

/// Decodes one message and walks all of it. An error points into the message.
pub fn pgoutput(bytes: &[u8]) {
    let walked = Message::decode(bytes).and_then(|message| match message {
        Message::Row(row) => walk(&row),
        _ => Ok(()),
    });
    if let Err(error) = walked {
        assert!(error.offset <= bytes.len(), "the offset points into the message");
    }
}

/// Walks every cell of a row whose relation has as many columns as the row says.
pub(crate) fn walk(row: &RowBody<'_>) -> Result<(), DecodeError> {
    let mut walk = row.walk();
    let old = walk.old()?;
    if old != OldRow::Absent {
        walk.any_columns()?;
        if row.kind() == RowKind::Update {
            walk.new_tag()?;
        }
    }
    if row.kind() != RowKind::Delete {
        walk.any_columns()?;
    }
    walk.finish()
}

/// A stream of messages, each with two bytes of length in front, into batches. Every batch is well formed.
pub fn assemble_minimize(bytes: &[u8]) {
    for rules in [Rules::default(), every_rule()] {
        minimize_by(rules, bytes);
    }
}

/// Rules that make a minimizer look at and change everything it can.
fn every_rule() -> Rules {
    let treatments = [("t", Treatment::Masked), ("late", Treatment::Nulled)];
    Rules {
        treatments: treatments.map(|(column, treatment)| (column.to_owned(), treatment)).into(),
        filter: Filter::parse("id < 250 and (t is null or t <> 'x') or not hidden in ('h')").ok(),
        before: Before::Key,
        key: vec!["id".to_owned()],
        untouched: Untouched::Withhold,
        empty_updates: EmptyUpdates::Drop,
        on_missing: OnMissing::Omit,
    }
}

fn minimize_by(rules: Rules, bytes: &[u8]) {
    let grant = Grant {
        tables: vec![TableGrant {
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            columns: Columns::AllExcept(vec!["hidden".to_owned()]),
            required: Vec::new(),
            operations: Operations::ALL,
            allow_new_columns: false,
            rules,
        }],
        message_prefixes: vec!["p".to_owned()],
    };
    let bounds = Bounds { max_rows: 3, max_bytes: 64 };
    let mut minimizer = Minimizer::new(grant, "fuzz", bounds, Cursor::default());
    let mut assembler = Assembler::new();
    let mut rest = bytes;
    while let Some(([high, low], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (message, after) = after.split_at_checked(length).unwrap_or((after, &[]));
        rest = after;
        let taken = match assembler.push(Lsn::ZERO, message) {
            Ok(event) => minimizer.apply(&event),
            // A lost connection: what was open comes again.
            Err(_) => {
                minimizer.rewind();
                assembler = Assembler::new();
                Ok(())
            }
        };
        if taken.and_then(|()| minimizer.cut()).is_err() {
            return;
        }
        while let Some(item) = minimizer.next_item() {
            if let Item::Batch(batch) = item {
                check_batch(&batch);
                minimizer.recycle(batch);
            }
        }
    }
}

/// Asserts what must hold of every batch, whatever the stream.
pub fn check_batch(batch: &Batch) {
    assert!(batch.id.len() <= 64 && batch.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
    let mut end = 0;
    for transaction in &batch.transactions {
        assert!(transaction.first_ordinal >= end, "transactions follow each other");
        end = transaction.first_ordinal.saturating_add(transaction.change_count);
        assert_eq!(transaction.last_part, !transaction.end.is_zero(), "only a last part tells its end");
    }
    let parts = batch.transactions.iter().filter(|transaction| !transaction.last_part).count();
    assert!(parts == 0 || batch.transactions.last().is_some_and(|last| !last.last_part) && parts == 1);
    for group in &batch.groups {
        assert!(!group.ordinals.is_empty(), "no group without rows");
        assert!(group.ordinals.iter().all(|ordinal| owner(batch, *ordinal)), "every change has a transaction");
    }
    check_columns(batch);
}

/// Asserts that all columns of a group have its rows.
fn check_columns(batch: &Batch) {
    for group in &batch.groups {
        let rows = group.ordinals.len();
        assert!(group.ordinals.is_sorted_by(|a, b| a < b), "ordinals rise");
        for column in group.after.iter().chain(&group.before) {
            assert_eq!(column.values.len(), rows, "one slot a row");
            assert!(column.presence.as_ref().is_none_or(|presence| presence.len() == rows));
            if let Values::Text(text) = &column.values {
                assert!(text.ends.iter().all(|end| text.data.is_char_boundary(*end as usize)));
                assert!(text.ends.is_sorted(), "texts follow each other");
            }
        }
    }
}

fn owner(batch: &Batch, ordinal: u32) -> bool {
    batch
        .transactions
        .iter()
        .any(|owner| ordinal.checked_sub(owner.first_ordinal).is_some_and(|at| at < owner.change_count))
}

/// Every value parser. What one takes, the column of its kind takes, as one slot.
pub fn values(bytes: &[u8]) {
    let kinds = [
        (Kind::Boolean, value::boolean(bytes).is_some()),
        (Kind::Int64, value::integer(bytes).is_some()),
        (Kind::Float32, value::float::<f32>(bytes).is_some()),
        (Kind::Float64, value::float::<f64>(bytes).is_some()),
        (Kind::DateDays, value::date(bytes).is_some()),
        (Kind::TimeUs, value::time(bytes).is_some()),
        (Kind::TimestampUs, value::timestamp(bytes).is_some()),
        (Kind::Uuid, value::uuid(bytes).is_some()),
        (Kind::Bytes, value::bytea(bytes, &mut Vec::new()).is_some()),
        (Kind::Text, std::str::from_utf8(bytes).is_ok()),
    ];
    for (kind, taken) in kinds {
        let mut column = ColumnBuilder::new(kind);
        let finished = column.push(bytes).and_then(|()| column.finish(0));
        assert_eq!(finished.is_ok(), taken, "{kind:?}");
        assert!(finished.is_ok_and(|column| column.values.len() == 1) == taken, "{kind:?}");
    }
}

/// The text of a row filter. An error points into it; what reads is bounded, and reads again from its SQL.
pub fn row_filter(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Filter::parse(text) {
        Ok(filter) => {
            assert!(filter.columns().len() <= MAX_COLUMNS);
            let sql = filter.sql();
            // The form of SQL has more parentheses, and may be too deep or too long for a filter.
            if let Ok(again) = Filter::parse(&sql) {
                assert!(again.sql() == sql && again.columns() == filter.columns(), "one form");
            }
        }
        Err(error) => assert!((1..=text.chars().count() + 1).contains(&error.at), "the place is in the text"),
    }
}

/// The image of a dead letter. One that reads is well formed, and what it says is written and read again to the same.
pub fn dead_letter_image(bytes: &[u8]) {
    let Ok((batch, relations)) = image::read(bytes) else { return };
    check_columns(&batch);
    let written = image::write(&batch, &relations);
    // Damage may be half a key tuple less: then the text is shorter than what it stands for, and is refused.
    if let Ok((again, known)) = image::read(&written) {
        assert_eq!(image::write(&again, &known), written, "one form");
        assert_eq!((again.id, again.rows, known), (batch.id, batch.rows, relations));
    }
}

/// A position that parses prints back to itself.
pub fn lsn(bytes: &[u8]) {
    if let Some(lsn) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<Lsn>().ok()) {
        assert_eq!(lsn.to_string().parse(), Ok(lsn));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pgoutput::build::{self, Value, column};

    const FILTER_WORDS: [&str; 26] = [
        "a", "größe", "\"x\"", "\"and\"", "=", "<", ">=", "!=", "(", ")", "(", ")", ",", "and", "OR", "not", "in",
        "is", "null", "true", "1", "-2.5", "'t'", "'it''s'", "'", "\"",
    ];

    /// A stream that makes sense, as the fuzz target reads it.
    fn stream() -> Vec<u8> {
        let columns = [column("id", 23, true), column("hidden", 25, false), column("t", 25, false)];
        let mut messages = Vec::new();
        for commit in [100_u64, 200, 300] {
            let id = commit.to_string();
            let row: [Value<'_>; 3] = [id.as_str().into(), "h".into(), "text".into()];
            messages.extend([
                build::message(false, commit - 50, "p", b"loose"),
                build::begin(commit, 0, 1),
                build::relation(1, "public", "t", b'f', &columns),
                build::insert(1, &row),
                build::update(1, Some((b'O', &row)), &[row[0], Value::Null, Value::Unchanged]),
                build::message(true, commit, "p", b"inside"),
                build::delete(1, b'K', &[row[0], Value::Null, Value::Null]),
                build::truncate(&[1]),
                build::commit(commit, commit + 10, 0),
            ]);
        }
        messages
            .iter()
            .flat_map(|message| [&(message.len() as u16).to_be_bytes(), message.as_slice()].concat())
            .collect()
    }

    fn mutated() -> impl Strategy<Value = Vec<u8>> {
        let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
        edits.prop_map(|edits| {
            let mut bytes = stream();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pgoutput_takes_any_bytes(tag in prop::sample::select(b"BCORYIUDTM".to_vec()), mut bytes: Vec<u8>) {
            pgoutput(&bytes);
            bytes.insert(0, tag);
            pgoutput(&bytes);
        }

        #[test]
        fn streams_may_be_damaged(bytes in mutated()) {
            assemble_minimize(&bytes);
        }

        #[test]
        fn values_take_any_bytes(bytes: Vec<u8>, text in r"[-+0-9:. BCeNaInfity\\xabcdef]{0,40}") {
            values(&bytes);
            values(text.as_bytes());
        }

        #[test]
        fn row_filters_take_any_text(
            bytes: Vec<u8>,
            words in prop::collection::vec(prop::sample::select(FILTER_WORDS.to_vec()), 0..40),
            nested in 0_usize..40,
        ) {
            row_filter(&bytes);
            row_filter(words.join(" ").as_bytes());
            let (open, close) = ("not (".repeat(nested), ")".repeat(nested));
            row_filter(format!("{open}a = 1 {} b is null{close}", words.join("")).as_bytes());
        }

        #[test]
        fn positions_take_any_bytes(bytes: Vec<u8>, text in "[0-9A-Fa-f/+]{0,20}", raw: u64) {
            lsn(&bytes);
            lsn(text.as_bytes());
            lsn(Lsn::new(raw).to_string().as_bytes());
        }
    }

    #[test]
    fn words_of_filters_make_filters() {
        // Otherwise only errors would ever be tested.
        for text in
            ["a = 1 and not größe in ( 't' , 'it''s' ) OR \"and\" is not null", "not (not (a = 1 or b is null))"]
        {
            assert!(Filter::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn the_undamaged_stream_is_taken_whole() {
        // Otherwise the mutations would only ever test the first message.
        let mut assembler = Assembler::new();
        let bytes = stream();
        let mut rest = bytes.as_slice();
        while let Some((length, after)) = rest.split_first_chunk() {
            let (message, after) = after.split_at(usize::from(u16::from_be_bytes(*length)));
            assembler.push(Lsn::ZERO, message).unwrap();
            rest = after;
        }
        assert!(!assembler.in_transaction());
    }
}
