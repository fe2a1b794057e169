//! What happens in the shop, and exactly how many changes that makes.
//!
//! Holds: the statements, transaction by transaction, counted by what the server says it changed. Refuses to know
//! walgate. What is rolled back counts for nothing, and must not arrive.
//! Read next: `tally.rs`.

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::tally::{Operation, Tally};
use Operation::{Delete, Insert, Update};

/// Rows of the large transaction.
pub(crate) const IMPORT_ROWS: u64 = 100_000;

/// What the names of imported customers begin with; no other name does.
pub(crate) const IMPORT_NAME: &str = "import ";

/// One step of a transaction.
enum Step {
    /// A statement that changes rows.
    Rows(Operation, String),
    /// One TRUNCATE of several tables.
    Truncate(&'static [&'static str]),
    /// A statement inside a savepoint that is rolled back.
    Undone(String),
}

/// Someone who works in the shop: one session, and what it has committed.
pub(crate) struct Clerk {
    client: Client,
    made: Tally,
    /// Numbers the small transactions, so that each has rows of its own.
    turn: u64,
}

impl Clerk {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, made: Tally::default(), turn: 0 }
    }

    /// Everything this clerk has committed.
    pub(crate) fn made(&self) -> Tally {
        self.made
    }

    /// The first season: every kind of change, ended by a TRUNCATE of two tables, and the beginning of the second.
    pub(crate) async fn open_shop(&mut self) -> Result<()> {
        for first in (1..=500).step_by(10) {
            self.commit(&[rows(Insert, customers(first, first + 9))]).await?;
        }
        for order in 1..=200 {
            self.commit(&[rows(Insert, an_order(order)), rows(Insert, items(order))]).await?;
        }
        self.change_everything().await?;
        self.give_up().await?;
        self.commit(&[Step::Truncate(&["order_items", "orders"])]).await?;
        for order in 301..=400 {
            self.commit(&[rows(Insert, an_order(order)), rows(Insert, items(order))]).await?;
        }
        self.change_everything().await
    }

    /// Updates with and without the large value, new keys, deletes, and rows that live for one transaction only.
    async fn change_everything(&mut self) -> Result<()> {
        self.commit(&[
            rows(Update, "UPDATE order_items SET quantity = quantity + 1 WHERE line <= 2"),
            rows(Update, "UPDATE order_items SET document = document(order_id, line, 1) WHERE order_id % 10 = 1"),
        ])
        .await?;
        self.commit(&[
            rows(Update, "UPDATE orders SET status = 'shipped', paid = true, due = due + 7 WHERE id % 3 = 0"),
            rows(
                Update,
                "UPDATE customers SET email = mail(id, 1), phone = phone(id, 1) WHERE id <= 500 AND id % 4 = 1",
            ),
            rows(Update, "UPDATE customers SET visits = visits + 1, name = NULL WHERE id <= 500 AND id % 8 = 2"),
        ])
        .await?;
        // The large value of a row stays unsent although its key changes.
        self.commit(&[
            rows(
                Update,
                "UPDATE order_items SET order_id = order_id + 500000 WHERE order_id < 500 AND order_id % 20 = 0",
            ),
            rows(Update, "UPDATE orders SET id = id + 500000 WHERE id < 500 AND id % 20 = 0"),
            rows(Update, "UPDATE customers SET id = id + 500000 WHERE id < 500 AND id % 100 = 30"),
        ])
        .await?;
        self.commit(&[
            rows(Delete, "DELETE FROM order_items WHERE order_id % 20 = 7"),
            rows(Delete, "DELETE FROM orders WHERE id % 20 = 7"),
            rows(Delete, "DELETE FROM customers WHERE id <= 500 AND id % 50 = 7"),
        ])
        .await?;
        self.commit(&[
            rows(Insert, customers(801, 803)),
            rows(Update, "UPDATE customers SET visits = 9 WHERE id BETWEEN 801 AND 803"),
            rows(Update, "UPDATE customers SET id = id + 100 WHERE id = 802"),
            rows(Delete, "DELETE FROM customers WHERE id BETWEEN 801 AND 902"),
        ])
        .await
    }

    /// Work that comes to nothing: a whole transaction, and part of one.
    async fn give_up(&mut self) -> Result<()> {
        let nothing = format!("BEGIN; {}; DELETE FROM orders; ROLLBACK", customers(701, 710));
        self.client.batch_execute(&nothing).await.context("cannot roll back")?;
        self.commit(&[
            rows(Update, "UPDATE customers SET visits = visits + 1 WHERE id = 1"),
            Step::Undone(customers(711, 720)),
            Step::Undone("DELETE FROM order_items".to_owned()),
            rows(Update, "UPDATE customers SET visits = visits + 1 WHERE id = 2"),
        ])
        .await
    }

    /// One small transaction of an ordinary day: a customer comes, orders, changes their mind, moves, leaves.
    pub(crate) async fn serve_one(&mut self) -> Result<()> {
        let n = 2_000_000 + self.turn;
        self.turn += 1;
        self.commit(&[
            rows(Insert, customers(n, n)),
            rows(Insert, an_order(n)),
            rows(Insert, items(n)),
            rows(Update, format!("UPDATE order_items SET quantity = quantity + 3 WHERE order_id = {}", n - 1)),
            rows(Update, format!("UPDATE customers SET email = mail(id, 2), visits = 1 WHERE id = {}", n - 1)),
            rows(Update, format!("UPDATE customers SET id = id + 1000000 WHERE id = {}", n - 2)),
            rows(Delete, format!("DELETE FROM order_items WHERE order_id = {}", n - 3)),
            rows(Delete, format!("DELETE FROM orders WHERE id = {}", n - 3)),
            rows(Delete, format!("DELETE FROM customers WHERE id = {}", 1_000_000 + n - 4)),
        ])
        .await
    }

    /// [`Clerk::serve_one`], so many times.
    pub(crate) async fn serve(&mut self, customers: u64) -> Result<()> {
        for _ in 0..customers {
            self.serve_one().await?;
        }
        Ok(())
    }

    /// The large transaction: customers of another shop are taken over, all at once.
    pub(crate) async fn import(&mut self) -> Result<()> {
        let (first, last) = (1_000_001, 1_000_000 + IMPORT_ROWS);
        let sql = format!("{} FROM generate_series({first}, {last}) n", select(&format!("'{IMPORT_NAME}' || n")));
        self.commit(&[rows(Insert, sql)]).await
    }

    /// One last customer, whose name tells that everything before has arrived when it arrives.
    pub(crate) async fn mark(&mut self, number: u64) -> Result<String> {
        let name = format!("mark {number}");
        let sql = format!("{} FROM generate_series({1}, {1}) n", select(&format!("'{name}'")), 9_000_000 + number);
        self.commit(&[rows(Insert, sql)]).await?;
        Ok(name)
    }

    /// Runs the steps in one transaction; they count once it is committed.
    async fn commit(&mut self, steps: &[Step]) -> Result<()> {
        let mut made = Tally::default();
        let transaction = self.client.transaction().await.context("cannot begin a transaction")?;
        for step in steps {
            match step {
                Step::Rows(operation, sql) => {
                    let changed = transaction.execute(sql, &[]).await.context("the shop cannot change rows")?;
                    made.add(*operation, changed);
                }
                Step::Truncate(tables) => {
                    let sql = format!("TRUNCATE {}", tables.join(", "));
                    transaction.batch_execute(&sql).await.context("the shop cannot truncate")?;
                    made.add(Operation::Truncate, tables.len() as u64);
                }
                Step::Undone(sql) => {
                    let sql = format!("SAVEPOINT try; {sql}; ROLLBACK TO SAVEPOINT try");
                    transaction.batch_execute(&sql).await.context("the shop cannot roll back to a savepoint")?;
                }
            }
        }
        transaction.commit().await.context("the shop cannot commit")?;
        self.made = self.made.plus(made);
        Ok(())
    }
}

fn rows(operation: Operation, sql: impl Into<String>) -> Step {
    Step::Rows(operation, sql.into())
}

/// The head of an insert of customers, one for each `n` of what follows.
fn select(name: &str) -> String {
    format!(
        "INSERT INTO customers (id, name, email, phone, joined) SELECT n, {name}, mail(n, 0), phone(n, 0), \
         timestamptz '2024-02-28 23:59:58+00' + (n % 1000) * interval '1 hour 1.25 seconds'"
    )
}

fn customers(first: u64, last: u64) -> String {
    format!("{} FROM generate_series({first}, {last}) n", select("customer_name(n)"))
}

fn an_order(order: u64) -> String {
    format!(
        "INSERT INTO orders VALUES ({order}, {order}, 'new', false, {order} + 0.10, date '2024-02-29' + {}, md5('{order}')::uuid)",
        order % 400
    )
}

/// Three lines with documents of 4,949 bytes; every seventh order has a line without.
fn items(order: u64) -> String {
    format!(
        "INSERT INTO order_items SELECT {order}, line, line, line * 1.50, \
         CASE WHEN {order} % 7 = 0 AND line = 3 THEN NULL ELSE document({order}, line, 0) END \
         FROM generate_series(1, 3) line"
    )
}
