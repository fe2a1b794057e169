//! Positions as text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walgate_core::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::lsn(bytes));
