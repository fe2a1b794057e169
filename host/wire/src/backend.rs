//! Other sessions of the same server: whether one still speaks, and how one of ours is ended.
//!
//! Holds: the two questions about a process that holds a slot. Refuses to decide when a session is a leftover; the
//! daemon does.

use crate::connection::Connection;
use crate::error::WireError;

impl Connection {
    /// When the client of that replication session last said something, as an opaque text that changes with every word of
    /// it, the first included; `None` when there is no such session, or when this role may not see it.
    ///
    /// The text is a time of the client's own clock, so that only a change of it means something.
    pub async fn last_reply(&mut self, pid: i32) -> Result<Option<String>, WireError> {
        // A session of a role that may not be seen shows its number and nothing else.
        let sql = format!(
            "SELECT coalesce(reply_time::text, 'nothing yet') FROM pg_catalog.pg_stat_replication \
             WHERE pid = {pid} AND state IS NOT NULL"
        );
        Ok(self.query(&sql).await?.first().and_then(|row| row.get(0)).map(str::to_owned))
    }

    /// Ends the session of that server process, if it is one of ours: the same application name and the same role as this
    /// session. Answers whether it was. Any other session is left alone, whatever the number.
    pub async fn terminate(&mut self, pid: i32) -> Result<bool, WireError> {
        // One statement, so that a number that was given to another process meanwhile is judged as what it is now.
        let sql = format!(
            "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a, \
             pg_catalog.pg_stat_activity me WHERE me.pid = pg_catalog.pg_backend_pid() AND a.pid = {pid} \
             AND a.pid <> me.pid AND a.application_name = me.application_name AND a.usename = me.usename"
        );
        Ok(self.query(&sql).await?.first().and_then(|row| row.get(0)) == Some("t"))
    }
}
