//! Collectives over host buffers, on libfabric.

mod algorithm;
mod board;
mod communicator;
mod error;
mod reduction;
#[cfg(test)]
mod simulated;
mod transport;

pub use algorithm::selection::{
    Algorithm, Collective, Medium, Plan, RULES, Rule, UnknownAlgorithm, UnknownCollective,
};
pub use communicator::{Communicator, Options};
pub use error::Error;
