//! Applies rows that break one rule of `rows`, the one that the setting `lie` names; halts with the code it was answered.
//!
//! Expects `[grant.rows.orders]` with `columns = ["id", "note"]` and `operations = ["insert", "delete"]`. Without a lie it
//! applies two good rows.

use walgate_sdk::host::rows::{self, TextValues};
use walgate_sdk::{
    Batch, Cells, Context, Description, Failure, Opened, Operation, Receipt, RowSet, Sink, TableRequest, Values,
    export_sink, host,
};

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("rows-liar", "0.0.0").table(TableRequest::all()).capability("rows:orders")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        if lie() == "in-open" {
            apply(&[good()])?;
        }
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        apply(&sets(&lie()).ok_or_else(|| Failure::halt("unknown-lie"))?)?;
        Ok(Receipt::durable())
    }
}

fn lie() -> String {
    host::setting("lie").unwrap_or_default()
}

fn apply(sets: &[RowSet]) -> Result<(), Failure> {
    rows::apply(sets).map(|_| ()).map_err(|fault| Failure::halt(fault.code))
}

/// Two rows at ordinals 1 and 2.
fn good() -> RowSet {
    with(Cells::new("id", Values::Int64(vec![7, 8])))
}

fn with(cells: Cells) -> RowSet {
    RowSet::new("orders", Operation::Insert).ordinals([1, 2]).after(cells)
}

fn values(values: Values) -> RowSet {
    with(Cells::new("note", values))
}

fn text(ends: &[u32], data: &str) -> RowSet {
    values(Values::Text(TextValues { ends: ends.to_vec(), data: data.to_owned() }))
}

fn presence(codes: &[u8]) -> RowSet {
    with(Cells { presence: Some(codes.to_vec()), ..Cells::new("note", Values::Int64(vec![7, 8])) })
}

/// A good set and then the lie, so that a host which keeps the first half is found out.
fn sets(lie: &str) -> Option<Vec<RowSet>> {
    let first = RowSet::new("orders", Operation::Insert).ordinals([0]).after(Cells::new("id", Values::Int64(vec![6])));
    let liar = match lie {
        "" => good(),
        "target" => RowSet { target: "elsewhere".to_owned(), ..good() },
        "operation" => RowSet { operation: Operation::Update, ..good() },
        "column" => with(Cells::new("secret", Values::Int64(vec![7, 8]))),
        "column-of-before" => {
            RowSet::new("orders", Operation::Delete).ordinals([1]).before(Cells::new("secret", Values::Int64(vec![7])))
        }
        "column-twice" => good().after(Cells::new("id", Values::Int64(vec![7, 8]))),
        "slots" => values(Values::Int64(vec![7])),
        "presence-length" => presence(&[0]),
        "presence-code" => presence(&[0, 4]),
        "ends-fall" => text(&[2, 1], "ab"),
        "ends-beyond" => text(&[1, 3], "ab"),
        "end-in-character" => text(&[1, 2], "é"),
        "boolean" => values(Values::Boolean(vec![0, 2])),
        "uuid" => values(Values::Uuid(vec![0; 31])),
        "ordinals-fall" => RowSet { ordinals: vec![2, 1], ..good() },
        "ordinal-twice" => RowSet { ordinals: vec![0, 1], ..good() },
        "after-of-delete" => RowSet { operation: Operation::Delete, ..good() },
        "rows" => {
            RowSet { operation: Operation::Delete, ..RowSet::new("orders", Operation::Insert).ordinals(1..1_000_002) }
        }
        "bytes" => text(&[0, 1 << 20], &"x".repeat(1 << 20)),
        _ => return None,
    };
    Some(vec![first, liar])
}

export_sink!(Program);
