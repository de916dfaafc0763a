//! Collectives over host buffers, on libfabric.

mod algorithm;
mod communicator;
mod endpoint;
mod error;
mod network;
mod operations;
mod provider;
mod reduction;
mod shm;
#[cfg(test)]
mod simulated;
mod transport;

pub use algorithm::selection::{Algorithm, Collective};
pub use error::{Error, Failure};
pub use provider::{Provider, providers};
pub use shm::{ShmProtocol, prefer_shm_copies, shm_protocol};
