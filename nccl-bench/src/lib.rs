//! The program `nccl-bench`, as a library shared by tests and both binaries.

// Several processes share standard error: `print_message` writes a message as a whole.
#![deny(clippy::print_stderr)]

pub mod build;
pub mod cli;
pub mod command;
pub mod exit;
mod limits;
mod log;
pub mod mpi_exec;
pub mod report;
