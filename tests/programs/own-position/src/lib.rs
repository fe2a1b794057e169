//! A sink that keeps its own position: one line a change in the output `lines`, and how far they reach in its state.
//!
//! Output and state stand for a store outside that commits both at once. Until it has written something it answers no
//! position. The setting `lie` = `ahead` makes it answer one far ahead of any source.

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Position, Receipt, Sink, TableRequest, export_sink, host,
};

/// The key in its state: end LSN, commit LSN and ordinal, as decimal numbers with a space between.
const KEY: &str = "position";

/// Ahead of every source for years to come.
const FAR_AHEAD: Position = Position { end_lsn: 0x7FFF_FFFF_0000_0000, commit_lsn: 0, ordinal: 0 };

struct Program {
    reached: Option<Position>,
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("own-position", "0.0.0")
            .table(TableRequest::all())
            .capability("output:lines")
            .capability("state")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        let reached = stored()?;
        let ahead = host::setting("lie").is_some_and(|lie| lie == "ahead");
        let told = if ahead { Some(FAR_AHEAD) } else { reached };
        let sink = Program { reached };
        Ok(match told {
            Some(position) => Opened::at(sink, position),
            None => Opened::new(sink),
        })
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        ledger::append(batch.rows())?;
        let Some(reached) = after(batch, self.reached) else { return Ok(Receipt::durable()) };
        let text = format!("{} {} {}", reached.end_lsn, reached.commit_lsn, reached.ordinal);
        host::state::set(KEY, text.as_bytes())?;
        self.reached = Some(reached);
        Ok(Receipt::durable())
    }
}

/// How far a sink has come with this batch: behind its last whole transaction, or inside the one it has a part of.
fn after(batch: &Batch, before: Option<Position>) -> Option<Position> {
    let transactions = batch.transactions();
    let whole = transactions.iter().rev().find(|transaction| transaction.last_part).map(|whole| whole.end_lsn);
    let end_lsn = whole.or(before.map(|position| position.end_lsn)).unwrap_or_default();
    let last = transactions.last()?;
    if last.last_part {
        return Some(Position { end_lsn, commit_lsn: 0, ordinal: 0 });
    }
    Some(Position { end_lsn, commit_lsn: last.commit_lsn, ordinal: last.source_ordinal + last.change_count })
}

fn stored() -> Result<Option<Position>, Failure> {
    let Some(bytes) = host::state::get(KEY)? else { return Ok(None) };
    let text = String::from_utf8(bytes).unwrap_or_default();
    let numbers: Vec<u64> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
    let [end_lsn, commit_lsn, ordinal] = numbers[..] else { return Err(Failure::halt("unreadable-state")) };
    let ordinal = u32::try_from(ordinal).map_err(|_| Failure::halt("unreadable-state"))?;
    Ok(Some(Position { end_lsn, commit_lsn, ordinal }))
}

export_sink!(Program);
