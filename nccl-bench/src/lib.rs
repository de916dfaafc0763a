//! The parts of `nccl-bench`, as a library so that tests and both binaries share them.

pub mod cli;
pub mod collective;
pub mod size;
pub mod table;
