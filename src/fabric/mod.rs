//! Collectives over host buffers, on libfabric.

mod algorithm;
mod communicator;
mod error;
mod reduction;
#[cfg(test)]
mod simulated;
mod transport;

pub use algorithm::selection::{Algorithm, Collective};
pub use error::Error;
