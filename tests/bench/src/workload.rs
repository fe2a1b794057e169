//! What is written to the log and then read: the workloads, as SQL.
//!
//! Holds: tables, and how rows get into them. Never knows: who reads.
//! Read next: `source.rs`, which runs the SQL.

/// Rows of a transaction that has many.
const ROWS_PER_TRANSACTION: u64 = 100;

/// Tables of workload g.
const MANY_TABLES: u64 = 50;

/// One transaction in this many is published in workload h.
const PUBLISHED_EVERY: u64 = 10;

/// Five small columns, as in the tables of a shop.
const SMALL_COLUMNS: &str = "(id bigint PRIMARY KEY, n int, name text, at timestamptz, ok bool)";

/// The names that `--only` takes.
pub(crate) const NAMES: [&str; 7] = ["a", "c", "d", "e", "f", "g", "h"];

/// One row in this many is deleted in workload f.
const DELETED_EVERY: u64 = 5;

/// How much a workload writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// What ratios are promised for.
    Full,
    /// About a fifth of it.
    Small,
    /// A fiftieth: enough to see that the bench works.
    Tiny,
}

/// One workload.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// Its letter.
    pub(crate) name: &'static str,
    /// What it is, for people.
    pub(crate) about: String,
    /// Rows that readers see.
    pub(crate) rows: u64,
    /// The published tables, in schema `public`.
    pub(crate) tables: Vec<String>,
    /// Makes all tables, and the rows that are there before the log that is read.
    pub(crate) setup: Vec<String>,
    /// Writes the rows: one statement that commits by itself.
    pub(crate) fill: String,
}

/// All workloads.
pub(crate) fn all(size: Size) -> Vec<Workload> {
    let size = |full: u64, small: u64| match size {
        Size::Full => full,
        Size::Small => small,
        Size::Tiny => full / 50,
    };
    vec![
        transactions_of_100(size(1_000_000, 200_000)),
        long_texts(size(100_000, 40_000)),
        one_row_transactions(size(200_000, 60_000)),
        one_transaction(size(1_000_000, 200_000)),
        updates_and_deletes(size(500_000, 100_000)),
        many_tables(size(500_000, 150_000)),
        mostly_unpublished(size(1_000_000, 300_000)),
    ]
}

fn transactions_of_100(rows: u64) -> Workload {
    Workload {
        name: "a",
        about: format!("{rows} rows of 5 small columns, {ROWS_PER_TRANSACTION} a transaction"),
        rows,
        tables: vec!["a".to_owned()],
        setup: vec![format!("CREATE TABLE a {SMALL_COLUMNS}")],
        fill: in_transactions(rows, &insert_run("a")),
    }
}

fn long_texts(rows: u64) -> Workload {
    let insert = run_of("INSERT INTO c SELECT n, substr(repeat(md5(n::text), 63), 1, 2000)");
    Workload {
        name: "c",
        about: format!("{rows} rows of 2,000 bytes of text, {ROWS_PER_TRANSACTION} a transaction"),
        rows,
        tables: vec!["c".to_owned()],
        // Kept whole in the row: neither compressed nor moved out, so that the log holds what the reader gets.
        setup: vec!["CREATE TABLE c (id bigint PRIMARY KEY, body text) WITH (toast_tuple_target = 8160)".to_owned()],
        fill: in_transactions(rows, &insert),
    }
}

fn one_row_transactions(rows: u64) -> Workload {
    Workload {
        name: "d",
        about: format!("{rows} transactions of one row"),
        rows,
        tables: vec!["d".to_owned()],
        setup: vec![format!("CREATE TABLE d {SMALL_COLUMNS}")],
        fill: transactions(rows, &insert_one("d", "t")),
    }
}

fn one_transaction(rows: u64) -> Workload {
    Workload {
        name: "e",
        about: format!("one transaction of {rows} rows"),
        rows,
        tables: vec!["e".to_owned()],
        setup: vec![format!("CREATE TABLE e {SMALL_COLUMNS}")],
        fill: format!("INSERT INTO e {} FROM generate_series(1, {rows}) n", small_values()),
    }
}

