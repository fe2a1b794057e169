//! Random works, applied by the writer to one schema and row by row in plain SQL to another: both end up the same.
//!
//! Holds: the generator, and the plain application that says what is right. A third schema, without the second unique
//! key, says what the net effect of a work is where plain SQL meets another row on the way. Read next: [`crate::rows`].

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio_postgres::Client;
use walgate_core::batch::Operation;
use walgate_core::rows::RowSet;
use walgate_store::RowsSink;

use crate::Place;
use crate::rows::{V, rest, set, sink, text, work};

/// Keys are few, so that rows meet; `uniques` has a second unique key, which single rows violate on the way, folded ones
/// only with what they leave.
const TABLES: &str = "
    CREATE TABLE ints (id int PRIMARY KEY, a text, b int, c text DEFAULT 'c');
    CREATE TABLE texts (id text PRIMARY KEY, a text, b int, c text DEFAULT 'c');
    CREATE TABLE numbers (id numeric PRIMARY KEY, a text, b int, c text DEFAULT 'c');
    CREATE TABLE uuids (id uuid PRIMARY KEY, a text, b int, c text DEFAULT 'c');
    CREATE TABLE pairs (other text, id int, a text, b int, c text DEFAULT 'c', PRIMARY KEY (id, other));
    CREATE TABLE uniques (id int PRIMARY KEY, a text, b int UNIQUE, c text DEFAULT 'c');";

/// Of the writer, of plain SQL, and of plain SQL without the second unique key.
const SCHEMAS: [&str; 3] = ["fast", "plain", "net"];

const NAMES: [&str; 6] = ["ints", "texts", "numbers", "uuids", "pairs", "uniques"];

/// One change; `columns` says which of a, b, c the set has, `kept` which of those the row leaves alone.
#[derive(Debug, Clone)]
struct Change {
    table: usize,
    operation: Operation,
    old: u8,
    new: u8,
    before: bool,
    columns: u8,
    kept: u8,
    value: u8,
}

fn change() -> impl Strategy<Value = Change> {
    let operation = prop_oneof![
        6 => Just(Operation::Insert),
        1 => Just(Operation::Read),
        9 => Just(Operation::Update),
        4 => Just(Operation::Delete),
        1 => Just(Operation::Truncate),
    ];
    let columns = prop_oneof![3 => Just(7_u8), 1 => 0_u8..8];
    let kept = prop_oneof![2 => Just(0_u8), 2 => 0_u8..8];
    // Most changes are about one table, so that its rows meet.
    let table = prop_oneof![1 => Just(0_usize), 1 => 0..NAMES.len()];
    (table, operation, 0_u8..6, 0_u8..6, any::<bool>(), columns, kept, 0_u8..12).prop_map(
        |(table, operation, old, new, before, columns, kept, value)| Change {
            table,
            operation,
            old,
            new: if before { new } else { old },
            before: before || operation == Operation::Delete,
            columns,
            kept: kept & columns,
            value,
        },
    )
}

/// The key as the plugin sends it and as SQL spells it.
fn key(table: usize, key: u8) -> Vec<(&'static str, V, String)> {
    match NAMES[table] {
        "texts" => vec![("id", text(&format!("k{key}")), format!("'k{key}'"))],
        "numbers" => {
            // Six spellings of three keys.
            let spelled = ["1", "1.0", "2", "2.00", "03", "3"][key as usize];
            vec![("id", text(spelled), format!("'{spelled}'::numeric"))]
        }
        "uuids" => {
            let mut bytes = [0; 16];
            bytes[15] = key;
            vec![("id", V::Uuid(bytes), format!("'00000000-0000-0000-0000-0000000000{key:02x}'::uuid"))]
        }
        "pairs" => {
            let (id, other) = (key / 2, format!("o{}", key % 2));
            vec![("id", V::I4(id.into()), id.to_string()), ("other", text(&other), format!("'{other}'"))]
        }
        _ => vec![("id", V::I4(key.into()), key.to_string())],
    }
}

const COLUMNS: [&str; 3] = ["a", "b", "c"];

