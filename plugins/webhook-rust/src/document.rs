//! What is posted: one batch as one JSON document.
//!
//! Holds: the keys around the changes; the README lists them. Refuses to know HTTP. Read next: the crate `change-json`.

use change_json::{display, integer, lsn, member, quoted, separated, string};
use walgate_sdk::{Batch, Timestamp, Transaction};

/// From 1970, where times of transactions begin, to 2000, where those of Postgres do, in microseconds.
const TO_2000_US: i64 = 946_684_800_000_000;

/// The document of a batch. The same content gives the same document, but for `attempt`.
pub(crate) fn of(batch: &Batch) -> Vec<u8> {
    let mut out = vec![b'{'];
    member(&mut out, "id", |out| string(out, batch.id()));
    member(&mut out, "attempt", |out| integer(out, batch.attempt()));
    if let Some(chunk) = batch.snapshot() {
        member(&mut out, "snapshot", |out| {
            out.push(b'{');
            member(out, "chunk", |out| integer(out, chunk.chunk));
            member(out, "first", |out| display(out, chunk.first));
            member(out, "last", |out| display(out, chunk.last));
            out.push(b'}');
        });
    }
    list(&mut out, "transactions", batch.transactions().iter(), transaction);
    list(&mut out, "changes", batch.rows(), |out, change| change_json::write(out, &change));
    out.push(b'}');
    out
}

fn transaction(out: &mut Vec<u8>, transaction: &Transaction) {
    out.push(b'{');
    member(out, "commit_lsn", |out| lsn(out, transaction.commit_lsn));
    member(out, "xid", |out| integer(out, transaction.xid));
    let committed_at = Timestamp(transaction.commit_time_us.saturating_sub(TO_2000_US));
    member(out, "committed_at", |out| quoted(out, committed_at.iso(true)));
    member(out, "part", |out| integer(out, transaction.part));
    member(out, "last_part", |out| display(out, transaction.last_part));
    out.push(b'}');
}

fn list<T>(out: &mut Vec<u8>, name: &str, items: impl Iterator<Item = T>, write: impl FnMut(&mut Vec<u8>, T)) {
    member(out, name, |out| {
        out.push(b'[');
        separated(out, items, write);
        out.push(b']');
    });
}
