//! The parts of the program nccl-bench: measuring and verifying collectives over NCCL and libfabric.

pub mod data;
