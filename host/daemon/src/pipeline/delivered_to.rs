//! How the position that a sink would have to answer is kept while the sink has not answered any: as state of a shadow of
//! the plugin, which no plugin can be.
//!
//! Holds: the encoding, and its way back. A plugin shows that it keeps a position of its own when it is opened with one, and
//! the first time it has none yet. Until then its stored cursor follows quiet times as well, beyond its last batch; so
//! that the answer of its next life is not taken for a loss, the end of that batch is kept beside. Never a value.

use std::collections::BTreeMap;

use walgate_core::Cursor;
use walgate_store::StateWrite;

const KEY: &str = "last";

/// The name under which it is kept. A plugin's own name has no slash.
pub(crate) fn shadow(plugin: &str) -> String {
    format!("{plugin}/delivered")
}

/// What is stored.
pub(crate) fn write(plugin: &str, cursor: Cursor) -> StateWrite {
    let value = format!("{} {} {}", cursor.end, cursor.commit, cursor.ordinal);
    StateWrite { plugin: shadow(plugin), key: KEY.to_owned(), value: Some(value.into_bytes()) }
}

/// What was stored, if anything was.
pub(crate) fn read(stored: &BTreeMap<String, Vec<u8>>) -> Option<Cursor> {
    let text = std::str::from_utf8(stored.get(KEY)?).ok()?;
    let mut parts = text.split(' ');
    let cursor = Cursor {
        end: parts.next()?.parse().ok()?,
        commit: parts.next()?.parse().ok()?,
        ordinal: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use walgate_core::Lsn;

    #[test]
    fn what_is_written_is_read_again() {
        let cursor = Cursor { end: Lsn::new(0x16_0000_0001), commit: Lsn::new(0x16_0000_0100), ordinal: 7 };
        let written = write("plugin", cursor);
        assert_eq!(written.plugin, "plugin/delivered");
        let stored = BTreeMap::from([(written.key, written.value.unwrap_or_default())]);
        assert_eq!(read(&stored), Some(cursor));
        assert_eq!(read(&BTreeMap::new()), None);
        assert_eq!(read(&BTreeMap::from([(KEY.to_owned(), b"0/1 x".to_vec())])), None);
    }
}
