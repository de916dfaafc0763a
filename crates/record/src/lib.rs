//! The record of a run, statistics, readers and writers of result files, and the comparison of runs.

pub mod collective;
pub mod files;
mod links;
pub mod matching;
pub mod nccl_tests;
mod number;
mod pairs;
pub mod provenance;
pub mod rank_test;
pub mod ratios;
mod run;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod settings;
pub mod sides;
pub mod statistics;

pub use links::*;
pub use pairs::*;
pub use run::*;
pub use settings::*;
