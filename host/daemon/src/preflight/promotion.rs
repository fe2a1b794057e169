//! Was the standby that is being streamed from promoted meanwhile?
//!
//! Holds: which running server a stream comes from, and the question to it over another connection. A stream from a standby
//! runs on over its promotion, and soon the positions lie beyond the fork. Whoever stores them must store the new timeline
//! before the next start compares the two, so it has to be noticed while the stream lives. Refuses to store anything.

use walgate_wire::{Connection, WireError};

/// One run of one server. An address may come to lead to another server, and a promotion there is not one of the server that
/// is streamed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningStandby {
    /// When its postmaster started, to the microsecond.
    started: String,
    timeline: u32,
}

impl RunningStandby {
    /// The standby behind this connection, which is about to stream.
    pub(super) async fn of(connection: &mut Connection, timeline: u32) -> Result<Self, WireError> {
        Ok(Self { started: started(connection).await?, timeline })
    }

    /// The timeline of the same server if it has been promoted since; `connection` is a replication connection beside the
    /// stream. `None` while it has not, and for another server.
    pub(crate) async fn promoted(&self, connection: &mut Connection) -> Result<Option<u32>, WireError> {
        if connection.in_recovery().await? || started(connection).await? != self.started {
            return Ok(None);
        }
        let now = connection.identify_system().await?.timeline;
        Ok((now > self.timeline).then_some(now))
    }
}

async fn started(connection: &mut Connection) -> Result<String, WireError> {
    let rows = connection.query("SELECT pg_catalog.pg_postmaster_start_time()").await?;
    Ok(rows.first().and_then(|row| row.get(0)).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use walgate_harness::{Cluster, majors};
    use walgate_wire::SourceOptions;

    #[tokio::test]
    async fn the_promotion_of_the_same_server_is_noticed_and_no_other() {
        for major in majors() {
            let primary = Cluster::start(major).unwrap();
            let standby = primary.standby(&[]).await.unwrap();
            let connect = async |cluster: &Cluster| {
                let options = SourceOptions::from_url(&cluster.url("postgres")).unwrap();
                Connection::connect(&options).await.unwrap()
            };
            let mut connection = connect(&standby).await;
            let running = RunningStandby::of(&mut connection, 1).await.unwrap();
            assert_eq!(running.promoted(&mut connection).await.unwrap(), None);
            standby.promote().await.unwrap();
            assert_eq!(running.promoted(&mut connect(&standby).await).await.unwrap(), Some(2));
            assert_eq!(running.promoted(&mut connect(&primary).await).await.unwrap(), None, "another server");
        }
    }
}
