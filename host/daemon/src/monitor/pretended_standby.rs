//! For tests: a standby as its primary sees one, which confirms exactly what it is told to.
//!
//! Holds: just enough of the streaming protocol for a server that trusts us. Never looks at the log it is sent.

use anyhow::{Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use walgate_core::Lsn;
use walgate_harness::Cluster;

/// A walsender at the other end streams while this lives.
pub(super) struct PretendedStandby(OwnedWriteHalf);

impl PretendedStandby {
    /// Streams from a physical slot, from a position on.
    pub(super) async fn start(cluster: &Cluster, slot: &str, from: Lsn) -> Result<Self> {
        let mut socket = TcpStream::connect(("127.0.0.1", cluster.port())).await?;
        let mut startup = 196_608_i32.to_be_bytes().to_vec();
        startup.extend(b"user\0postgres\0replication\0true\0application_name\0standby\0\0");
        socket.write_all(&framed(&startup)).await?;
        until(&mut socket, b'Z').await?;
        let mut query = format!("START_REPLICATION SLOT {slot} PHYSICAL {from}").into_bytes();
        query.push(0);
        socket.write_all(&tagged(b'Q', &query)).await?;
        until(&mut socket, b'W').await?;
        let (mut read, write) = socket.into_split();
        // What is not read would stop the sender; it ends with the connection.
        tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
        Ok(Self(write))
    }

    /// Says that everything up to there is on disk.
    pub(super) async fn confirm(&mut self, position: Lsn) -> Result<()> {
        let mut reply = vec![b'r'];
        for written_flushed_applied in [position; 3] {
            reply.extend(written_flushed_applied.get().to_be_bytes());
        }
        reply.extend([0; 9]);
        Ok(self.0.write_all(&tagged(b'd', &reply)).await?)
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&length, body].concat()
}

fn tagged(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag], framed(body).as_slice()].concat()
}

/// Reads over messages up to one of that tag.
async fn until(socket: &mut TcpStream, wanted: u8) -> Result<()> {
    loop {
        let tag = socket.read_u8().await?;
        let length = socket.read_u32().await?;
        ensure!((4..1 << 16).contains(&length), "a message of {length} bytes");
        let mut body = vec![0; length as usize - 4];
        socket.read_exact(&mut body).await?;
        match tag {
            b'E' => bail!("the server refuses: {}", String::from_utf8_lossy(&body)),
            tag if tag == wanted => return Ok(()),
            _ => {}
        }
    }
}