/// The cells outside the key, with their SQL; `None` for one that is left alone.
fn values(change: &Change) -> Vec<(&'static str, V, Option<String>)> {
    (0..3)
        .filter(|bit| change.columns >> bit & 1 == 1)
        .map(|bit| {
            let name = COLUMNS[bit];
            let value = change.value;
            if change.kept >> bit & 1 == 1 {
                (name, V::Keep, None)
            } else if name == "b" {
                (name, V::I4(value.into()), Some(value.to_string()))
            } else if value == 0 {
                (name, V::Null, Some("NULL".to_owned()))
            } else {
                (name, text(&format!("{name}{value}")), Some(format!("'{name}{value}'")))
            }
        })
        .collect()
}

/// The table, the operation, whether there is a before image, and the columns.
type ShapeOf = (usize, Operation, bool, u8);

/// The changes as sets: those of one table, operation and shape together, as a plugin would.
fn sets(changes: &[Change]) -> Vec<RowSet> {
    let mut by_shape: BTreeMap<ShapeOf, Vec<(u32, &Change)>> = BTreeMap::new();
    for (ordinal, change) in (0..).zip(changes) {
        let columns = if change.operation == Operation::Delete { 0 } else { change.columns };
        let shape = (change.table, change.operation, change.before, columns);
        by_shape.entry(shape).or_default().push((ordinal, change));
    }
    let mut sets = Vec::new();
    for ((table, operation, has_before, _), rows) in by_shape {
        let mut before: BTreeMap<&str, Vec<V>> = BTreeMap::new();
        let mut after: BTreeMap<&str, Vec<V>> = BTreeMap::new();
        for (_, change) in &rows {
            for (name, cell, _) in key(table, change.old).into_iter().filter(|_| has_before) {
                before.entry(name).or_default().push(cell);
            }
            for (name, cell, _) in key(table, change.new) {
                after.entry(name).or_default().push(cell);
            }
            for (name, cell, _) in values(change) {
                after.entry(name).or_default().push(cell);
            }
        }
        let ordinals: Vec<u32> = rows.iter().map(|(ordinal, _)| *ordinal).collect();
        let list = |columns: BTreeMap<&'static str, Vec<V>>| columns.into_iter().collect::<Vec<_>>();
        let (before, after) = match operation {
            Operation::Truncate => (Vec::new(), Vec::new()),
            Operation::Delete => (list(before), Vec::new()),
            Operation::Update => (list(before), list(after)),
            _ => (Vec::new(), list(after)),
        };
        sets.push(set(NAMES[table], operation, &ordinals, &before, &after));
    }
    sets
}

/// What the changes mean, one statement after the other. An error is that of the table.
async fn plainly(client: &Client, schema: &str, changes: &[Vec<Change>]) -> Result<(), tokio_postgres::Error> {
    for change in changes.iter().flatten() {
        plain(client, schema, change).await?;
    }
    Ok(())
}

async fn plain(client: &Client, schema: &str, change: &Change) -> Result<(), tokio_postgres::Error> {
    let table = format!("{schema}.{}", NAMES[change.table]);
    let matches = |number| {
        let key = key(change.table, number);
        key.iter().map(|(name, _, sql)| format!("{name} = {sql}")).collect::<Vec<_>>().join(" AND ")
    };
    let upsert = |cells: &[(String, String)]| {
        let key = key(change.table, change.new);
        let names: Vec<String> = key.iter().map(|k| k.0.to_owned()).chain(cells.iter().map(|c| c.0.clone())).collect();
        let all: Vec<String> = key.iter().map(|k| k.2.clone()).chain(cells.iter().map(|c| c.1.clone())).collect();
        let set: Vec<String> = names.iter().map(|name| format!("{name} = excluded.{name}")).collect();
        let on: Vec<&str> = key.iter().map(|k| k.0).collect();
        format!(
            "INSERT INTO {table} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {}",
            names.join(", "),
            all.join(", "),
            on.join(", "),
            set.join(", ")
        )
    };
    // Two spellings of one key are no change of it.
    let same = change.old == change.new || (NAMES[change.table] == "numbers" && change.old / 2 == change.new / 2);
    let values = values(change);
    let mut given: Vec<(String, String)> =
        values.iter().filter_map(|(name, _, sql)| Some(((*name).to_owned(), sql.clone()?))).collect();
    let kept: Vec<&str> = values.iter().filter(|value| value.2.is_none()).map(|value| value.0).collect();
    let sql = match change.operation {
        Operation::Truncate => format!("TRUNCATE {table}"),
        Operation::Delete => format!("DELETE FROM {table} WHERE {}", matches(change.old)),
        Operation::Insert | Operation::Read => upsert(&given),
        Operation::Update if same => {
            if kept.is_empty() {
                upsert(&given)
            } else if given.is_empty() {
                return Ok(());
            } else {
                let set: Vec<String> = given.iter().map(|(name, sql)| format!("{name} = {sql}")).collect();
                format!("UPDATE {table} SET {} WHERE {}", set.join(", "), matches(change.new))
            }
        }
        Operation::Update => {
            for name in &kept {
                let found = client
                    .query(&format!("SELECT quote_nullable({name}) FROM {table} WHERE {}", matches(change.old)), &[])
                    .await?;
                let Some(row) = found.first() else { return Ok(()) };
                given.push(((*name).to_owned(), row.get(0)));
            }
            client.batch_execute(&format!("DELETE FROM {table} WHERE {}", matches(change.old))).await?;
            upsert(&given)
        }
    };
    client.batch_execute(&sql).await
}

