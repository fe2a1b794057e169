//! How the columns that a plugin has met are kept: as state of a shadow of the plugin, which no plugin can be.
//!
//! Holds: the encoding, and its way back. Names of tables and columns only, never a value. Refuses to know what they are
//! for (see `walgate_core::minimize`). They commit with the first rows delivered, and are forgotten with the pipeline.

use std::collections::BTreeMap;

use walgate_core::minimize::KnownTable;
use walgate_store::StateWrite;

/// No name holds it, so it divides names.
const BETWEEN: char = '\0';

/// The name under which the columns of a plugin are kept. A plugin's own name has no slash.
pub(crate) fn shadow(plugin: &str) -> String {
    format!("{plugin}/columns")
}

/// What is stored of a table.
pub(crate) fn write(plugin: &str, table: &KnownTable) -> StateWrite {
    StateWrite {
        plugin: shadow(plugin),
        key: format!("{}{BETWEEN}{}", table.namespace, table.name),
        value: Some(table.columns.join("\0").into_bytes()),
    }
}

/// What was stored. Only what [`write`] wrote is there; anything else is left out, which withholds more, not less.
pub(crate) fn read(stored: BTreeMap<String, Vec<u8>>) -> Vec<KnownTable> {
    let table = |(key, value): (String, Vec<u8>)| {
        let (namespace, name) = key.split_once(BETWEEN)?;
        let columns = String::from_utf8(value).ok()?.split(BETWEEN).map(str::to_owned).collect();
        Some(KnownTable { namespace: namespace.to_owned(), name: name.to_owned(), columns })
    };
    stored.into_iter().filter_map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let table = KnownTable {
            namespace: "Od\"d.s".to_owned(),
            name: "T/é".to_owned(),
            columns: vec!["id".to_owned(), "a,b".to_owned()],
        };
        let written = write("plugin", &table);
        assert_eq!(written.plugin, "plugin/columns");
        let stored = BTreeMap::from([(written.key.clone(), written.value.clone().unwrap_or_default())]);
        assert_eq!(read(stored), [table]);
    }
}
