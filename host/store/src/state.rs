//! The state of plugins as an operator sees it: which keys there are, and the value of one that is named.
//!
//! Holds: two reads. Refuses to know what a key means. Values are row data in all but name: they are given out one by one,
//! to whoever asks for a key by its name. Read next: [`crate::Store::plugin_state`], which is what a plugin gets.

use tokio_postgres::Error as PgError;

use crate::columns::from_bigint;
use crate::error::{Kind, StoreError};
use crate::store::StoreReader;

/// One key of a plugin's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateKey {
    /// The key.
    pub key: String,
    /// The size of its value.
    pub bytes: u64,
}

impl StoreReader {
    /// The keys of a plugin, in their order; none where it never stored anything.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn state_keys(&mut self, pipeline: &str, plugin: &str) -> Result<Vec<StateKey>, StoreError> {
        const DOING: &str = "listing the state of a plugin";
        if !self.has_table("walgate.plugin_state").await? {
            return Ok(Vec::new());
        }
        let sql = "SELECT key, octet_length(value)::bigint FROM walgate.plugin_state
                    WHERE pipeline = $1 AND plugin = $2 ORDER BY key";
        let rows = self.connection.session().await?.query(DOING, sql, &[&pipeline, &plugin]).await?;
        let key = |row: &tokio_postgres::Row| {
            let (key, bytes) = (|| Ok((row.try_get::<_, Vec<u8>>(0)?, row.try_get(1)?)))()
                .map_err(|error: PgError| StoreError::server(DOING, &error))?;
            let key = String::from_utf8(key)
                .map_err(|_| Kind::Schema { doing: DOING, detail: "a key is not UTF-8".to_owned() })?;
            Ok(StateKey { key, bytes: from_bigint(bytes, "octet_length")? })
        };
        rows.iter().map(key).collect()
    }

    /// The value of one key, if there is one.
    ///
    /// # Errors
    /// Retry when the database does not answer, Operator when it refuses.
    pub async fn state_value(
        &mut self,
        pipeline: &str,
        plugin: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        const DOING: &str = "reading the state of a plugin";
        if !self.has_table("walgate.plugin_state").await? {
            return Ok(None);
        }
        let sql = "SELECT value FROM walgate.plugin_state WHERE pipeline = $1 AND plugin = $2 AND key = $3";
        let rows = self.connection.session().await?.query(DOING, sql, &[&pipeline, &plugin, &key.as_bytes()]).await?;
        rows.first().map(|row| row.try_get(0).map_err(|error| StoreError::server(DOING, &error))).transpose()
    }
}
