//! Guests that misbehave, one a test, each beside a plugin that does not: the host, the slot, feedback and the other plugin
//! go on, and the status says what happened.
//!
//! Holds: what each program does and how that shows. Never knows: how limits are enforced.
//! Read next: `hostile/beside.rs` for what is checked every time, `tests/programs/README.md` for the programs.

mod answers;
mod beside;
mod calls;
mod floods;
mod losses;

use answers::*;
use calls::*;
use floods::*;
use losses::*;

/// Makes a test of each. On one major: what a guest does is not a matter of the server.
macro_rules! hostile {
    ($($name:ident),* $(,)?) => {
        $(
            pub(crate) mod $name {
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                pub(crate) async fn on_the_last_major() -> anyhow::Result<()> {
                    super::$name(walgate_harness::majors().into_iter().max().unwrap_or(18)).await
                }
            }
        )*
    };
}

hostile! {
    loop_in_deliver,
    loop_in_open,
    loop_in_describe,
    loop_in_relation_changed,
    loop_in_flush,
    loop_in_close,
    sleep_in_deliver,
    sleep_in_relation_changed,
    sleep_in_flush,
    sleep_in_close,
    trap_in_deliver,
    trap_in_open,
    trap_in_relation_changed,
    trap_in_flush,
    trap_in_close,
    trap_after_batches,
    eat_memory,
    recurse,
    grow_tables,
    flood_of_log_lines,
    flood_of_metric_names,
    flood_of_metric_values,
    flood_of_state_keys,
    flood_of_state_bytes,
    flood_of_output,
    flood_that_hears_nothing,
    flood_in_one_call,
    one_ordinal_twice,
    an_ordinal_beyond_the_batch,
    both_ordinals,
    invalid_code,
    huge_codes,
    huge_messages,
    huge_names,
    huge_describe,
    retry_forever,
    reject_batch,
    reject_odd,
    halt_in_deliver,
    halt_in_open,
    panic_with_value,
    write_in_describe,
    durable_and_lost,
    durable_and_lost_with_a_position,
    durable_and_lost_before_a_start,
}
