//! Memory that the ranks of one host share.

pub(crate) mod cma_probe;
pub(crate) mod segment;
pub(crate) mod shm;
