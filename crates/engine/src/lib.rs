//! The measurement of collectives and of pairs of ranks: requests, backends, timing, verification, and ends
//! before the last measurement.

// Several processes share standard error: `print_message` writes a message as a whole.
#![deny(clippy::print_stderr)]

pub mod agreement;
pub mod backend;
pub mod bench;
pub mod collective;
pub mod data;
mod failure;
pub mod gather;
pub mod groups;
pub mod nccl_choice;
pub mod pairs;
pub mod process;
pub mod request;
pub mod supervision;
pub mod sweep;
