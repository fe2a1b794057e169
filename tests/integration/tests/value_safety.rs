//! Row values, settings and passwords pushed through every surface by which a host can fail, and then looked for in all it
//! says: logs, metrics, answers, lists, tables, and the names and contents of files.
//!
//! Holds: one test a group of surfaces. Markers are in every column, key, label, logical message and origin, logs are at
//! debug, as JSON and as text in turn. Never knows: how anything is withheld.
//! Read next: `hostile.rs` for the values, `evidence.rs` for where they must not be.

mod evidence;
mod guests;
mod hostile;
mod memory;
mod surroundings;
mod targets;

use guests::*;
use memory::*;
use surroundings::*;
use targets::*;

super::scenarios! {
    the_search_finds_what_is_granted,
    memory_of_guests_and_random_grants,
    texts_of_parked_guests,
    texts_of_guests_with_dead_letters,
    texts_of_guests_that_halt,
    failures_of_parked_guests,
    failures_of_guests_with_dead_letters,
    failures_of_guests_that_halt,
    refusals_of_near_targets_that_halt,
    refusals_of_far_targets_that_halt,
    refusals_with_dead_letters,
    refusals_of_parked_mirrors,
    values_that_cannot_be_carried,
    shapes_and_sessions,
    faults_of_the_state_database,
    faults_of_outputs,
    ends_in_the_middle,
    passwords_and_settings,
}
