//! Facts about the host of this process.

mod memory;
pub mod rdma;
#[cfg(any(test, feature = "sample"))]
pub mod sample;

pub use memory::available_memory;
