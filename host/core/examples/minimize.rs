//! Micro-benchmark: nanoseconds a row from message bytes to a finished batch. `cargo run -p walgate-core --example minimize`
//!
//! Five small columns (int8, int4, text, timestamptz, bool), 100 rows a transaction, the shape of workload (a) of the
//! benchmark suite. Machines are shared: the processor time of the thread, over all rounds, is steadier than the best
//! wall time of a round.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark speaks to a person and may fail loudly")]

use std::hint::black_box;
use std::time::Instant;

use walgate_core::assemble::Assembler;
use walgate_core::grant::rules::Rules;
use walgate_core::grant::{Columns, Grant, Operations, TableGrant};
use walgate_core::minimize::{Bounds, Item, Minimizer};
use walgate_core::pgoutput::build::{self, Column, column};
use walgate_core::{Cursor, Lsn};

const ROWS: usize = 200_000;
const ROWS_PER_TRANSACTION: usize = 100;
const ROUNDS: usize = 15;

const COLUMNS: [Column<'static>; 5] = [
    column("id", 20, true),
    column("n", 23, false),
    column("t", 25, false),
    column("at", 1184, false),
    column("ok", 16, false),
];

fn main() {
    for tables in [1, 50] {
        for (name, granted) in [("all 5 columns", COLUMNS.len()), ("2 of 5 columns", 2)] {
            let (best, cpu) = measure(&stream(tables), tables, granted);
            println!("{tables:>2} tables, {name:<14}: wall at best {best:>5.1} ns/row, processor {cpu:>5.1} ns/row");
        }
    }
}

/// All messages of a stream, one after the other, and where each ends.
struct Stream {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Stream {
    fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.ends.push(self.bytes.len());
    }
}

fn stream(tables: u32) -> Stream {
    let mut stream = Stream { bytes: Vec::new(), ends: Vec::new() };
    for transaction in 0..ROWS / ROWS_PER_TRANSACTION {
        let commit = 1_000 + 1_000 * transaction as u64;
        stream.push(&build::begin(commit, 0, 7));
        if transaction == 0 {
            for table in 1..=tables {
                stream.push(&build::relation(table, "public", &format!("t{table}"), b'd', &COLUMNS));
            }
        }
        for row in 0..ROWS_PER_TRANSACTION {
            let id = (transaction * ROWS_PER_TRANSACTION + row).to_string();
            let n = (row * 7).to_string();
            let cells = [
                id.as_str().into(),
                n.as_str().into(),
                "a short text".into(),
                "2024-05-06 07:08:09.123456+00".into(),
                "t".into(),
            ];
            stream.push(&build::insert(1 + row as u32 % tables, &cells));
        }
        stream.push(&build::commit(commit, commit + 10, 0));
    }
    stream
}

fn grant(tables: u32, granted: usize) -> Grant {
    let columns: Vec<String> = COLUMNS.iter().take(granted).map(|column| column.name.to_owned()).collect();
    let table = |table| TableGrant {
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        columns: Columns::Only(columns.clone()),
        required: Vec::new(),
        operations: Operations::ALL,
        allow_new_columns: false,
        rules: Rules::default(),
    };
    Grant { tables: (1..=tables).map(table).collect(), message_prefixes: Vec::new() }
}

/// Nanoseconds this thread has had a processor; 0 where the system does not tell.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

fn measure(stream: &Stream, tables: u32, granted: usize) -> (f64, f64) {
    let before = processor_ns();
    let best = (0..ROUNDS).map(|_| round(stream, tables, granted)).min().unwrap_or_default();
    let processor = processor_ns() - before;
    (best as f64 / ROWS as f64, processor as f64 / (ROWS * ROUNDS) as f64)
}

/// One pass over the stream, in nanoseconds.
fn round(stream: &Stream, tables: u32, granted: usize) -> u128 {
    let bounds = Bounds { max_rows: 4_096, max_bytes: 4 << 20 };
    let mut minimizer = Minimizer::new(grant(tables, granted), "bench", bounds, Cursor::default());
    let mut assembler = Assembler::new();
    let mut start = 0;
    let clock = Instant::now();
    for end in &stream.ends {
        let message = stream.bytes.get(start..*end).unwrap();
        start = *end;
        minimizer.apply(&assembler.push(Lsn::ZERO, message).unwrap()).unwrap();
        while let Some(item) = minimizer.next_item() {
            if let Item::Batch(batch) = item {
                minimizer.recycle(black_box(batch));
            }
        }
    }
    minimizer.cut().unwrap();
    black_box(minimizer.next_item());
    clock.elapsed().as_nanos()
}
