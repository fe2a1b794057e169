//! The one wasmtime engine of the process, and the clock that ends calls which run too long.
//!
//! Holds: how wasmtime is configured and why, and the ticker thread. Refuses to know any plugin.
//! Read next: [`crate::Component`], which compiles with it.

use std::path::Path;
use std::time::Duration;

use wasmtime::{Config, OptLevel, Strategy};

use crate::aot::{self, Cache, CacheError};
use crate::error::Class;

/// Time between two epochs: the grain of every deadline for guest code.
///
/// A deadline fires at most one tick late. One tick costs one atomic addition, so 5 ms is free; it only has to be small
/// against the smallest deadline that can be set (10 ms).
pub const TICK: Duration = Duration::from_millis(5);

/// Bytes of stack a guest may use. Twice wasmtime's default, because interpreters (Python, JavaScript) recurse deeply.
const GUEST_STACK_BYTES: usize = 1 << 20;

/// Bytes of the native stack a call runs on: the guest's part and what host calls below it need.
const CALL_STACK_BYTES: usize = 2 << 20;

/// The least that a thread can insist on being run.
const LEAST_URGENT: i32 = 19;

/// The engine could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime refused the configuration on this machine.
    #[error("the WebAssembly engine cannot run on this machine")]
    Configure(#[source] wasmtime::Error),
    /// The thread that keeps deadlines could not be started.
    #[error("the deadline thread could not be started; raise the limit of threads of the process")]
    Ticker(#[source] std::io::Error),
    /// The cache directory cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl EngineError {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        Class::Operator
    }
}

/// Compiles and runs components. One per process; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: wasmtime::Engine,
    cache: Option<Cache>,
    compiling: Compiling,
}

/// How much of the machine a compilation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compiling {
    /// All of it: nothing else is at work yet.
    AtOnce,
    /// One thread that gives way to every other.
    InTheBackground,
}

impl Engine {
    /// Sets up the engine and its ticker. With a `cache_dir`, compiled code is kept there (see `aot.rs`); without one
    /// every start compiles.
    ///
    /// # Errors
    /// When the machine cannot run it, or the directory is not a private directory of this user.
    pub fn new(cache_dir: Option<&Path>) -> Result<Self, EngineError> {
        let inner = wasmtime::Engine::new(&configuration()).map_err(EngineError::Configure)?;
        start_ticker(&inner)?;
        let cache = cache_dir.map(Cache::open).transpose()?;
        Ok(Self { inner, cache, compiling: Compiling::AtOnce })
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.inner
    }

    /// The same engine, compiling where it takes no time from what runs: a large component keeps both cores of a small
    /// machine for ten seconds otherwise.
    #[must_use]
    pub fn in_the_background(&self) -> Self {
        Self { compiling: Compiling::InTheBackground, ..self.clone() }
    }

    /// Compiles, or takes the compiled form from the cache. `digest` is the SHA-256 of `bytes`.
    pub(crate) fn compile(&self, bytes: &[u8], digest: &[u8; 32]) -> wasmtime::Result<wasmtime::component::Component> {
        let code = || match self.compiling {
            Compiling::AtOnce => precompile(&configuration(), bytes),
            Compiling::InTheBackground => std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("walgate-compile".into());
                let compiling = thread.spawn_scoped(scope, || {
                    // Of this thread alone, as Linux does it. Without it compiling is only less polite.
                    let _ = rustix::process::nice(LEAST_URGENT);
                    let mut configuration = configuration();
                    configuration.parallel_compilation(false);
                    precompile(&configuration, bytes)
                })?;
                compiling.join().unwrap_or_else(|_| Err(wasmtime::Error::msg("the compiler panicked")))
            }),
        };
        match &self.cache {
            Some(cache) => cache.load_or_compile(&self.inner, digest, code),
            None => aot::deserialize(&self.inner, &code()?),
        }
    }
}

/// In an engine of its own, because an engine keeps the memory of its compiler for as long as it lives.
fn precompile(configuration: &Config, bytes: &[u8]) -> wasmtime::Result<Vec<u8>> {
    wasmtime::Engine::new(configuration)?.precompile_component(bytes)
}

/// Epochs and no fuel: an epoch check is one load and compare at a loop head, fuel is arithmetic in every block.
/// `concurrency_support(false)`: no guest of the contract uses component async, and warm calls are 3 to 5 times cheaper.
fn configuration() -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .epoch_interruption(true)
        .concurrency_support(false)
        .wasm_component_model(true)
        .max_wasm_stack(GUEST_STACK_BYTES)
        .async_stack_size(CALL_STACK_BYTES);
    config
}

/// The thread holds the engine weakly, so it ends by itself within a tick of the last engine.
fn start_ticker(engine: &wasmtime::Engine) -> Result<(), EngineError> {
    let weak = engine.weak();
    std::thread::Builder::new()
        .name("walgate-epoch".into())
        .spawn(move || {
            loop {
                std::thread::sleep(TICK);
                let Some(engine) = weak.upgrade() else { return };
                engine.increment_epoch();
            }
        })
        .map(drop)
        .map_err(EngineError::Ticker)
}

/// Ticks after which at least `limit` has passed, whenever in a tick the call begins.
pub(crate) fn ticks(limit: Duration) -> u64 {
    let whole = limit.as_millis().div_ceil(TICK.as_millis());
    u64::try_from(whole).unwrap_or(u64::MAX - 1).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_never_end_a_call_early() {
        assert_eq!(ticks(Duration::from_millis(10)), 3);
        assert_eq!(ticks(Duration::from_millis(11)), 4);
        assert_eq!(ticks(Duration::ZERO), 1);
    }

    #[test]
    fn both_ways_of_compiling_make_the_same() {
        let bytes = crate::test_guest::build("");
        let (mut quiet, loud) = (configuration(), configuration());
        quiet.parallel_compilation(false);
        assert_eq!(precompile(&quiet, &bytes).unwrap(), precompile(&loud, &bytes).unwrap());
        let engine = Engine::new(None).unwrap().in_the_background();
        engine.compile(&bytes, &crate::test_guest::sha256(&bytes)).unwrap();
        assert!(engine.compile(b"nothing", &[0; 32]).is_err());
    }

    #[test]
    fn the_ticker_does_not_keep_the_engine_alive() {
        let engine = Engine::new(None).unwrap();
        let weak = engine.inner.weak();
        drop(engine);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while weak.upgrade().is_some() {
            assert!(std::time::Instant::now() < deadline, "the engine is still alive");
            std::thread::yield_now();
        }
    }
}
