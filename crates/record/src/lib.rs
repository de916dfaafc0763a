//! The record of a run: what was measured and on what, its statistics, the result files in both directions, and the
//! matching of several runs.

pub mod collective;
pub mod files;
pub mod matching;
pub mod nccl_tests;
mod number;
pub mod provenance;
pub mod ratios;
mod run;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
pub mod sides;
pub mod statistics;

pub use run::*;
