//! The parts of `nccl-bench`, as a library so that tests and both binaries share them.

pub mod backend;
pub mod cli;
pub mod collective;
pub mod data;
pub mod handover;
pub mod record;
pub mod report;
pub mod run;
pub mod size;
pub mod statistics;
pub mod sweep;
pub mod table;
