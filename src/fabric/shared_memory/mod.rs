//! Memory shared by the ranks of one host.

pub(crate) mod cma_probe;
pub(crate) mod segment;
pub(crate) mod shm;
