//! Hints to libfabric, and the entries of its answer.

use std::collections::BTreeSet;

use fabric_sys::Version;

use super::{Capability, EndpointType};

/// Requirements on an [`Info`]; empty fields match anything.
///
/// All modes and kinds of registration (`mode`, `mr_mode`) are accepted, so no entry is missing because of
/// them: [`Info`] has the provider's requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Hints {
    /// libfabric's name of a provider: `tcp`, `efa`, `verbs;ofi_rxm`. It also matches providers built on it:
    /// `tcp` also `tcp;ofi_rxm`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub provider: Option<String>,
    /// The type of endpoints.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub endpoint: Option<EndpointType>,
    /// Required capabilities of endpoints.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub capabilities: Vec<Capability>,
    /// The name of a domain, upper or lower case: a network interface or a device.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub domain: Option<String>,
    /// The name of a fabric, upper or lower case.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub fabric: Option<String>,
    /// Address of a peer that must be reachable: a host name, or the provider's format.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub node: Option<String>,
    /// The peer's port.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub service: Option<String>,
}

/// One way to use libfabric on this machine: a provider with a fabric, a domain, and a type of endpoints.
///
/// Names are libfabric's own, and include names known only to a newer library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Info {
    /// The provider: `tcp`, `shm`, `efa`, `verbs;ofi_rxm`.
    pub provider: String,
    /// The provider's own version: `205.10`.
    pub provider_version: String,
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
    /// The address of endpoints, if it is an internet address or a text.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub address: Option<String>,
    /// Capabilities of endpoints: `FI_MSG`, `FI_TAGGED`.
    pub capabilities: BTreeSet<String>,
    /// Requirements of the provider on the program: `FI_CONTEXT`.
    pub mode: BTreeSet<String>,
    /// Requirements on memory registration: `FI_MR_LOCAL`. Empty when there are none.
    pub mr_mode: BTreeSet<String>,
    /// Threading model of the domain: `FI_THREAD_SAFE`.
    pub threading: String,
    /// Progress model of connections and registrations: `FI_PROGRESS_AUTO` by the provider,
    /// `FI_PROGRESS_MANUAL` by the program's calls.
    pub control_progress: String,
    /// Progress model of transfers.
    pub data_progress: String,
    /// The kind of address vectors: `FI_AV_TABLE`.
    pub address_vector: String,
    /// Ordering guarantees of messages: `FI_ORDER_SAS`.
    pub message_order: BTreeSet<String>,
    /// Longest message for injection (its buffer is reusable after the call), in bytes.
    pub inject_bytes: usize,
    /// The longest message, in bytes.
    pub max_message_bytes: usize,
    /// Maximum number of sends in flight.
    pub transmit_size: usize,
    /// Maximum number of posted receives.
    pub receive_size: usize,
    /// Maximum number of buffers gathered by one send.
    pub transmit_segments: usize,
    /// Maximum number of buffers filled by one receive.
    pub receive_segments: usize,
    /// Maximum number of remote buffers of one RMA operation.
    pub rma_segments: usize,
    /// Length of a message's completion data, in bytes.
    pub completion_data_bytes: usize,
    /// The length of a registration's key, in bytes.
    pub key_bytes: usize,
    /// Maximum number of endpoints of a domain.
    pub max_endpoints: usize,
    /// Maximum number of completion queues of a domain.
    pub max_completion_queues: usize,
    /// The device, if the provider reports it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub nic: Option<Nic>,
}

/// A network device: `fid_nic`. Fields not reported by the provider are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Nic {
    /// Its name in the operating system: `rdmap0s6`, `eth0`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub device: Option<String>,
    /// The model, as the vendor numbers them.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub device_id: Option<String>,
    /// The model's version.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub device_version: Option<String>,
    /// The vendor's number.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub vendor_id: Option<String>,
    /// The driver: `efa`, `mlx5_core`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub driver: Option<String>,
    /// The version of the firmware.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub firmware: Option<String>,
    /// PCI address: `0000:00:1d.0`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub pci: Option<String>,
    /// The link.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub link: Option<Link>,
}

/// The link of a network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Link {
    /// The address of the port.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub address: Option<String>,
    /// The longest packet, in bytes; 0 when it is not known.
    pub mtu_bytes: usize,
    /// Bits per second; 0 when it is not known.
    pub bits_per_second: usize,
    /// `up`, `down`, or `unknown`.
    pub state: String,
    /// `Ethernet`, `InfiniBand`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub network: Option<String>,
}

/// A provider of the loaded libfabric, usable here or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// libfabric's name.
    pub name: String,
    /// The provider's own version.
    pub version: Version,
}
