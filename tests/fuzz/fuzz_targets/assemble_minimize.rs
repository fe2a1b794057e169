//! A stream of messages, each with two bytes of length in front, into batches.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walgate_core::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::assemble_minimize(bytes));
