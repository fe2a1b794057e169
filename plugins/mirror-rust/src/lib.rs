//! A sink that keeps a copy of every granted table in Postgres, through the rows the host applies.
//!
//! Holds: which table goes to which target. Refuses to keep a position and to know SQL: the host applies rows and position
//! in one transaction, so each change counts exactly once. Read next: README.md, which says what the target must look like.

use std::collections::BTreeMap;

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Receipt, Relation, RowSet, Sink, TableRequest, Verdict, export_sink,
    host,
};

/// The setting that is put before the name of every table.
pub const TARGET_PREFIX: &str = "target_prefix";

const SETTINGS_SCHEMA: &str = r#"{"type":"object","additionalProperties":false,"properties":{
"target_prefix":{"type":"string","description":"put before the name of a table to make the name of its target"}}}"#;

/// The sink. It keeps no rows between batches.
pub struct Mirror {
    prefix: String,
    /// By the id of the table.
    places: BTreeMap<u32, Place>,
}

/// Where a table goes.
struct Place {
    /// Its schema in the source.
    namespace: String,
    target: String,
}

impl Sink for Mirror {
    fn describe() -> Description {
        Description::new("mirror-rust", env!("CARGO_PKG_VERSION"))
            .table(TableRequest::all())
            .capability("rows:*")
            .capability("log")
            .settings_schema(SETTINGS_SCHEMA)
    }

    fn open(_context: &Context) -> Result<Opened<Self>, Failure> {
        let prefix = host::setting(TARGET_PREFIX).unwrap_or_default();
        Ok(Mirror { prefix, places: BTreeMap::new() }.into())
    }

    /// Declines what could not be written, before the first row of it.
    fn relation_changed(&mut self, current: &Relation, _previous: Option<&Relation>) -> Result<Verdict, Failure> {
        let target = format!("{}{}", self.prefix, current.name);
        let taken = |(id, place): (&u32, &Place)| {
            *id != current.id && place.target == target && place.namespace != current.namespace
        };
        if self.places.iter().any(taken) {
            host::log::error("two-tables-one-target", &current.full_name());
            return Ok(Verdict::Decline);
        }
        if !host::rows::is_granted(&target, current) {
            host::log::error("no-target", &current.full_name());
            return Ok(Verdict::Decline);
        }
        self.places.insert(current.id, Place { namespace: current.namespace.clone(), target });
        Ok(Verdict::Accept)
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        let mut sets = Vec::with_capacity(batch.groups().len());
        for group in batch.groups() {
            let relation = group.relation();
            let place = self.places.get(&relation.id).ok_or_else(|| Failure::halt("unannounced-table"))?;
            sets.push(RowSet::of_group(&place.target, group, relation));
        }
        if !sets.is_empty() {
            host::rows::apply(&sets)?;
        }
        // The host commits the rows together with the position, so the batch is as durable as that.
        Ok(Receipt::durable())
    }
}

export_sink!(Mirror);

#[cfg(test)]
mod tests;
