//! The safe NCCL layer on a fake NCCL and a fake CUDA driver that record what is queued, launched and freed.
//! Numbers in names are those of the holes in other wrappers that the layer closes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests
#![allow(clippy::disallowed_methods, reason = "an error ends the test")]
#![cfg(feature = "nccl")]

use collectives::nccl::Error;

mod aborts;
mod agreement;
mod calls;
mod capture;
mod capture_locks;
mod close_race;
mod collective;
mod copies;
mod creation;
mod delayed_work;
mod ends_of_groups;
mod errors;
mod exclusion;
mod failures;
#[path = "../fake/mod.rs"]
mod fake;
mod fakes;
mod foreign_captures;
mod graphs;
mod groups;
mod holes;
mod jobs;
mod later_changes;
mod leaked;
mod lifecycle;
mod lifecycle_races;
mod memory;
mod noted_errors;
mod notice;
mod operators;
mod out_of_memory;
mod overlaps;
mod ownership;
mod parameters;
mod prepared;
mod processes;
mod programs;
mod release_order;
mod releases;
mod returned;
#[path = "../shapes/mod.rs"]
mod shape;
mod shapes;
mod soundness;
mod split;
mod states;
mod steps;
mod subscriber;
mod told_of_failures;
mod training;
mod trusted;
mod two_reads;
mod uncounted;
mod unrecorded;
mod windows;
mod woken;

/// Asserts an [`Error::Argument`] with this text.
#[track_caller]
fn not_allowed<T>(result: Result<T, Error>, text: &str) {
    let error = result.err().unwrap();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    assert_eq!(error.to_string(), text);
}

/// NCCL result codes that the fake is set to return.
const IN_PROGRESS: i32 = 7;
const REMOTE_ERROR: i32 = 6;
