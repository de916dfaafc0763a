//! Hints to libfabric, and the entries of its answer.

use std::collections::BTreeSet;
use std::fmt;

use fabric_sys::Version;

use super::{Capability, EndpointType};

/// Requirements on an [`Info`]; fields that are empty match anything.
///
/// All modes and kinds of registration (`mode`, `mr_mode`) are accepted, so none is missing because of them: [`Info`]
/// has those that a provider needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// libfabric's name of a provider: `tcp`, `efa`, `verbs;ofi_rxm`. It also matches those built on it: `tcp` also
    /// `tcp;ofi_rxm`.
    pub provider: Option<String>,
    /// The name of a fabric, upper or lower case.
    pub fabric: Option<String>,
    /// The name of a domain, upper or lower case: a network interface or a device.
    pub domain: Option<String>,
    /// The type of endpoints.
    pub endpoint: Option<EndpointType>,
    /// Capabilities that endpoints must have.
    pub capabilities: Vec<Capability>,
    /// Address of a peer that must be reachable: a host name, or the provider's format.
    pub node: Option<String>,
    /// The peer's port.
    pub service: Option<String>,
}

/// One way to use libfabric on this machine: a provider with a fabric, a domain, and a type of endpoints.
///
/// Names are libfabric's own, so that names that only a newer library knows are included.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The provider: `tcp`, `shm`, `efa`, `verbs;ofi_rxm`.
    pub provider: String,
    /// The provider's own version.
    pub provider_version: Version,
    /// The fabric: endpoints of one fabric may reach each other.
    pub fabric: String,
    /// The domain: a network interface or a device.
    pub domain: String,
    /// The type of endpoints: `FI_EP_RDM`.
    pub endpoint: String,
    /// The wire protocol: `FI_PROTO_EFA`.
    pub protocol: String,
    /// The protocol's version.
    pub protocol_version: u32,
    /// The format of addresses: `FI_SOCKADDR_IN`.
    pub address_format: String,
    /// The address that endpoints get, where it is an internet address or a text.
    pub address: Option<String>,
    /// Capabilities of endpoints: `FI_MSG`, `FI_TAGGED`.
    pub capabilities: BTreeSet<String>,
    /// Requirements of the provider on the program: `FI_CONTEXT`.
    pub mode: BTreeSet<String>,
    /// Requirements on memory registration: `FI_MR_LOCAL`. Empty when there are none.
    pub mr_mode: BTreeSet<String>,
    /// Threading model of the domain: `FI_THREAD_SAFE`.
    pub threading: String,
    /// Progress model of connections and registrations: `FI_PROGRESS_AUTO` by the provider, `FI_PROGRESS_MANUAL` by the
    /// program's calls.
    pub control_progress: String,
    /// Progress model of transfers.
    pub data_progress: String,
    /// The kind of address vectors: `FI_AV_TABLE`.
    pub address_vector: String,
    /// Ordering guarantees of messages: `FI_ORDER_SAS`.
    pub message_order: BTreeSet<String>,
    /// Longest message that can be injected (its buffer is reusable after the call), in bytes.
    pub inject_size: usize,
    /// The longest message, in bytes.
    pub max_message_size: usize,
    /// Sends that may be in flight.
    pub transmit_size: usize,
    /// Receives that may be posted.
    pub receive_size: usize,
    /// The most buffers that one send gathers.
    pub transmit_segments: usize,
    /// The most buffers that one receive scatters to.
    pub receive_segments: usize,
    /// The most remote buffers of one RMA operation.
    pub rma_segments: usize,
    /// Length of the completion data that a message can carry, in bytes.
    pub completion_data_size: usize,
    /// The length of a registration's key, in bytes.
    pub key_size: usize,
    /// The most endpoints of a domain.
    pub endpoints: usize,
    /// The most completion queues of a domain.
    pub completion_queues: usize,
    /// The device, where the provider reports it.
    pub nic: Option<Nic>,
}

/// A network device: `fid_nic`. Fields that the provider does not report are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// Its name in the operating system: `rdmap0s6`, `eth0`.
    pub device: Option<String>,
    /// The model, as the vendor numbers them.
    pub device_id: Option<String>,
    /// The model's version.
    pub device_version: Option<String>,
    /// The vendor's number.
    pub vendor_id: Option<String>,
    /// The driver: `efa`, `mlx5_core`.
    pub driver: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// PCI address: `0000:00:1d.0`.
    pub pci: Option<String>,
    /// The link.
    pub link: Option<Link>,
}

/// The link of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The address of the port.
    pub address: Option<String>,
    /// The longest packet, in bytes; 0 when it is not known.
    pub mtu: usize,
    /// Bits per second; 0 when it is not known.
    pub speed: usize,
    /// State of the link.
    pub state: LinkState,
    /// `Ethernet`, `InfiniBand`.
    pub network: Option<String>,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Not reported.
    Unknown,
    /// It is down.
    Down,
    /// It is up.
    Up,
}

impl LinkState {
    /// The state in a word: `up`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A provider of the loaded libfabric, usable here or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// libfabric's name.
    pub name: String,
    /// The provider's own version.
    pub version: Version,
}
