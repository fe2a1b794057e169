//! Crashes, and the proof that they cost nothing: the real binary under load on real servers, killed at every named point
//! and at random, together with its source, its state database and its targets, in every delivery mode, alone and in a pair.
//!
//! Holds: one module a subject. Every change the source committed must be in the ledger that a plugin keeps, in commit
//! order; nothing may be there twice in a mode that promises effect-once. All chance comes from a seed that is printed
//! first; `WALGATE_CRASH_SEED` repeats a run (its choices, not the moments at which the machine gets to them).
//! Never knows: the insides of walgate beyond the names of the points.
//! Read next: `scene.rs` (the life of a pipeline), `blow.rs` (what is done to it), `judge.rs` (what is proved).

mod blow;
mod failpoints;
mod judge;
mod ledger;
mod letters;
mod load;
mod mirror;
mod mode;
mod names;
mod progress;
mod scene;
mod schedule;
mod surroundings;
mod swaps;
mod takeover;
mod truth;
