//! Every program of `tests/programs`, with a test that is about it. One without does not compile: `build.rs` lists the
//! folders, and each name is looked up here.
//!
//! Holds: the pairs. A program in a suite of another subject stands here with the test that depends on it. Never knows:
//! what the tests do.

/// A test as the compiler sees it.
type Test = fn() -> anyhow::Result<()>;

/// A program, and what answers its test.
type Program = (&'static str, fn() -> Test);

/// One function a program. The path is that of a test, not of the code that it runs: what is no test has no such module.
macro_rules! tested_by {
    ($($program:ident => $($test:ident)::+,)*) => {
        /// The tests, by the name of the program.
        mod tested {
            $(pub(super) fn $program() -> super::Test { crate::$($test)::+ })*
        }
    };
}

tested_by! {
    accepted_not_durable => bad_plugins::accepted_is_flushed_before_it_counts::on_every_major,
    ask_for_everything => bad_plugins::an_ungranted_column_keeps_one_plugin_out::on_every_major,
    call_ungranted => bad_plugins::ungranted_calls_are_denied_when_made::on_every_major,
    commits_by_itself => dead_letters::rejected_rows_are_laid_aside_although_the_sink_has_their_batch::on_every_major,
    dump_memory => value_safety::memory_of_guests_and_random_grants::on_every_major,
    durable_and_lost => hostile::durable_and_lost::on_the_last_major,
    eat_memory => hostile::eat_memory::on_the_last_major,
    flood => hostile::flood_of_state_keys::on_the_last_major,
    flush_later => modes::accepted_is_flushed_by_count::on_every_major,
    garbage_receipt => hostile::one_ordinal_twice::on_the_last_major,
    grow_tables => hostile::grow_tables::on_the_last_major,
    halt_in_deliver => hostile::halt_in_deliver::on_the_last_major,
    halt_in_open => hostile::halt_in_open::on_the_last_major,
    halt_on_poison => dead_letters::a_plugin_that_halts_on_poison_follows_its_policy::on_every_major,
    huge_describe => hostile::huge_describe::on_the_last_major,
    huge_strings => hostile::huge_codes::on_the_last_major,
    invalid_code => hostile::invalid_code::on_the_last_major,
    keep_memory => recycling::above_a_mark_of_memory::on_every_major,
    leak_everything => value_safety::texts_of_parked_guests::on_every_major,
    log_flood => hostile::flood_of_log_lines::on_the_last_major,
    loop_in_deliver => hostile::loop_in_deliver::on_the_last_major,
    loop_in_describe => hostile::loop_in_describe::on_the_last_major,
    loop_in_open => hostile::loop_in_open::on_the_last_major,
    never_answers => hostile::loop_in_flush::on_the_last_major,
    not_a_sink => bad_plugins::files_that_are_no_plugins::on_every_major,
    output_lines => main_path::changes_arrive_in_commit_order::on_every_major,
    own_position => modes::a_position_of_its_own_is_skipped_to::on_every_major,
    panic_with_value => hostile::panic_with_value::on_the_last_major,
    recurse => hostile::recurse::on_the_last_major,
    reject_batch => hostile::reject_batch::on_the_last_major,
    reject_odd => hostile::reject_odd::on_the_last_major,
    reject_poison_batch => dead_letters::a_rejected_batch_is_bisected_to_its_transaction::on_every_major,
    reject_poison_rows => dead_letters::rejected_rows_are_laid_aside_and_the_rest_counts::on_every_major,
    relation_decline => bad_plugins::a_declined_relation_halts_before_its_rows::on_every_major,
    retry_forever => hostile::retry_forever::on_the_last_major,
    retry_then_ok => bad_plugins::a_retry_is_the_same_batch_again::on_every_major,
    rows_liar => value_safety::failures_of_parked_guests::on_every_major,
    sleep_in_deliver => hostile::sleep_in_deliver::on_the_last_major,
    state_counter => recycling::with_the_state_it_had::on_every_major,
    stuck => window::a_stuck_required_plugin_becomes_sink_too_slow::on_every_major,
    trap_after_batches => hostile::trap_after_batches::on_the_last_major,
    trap_in_call => hostile::trap_in_flush::on_the_last_major,
    trap_in_deliver => hostile::trap_in_deliver::on_the_last_major,
    trap_in_open => hostile::trap_in_open::on_the_last_major,
    trap_on_poison => dead_letters::a_trap_on_poison_follows_its_policy::on_every_major,
    unknown_contract => bad_plugins::files_that_are_no_plugins::on_every_major,
    unknown_import => bad_plugins::files_that_are_no_plugins::on_every_major,
    write_in_describe => hostile::write_in_describe::on_the_last_major,
}

// `PROGRAMS`: the folder and `tested::program` of each.
include!(concat!(env!("OUT_DIR"), "/programs.rs"));

#[test]
fn every_program_is_built() -> anyhow::Result<()> {
    anyhow::ensure!(PROGRAMS.len() > 40, "the list of folders is short: {}", PROGRAMS.len());
    PROGRAMS.iter().try_for_each(|(name, _)| walgate_harness::guest(name).map(drop))
}
