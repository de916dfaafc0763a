//! The safe NCCL layer on a fake NCCL and a fake CUDA driver that record what was queued, launched, freed and when.
//! Numbers in names are those of the holes in other wrappers that the layer closes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests
#![cfg(feature = "nccl")]

mod aborts;
mod calls;
mod capture;
mod collective;
mod creation;
mod endings;
mod endings_at_once;
#[path = "../fake/mod.rs"]
mod fake;
mod fakes;
mod forgotten;
mod graphs;
mod groups;
mod holes;
mod late;
mod membership;
mod operators;
mod ownership;
mod parameters;
mod states;
mod windows;

/// Results of NCCL that the fake is told to answer.
const IN_PROGRESS: i32 = 7;
const REMOTE_ERROR: i32 = 6;
