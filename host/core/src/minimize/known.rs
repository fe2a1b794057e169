//! Which columns a table had when a plugin first met it under a `*` grant. Whatever appears later is withheld.
//!
//! Holds: the columns by the name of the table, not by its id: a table that takes the place of another one under its name
//! brings new columns, too. Refuses to know where they are kept: what is learned is given out, to be stored together with
//! the first rows, and comes back after a restart.
//! Read next: [`super::project`].

use std::collections::BTreeMap;

use crate::assemble::Relation;
use crate::grant::{Columns, TableGrant};

use super::error::MinimizeError;

/// The columns a table had when a plugin first met it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownTable {
    /// Its schema.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// All its columns, granted or not.
    pub columns: Vec<String>,
}

#[derive(Default)]
pub(super) struct Known {
    tables: BTreeMap<(String, String), Vec<String>>,
    pub(super) learned: Vec<KnownTable>,
    /// Tables whose withheld columns changed, with those columns: for people to be told.
    pub(super) withheld: Vec<KnownTable>,
}

impl Known {
    pub(super) fn add(&mut self, table: KnownTable) {
        self.tables.insert((table.namespace, table.name), table.columns);
    }

    /// The columns to withhold of a relation: under a `*` grant those that are not known, unless new ones are allowed.
    ///
    /// Meeting a table for the first time, every name under `except` must be one of its columns: a misspelled exception
    /// would let the column through that it is meant to keep.
    pub(super) fn withheld(&mut self, grant: &TableGrant, source: &Relation) -> Result<Vec<String>, MinimizeError> {
        let Columns::AllExcept(except) = &grant.columns else { return Ok(Vec::new()) };
        let key = (source.namespace.clone(), source.name.clone());
        let Some(known) = self.tables.get(&key) else {
            let columns: Vec<String> = source.columns.iter().map(|column| column.name.clone()).collect();
            if let Some(name) = except.iter().find(|name| !columns.contains(name)) {
                return Err(MinimizeError::except(&source.namespace, &source.name, name));
            }
            let (namespace, name) = key.clone();
            self.learned.push(KnownTable { namespace, name, columns: columns.clone() });
            self.tables.insert(key, columns);
            return Ok(Vec::new());
        };
        if grant.allow_new_columns {
            return Ok(Vec::new());
        }
        let names = source.columns.iter().map(|column| &column.name);
        Ok(names.filter(|name| grant.columns.contains(name) && !known.contains(name)).cloned().collect())
    }
}
