//! Proof that rows cost no allocation: once buffers have their size, a batch allocates as often with many rows as
//! with few. A binary of its own, because the counting allocator is the allocator of the whole process.

#![expect(unsafe_code, reason = "an allocator can only be replaced by an unsafe implementation")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroU32;

use walgate_core::assemble::Assembler;
use walgate_core::grant::filter::Filter;
use walgate_core::grant::rules::{Before, EmptyUpdates, Rules, Treatment, Untouched};
use walgate_core::grant::{Columns, Grant, Operations, TableGrant};
use walgate_core::minimize::{Bounds, HashKey, Item, Minimizer};
use walgate_core::pgoutput::build::{self, Value, column};
use walgate_core::{Cursor, Lsn};

/// Counts what the current thread allocates: the test harness has threads of its own.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // While a thread ends there is no counter any more, and nothing to count.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: everything is handed on to the system allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The messages of `transactions` transactions with `rows` rows of every operation each, over two tables.
fn messages(first_commit: u64, transactions: u64, rows: u32) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for transaction in 0..transactions {
        let commit = first_commit + transaction * 100;
        out.push(build::begin(commit, 0, 1));
        for row in 0..rows {
            let id = row.to_string();
            let new: [Value<'_>; 6] = [
                id.as_str().into(),
                "some text".into(),
                "2024-05-06 07:08:09.5+00".into(),
                "\\x0011ff".into(),
                Value::Null,
                "hidden".into(),
            ];
            let mut old = [Value::Null; 6];
            old[0] = id.as_str().into();
            let table = 1 + row % 2;
            out.push(build::insert(table, &new));
            out.push(build::update(table, Some((b'K', &old)), &new));
            out.push(build::delete(table, b'K', &old));
        }
        out.push(build::commit(commit, commit + 10, 0));
    }
    out
}

fn announcements() -> Vec<Vec<u8>> {
    let columns = [
        column("id", 23, true),
        column("t", 25, false),
        column("at", 1184, false),
        column("b", 17, false),
        column("n", 1700, false),
        column("hidden", 25, false),
    ];
    let relation = |id, name| build::relation(id, "public", name, b'd', &columns);
    vec![build::begin(1, 0, 1), relation(1, "a"), relation(2, "b"), build::commit(1, 2, 0)]
}

fn grant() -> Grant {
    let table = |name: &str| TableGrant {
        namespace: "public".to_owned(),
        name: name.to_owned(),
        columns: Columns::AllExcept(vec!["hidden".to_owned()]),
        required: Vec::new(),
        operations: Operations::ALL,
        allow_new_columns: false,
        rules: Rules::default(),
    };
    Grant { tables: vec![table("a"), table("b")], message_prefixes: Vec::new() }
}

struct Feed {
    assembler: Assembler,
    minimizer: Minimizer,
}

impl Feed {
    /// Feeds all messages and takes every batch back; gives the number of batches and the allocations made.
    fn run(&mut self, messages: &[Vec<u8>]) -> (u64, u64) {
        let before = ALLOCATIONS.get();
        let mut batches = 0;
        for message in messages {
            let event = self.assembler.push(Lsn::ZERO, message).unwrap();
            self.minimizer.apply(&event).unwrap();
            batches += self.take();
        }
        self.minimizer.cut().unwrap();
        batches += self.take();
        (batches, ALLOCATIONS.get() - before)
    }

    fn take(&mut self) -> u64 {
        let mut batches = 0;
        while let Some(item) = self.minimizer.next_item() {
            if let Item::Batch(batch) = item {
                assert!(batch.rows > 0);
                self.minimizer.recycle(batch);
                batches += 1;
            }
        }
        batches
    }
}

#[test]
fn rows_do_not_allocate() {
    let bounds = Bounds { max_rows: 10_000_000, max_bytes: 1 << 30 };
    let minimizer = Minimizer::new(grant(), "a", bounds, Cursor::default());
    let mut feed = Feed { assembler: Assembler::new(), minimizer };
    feed.run(&announcements());
    // Two rounds, so that the buffers of every batch on the way have their size.
    feed.run(&messages(1_000, 100, 100));
    feed.run(&messages(100_000, 100, 100));

    let (few_batches, few) = feed.run(&messages(200_000, 1, 10));
    let (many_batches, many) = feed.run(&messages(300_000, 100, 100));
    assert_eq!((few_batches, many_batches), (1, 1));
    assert_eq!(few, many, "30,000 rows in 100 transactions allocate as often as 30 rows in one");
    assert!(few < 100, "{few} allocations in a batch of 6 groups");
}

/// Every treatment, a filter over texts and numbers, and what has to be compared.
fn ruled() -> Grant {
    let treatments = [
        ("t", Treatment::Hashed),
        ("at", Treatment::Masked),
        ("b", Treatment::Masked),
        ("n", Treatment::Nulled),
        ("hidden", Treatment::Truncated(NonZeroU32::MIN)),
    ];
    let rules = Rules {
        treatments: treatments.map(|(column, treatment)| (column.to_owned(), treatment)).into(),
        filter: Filter::parse("id < 1000000 and not id in (7, 9) or id is null").ok(),
        before: Before::Key,
        untouched: Untouched::Withhold,
        empty_updates: EmptyUpdates::Drop,
        ..Rules::default()
    };
    let mut grant = grant();
    for table in &mut grant.tables {
        table.columns = Columns::AllExcept(Vec::new());
        table.rules = rules.clone();
    }
    grant
}

#[test]
fn rules_do_not_allocate_per_row() {
    let bounds = Bounds { max_rows: 10_000_000, max_bytes: 1 << 30 };
    let key = HashKey::new(&[7; HashKey::MIN_BYTES]).unwrap();
    let minimizer = Minimizer::new(ruled(), "a", bounds, Cursor::default()).hashing(key);
    let mut feed = Feed { assembler: Assembler::new(), minimizer };
    feed.run(&announcements());
    feed.run(&messages(1_000, 100, 100));
    feed.run(&messages(100_000, 100, 100));
    let (few_batches, few) = feed.run(&messages(200_000, 1, 10));
    let (many_batches, many) = feed.run(&messages(300_000, 100, 100));
    assert_eq!((few_batches, many_batches, few), (1, 1, many), "however many rows there are");
}

#[test]
fn full_batches_and_parts_allocate_per_batch() {
    let bounds = Bounds { max_rows: 600, max_bytes: 1 << 20 };
    let minimizer = Minimizer::new(grant(), "a", bounds, Cursor::default());
    let mut feed = Feed { assembler: Assembler::new(), minimizer };
    feed.run(&announcements());
    feed.run(&messages(1_000, 20, 100));
    feed.run(&messages(100_000, 2, 2_000));

    let (batches, allocations) = feed.run(&messages(200_000, 20, 100));
    let (parts, part_allocations) = feed.run(&messages(300_000, 2, 2_000));
    assert_eq!((batches, parts), (10, 20), "6,000 rows in whole transactions, 12,000 in parts");
    assert!(allocations / batches < 150, "{allocations} allocations in {batches} batches");
    assert!(part_allocations / parts < 150, "{part_allocations} allocations in {parts} parts");
}
