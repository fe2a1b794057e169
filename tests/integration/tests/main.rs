//! The real binary on real servers: what an operator and a plugin author meet.
//!
//! Holds: one module a subject; every test runs on each major of `WALGATE_MAJORS` (15 and 18 unless said otherwise).
//! Never knows: the insides of walgate. What is asserted is what can be seen from outside: exit codes, messages, the
//! API, files, and the server's own views. Read next: `scene.rs`.

mod bad_plugins;
mod bad_start;
mod dead_letters;
mod directory;
mod faults;
mod grants;
mod holding;
mod hostile;
mod languages;
mod leaders;
mod lineage;
mod main_path;
mod mirror;
mod modes;
mod monitor;
mod probation;
mod programs;
mod recycling;
mod scene;
mod standby;
mod swaps;
mod telemetry;
mod trust;
mod value_safety;
mod values;
mod webhook;
mod window;

/// Makes a test of every scenario in a module: each runs on all majors and names the one it failed on.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(
            pub(crate) mod $name {
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                pub(crate) async fn on_every_major() -> anyhow::Result<()> {
                    for major in walgate_harness::majors() {
                        if let Err(error) = super::$name(major).await {
                            return Err(error.context(format!("on Postgres {major}")));
                        }
                    }
                    Ok(())
                }
            }
        )*
    };
}
pub(crate) use scenarios;
