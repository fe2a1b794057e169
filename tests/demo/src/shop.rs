//! The shop: three tables, what a plugin may see of them, and how the source itself tells its rows.
//!
//! Holds: the schema, the publication, the canaries in email and phone. Refuses to know which changes are made.
//! Read next: `workload.rs`.

use anyhow::{Context, Result};
use serde_json::{Map, Value};
use tokio_postgres::Client;

/// The database of the shop.
pub(crate) const DATABASE: &str = "shop";

/// The publication and the slot.
pub(crate) const SLOT: &str = "shop";

/// Part of every email address. Nothing else in the world contains it: `.invalid` is reserved.
pub(crate) const MAIL_MARKER: &str = ".canary.invalid";

/// A row by column names, as JSON.
pub(crate) type Row = Map<String, Value>;

/// One table as the plugins may see it.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its name; the schema is `public`.
    pub(crate) name: &'static str,
    /// The columns of its primary key.
    pub(crate) key: &'static [&'static str],
    /// Each granted column, and the SQL that tells its value as `ndjson-rust` does.
    pub(crate) granted: &'static [(&'static str, &'static str)],
    /// The columns that no grant names.
    pub(crate) withheld: &'static [&'static str],
}

/// The tables of the shop.
pub(crate) const TABLES: [Table; 3] = [
    Table {
        name: "customers",
        key: &["id"],
        granted: &[("id", "id"), ("name", "name"), ("visits", "visits"), ("joined", "joined")],
        withheld: &["email", "phone"],
    },
    Table {
        name: "orders",
        key: &["id"],
        granted: &[
            ("id", "id"),
            ("customer_id", "customer_id"),
            ("status", "status"),
            ("paid", "paid"),
            // JSON numbers of some readers are floats, so the plugin writes numeric as text, digit by digit.
            ("total", "total::text"),
            ("due", "due"),
            ("token", "token"),
        ],
        withheld: &[],
    },
    Table {
        name: "order_items",
        key: &["order_id", "line"],
        granted: &[
            ("order_id", "order_id"),
            ("line", "line"),
            ("quantity", "quantity"),
            ("price", "price::text"),
            ("document", "document"),
        ],
        withheld: &[],
    },
];

/// Schema and functions; `RUN` stands for eight digits that differ from run to run.
///
/// `customers` has the replica identity `full`: the old row of every update and delete travels, canaries included, so a
/// gate that only filtered new rows would leak. No foreign keys: their cascades would make changes nobody counted.
const SCHEMA: &str = r#"
CREATE TABLE customers (
    id int8 PRIMARY KEY, name text, email text NOT NULL, phone text NOT NULL, visits int4 NOT NULL DEFAULT 0,
    joined timestamptz NOT NULL
);
ALTER TABLE customers REPLICA IDENTITY FULL;

CREATE TABLE orders (
    id int8 PRIMARY KEY, customer_id int8 NOT NULL, status text NOT NULL, paid bool NOT NULL, total numeric(12, 2),
    due date, token uuid NOT NULL
);

CREATE TABLE order_items (
    order_id int8, line int2, quantity int4 NOT NULL, price numeric NOT NULL, document text,
    PRIMARY KEY (order_id, line)
);
-- Stored outside the row and never compressed: an update that does not touch it does not send it.
ALTER TABLE order_items ALTER COLUMN document SET STORAGE EXTERNAL;

CREATE FUNCTION mail(n int8, turn int4) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT 'mail-' || n || '-' || substr(md5('RUN mail ' || n || '/' || turn), 1, 16) || '@RUN.canary.invalid' $$;

-- No country code begins with 0.
CREATE FUNCTION phone(n int8, turn int4) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT '+0RUN-' || substr(md5('RUN phone ' || n || '/' || turn), 1, 16) $$;

CREATE FUNCTION customer_name(n int8) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT CASE n % 6 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'Zoë "the cat" ' || n
   WHEN 3 THEN E'two\nlines\tand \\ ' || n WHEN 4 THEN '猫 ' || n ELSE 'Ada ' || n END $$;

CREATE FUNCTION document(n int8, line int4, turn int4) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT string_agg(md5(n || '/' || line || '/' || turn || '/' || part), ' ') FROM generate_series(1, 150) part $$;

CREATE PUBLICATION shop FOR TABLE customers, orders, order_items;
"#;

/// Creates tables, functions and publication; `run` must be eight digits.
pub(crate) async fn create(client: &Client, run: &str) -> Result<()> {
    client.batch_execute(&SCHEMA.replace("RUN", run)).await.context("cannot create the shop")
}

/// Part of every phone number of this run.
pub(crate) fn phone_marker(run: &str) -> String {
    format!("+0{run}-")
}

/// All rows of a table, granted columns only, in the form that `ndjson-rust` writes.
pub(crate) async fn rows(client: &Client, table: &Table) -> Result<Vec<Row>> {
    let members: Vec<String> = table.granted.iter().map(|(name, sql)| format!("'{name}', {sql}")).collect();
    let sql = format!("SELECT json_build_object({})::text FROM {}", members.join(", "), table.name);
    client.batch_execute("SET TimeZone = 'UTC'").await.context("cannot set the time zone")?;
    let rows = client.query(&sql, &[]).await.with_context(|| format!("cannot read {}", table.name))?;
    let parse =
        |row: &tokio_postgres::Row| serde_json::from_str(row.try_get::<_, &str>(0)?).map_err(anyhow::Error::from);
    // The cause is left out: it could quote a value.
    rows.iter().map(parse).collect::<Result<_>>().map_err(|_| anyhow::anyhow!("a row of {} is no JSON", table.name))
}

/// Email addresses and phone numbers that customers have or had, as samples to look for: of the first customers
/// before and after their update, and of every thousandth that the import brings.
pub(crate) async fn canaries(client: &Client) -> Result<Vec<(String, String)>> {
    const SAMPLES: &str = "
        SELECT mail(n, turn), phone(n, turn) FROM generate_series(1, 500, 4) n, generate_series(0, 1) turn
        UNION ALL
        SELECT mail(n, 0), phone(n, 0) FROM generate_series(1000001, 1100000, 1000) n";
    let rows = client.query(SAMPLES, &[]).await.context("cannot read the canaries")?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The emails and phones of all customers as one text: what must be found if the search works at all.
pub(crate) async fn secrets(client: &Client) -> Result<(String, u64)> {
    let sql = "SELECT string_agg(email || ' ' || phone, E'\\n'), count(*) FROM customers";
    let row = client.query_one(sql, &[]).await.context("cannot read the secrets")?;
    let (text, customers): (Option<String>, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok((text.unwrap_or_default(), customers.unsigned_abs() * 2))
}
