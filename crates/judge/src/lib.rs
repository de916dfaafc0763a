//! Judgement of measurements.
//!
//! The crate reads no files and starts no processes: it computes conclusions from records and times.
//!
//! [`judge_run`] compares a run with the ceiling that follows from its machine's links ([`ceiling`]), with
//! values that equal machines reached ([`expectation`]), and with itself. [`pairs`] names the slow nodes or
//! edges of a cluster, and [`versus`] compares two sides by starts of fresh processes.

pub mod ceiling;
pub mod expectation;
pub mod gpu;
pub mod machine;
pub mod pairs;
mod size;
pub mod verdict;
pub mod versus;

pub use machine::{Machine, Nics, Told};
pub use verdict::{Grade, Verdict, judge_run};
