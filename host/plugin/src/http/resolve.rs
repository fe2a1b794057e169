//! Names to addresses, once a connection.
//!
//! Holds: the way to the system's resolver, and the seam at which a test answers in its place. Refuses to judge an address.
//! A lookup cannot be interrupted, so each runs on a thread of its own that nobody has to wait for, and their number is
//! bounded: whoever gives a lookup up does not get the next one for free.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};

/// The most addresses that a name may have here. A large service answers a dozen.
const MAX_ADDRESSES: usize = 64;

/// Lookups that may be under way for one plugin, given up ones among them.
const MAX_LOOKUPS: usize = 8;

/// What a lookup answers.
pub(super) type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Knows the addresses of names.
pub(super) trait Resolver: Send + Sync + 'static {
    /// All addresses of a name, as they are now.
    fn resolve(&self, name: &str) -> Answer;
}

/// What the machine is configured to ask.
pub(super) struct System {
    lookups: Arc<Semaphore>,
}

impl Default for System {
    fn default() -> Self {
        Self { lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }
}

impl Resolver for System {
    fn resolve(&self, name: &str) -> Answer {
        let (name, lookups) = (name.to_owned(), Arc::clone(&self.lookups));
        Box::pin(async move {
            let permit = lookups.acquire_owned().await.map_err(io::Error::other)?;
            let (answer, heard) = oneshot::channel();
            std::thread::Builder::new().name("walgate-dns".into()).spawn(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                let found = found.map(|all| all.map(|one| one.ip()).take(MAX_ADDRESSES).collect());
                // Nobody may be left to hear it.
                let _ = answer.send(found);
                drop(permit);
            })?;
            heard.await.map_err(io::Error::other)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_itself() {
        let found = System::default().resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
