//! Rows of plugins on real tables: what is shared by the cases.
//!
//! Holds: builders of works from rows, sinks, and a look at what is in a table. Read next: [`crate::rows_effects`].

use walgate_core::batch::{ByteValues, NOT_SENT, NULL, Operation, TextValues, UNCHANGED, VALUE, Values};
use walgate_core::rows::{Cells, RowSet};
use walgate_core::{Cursor, Lsn};
use walgate_store::{PluginCursor, RowsDone, RowsPlace, RowsRest, RowsSink, RowsTable, RowsTargets, RowsWork};

use crate::{PIPELINE, PLUGIN, Place, lineage, started};

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum V {
    Null,
    Keep,
    Out,
    Bool(u8),
    I2(i16),
    I4(i32),
    I8(i64),
    F4(f32),
    F8(f64),
    Date(i32),
    Time(i64),
    Stamp(i64),
    Uuid([u8; 16]),
    Bytes(Vec<u8>),
    Text(String),
}

pub(crate) fn text(text: &str) -> V {
    V::Text(text.to_owned())
}

/// A column of cells; its form is that of its first value.
pub(crate) fn cells(name: &str, rows: &[V]) -> Cells {
    let code = |cell: &V| match cell {
        V::Null => NULL,
        V::Keep => UNCHANGED,
        V::Out => NOT_SENT,
        _ => VALUE,
    };
    let codes: Vec<u8> = rows.iter().map(code).collect();
    macro_rules! fixed {
        ($case:ident, $values:ident) => {
            Values::$values(
                rows.iter().map(|cell| if let V::$case(v) = cell { *v } else { Default::default() }).collect(),
            )
        };
    }
    let values = match rows.iter().find(|cell| code(cell) == VALUE) {
        Some(V::Bool(_)) => fixed!(Bool, Boolean),
        Some(V::I2(_)) => fixed!(I2, Int16),
        Some(V::I4(_)) => fixed!(I4, Int32),
        Some(V::I8(_)) => fixed!(I8, Int64),
        Some(V::F4(_)) => fixed!(F4, Float32),
        Some(V::F8(_)) => fixed!(F8, Float64),
        Some(V::Date(_)) => fixed!(Date, DateDays),
        Some(V::Time(_)) => fixed!(Time, TimeUs),
        Some(V::Stamp(_)) => fixed!(Stamp, TimestampUs),
        Some(V::Uuid(_)) => {
            Values::Uuid(rows.iter().flat_map(|cell| if let V::Uuid(v) = cell { *v } else { [0; 16] }).collect())
        }
        Some(V::Bytes(_)) => {
            let mut all = ByteValues::default();
            for cell in rows {
                if let V::Bytes(bytes) = cell {
                    all.data.extend_from_slice(bytes);
                }
                all.ends.push(all.data.len() as u32);
            }
            Values::Bytes(all)
        }
        _ => {
            let mut all = TextValues::default();
            for cell in rows {
                if let V::Text(text) = cell {
                    all.data.push_str(text);
                }
                all.ends.push(all.data.len() as u32);
            }
            Values::Text(all)
        }
    };
    let presence = codes.iter().any(|code| *code != VALUE).then_some(codes);
    Cells { name: name.to_owned(), presence, values }
}

pub(crate) type Named<'a> = (&'a str, Vec<V>);

pub(crate) fn set(
    target: &str,
    operation: Operation,
    ordinals: &[u32],
    before: &[Named<'_>],
    after: &[Named<'_>],
) -> RowSet {
    let all = |columns: &[Named<'_>]| columns.iter().map(|(name, rows)| cells(name, rows)).collect();
    RowSet { target: target.to_owned(), operation, ordinals: ordinals.to_vec(), before: all(before), after: all(after) }
}

pub(crate) fn work(end: u64, calls: Vec<Vec<RowSet>>) -> RowsWork {
    let cursor = PluginCursor { plugin: PLUGIN.into(), cursor: Cursor::at(Lsn::new(end)), generation: 1 };
    RowsWork {
        cursor,
        moves: true,
        again: false,
        calls,
        state: Vec::new(),
        outputs: Vec::new(),
        dead_letters: Vec::new(),
        redriven: Vec::new(),
        refused_again: Vec::new(),
    }
}

pub(crate) fn far(epoch: u64) -> RowsPlace {
    RowsPlace::Far { pipeline: PIPELINE.into(), lineage: lineage().token(), epoch }
}

pub(crate) fn near(epoch: u64) -> RowsPlace {
    RowsPlace::State { pipeline: PIPELINE.into(), lineage: lineage(), epoch }
}

/// Every table of one schema.
pub(crate) fn rest(schema: &str) -> RowsTargets {
    RowsTargets { rest: Some(RowsRest { schema: schema.into(), columns: None, key: None }), ..RowsTargets::default() }
}

/// One table with a key of the operator's choice.
pub(crate) fn keyed(name: &str, table: &str, key: &[&str]) -> RowsTargets {
    let key = Some(key.iter().map(|name| (*name).to_owned()).collect());
    let table = RowsTable { schema: "public".into(), table: table.into(), columns: None, key };
    RowsTargets { named: [(name.to_owned(), table)].into(), rest: None }
}

pub(crate) async fn sink(place: &Place, targets: RowsTargets) -> RowsSink {
    let mut sink = RowsSink::connect(place.config(), None, PLUGIN, targets, far(1)).await.unwrap();
    sink.open().await.unwrap();
    sink
}

/// A database with these tables and a sink for all of schema public.
pub(crate) async fn made(major: u32, sql: &str) -> (Place, RowsSink) {
    let place = Place::make(major).await;
    place.execute(sql).await;
    let sink = sink(&place, rest("public")).await;
    (place, sink)
}

/// The rows of a query as text, in their order.
pub(crate) async fn rows(place: &Place, query: &str) -> Vec<String> {
    let query = format!("SELECT coalesce(r::text, '') FROM ({query}) r");
    place.client().await.query(&query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[track_caller]
pub(crate) fn done(got: RowsDone, upserted: u64, deleted: u64, truncated: u64, missed: u64) {
    assert_eq!(got, RowsDone { upserted, deleted, truncated, missed });
}

/// A started pipeline, and a sink of its leader in the state database itself.
pub(crate) async fn in_state(major: u32, sql: &str) -> (Place, walgate_store::Store, RowsSink) {
    let (place, mut store) = started(major).await;
    place.execute(sql).await;
    let epoch = store.take_over(PIPELINE, "test:1").await.unwrap();
    let mut sink = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), near(epoch)).await.unwrap();
    assert_eq!(sink.open().await.unwrap(), None);
    (place, store, sink)
}