async fn dump(client: &Client, schema: &str) -> Vec<String> {
    let mut all = Vec::new();
    for name in NAMES {
        // Numbers as numbers: which of two spellings stays is for the case of its own.
        let id = if name == "numbers" { "trim_scale(id)" } else { "id" };
        let query = format!("SELECT ({id}, a, b, c)::text FROM {schema}.{name} ORDER BY {id}");
        let query = if name == "pairs" {
            query.replace("ORDER BY id", "ORDER BY id, other").replace("(id,", "(id, other,")
        } else {
            query
        };
        all.extend(
            client.query(&query, &[]).await.unwrap().iter().map(|row| format!("{name}: {}", row.get::<_, String>(0))),
        );
    }
    all
}

struct Pair {
    client: Client,
    sink: RowsSink,
    end: u64,
}

impl Pair {
    async fn check(&mut self, works: &[Vec<Vec<Change>>]) -> Result<(), TestCaseError> {
        for schema in SCHEMAS {
            let all: Vec<String> = NAMES.iter().map(|name| format!("{schema}.{name}")).collect();
            self.client.batch_execute(&format!("TRUNCATE {}", all.join(", "))).await.unwrap();
        }
        for calls in works {
            self.end += 0x100;
            self.client.batch_execute("BEGIN").await.unwrap();
            plainly(&self.client, "net", calls).await.unwrap();
            self.client.batch_execute("SAVEPOINT plain").await.unwrap();
            let right = plainly(&self.client, "plain", calls).await;
            if right.is_err() {
                self.client.batch_execute("ROLLBACK TO plain").await.unwrap();
            }
            let got = self.sink.commit(&work(self.end, calls.iter().map(|call| sets(call)).collect())).await;
            // What plain SQL can write, the writer can. It may do more: folded rows do not meet others on the way.
            prop_assert!(got.is_ok() || right.is_err(), "{:?}", got.err().map(|error| error.to_string()));
            self.client.batch_execute(if got.is_ok() { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
            prop_assert_eq!(dump(&self.client, "fast").await, dump(&self.client, "net").await);
            if got.is_ok() && right.is_err() {
                for name in NAMES {
                    let follow = format!("TRUNCATE plain.{name}; INSERT INTO plain.{name} SELECT * FROM net.{name}");
                    self.client.batch_execute(&follow).await.unwrap();
                }
            }
            prop_assert_eq!(dump(&self.client, "plain").await, dump(&self.client, "net").await);
        }
        Ok(())
    }
}

fn folded_is_one_by_one(major: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (place, mut pair) = runtime.block_on(async {
        let place = Place::make(major).await;
        for schema in SCHEMAS {
            place.execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {TABLES}")).await;
        }
        place.execute("ALTER TABLE net.uniques DROP CONSTRAINT uniques_b_key").await;
        let (client, sink) = (place.client().await, sink(&place, rest("fast")).await);
        (place, Pair { client, sink, end: 0x100 })
    });
    let mut runner = TestRunner::new(Config { cases: 128, failure_persistence: None, ..Config::default() });
    let works = vec(vec(vec(change(), 0..14), 1..4), 1..4);
    let pair = std::cell::RefCell::new(&mut pair);
    let result = runner.run(&works, |works| runtime.block_on(pair.borrow_mut().check(&works)));
    drop(place);
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn folded_is_one_by_one_on_postgres_15() {
    folded_is_one_by_one(15);
}

#[test]
fn folded_is_one_by_one_on_postgres_18() {
    folded_is_one_by_one(18);
}
