//! Every value parser, and the column of its kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walgate_core::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::values(bytes));
