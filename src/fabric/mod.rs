//! Collectives over host buffers, endpoints for programs' own messages ([`rdm`]), and the discovery of
//! providers ([`discover`]), on libfabric.
//!
//! A [`Communicator`] has the collectives all_reduce, all_gather, reduce_scatter, broadcast, reduce,
//! all_to_all (with parts of one length or of any), gather, scatter and barrier, and messages between two
//! ranks; most of them also in place, for any number of ranks. The table [`RULES`] selects the algorithm by
//! collective, [`Medium`], ranks and bytes; [`Communicator::plan`] returns the selection, [`Options`]
//! override it.

mod algorithm;
mod calls;
mod communicator;
mod error;
mod host_collectives;
mod hosts;
mod libfabric;
pub mod rdm;
mod reduction;
mod selection;
mod shared_memory;
mod spin;
mod transport;

pub use communicator::{Communicator, Options};
pub use error::{Error, Failure};
pub use fabric_sys::{Fabric as Library, LoadError, Version};
pub use libfabric::discovery::{
    Capability, EndpointType, Hints, Info, Link, Nic, Registered, discover, registered,
};
pub use libfabric::provider::providers;
pub use selection::{Algorithm, Collective, MOST_IN_FLIGHT, Medium, Plan, RULES, Rule};
pub use shared_memory::shm::shm_shortage;