fn updates_and_deletes(present: u64) -> Workload {
    let of_transaction = format!("id BETWEEN t * {ROWS_PER_TRANSACTION} + 1 AND (t + 1) * {ROWS_PER_TRANSACTION}");
    let changes = format!(
        "UPDATE f SET n = n + 1, name = 'other ' || id WHERE {of_transaction}; \
         DELETE FROM f WHERE {of_transaction} AND id % {DELETED_EVERY} = 0;"
    );
    let deleted = present / DELETED_EVERY;
    Workload {
        name: "f",
        about: format!(
            "{present} updates and {deleted} deletes, default identity, {} a transaction",
            ROWS_PER_TRANSACTION + ROWS_PER_TRANSACTION / DELETED_EVERY
        ),
        rows: present + deleted,
        tables: vec!["f".to_owned()],
        setup: vec![
            format!("CREATE TABLE f {SMALL_COLUMNS}"),
            format!("INSERT INTO f {} FROM generate_series(1, {present}) n", small_values()),
        ],
        fill: in_transactions(present, &changes),
    }
}

fn many_tables(rows: u64) -> Workload {
    let tables: Vec<String> = (1..=MANY_TABLES).map(|n| format!("g{n}")).collect();
    let passes = ROWS_PER_TRANSACTION / MANY_TABLES;
    let inserts: String = (0..passes)
        .flat_map(|pass| tables.iter().map(move |table| insert_one(table, &format!("(t * {passes} + {pass})"))))
        .collect();
    Workload {
        name: "g",
        about: format!("{rows} rows over {MANY_TABLES} tables, round robin, {ROWS_PER_TRANSACTION} a transaction"),
        rows,
        setup: tables.iter().map(|table| format!("CREATE TABLE {table} {SMALL_COLUMNS}")).collect(),
        tables,
        fill: transactions(rows / ROWS_PER_TRANSACTION, &inserts),
    }
}

fn mostly_unpublished(written: u64) -> Workload {
    let rows = written / PUBLISHED_EVERY;
    let insert =
        format!("IF t % {PUBLISHED_EVERY} = 0 THEN {} ELSE {} END IF;", insert_run("h"), insert_run("h_unpublished"));
    Workload {
        name: "h",
        about: format!("{rows} rows of 5 small columns among {} in a table that is not published", written - rows),
        rows,
        tables: vec!["h".to_owned()],
        setup: ["h", "h_unpublished"].map(|table| format!("CREATE TABLE {table} {SMALL_COLUMNS}")).to_vec(),
        fill: in_transactions(written, &insert),
    }
}

/// The values of five small columns for row `n`.
fn small_values() -> &'static str {
    "SELECT n, (n % 1000)::int, 'name ' || n, timestamptz '2024-05-06 07:08:09.123456+00' + n * interval '1 second', \
     n % 2 = 0"
}

fn insert_run(table: &str) -> String {
    run_of(&format!("INSERT INTO {table} {}", small_values()))
}

fn insert_one(table: &str, number: &str) -> String {
    format!("INSERT INTO {table} {} FROM (VALUES ({number}::bigint)) v(n);", small_values())
}

/// The rows of transaction `t`.
fn run_of(insert: &str) -> String {
    format!("{insert} FROM generate_series(t * {ROWS_PER_TRANSACTION} + 1, (t + 1) * {ROWS_PER_TRANSACTION}) n;")
}

fn in_transactions(rows: u64, insert: &str) -> String {
    transactions(rows / ROWS_PER_TRANSACTION, insert)
}

/// Runs `body` in `count` transactions; `t` counts them from 0.
fn transactions(count: u64, body: &str) -> String {
    format!("DO $$ BEGIN FOR t IN 0..{} LOOP {body} COMMIT; END LOOP; END $$", count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_can_be_asked_for() {
        for size in [Size::Full, Size::Small, Size::Tiny] {
            assert_eq!(all(size).iter().map(|workload| workload.name).collect::<Vec<_>>(), NAMES);
        }
    }

    #[test]
    fn sizes_are_whole_transactions() {
        for workload in [Size::Full, Size::Small, Size::Tiny].into_iter().flat_map(all) {
            assert_eq!(workload.rows % ROWS_PER_TRANSACTION, 0, "{}", workload.about);
        }
    }

    #[test]
    fn round_robin_writes_every_table_twice_in_turn() {
        let fill = many_tables(200).fill;
        let places: Vec<usize> = ["g1 ", "g50 ", "g1 "]
            .iter()
            .scan(0, |from, table| {
                let at = *from + fill[*from..].find(&format!("INSERT INTO {table}"))?;
                *from = at + 1;
                Some(at)
            })
            .collect();
        assert_eq!(places.len(), 3);
        assert_eq!(fill.matches("INSERT INTO").count(), 100);
    }
}
