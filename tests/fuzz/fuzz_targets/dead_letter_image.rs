//! The image of a dead letter, as it comes back from the state database.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walgate_core::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::dead_letter_image(bytes));
