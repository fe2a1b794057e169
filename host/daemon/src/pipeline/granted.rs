//! Grants against the tables as the source has them, before a stream begins.
//!
//! Holds: what is said of a grant, and the one misfit that the stream itself would not show. Refuses to know the others: log
//! from before a change of a table is read as it was written. Read next: [`crate::preflight`].

use walgate_core::minimize::MinimizeErrorKind;

use super::source::Ready;
use crate::config::Config;
use crate::halt::{Halt, HaltClass};
use crate::plugins::Loaded;
use crate::preflight;

/// Tables can be published later, so this is no reason not to start; but nothing of them comes until then.
pub(super) async fn warn_unpublished(config: &Config, ready: &mut Ready, plugin: &Loaded) {
    // A failure of the question shows where the stream is started.
    let missing = preflight::unpublished(&mut ready.connection, config, &plugin.grant).await.unwrap_or_default();
    if !missing.is_empty() {
        let tables = missing.join(", ");
        tracing::warn!(
            plugin = plugin.name,
            tables,
            "granted, but no publication carries them: no change of them will come"
        );
    }
}

/// The stream looks at an exception when a table is met for the first time. One that is misspelled in a later plugin.toml
/// would let the column through that it is meant to keep.
pub(super) async fn excepts_what_is_there(config: &Config, ready: &mut Ready, plugin: &Loaded) -> Result<(), Halt> {
    let key = plugin.hash_key.as_ref();
    // A failure of the question shows where the stream is started.
    let misfits = preflight::misfits(&mut ready.connection, config, &plugin.grant, key).await.unwrap_or_default();
    let excepted = misfits.iter().find(|misfit| matches!(misfit.kind(), MinimizeErrorKind::ExceptMissing { .. }));
    excepted.map_or(Ok(()), |misfit| {
        Err(Halt::of_plugin(HaltClass::ExceptedColumnMissing, &plugin.name, misfit.to_string()))
    })
}
