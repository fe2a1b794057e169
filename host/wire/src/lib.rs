//! The replication connection to Postgres.
//!
//! Holds: connecting, authentication, slots, and a stream that is read lazily while behind and answers the server
//! however blocked its consumer is. Never knows: rows, plugins, checkpoints. What it hands on are chunks of whole
//! replication messages, and the only thing it takes back is the flush position, as a value on a watch.
//!
//! ```no_run
//! use walgate_core::Lsn;
//! use walgate_wire::{Connection, PumpStats, SourceOptions, StartOptions, WireError, channel, own_thread};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let options = SourceOptions::from_url("postgres://walgate@db.example/shop?sslmode=verify-full")?;
//! let (sender, mut chunks) = channel(64 << 20);
//! let (flush, mut flush_watch) = tokio::sync::watch::channel(Lsn::ZERO);
//! let (stop, mut stop_watch) = tokio::sync::watch::channel(false);
//!
//! let wire = own_thread("wire", move || async move {
//!     let start = StartOptions::new("walgate", Lsn::ZERO, vec!["shop".to_owned()]);
//!     let mut stream = Connection::connect(&options).await?.start_replication(&start).await?;
//!     stream.pump(&sender, &mut flush_watch, &mut stop_watch, &PumpStats::new()).await
//! })?;
//! while let Some(chunk) = chunks.recv().await {
//!     for frame in chunk.frames() {
//!         let durable = frame?.lsn(); // once it is made durable
//!         flush.send_replace(durable);
//!     }
//! }
//! stop.send_replace(true);
//! wire.join().await??;
//! # Ok(())
//! # }
//! ```
//!
//! Read in this order: [`SourceOptions`], [`Connection`], [`StartOptions`], [`CopyStream::pump`], [`Chunk`],
//! [`WireError`].

mod auth;
mod backend;
mod backoff;
mod chunk;
mod config;
mod config_url;
mod connection;
mod error;
mod feedback;
mod frame;
mod link;
mod pacing;
mod pump;
mod quote;
mod slot;
mod socket;
mod stats;
mod stream;
mod thread;
mod timeline;
mod tls;
mod verdict;

pub use backoff::Backoff;
pub use chunk::{Chunk, ChunkReceiver, ChunkSender, Closed, channel};
pub use config::{
    ConfigError, DEFAULT_CONNECT_TIMEOUT, DEFAULT_RECEIVE_BUFFER_BYTES, Host, SourceOptions, TlsMode, TlsOptions,
};
pub use connection::{Connection, Row, SystemIdentity};
pub use error::{Class, HALT_NAMES, WireError};
pub use frame::{Frame, FrameError, Frames, MAX_STREAM_MESSAGE_BYTES};
pub use pump::StreamEnd;
pub use quote::{identifier, literal};
pub use slot::{CreatedSlot, PhysicalSlot, SlotInfo, SlotOptions};
pub use stats::{PumpCounts, PumpStats};
pub use stream::{CopyStream, StartOptions};
pub use thread::{OwnThread, Panicked, own_thread};
pub use timeline::{HistoryError, TimelineHistory};
pub use tls::{TlsError, client_config};
