//! Collectives over host buffers, and endpoints for programs' own messages ([`rdm`]), on libfabric; and what libfabric
//! offers on a machine ([`discover`]).
//!
//! A [`Communicator`] has the collectives: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all (with
//! parts of one length or of any), gather, scatter, barrier, and messages between two ranks; in place where that means
//! something, for any number of ranks. Which algorithm carries one out is a table, [`RULES`], by collective, [`Medium`],
//! ranks and bytes; [`Communicator::plan`] says what it decides, [`Options`] override it.

mod algorithm;
mod attach;
mod board;
mod calls;
mod closing;
mod communicator;
mod discovery;
mod endpoint;
mod error;
mod member;
mod network;
mod objects;
mod operations;
mod provider;
pub mod rdm;
mod reduction;
mod shm;
#[cfg(test)]
mod simulated;
mod transport;
mod ways;

pub use algorithm::selection::{
    Algorithm, Collective, Medium, Plan, RULES, Rule, UnknownAlgorithm, UnknownCollective, UnknownMedium,
};
pub use communicator::{Communicator, Options};
pub use discovery::{
    Capability, EndpointType, Hints, Info, Link, LinkState, Nic, Registered, UnknownCapability,
    UnknownEndpointType, discover, registered,
};
pub use error::{Error, Failure};
pub use fabric_sys::{Fabric as Library, LoadError, Version};
pub use provider::{Provider, providers};
pub use shm::{ShmProtocol, shm_protocol, shm_shortage};
