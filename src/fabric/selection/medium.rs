//! Media of a communicator.

use crate::name::named;

/// Medium of a communicator, for the selection of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// All ranks share memory: messages are cheap, and copied by the processors.
    SharedMemory,
    /// Some ranks are reached through a network, or its loopback.
    Network,
    /// [`Network`](Self::Network) where several ranks share a host. Its rules come before the rules for a
    /// network.
    Hosts,
}

named! {
    Medium:
    SharedMemory = "shared-memory",
    Network = "network",
    Hosts = "hosts",
}
