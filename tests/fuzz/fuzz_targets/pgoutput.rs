//! One replication message: decoded, and every row walked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walgate_core::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::pgoutput(bytes));
