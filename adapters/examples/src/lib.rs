//! Data-parallel training: common parts of the example programs.
//!
//! A [`Task`] is a model and its data; [`run`] trains it on all ranks of a job. The batch of a step is the
//! same for any number of ranks. The ranks divide it, so any number of them draws the same curve.

mod checkpoint;
mod data;
pub mod digits;
mod initial;
mod optimizer;
mod options;
mod output;
mod task;
mod team;
mod train;
pub mod transformer;

pub use options::{Common, Processor};
pub use task::{Score, Task};
pub use train::{main, run};
